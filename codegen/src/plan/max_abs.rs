//! Largest values of a whole run, such as the largest magnitude of a gradient: each task's, row by row.

use super::canonical::padded;
use super::{Place, Plan, Sink, Source, Stage};
use smallvec::smallvec;
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

/// After each row, its largest values, in registers from `first` on, join those of the rows before.
pub(super) fn so_far(plan: &mut Plan, all: &[Largest], first: usize) -> Stage {
    let mut stage = Stage { once: true, first: false, body: Body::default(), sinks: Vec::new() };
    for (register, Largest { scalar, .. }) in (first..).zip(all) {
        let place = Place::At(padded(&Access::default(), plan.extents.len()));
        let (slot, dtype) = (plan.slots, scalar.dtype());
        plan.slots += 1;
        let load = plan.loads.len() as u32;
        plan.loads.push(Source { slot, dtype, place: place.clone(), elements: 1, fixed: false });
        let before = stage.body.push(ScalarOp::Load(load), &[], *scalar);
        let row = stage.body.push(ScalarOp::Register(register as u32), &[], *scalar);
        let value = stage.body.binary(ScalarOp::Max, before, row);
        stage.sinks.push(Sink::Store { slot, dtype, place, value, after: smallvec![load] });
    }
    stage
}
