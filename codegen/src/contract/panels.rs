//! Right operands that are packed once and used by many contractions.
//!
//! They lie as [`super::contract()`] packs them for itself: blocks of `k` one after another, each in panels of columns. Numbers are
//! two steps of bf16 where these are multiplied in pairs; else they have the dtype of the values if the innermost loop reads that,
//! so that a copy takes no more memory than the operand did.

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

/// Columns are packed in pieces whose borders are multiples of this, and cut for threads at such borders: a multiple of the width of
/// every engine's panels.
pub(crate) const PIECE: usize = 96;

/// How a right operand lies that is packed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panels {
    /// True if two steps of bf16 make a number.
    pub(super) pairs: bool,
    /// The dtype of a number.
    pub(super) cell: DType,
    /// The columns, the last panel filled up.
    pub(super) width: usize,
    acc: DType,
    k: usize,
}

impl Panels {
    /// For an operand of `k` rows and so many columns, if the values of both operands are those of these dtypes.
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

    /// The columns that it has room for.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// What is accumulated in.
    pub(super) fn acc(&self) -> DType {
        self.acc
    }

    /// How many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        let depth = if self.pairs { 2 } else { 1 };
        let numbers = self.k.div_ceil(depth).saturating_mul(self.width);
        numbers.saturating_mul(self.cell.bytes())
    }
}

/// Packs a piece of the columns of `b`, from a multiple of [`PIECE`] to another one or the end, to its place in `to`, where
/// everything has room. Returns the least number of the piece; see [`Engine::pack`].
///
/// # Safety
///
/// `cpu` must be this CPU, and `panels` made for it. A matrix must be readable for the columns and all of `k`. While the
/// piece is packed nobody else may use its place, which must be writable.
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
        // Packing may write a few numbers beyond the last one, where another thread's place may be.
        let packed = scratch.right.room::<E::Num>(room::<E>(piece.len(), E::WIDTH, count));
        let (filled, runs) = (&mut scratch.filled, &mut scratch.runs);
        // SAFETY: the caller's contract.
        let lines = unsafe { b.lines::<E::Num>(piece.clone(), steps, filled, runs) };
        // SAFETY: the lines are readable by the caller's contract, or filled; the room is sized for them.
        least =
            least.min(unsafe { pack::<E>(lines, panels(piece.len(), E::WIDTH), count, packed) });
        let depth = count.div_ceil(E::DEPTH);
        let at = from / E::DEPTH * kept.width + piece.start * depth;
        let to = to.wrapping_add(at * kept.cell.bytes());
        let numbers = piece.len().next_multiple_of(E::WIDTH) * depth;
        match NarrowFloat::of(kept.cell).map(|narrow| tiles.narrow(narrow)) {
            // SAFETY: there are so many f32, and so many 16-bit numbers have room.
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
