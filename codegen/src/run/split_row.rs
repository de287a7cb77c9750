//! Runs a reduction of one long row: every thread takes some of its chunks, whose results are
//! combined in order.

use super::memory::{combine, with_room, with_scratch};
use super::{Invocation, Slots};
use crate::machine::Machine;
use crate::plan::split_row;
use crate::threads::part;
use tracecast_ir::kernel::ROW_CHUNK;

/// A long row at the sizes of a binding.
type SplitRow = split_row::SplitRow<usize>;

/// The bytes of a chunk's result.
const RESULT: usize = 8;

/// Into how many parts a run is cut.
pub(super) fn parts(split: &SplitRow, machine: &Machine) -> usize {
    machine.parts(split.row * split.cost, split.row.div_ceil(ROW_CHUNK))
}

/// The bytes of the results of all chunks.
pub(super) fn bytes(split: &SplitRow) -> usize {
    let chunks = split.row.div_ceil(ROW_CHUNK);
    chunks.saturating_mul(split.reductions.len()).saturating_mul(RESULT)
}

/// Runs it on these operands.
pub(super) fn run(split: &SplitRow, invocation: &Invocation<'_>, operands: &Slots) {
    let chunks = split.row.div_ceil(ROW_CHUNK);
    with_room(invocation.room, bytes(split), |memory| {
        let results = |i: usize, chunk: usize| {
            let size = split.reductions[i].1.dtype().bytes();
            memory.offset((i * chunks * RESULT + chunk * size) as isize)
        };
        let slots = |chunk: usize| {
            let mut slots = operands.clone();
            (0..split.reductions.len()).for_each(|i| slots.push(results(i, chunk)));
            slots
        };
        let parts = parts(split, invocation.machine);
        invocation.team.each(parts, |i| {
            with_scratch(|scratch| {
                for chunk in part(chunks, 1, parts, i) {
                    let from = chunk * ROW_CHUNK;
                    let positions = from..(from + ROW_CHUNK).min(split.row);
                    invocation.call(split.chunk, &slots(chunk), 0..1, positions, scratch);
                }
            });
        });
        for (i, (reduction, scalar)) in split.reductions.iter().enumerate() {
            combine(*reduction, *scalar, results(i, 0), chunks);
        }
        with_scratch(|scratch| invocation.call(split.finish, &slots(0), 0..1, 0..1, scratch));
    });
}
