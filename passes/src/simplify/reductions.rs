//! Reductions over axes of size 1, and extremes of one number.
//!
//! A sum starts from `0.0`, so the sum of the one element `-0.0` is `0.0`: what remains is `x + 0.0`, not `x`.

use super::constants::splat;
use super::{Draft, Recorder};
use smallvec::SmallVec;
use tracecast_ir::ops::{elementwise, view};
use tracecast_ir::{Attrs, DType, TensorType, Var};

/// Simplifies `reduce_row` and `reduce_column`.
pub(super) fn rule<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let x = d.x().ty();
    let axes = match d.name() {
        "reduce_row" => SmallVec::from_slice(&[x.shape.rank().checked_sub(1)?]),
        _ => x.shape.axes(d.attrs.ints("dim")).ok()?,
    };
    let kept = (0..x.shape.rank()).filter(|a| !axes.contains(a)).map(|a| x.shape[a]);
    let result = TensorType { dtype: x.dtype, shape: kept.collect() };
    let kind = d.attrs.str("kind").unwrap_or("sum");
    let is_extreme = matches!(kind, "max" | "min");
    if let Some(value) = splat(r.tracer, d.x()).filter(|_| is_extreme && x.numel() > 0) {
        return Some(r.full(result, value));
    }
    if axes.iter().any(|&a| x.shape[a] != 1) {
        return None;
    }
    if kind == "argmax" {
        return Some(r.full(result.with_dtype(DType::I64), 0.0));
    }
    let sizes: SmallVec<[i64; 4]> = result.shape.iter().map(|&n| n as i64).collect();
    let y = r.apply(&view::RESHAPE, &[d.x()], Attrs::new().with("shape", &sizes[..]));
    let starts_from_zero = kind == "sum" && x.dtype.is_float();
    Some(if starts_from_zero { r.with_scalar(&(&elementwise::ADD).into(), y, 0.0) } else { y })
}
