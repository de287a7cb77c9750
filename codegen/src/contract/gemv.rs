//! GEMV and products of few rows: transposes columns contiguous along `k` in registers.

use super::driver::Run;
use super::macrokernel::leading;
use super::micro::Engine;
use super::micro::avx2::Avx2F32;
use super::micro::avx512::Avx512F32;
use super::micro::gemv::{self, Gemv, ROWS_OF_PAIRS};
use super::operand::Scratch;
use super::pack::{Lines, room, strips};
use super::product::Product;
use super::room_of_sums;
use super::schedule::{Chosen, Load, Schedule};
use super::sink::Sink;
use super::without::{Choice, is_without};
use super::workspace::Workspace;
use crate::machine::InstructionSet;
use smallvec::smallvec;
use tracecast_ir::DType;

/// Columns for each row from which rows are worth packing that are not contiguous along `k`.
const ENOUGH_COLUMNS: usize = 128;
/// Columns per call of the epilogue.
const TOGETHER: usize = 1024;

impl Product<'_> {
    /// The right operand, if few rows use columns that are contiguous along `k`.
    pub(super) fn along_k(&self) -> Option<Lines> {
        let reads = |b: &Lines| match self.cpu.instructions {
            InstructionSet::Avx512 if self.in_pairs() => {
                self.rows.len() <= ROWS_OF_PAIRS && self.is_along::<Avx512F32>(b)
            }
            InstructionSet::Avx512 => self.is_along::<Avx512F32>(b),
            InstructionSet::Avx2 => self.is_along::<Avx2F32>(b),
            InstructionSet::Portable => false,
        };
        self.b.in_memory().filter(|b| self.acc == DType::F32 && reads(b))
    }

    /// True if the engine transposes such columns for these rows.
    fn is_along<E: Gemv>(&self, b: &Lines) -> bool {
        let [rows, columns] = [&self.rows, &self.cols].map(|range| range.len());
        let fits = rows <= E::VECTORS.len() && columns >= E::COLUMNS && 2 * self.k >= E::LANES;
        let is_along_k = self.a.in_memory().is_none_or(|a| a.along == 1);
        let fits = fits && (is_along_k || columns >= ENOUGH_COLUMNS * rows);
        let fits = fits && !is_without(Choice::Gemv);
        fits && b.along == 1 && b.round.is_none() && E::transposes(b.dtype)
    }

    fn has_avx512(&self) -> bool {
        self.cpu.instructions == InstructionSet::Avx512
    }

    /// The left operand, if its rows are read in place.
    fn rows_in_place(&self) -> Option<Lines> {
        let fits = |a: &Lines| a.along == 1 && a.dtype == DType::F32 && a.round.is_none();
        self.a.in_memory().filter(fits)
    }

    /// The schedule for few rows and such columns.
    pub(super) fn chosen_along(&self) -> Chosen {
        let rows = self.rows.len();
        let columns = match self.has_avx512() {
            true => Avx512F32::together(rows),
            false => Avx2F32::together(rows),
        };
        let left = self.a.source.load(self.rows_in_place().is_some());
        Chosen {
            swapped: self.traded,
            tile: Some([rows, columns]),
            blocks: smallvec![("nc", TOGETHER)],
            ..Chosen::new(Schedule::Gemv, [left, Load::InPlace])
        }
    }

    /// Workspace of [`Run::run_few`].
    pub(super) fn workspace_along(&self) -> Workspace {
        let (m, n, k) = (self.rows.len(), self.cols.len().min(TOGETHER), self.k);
        Workspace {
            left: room::<Avx512F32>(m, 1, k),
            filled: self.a.filled(m, k).max(self.dense(m, n)),
            listed: self.a.listed(m, k),
            sums: room_of_sums::<Avx512F32>(m, n),
            ..Workspace::default()
        }
    }
}

impl<E: Engine> Run<'_, Product<'_>, E> {
    /// Computes few rows by columns that are contiguous along `k`.
    pub(super) fn run_few(&self, b: Lines, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        if self.has_avx512() {
            // SAFETY: what `Run` promises, by an engine of the same CPU.
            unsafe { Run::<Product<'_>, Avx512F32>::new(self) }.run_along(b, scratch, sink)
        } else {
            // SAFETY: as above.
            unsafe { Run::<Product<'_>, Avx2F32>::new(self) }.run_along(b, scratch, sink)
        }
    }
}

impl<E: Gemv> Run<'_, Product<'_>, E> {
    fn run_along(&self, b: Lines, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let a = if let Some(lines) = self.rows_in_place() {
            gemv::Rows { base: lines.from(self.rows.start, 0).base.cast(), row: lines.across }
        } else {
            let (filled, runs) = (&mut scratch.filled, &mut scratch.runs);
            // SAFETY: what `Run` promises.
            let lines = unsafe { self.a.lines::<E>(self.rows.clone(), 0..self.k, filled, runs) };
            let rows = scratch.left.room::<f32>(room::<E>(self.rows.len(), 1, self.k));
            for row in 0..self.rows.len() {
                let to = rows.wrapping_add(row * self.k);
                // SAFETY: the lines are readable or filled, and there is room for all of them.
                unsafe { E::pack(&lines.from(row, 0), 1, self.k, to, 1) };
            }
            gemv::Rows { base: rows, row: self.k as isize }
        };
        for part in strips(self.cols.len(), TOGETHER) {
            let first = self.cols.start + part.start;
            let cols = first..first + part.count;
            let ld = leading::<E>(cols.len());
            let sums = scratch.sums.room::<f32>(self.rows.len() * ld);
            let sizes = [self.rows.len(), cols.len(), self.k];
            let b = b.from(cols.start, 0);
            // SAFETY: operands are ready, sums have room; `along_k` checked CPU and columns.
            unsafe { gemv::product::<E>(sizes, a, b, sums, ld) };
            self.finish::<E>(self.rows.clone(), cols, scratch, sink);
        }
    }
}
