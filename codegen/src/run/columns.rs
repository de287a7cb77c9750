//! Runs reductions down the columns: where their accumulators are, and the functions that make
//! outputs of them.

use super::memory::{Address, fill, with_room};
use super::{Invocation, Slots};
use crate::plan::columns::BoundColumn;
use std::ops::Range;
use tracecast_ir::kernel::{GROUP, LEVELS};

/// The memory of the accumulators of all columns during a run.
#[derive(Clone, Copy)]
pub(super) struct Accumulators<'a> {
    columns: &'a [BoundColumn],
    operands: &'a Slots,
    memory: Address,
}

impl Accumulators<'_> {
    /// Appends the accumulators of every column.
    pub(super) fn push(&self, slots: &mut Slots) {
        let mut at = 0;
        for c in self.columns {
            let output = || self.operands.get(c.output);
            slots.push(if c.is_direct { output() } else { self.memory.offset(at) });
            at += c.bytes as isize;
        }
    }
}

/// The bytes of the accumulators of all columns.
pub(super) fn bytes(columns: &[BoundColumn]) -> usize {
    columns.iter().map(|c| c.bytes).fold(0, usize::saturating_add)
}

/// Runs what fills the accumulators, and makes the outputs of them.
pub(super) fn with_accumulators(
    columns: &[BoundColumn],
    invocation: &Invocation<'_>,
    run: impl FnOnce(Accumulators<'_>),
) {
    let operands = invocation.operands;
    with_room(invocation.room, bytes(columns), |memory| {
        run(Accumulators { columns, operands, memory });
        let mut at = 0;
        for c in columns {
            if c.rows == 0 {
                fill(c.scalar, memory.offset(at), c.reduction.identity(c.scalar), c.size);
            }
            let accumulators = memory.offset(at);
            at += c.bytes as isize;
            let call = |step, [first, second]: [Address; 2], rows| {
                let mut slots = operands.without_addresses();
                slots.push(first);
                slots.push(second);
                invocation.over_positions(step, &slots, rows, c.size);
            };
            if let Some(sum) = c.sum {
                let line = (c.size * c.scalar.dtype().bytes()) as isize;
                each_group(c.chunks, |first, others| {
                    call(sum, [accumulators.offset(first as isize * line), accumulators], others);
                });
            }
            if let Some(finish) = c.finish {
                call(finish, [accumulators, operands.get(c.output)], 0..1);
            }
        }
    });
}

/// Visits the steps of a [`Cascade`](tracecast_ir::kernel::Cascade) in place: the first chunk of a
/// group, and the chunks that are added to it.
fn each_group(chunks: usize, mut each: impl FnMut(usize, Range<usize>)) {
    for first in (0..chunks).step_by(GROUP) {
        each(first, first + 1..chunks.min(first + GROUP));
    }
    let mut apart = GROUP;
    for level in 1..LEVELS {
        let group = if level + 1 == LEVELS { chunks } else { apart * GROUP };
        for first in (0..chunks).step_by(group.max(1)) {
            for other in (first + apart..chunks.min(first + group)).step_by(apart) {
                each(first, other..other + 1);
            }
        }
        apart = group;
    }
}

#[cfg(test)]
mod tests {
    use super::each_group;
    use tracecast_ir::kernel::{Cascade, GROUP};

    #[test]
    fn groups_are_those_of_a_cascade() {
        for chunks in [1, 2, GROUP, GROUP + 1, 3 * GROUP * GROUP + 2 * GROUP + 5] {
            let of = |i: usize| if i.is_multiple_of(7) { 3e7 } else { i as f32 + 0.3 };
            let (mut lines, mut cascade) =
                ((0..chunks).map(of).collect::<Vec<_>>(), Cascade::default());
            (0..chunks).for_each(|i| cascade.push(of(i), |a, b| a + b));
            each_group(chunks, |first, others| others.for_each(|i| lines[first] += lines[i]));
            assert_eq!(Some(lines[0]), cascade.total(|a, b| a + b), "{chunks}");
        }
    }
}
