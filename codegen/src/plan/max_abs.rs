//! The largest value of a whole kernel, such as the largest magnitude of a gradient: reduced along
//! each row, then over the rows of a task. `run::max_abs` reduces over the tasks.

use super::loops::padded;
use super::{Place, Plan, Sink, Source, Stage};
use smallvec::smallvec;
use tracecast_ir::Size;
use tracecast_ir::kernel::{Access, Body, Reduction, Scalar, ScalarOp, Val};

/// A largest value: its type, and the slot that it ends in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Largest {
    /// f32 or f64.
    pub(crate) scalar: Scalar,
    /// The kernel's operand, or the segment's.
    pub(crate) output: usize,
}

/// The largest value of a row.
pub(super) fn of_row(value: Val, register: usize) -> Sink {
    Sink::Reduce { reduction: Reduction::Max, value, register }
}

/// Appends a stage that after each row has its largest values join those of the rows before.
pub(super) fn append_so_far(plan: &mut Plan, largest: &[Largest], registers: usize) {
    if largest.is_empty() {
        return;
    }
    let (mut body, mut sinks) = (Body::default(), Vec::new());
    for (register, Largest { scalar, .. }) in (registers..).zip(largest) {
        let place = Place::At(padded(&Access::default(), plan.extents.len()));
        let (slot, dtype) = (plan.slots, scalar.dtype());
        plan.slots += 1;
        let load = plan.loads.len() as u32;
        plan.loads.push(Source::new(slot, dtype, place.clone(), Size::from(1), false));
        let before = body.push(ScalarOp::Load(load), &[], *scalar);
        let row = body.push(ScalarOp::Register(register as u32), &[], *scalar);
        let value = body.binary(ScalarOp::Max, before, row);
        sinks.push(Sink::Store { slot, dtype, place, value, after: smallvec![load] });
    }
    plan.stages.push(Stage::once_per_row(body, sinks));
}
