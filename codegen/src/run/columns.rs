//! Runs reductions down the columns: where their accumulators are, and the functions that make outputs of them.

use super::memory::{Address, fill, with_room};
use super::{Invocation, Slots};
use crate::plan::columns::BoundColumn;

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
            for (step, rows) in [(c.sum, 1..c.chunks), (c.finish, 0..1)] {
                if let Some(step) = step {
                    let mut slots = operands.without_addresses();
                    slots.push(accumulators);
                    slots.push(operands.get(c.output));
                    invocation.over_positions(step, &slots, rows, c.size);
                }
            }
        }
    });
}
