//! Packs right operands (weights) that are kept, piece by piece.

use super::engines::with_engine;
use super::micro::Engine;
use super::operand::{Operand, Scratch, Source};
use super::pack::{Wider, pack, panels, room};
use super::packed_weights::{PIECE, Panels};
use super::workspace::Workspace;
use crate::machine::{Cpu, InstructionSet};
use crate::routines::{NarrowFloat, Tiles};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Workspace of [`keep`] for any piece.
pub(crate) fn workspace_to_keep(cpu: &Cpu, panels: &Panels) -> Workspace {
    with_engine!(cpu, panels.acc, panels.pairs, E => {
        let right = room::<E>(PIECE, E::WIDTH, CONTRACT_BLOCK);
        let filled = PIECE * CONTRACT_BLOCK;
        Workspace { right, filled, ..Workspace::default() }.times(size_of::<<E as Engine>::Num>())
    })
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
/// The CPU must be the engine's, and `kept` made for it. A matrix must be readable for the columns
/// and `k`. The piece's place must be writable, and nobody else may use it meanwhile.
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
        let lines = unsafe { b.lines::<E>(piece.clone(), steps, filled, runs) };
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
