//! [`CountsInF32`]: the end of a loss scaler's step by arithmetic in f32 alone.

use tracecast_runtime::ir::ops::elementwise::Elementwise;
use tracecast_runtime::ir::{DType, Var};
use tracecast_runtime::{ScaleUpdate, ScalerRecorder};

/// Counts good steps in f32, which is exact up to 2²⁴ of them, and moves the scale as the op of
/// everywhere does.
#[derive(Clone, Copy, Debug)]
pub struct CountsInF32;

impl ScalerRecorder for CountsInF32 {
    fn update_scale<'t>(&self, now: ScaleUpdate<'t>) -> Option<[Var<'t>; 2]> {
        let (scale, found) = (now.scale, now.found_inf);
        let (grown, count) = (scale * now.growth_factor, now.tracker + 1.0);
        // NaN is not good, and no other op asks this: truth values are for kernels, and their
        // memory has none.
        let (good, due) = (found.eq(0.0), count.eq(now.growth_interval as f64));
        let kept = due.logical_and(grown.lt(f64::INFINITY)).choose(grown, scale);
        #[allow(clippy::eq_op, reason = "it is an op of the program, whose result is zero")]
        let zero = count - count;
        let next = good.choose(kept, scale * now.backoff_factor);
        Some([next, good.choose(due.choose(zero, count), zero)])
    }

    fn tracker(&self) -> Option<DType> {
        Some(DType::F32)
    }
}
