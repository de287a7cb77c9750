//! What a device from outside records in the place of the ops of loss scaling, checked.

use crate::trace::Trace;
use tracecast_ir::ops::amp::LossScaling;
use tracecast_ir::{DType, TensorType, Var};
use tracecast_runtime::ScaleUpdate;

/// The check of a gradient, one f32 that is not zero if it was not finite; and the gradient times
/// `inverse`.
#[track_caller]
pub(super) fn check_and_unscale<'t>(t: &'t Trace, grad: Var<'t>, inverse: Var<'t>) -> [Var<'t>; 2] {
    let own = match t.home().recorder() {
        Some(own) => t.tracer().at_caller(|| own.unscale_and_check(grad, inverse)),
        None => None,
    };
    let Some([unscaled, found]) = own else {
        let found = grad.nonfinite();
        return [found, grad.unscale(inverse)];
    };
    gives(t, "an unscaled gradient", unscaled, &grad.ty());
    gives(t, "the check of a gradient", found, &TensorType::scalar(DType::F32));
    [found, unscaled]
}

/// The next scale, and the next count of good steps.
#[track_caller]
pub(super) fn update_scale<'t>(t: &'t Trace, now: ScaleUpdate<'t>) -> [Var<'t>; 2] {
    let own = match t.home().recorder() {
        Some(own) => t.tracer().at_caller(|| own.update_scale(now)),
        None => None,
    };
    let Some([next, count]) = own else {
        let ScaleUpdate { growth_factor, backoff_factor, growth_interval, .. } = now;
        let next = now.scale.update_scale(
            now.tracker,
            now.found_inf,
            growth_factor,
            backoff_factor,
            growth_interval,
        );
        return [next, next.result(1)];
    };
    gives(t, "the next scale", next, &now.scale.ty());
    gives(t, "the next growth tracker", count, &now.tracker.ty());
    [next, count]
}

/// The dtype in which good steps are counted; an error of the trace if the device keeps no scale.
#[track_caller]
pub(super) fn tracker(t: &Trace) -> DType {
    if let Some(dtype) = t.home().tracker() {
        return dtype;
    }
    let name = t.home().name();
    let why = "keeps no scale, and a recorded step has it on its device: use an eager scaler, which keeps it on the host";
    t.fail("grad_scaler", format!("`{name}` {why}"));
    DType::I32
}

#[track_caller]
fn gives(t: &Trace, what: &str, found: Var<'_>, expected: &TensorType) {
    if !found.is_poison() && found.ty() != *expected {
        let name = t.home().name();
        let found = found.ty();
        t.fail("grad_scaler", format!("`{name}` records {what} as {found}, expected {expected}"));
    }
}
