//! Runs transposed convolutions: each thread takes some planes.

use super::Invocation;
use super::memory::{Address, Rows, narrow_rows, transposed};
use crate::contract::{Cpu, Rooms, Transposed};
use crate::machine::InstructionSet;
use crate::plan::transposed::TransposedDispatch as Dispatch;
use crate::routines::{NarrowFloat, Tiles};
use crate::threads::{Team, part};

/// A transposed convolution at the sizes of a binding.
pub(super) type TransposedDispatch = Dispatch<usize>;

/// Multiply-adds that count as one cheap operation.
const PER_OPERATION: usize = 8;

/// Runs it.
pub(super) fn run(of: &TransposedDispatch, invocation: &Invocation<'_>) {
    let instructions = invocation.target.instructions;
    let cpu = Cpu::with(instructions);
    let work = work(of, &cpu);
    let operands = [0, of.inputs - 1, of.inputs].map(|slot| invocation.operands.get(slot));
    let narrow = NarrowFloat::of(of.dtype).map(|narrow| Tiles::of(instructions).narrow(narrow));
    let count = of.to[0] * of.to[1];
    let round = |plane: usize, sums: Address| {
        let narrow = narrow.expect("sums that are not stored are rounded");
        let bytes = count * of.dtype.bytes();
        let from = Rows { first: sums, step: count * size_of::<f32>() };
        let to = Rows { first: operands[2].offset((plane * bytes) as isize), step: bytes };
        narrow_rows(narrow, from, to, 1, count);
    };
    let parts = parts(of, invocation.team);
    invocation.team.each(parts, |i| {
        transposed(&work, operands, part(of.planes, 1, parts, i), &mut { round });
    });
}

/// The work for any planes.
fn work<'a>(of: &TransposedDispatch, cpu: &'a Cpu) -> Transposed<'a> {
    let Dispatch { dtype, channels, from, to, moves, .. } = *of;
    Transposed { cpu, dtype, channels, from, to, moves }
}

/// What each thread takes.
pub(super) fn rooms(of: &TransposedDispatch, instructions: InstructionSet) -> Rooms {
    work(of, &Cpu::with(instructions)).rooms()
}

/// Into how many parts a run is cut.
pub(super) fn parts(of: &TransposedDispatch, team: &Team) -> usize {
    let window: usize = of.moves.iter().map(|moves| moves.positions).product();
    let ([rows, columns], [height, width]) = (of.from, of.to);
    let each = rows * columns * window / PER_OPERATION + height * width;
    team.parts(of.planes * each, of.planes)
}
