//! Runs reductions down the columns: where their accumulators are, and the functions that make outputs of them.

use super::memory::{Address, fill, with_shared};
use super::{Invocation, Slots};
use crate::plan::columns;

/// A column at the sizes of a binding.
type Column = columns::Column<usize>;

/// The memory of the accumulators of all columns during a run.
#[derive(Clone, Copy)]
pub(super) struct Accumulators<'a> {
    columns: &'a [Column],
    operands: &'a Slots,
    memory: Address,
}

impl Accumulators<'_> {
    /// Appends the accumulators of every column.
    pub(super) fn push(&self, slots: &mut Slots) {
        let mut at = 0;
        for c in self.columns {
            let direct = c.is_direct();
            slots.push(if direct { self.operands.get(c.output) } else { self.memory.offset(at) });
            at += c.bytes() as isize;
        }
    }
}

/// Runs what fills the accumulators, and makes the outputs of them.
pub(super) fn with_accumulators(
    columns: &[Column],
    invocation: &Invocation<'_>,
    run: impl FnOnce(Accumulators<'_>),
) {
    let operands = invocation.operands;
    with_shared(columns.iter().map(Column::bytes).sum(), |memory| {
        run(Accumulators { columns, operands, memory });
        let mut at = 0;
        for c in columns {
            if c.rows == 0 {
                fill(c.scalar, memory.offset(at), c.reduction.identity(c.scalar), c.size);
            }
            let mut slots = operands.without_addresses();
            slots.push(memory.offset(at));
            slots.push(operands.get(c.output));
            at += c.bytes() as isize;
            let finish = c.finish.filter(|_| !c.is_direct());
            for (step, rows) in [(c.sum, 1..c.chunks().max(1)), (finish, 0..1)] {
                if let Some(step) = step {
                    invocation.over_positions(step, &slots, rows, c.size);
                }
            }
        }
    });
}
