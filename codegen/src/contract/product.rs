//! [`Product`]: the part of a product of matrices that a thread computes.

use super::driver::{OnEngine, Run};
use super::engines::with_engine;
use super::micro::Engine;
use super::operand::{Operand, Scratch, Source};
use super::prefetch::Prefetch;
use super::schedule::Chosen;
use super::sink::{Sink, Stored};
use super::without::{Choice, is_without};
use super::workspace::Workspace;
use crate::machine::{Cpu, InstructionSet};
use std::ops::Range;
use tracecast_ir::DType;

/// Products of at most this many columns swap rows and columns.
const FEW_COLUMNS: usize = 4;
/// Results of fewer columns go to the epilogue in one call.
pub(super) const NARROW: usize = 64;

/// A range of rows and columns of a product, over all of `k`.
pub(crate) struct Product<'a> {
    pub(super) cpu: &'a Cpu,
    /// Accumulator: f32 or f64.
    pub(super) acc: DType,
    pub(super) rows: Range<usize>,
    pub(super) cols: Range<usize>,
    pub(super) k: usize,
    pub(super) a: Operand<'a>,
    pub(super) b: Operand<'a>,
    /// Rows and columns of the result are swapped.
    pub(super) traded: bool,
    /// What the epilogue reads and writes.
    pub(crate) prefetched: &'a [Prefetch],
    /// Destination of sums that need no epilogue.
    pub(crate) stored: Option<Stored>,
}

impl<'a> Product<'a> {
    /// The product of these operands, whose sums go to the epilogue.
    pub(crate) fn new(
        cpu: &'a Cpu,
        acc: DType,
        [rows, cols]: [Range<usize>; 2],
        k: usize,
        [a, b]: [Source<'a>; 2],
    ) -> Self {
        let traded = !b.is_packed()
            && cols.len() <= FEW_COLUMNS
            && rows.len() > cols.len()
            && !is_without(Choice::Swap);
        // A line is a row of the left operand or a column of the right one.
        let (a, b) = (Operand { source: a, columns: false }, Operand { source: b, columns: true });
        let (prefetched, stored) = (&[][..], None);
        if traded {
            let (rows, cols, a, b) = (cols, rows, b, a);
            Product { cpu, acc, rows, cols, k, a, b, traded, prefetched, stored }
        } else {
            Product { cpu, acc, rows, cols, k, a, b, traded, prefetched, stored }
        }
    }

    /// True if it reads its whole right operand in place.
    pub(crate) fn reads_in_place(&self) -> bool {
        let (cpu, acc, pairs) = self.on();
        with_engine!(cpu, acc, pairs, E => self.reads_again::<E>(self.cols.len()))
    }
}

impl OnEngine for Product<'_> {
    fn on(&self) -> (Cpu, DType, bool) {
        #[cfg(target_arch = "x86_64")]
        let pairs = self.in_pairs();
        #[cfg(not(target_arch = "x86_64"))]
        let pairs = false;
        (*self.cpu, self.acc, pairs)
    }

    fn ranges(&self) -> [&Range<usize>; 2] {
        [&self.rows, &self.cols]
    }

    fn workspace_with<E: Engine>(&self) -> Workspace {
        #[cfg(target_arch = "x86_64")]
        if self.along_k().is_some() {
            return self.workspace_along();
        }
        self.workspace_blocked::<E>()
    }

    fn chosen_with<E: Engine>(&self) -> Chosen {
        #[cfg(target_arch = "x86_64")]
        if self.along_k().is_some() {
            return self.chosen_along();
        }
        self.chosen_blocked::<E>()
    }

    fn run_with<E: Engine>(run: Run<'_, Self, E>, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        #[cfg(target_arch = "x86_64")]
        if let Some(columns) = run.along_k() {
            return run.run_few(columns, scratch, sink);
        }
        run.run_blocked(scratch, sink);
    }
}
