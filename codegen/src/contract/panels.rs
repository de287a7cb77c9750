//! Right operands (weights) that are packed once and used by many contractions.
//!
//! The layout is that of [`super::contract()`]: blocks of `k`, each in panels of columns. An
//! element is a pair of bf16 steps where these are multiplied in pairs. Else it has the operand's
//! dtype if the kernel reads that, so the copy is no larger than the operand.

use super::micro::Engine;
use super::operand::{Operand, Scratch, Source};
use super::pack::{Wider, pack, panels, room};
use super::with_engine;
use super::workspace::workspace_to_keep;
use crate::machine::{Cpu, InstructionSet};
use crate::routines::{NarrowFloat, Tiles};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

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
    pub(super) width: usize,
    acc: DType,
    k: usize,
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

    /// Columns, rounded up to whole panels.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The accumulator.
    pub(super) fn acc(&self) -> DType {
        self.acc
    }

    /// Bytes of the packed operand.
    pub(crate) fn bytes(&self) -> usize {
        let depth = if self.pairs { 2 } else { 1 };
        let numbers = self.k.div_ceil(depth).saturating_mul(self.width);
        numbers.saturating_mul(self.cell.bytes())
    }
}

/// Packs a piece of the columns of `b`, which begins at a multiple of [`PIECE`], to its place in
/// `to`. Returns its least magnitude; see [`Engine::pack`].
///
/// # Safety
///
/// `cpu` must be this CPU, and `panels` made for it. A matrix must be readable for the columns and
/// `k`. The piece's place must be writable, and nobody else may use it meanwhile.
pub(crate) unsafe fn keep(
    cpu: &Cpu,
    panels: &Panels,
    piece: Range<usize>,
    b: &Source<'_>,
    scratch: &mut Scratch,
    to: *mut u8,
) -> u16 {
    let workspace = || workspace_to_keep(cpu, panels);
    scratch.held_to(workspace, |scratch| {
        let tiles = Tiles::of(cpu.instructions);
        with_engine!(cpu, panels.acc, panels.pairs, E => {
            // SAFETY: the caller's contract.
            unsafe { keep_with::<E>(tiles, panels, piece, b, scratch, to) }
        })
    })
}

/// # Safety
///
/// As [`keep`], and the CPU must be the engine's.
unsafe fn keep_with<E: Engine>(
    tiles: &Tiles,
    kept: &Panels,
    piece: Range<usize>,
    b: &Source<'_>,
    scratch: &mut Scratch,
    to: *mut u8,
) -> u16 {
    let b = Operand { source: *b, columns: true };
    let mut least = u16::MAX;
    for from in (0..kept.k).step_by(CONTRACT_BLOCK) {
        let steps = from..kept.k.min(from + CONTRACT_BLOCK);
        let count = steps.len();
        // Packing may write past the piece, where another thread's may be.
        let packed = scratch.right.room::<E::Num>(room::<E>(piece.len(), E::WIDTH, count));
        let (filled, runs) = (&mut scratch.filled, &mut scratch.runs);
        // SAFETY: the caller's contract.
        let lines = unsafe { b.lines::<E::Num>(piece.clone(), steps, filled, runs) };
        // SAFETY: the lines are readable or filled; the room is sized for them.
        least =
            least.min(unsafe { pack::<E>(lines, panels(piece.len(), E::WIDTH), count, packed) });
        let depth = count.div_ceil(E::DEPTH);
        let at = from / E::DEPTH * kept.width + piece.start * depth;
        let to = to.wrapping_add(at * kept.cell.bytes());
        let numbers = piece.len().next_multiple_of(E::WIDTH) * depth;
        match NarrowFloat::of(kept.cell).map(|narrow| tiles.narrow(narrow)) {
            // SAFETY: `packed` holds `numbers` f32, and `to` has room for as many 16-bit floats.
            Some(narrow) => unsafe { narrow(packed.cast_const().cast(), to, numbers) },
            None => {
                debug_assert_eq!(kept.cell, E::Num::DTYPE);
                // SAFETY: as above, for numbers of one dtype.
                unsafe { std::ptr::copy_nonoverlapping(packed, to.cast(), numbers) }
            }
        }
    }
    least
}
