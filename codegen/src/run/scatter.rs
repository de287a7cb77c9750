//! Runs scatters: copies the base, combines it with the sources in order, rounds 16-bit sums and
//! products at the end.

use super::memory::{with_room, with_scratch};
use super::{Invocation, Slots};
use crate::machine::Machine;
use crate::plan::scatter::{self, COMBINE, COPY, ROUND};
use crate::threads::part;
use tracecast_ir::DType;

/// A scatter at the sizes of a binding.
type ScatterDispatch = scatter::ScatterDispatch<usize>;

/// Runs it.
pub(super) fn run(scatter: &ScatterDispatch, invocation: &Invocation<'_>) {
    let operands = invocation.operands;
    with_room(invocation.room, bytes(scatter), |memory| {
        let output = operands.get(scatter.output);
        let acc = if scatter.low { memory } else { output };
        let base = scatter.base.map_or(output, |b| operands.get(b));
        let pair = |a, b| {
            let mut slots = operands.without_addresses();
            slots.push(a);
            slots.push(b);
            slots
        };
        if scatter.base.is_none() || base != acc {
            invocation.over_positions(COPY, &pair(base, acc), 0..1, scatter.size);
        }
        let mut slots = operands.clone();
        slots.push(acc);
        if scatter.rows > 0 && scatter.row > 0 {
            combine(scatter, invocation, &slots);
        }
        if scatter.low {
            invocation.over_positions(ROUND, &pair(acc, output), 0..1, scatter.size);
        }
    });
}

/// The bytes of what is accumulated, where the output does not hold them.
pub(super) fn bytes(scatter: &ScatterDispatch) -> usize {
    if scatter.low { scatter.size.saturating_mul(DType::F32.bytes()) } else { 0 }
}

/// Into how many parts a run is cut.
pub(super) fn parts(scatter: &ScatterDispatch, machine: &Machine) -> usize {
    let most = if scatter.positions_independent { scatter.row.div_ceil(16) } else { 1 };
    machine.parts(scatter.rows * scatter.row * scatter.cost, most)
}

fn combine(scatter: &ScatterDispatch, invocation: &Invocation<'_>, slots: &Slots) {
    let parts = parts(scatter, invocation.machine);
    invocation.team.each(parts, |i| {
        let positions = part(scatter.row, 16, parts, i);
        with_scratch(|scratch| {
            invocation.call(COMBINE, slots, 0..scatter.rows, positions, scratch)
        });
    });
}
