//! Right operands (weights) that are packed once and used by many contractions.
//!
//! The layout is that of [`super::Product`]: blocks of `k`, each in panels of columns. An
//! element is a pair of bf16 steps where these are multiplied in pairs. Else it has the operand's
//! dtype if the kernel reads that, so the copy is no larger than the operand.

use super::engines::with_engine;
use super::micro::Engine;
use crate::machine::{Cpu, InstructionSet};
use tracecast_ir::DType;

/// Columns per packed piece; threads split columns at its multiples. A multiple of the panel width
/// of every engine.
pub(crate) const PIECE: usize = 96;

/// Layout of a right operand that is packed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panels {
    /// True if an element is a pair of bf16 steps.
    pub(super) pairs: bool,
    /// Dtype of an element.
    pub(super) cell: DType,
    /// Columns, rounded up to whole panels.
    pub(crate) width: usize,
    /// The accumulator.
    pub(super) acc: DType,
    pub(super) k: usize,
}

impl Panels {
    /// Layout for an operand of `[k, columns]`, given the dtypes of both operands' values.
    pub(crate) fn new(
        cpu: &Cpu,
        acc: DType,
        [left, right]: [DType; 2],
        [k, columns]: [usize; 2],
    ) -> Panels {
        let pairs = cpu.pairs && acc == DType::F32 && [left, right] == [DType::BF16; 2];
        let (unit, reads) = with_engine!(cpu, acc, pairs, E => (E::WIDTH, E::reads(right)));
        let cell = if reads && !pairs { right } else { acc };
        Panels { pairs, cell, width: columns.next_multiple_of(unit), acc, k }
    }

    /// Bytes of the packed operand.
    pub(crate) fn bytes(&self) -> usize {
        let depth = if self.pairs { 2 } else { 1 };
        let numbers = self.k.div_ceil(depth).saturating_mul(self.width);
        numbers.saturating_mul(self.cell.bytes())
    }
}
