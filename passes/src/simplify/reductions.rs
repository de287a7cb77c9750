//! Reductions over axes of size 1, and of a number that is everywhere the same.
//!
//! A sum starts from `0.0`, so the sum of the one element `-0.0` is `0.0`: what remains is
//! `x + 0.0`, not `x`.

use super::constants::splat;
use super::recorder::{Draft, Recorder};
use smallvec::SmallVec;
use tracecast_ir::kernel::{Combine, Scalar, ScalarOp};
use tracecast_ir::op::Lower;
use tracecast_ir::ops::{elementwise, reduce, view};
use tracecast_ir::{Attrs, TensorType, Var};

/// Simplifies a core reduction.
pub(super) fn rule<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let x = d.x().ty();
    let axes = match d.lowering() {
        Some(Lower::ReduceRow) => SmallVec::from_slice(&[x.shape.rank().checked_sub(1)?]),
        _ => x.shape.axes(d.attrs.ints("dim")).ok()?,
    };
    let kept = (0..x.shape.rank()).filter(|a| !axes.contains(a)).map(|a| x.shape[a]);
    let result = TensorType { dtype: x.dtype, shape: kept.collect() };
    let reduction = reduce::reduction(&d.attrs).ok()?;
    let picks = reduction.picks_value() && r.tracer.proves(x.numel().at_least(1));
    if let Some(value) = splat(r.tracer, d.x()).filter(|_| picks) {
        return Some(r.full(result, value));
    }
    if axes.iter().any(|&a| x.shape[a] != 1) {
        return None;
    }
    if reduction.is_position() {
        let dtype = reduction.result_dtype(x.dtype);
        return Some(r.full(result.with_dtype(dtype), 0.0));
    }
    let y = r.apply(&view::RESHAPE, &[d.x()], Attrs::new().with("shape", &result.shape[..]));
    if reduction.keeps_single(Scalar::of(x.dtype)?) {
        return Some(y);
    }
    match reduction.combines() {
        Combine::Value(ScalarOp::Add) => Some(r.with_scalar(&(&elementwise::ADD).into(), y, 0.0)),
        Combine::Value(_) | Combine::Position(_) => None,
    }
}
