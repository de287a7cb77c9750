//! Runs reductions down the columns: where their accumulators are, and the functions that make outputs of them.

use super::Slots;
use super::memory::{Address, with_shared};
use super::nest::over_positions;
use crate::code::link::Code;
use crate::plan::columns::Column;
use crate::threads::Team;
use std::sync::atomic::AtomicU64;

/// The memory of the accumulators of all columns during a run.
#[derive(Clone, Copy)]
pub(crate) struct Accumulators<'a> {
    columns: &'a [Column],
    operands: &'a Slots,
    memory: Address,
}

impl Accumulators<'_> {
    /// Appends the accumulators of every column.
    pub(crate) fn push(&self, slots: &mut Slots) {
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
    code: &[Code],
    team: &Team,
    operands: &Slots,
    status: &AtomicU64,
    run: impl FnOnce(Accumulators<'_>),
) {
    with_shared(columns.iter().map(Column::bytes).sum(), |memory| {
        run(Accumulators { columns, operands, memory });
        let mut at = 0;
        for c in columns {
            let mut slots = Slots::default();
            slots.push(memory.offset(at));
            slots.push(operands.get(c.output));
            at += c.bytes() as isize;
            let (size, chunks) = (c.size as usize, c.chunks() as usize);
            for (step, rows) in [(c.sum, 1..chunks.max(1)), (c.finish, 0..1)] {
                if let Some(step) = step {
                    over_positions(&code[step], team, &slots, rows, size, status);
                }
            }
        }
    });
}
