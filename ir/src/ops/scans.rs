//! Results so far along an axis: sums, products, logarithms of sums, extremes with their positions.

use super::index::Indexing;
use super::infer;
use super::lines::LineOps;
use super::sorting::both;
use super::view::Views;
use crate::kernel::line::Scan;
use crate::op::{
    ANY, Domain, ExpandCx, FLOATS, InferCx, Inferred, NUMBERS, Rounding, composite_own,
};
use crate::{DType, Var};
use smallvec::{SmallVec, smallvec};

crate::ops! { trait Scans;

/// The sum of each element and those before it along axis `dim`, accumulated in f64 for f32 and in
/// f32 for 16-bit floats. Integers and bool are summed in i64. With `dtype`, operand and result are
/// of that dtype.
CUMSUM = cumsum(x; [dim: Int, dtype: OptDType]) -> (y) {
    infer:    &accumulated,
    body:     composite_own(None, &|cx| so_far(cx, Scan::Sum)),
    rounding: Rounding::result("each result"),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {dim = 1}", "T[4, 3] {dim = 0}", "T[2, 40, 3] {dim = -2}"] },
}

/// The product of each element and those before it along axis `dim`, accumulated as in [`CUMSUM`].
CUMPROD = cumprod(x; [dim: Int, dtype: OptDType]) -> (y) {
    infer:    &accumulated,
    body:     composite_own(None, &|cx| so_far(cx, Scan::Prod)),
    rounding: Rounding::result("each result; each step of the gradient"),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {dim = 1}", "T[4, 3] > 0 {dim = 0}"] },
}

/// The logarithm of the sum of the powers of `e` of each element and those before it along axis
/// `dim`.
LOGCUMSUMEXP = logcumsumexp(x; dim: Int) -> (y) {
    infer:    &|cx| {
        infer::need_float(cx.operand(0))?;
        infer::same(cx)
    },
    body:     composite_own(None, &|cx| so_far(cx, Scan::LogSumExp)),
    rounding: Rounding::result("each result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] {dim = 1}", "T[4, 3] {dim = 0}"] },
}

/// The largest of each element and those before it along axis `dim`, and its position, the last of
/// equal ones. A NaN is larger than all.
CUMMAX = cummax_values as "cummax"(x; dim: Int) -> (values, indices) {
    infer:    &extremes,
    body:     composite_own(None, &|cx| extreme(cx, Scan::ArgMax)),
    rounding: Rounding::nowhere("nowhere; the gradient once, after f32 sums"),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {dim = 1}", "T[4, 3] {dim = 0}"] },
}

/// The smallest of each element and those before it along axis `dim`, and its position, the last of
/// equal ones. A NaN is smaller than all.
CUMMIN = cummin_values as "cummin"(x; dim: Int) -> (values, indices) {
    infer:    &extremes,
    body:     composite_own(None, &|cx| extreme(cx, Scan::ArgMin)),
    rounding: Rounding::nowhere("nowhere; the gradient once, after f32 sums"),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {dim = 1}", "T[4, 3] {dim = 0}"] },
}
}

/// Ops with two results: the values and their positions.
impl<'t> Var<'t> {
    /// The largest of each element and those before it along axis `dim`, and its position, the last
    /// of equal ones.
    #[track_caller]
    pub fn cummax(self, dim: i64) -> (Var<'t>, Var<'t>) {
        both(self.cummax_values(dim))
    }

    /// The smallest of each element and those before it along axis `dim`, and its position, the
    /// last of equal ones.
    #[track_caller]
    pub fn cummin(self, dim: i64) -> (Var<'t>, Var<'t>) {
        both(self.cummin_values(dim))
    }
}

/// The shape of the operand, in `dtype` if there is one and else i64 for what is no float.
fn accumulated(cx: &InferCx<'_>) -> infer::Answer {
    let x = cx.operand(0);
    x.shape.axis(cx.attrs.int("dim").unwrap_or(0))?;
    let own = if x.dtype.is_float() { x.dtype } else { DType::I64 };
    Ok(Inferred::one(x.with_dtype(cx.attrs.dtype("dtype").unwrap_or(own))))
}

fn so_far<'t>(cx: &ExpandCx<'_, 't>, scan: Scan) -> SmallVec<[Var<'t>; 1]> {
    let (x, dim) = (cx.args[0].to(cx.results[0].dtype), cx.attrs.int("dim").unwrap_or(0));
    smallvec![x.scan(dim, Some(scan.name()), false)]
}

fn extremes(cx: &InferCx<'_>) -> infer::Answer {
    let x = cx.operand(0);
    x.shape.axis(cx.attrs.int("dim").unwrap_or(0))?;
    Ok(Inferred::many([x.clone(), x.with_dtype(DType::I64)]))
}

fn extreme<'t>(cx: &ExpandCx<'_, 't>, scan: Scan) -> SmallVec<[Var<'t>; 1]> {
    let (x, dim) = (cx.args[0], cx.attrs.int("dim").unwrap_or(0));
    // Truth values are compared as integers.
    let numbers = if x.dtype() == DType::Bool { x.to(DType::U8) } else { x };
    let indices = numbers.scan(dim, Some(scan.name()), false);
    smallvec![picked(x, indices, dim), indices]
}

/// The elements of `x` at positions along axis `dim`. No position asks for no element.
pub(super) fn picked<'t>(x: Var<'t>, indices: Var<'t>, dim: i64) -> Var<'t> {
    match x.rank() {
        _ if indices.ty().numel() == 0 => x.tracer().full(indices.ty().with_dtype(x.dtype()), 0.0),
        0 => x.reshape([1]).gather(indices.reshape([1]), 0).reshape_to(&x.shape()),
        _ => x.gather(indices, dim),
    }
}
