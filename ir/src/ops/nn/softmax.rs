//! `softmax` and `log_softmax`, and their gradients from the result alone.

use super::activation::alike;
use crate::op::{
    Dispatch, Domain, ExpandCx, FLOATS, Facts, GradCx, Grads, InferCx, Inferred, Rounding,
    composite, rule,
};
use crate::ops::cast::Cast;
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::ops::reduce::Reductions;
use crate::{DType, IntoDims, Var};
use smallvec::smallvec;

const INT: Dispatch = Dispatch::Listed { overload: "int" };

crate::ops! { trait Softmaxes;

/// Along axis `dim`, `exp(x - max x) / Σ exp(x - max x)`.
///
/// With `dtype`, `x` is converted to it first.
SOFTMAX = softmax(x; [dim: Int, dtype: OptDType]) -> (y) {
    dispatch: INT,
    infer:    &converted,
    body:     composite(
        Some(rule(&|cx| gradient(cx, |dy, y, dim| dy.softmax_backward(y, dim)))),
        &|cx| {
            let (x, dim) = (operand(cx), dim(cx.attrs));
            if x.ty().numel() == 0 {
                return smallvec![x];
            }
            let e = below_peak(x, dim).exp();
            smallvec![e.div(e.sum([dim].keep()))]
        },
    ),
    rounding: Rounding::result("the operand to `dtype`, if given; the result; the gradient once"),
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] {dim = 1}", "T[4, 33] {dim = -1}", "T[3, 5] {dim = 0}", "T[2, 3, 4] {dim = 1, dtype = f32}", "T[5] {dim = 0, dtype = bf16}", "T[] {dim = 0}"] },
}

/// The gradient of [`SOFTMAX`] from its result: `(dy - Σ dy * y) * y`, summed along axis `dim`.
SOFTMAX_BACKWARD = softmax_backward(dy, y; dim: Int) -> (dx) {
    dispatch: Dispatch::Internal,
    infer:    &along,
    body:     composite(None, &|cx| {
        let (dy, y) = (cx.args[0], cx.args[1]);
        let total = dy.mul(y).sum([dim(cx.attrs)].keep());
        smallvec![dy.sub(total).mul(y)]
    }),
    rounding: Rounding::RESULT,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] in 0 1 {dim = 1}", "T[3, 5], T[3, 5] in 0 1 {dim = 0}"] },
}

/// The logarithm of [`SOFTMAX`]: along axis `dim`, `x - max x - log Σ exp(x - max x)`.
///
/// With `dtype`, `x` is converted to it first.
LOG_SOFTMAX = log_softmax(x; [dim: Int, dtype: OptDType]) -> (y) {
    dispatch: INT,
    infer:    &converted,
    body:     composite(
        Some(rule(&|cx| gradient(cx, |dy, y, dim| dy.log_softmax_backward(y, dim)))),
        &|cx| {
            let (x, dim) = (operand(cx), dim(cx.attrs));
            if x.ty().numel() == 0 {
                return smallvec![x];
            }
            let lower = below_peak(x, dim);
            smallvec![lower.sub(lower.exp().sum([dim].keep()).log())]
        },
    ),
    rounding: Rounding::result("the operand to `dtype`, if given; the result; the gradient once"),
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] {dim = 1}", "T[4, 33] {dim = -1}", "T[3, 5] {dim = 0}", "T[2, 3, 4] {dim = 1, dtype = f32}", "T[] {dim = 0}"] },
}

/// The gradient of [`LOG_SOFTMAX`] from its result: `dy - exp(y) * Σ dy`, summed along axis `dim`.
LOG_SOFTMAX_BACKWARD = log_softmax_backward(dy, y; dim: Int) -> (dx) {
    dispatch: Dispatch::Internal,
    infer:    &along,
    body:     composite(None, &|cx| {
        let (dy, y) = (cx.args[0], cx.args[1]);
        let total = dy.sum([dim(cx.attrs)].keep());
        smallvec![dy.sub(y.exp().mul(total))]
    }),
    rounding: Rounding::RESULT,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] in -4 0 {dim = 1}", "T[3, 5], T[3, 5] in -4 0 {dim = 0}"] },
}
}

fn dim(attrs: &crate::Attrs) -> i64 {
    attrs.int("dim").expect("required")
}

/// The type of the operand in the attribute `dtype`.
fn converted(cx: &InferCx<'_>) -> infer::Answer {
    let x = cx.operand(0);
    let axis = x.shape.axis(dim(cx.attrs))?;
    infer::need_elements(cx.must, x, &[axis])?;
    let dtype = cx.attrs.dtype("dtype").unwrap_or(x.dtype);
    if !dtype.is_float() || !dtype.is_computable() {
        return Err(format!(
            "the result would be {}, expected floating point: give a `dtype`",
            x.with_dtype(dtype)
        ));
    }
    Ok(Inferred::one(x.with_dtype(dtype)))
}

/// The type of two equal operands that have the axis.
fn along(cx: &InferCx<'_>) -> infer::Answer {
    cx.operand(0).shape.axis(dim(cx.attrs))?;
    alike(cx)
}

/// The operand rounded to the attribute `dtype`, if given, and widened for the arithmetic.
fn operand<'t>(cx: &ExpandCx<'_, 't>) -> Var<'t> {
    let to = cx.results[0].dtype;
    let x = if cx.attrs.dtype("dtype").is_some() { cx.args[0].to(to) } else { cx.args[0] };
    x.to(to.compute())
}

/// `x` minus its largest element, through which no gradient flows.
fn below_peak(x: Var<'_>, dim: i64) -> Var<'_> {
    x.sub(x.amax([dim].keep()).detach())
}

fn gradient<'t>(cx: &GradCx<'_, 't>, of: impl Fn(Var<'t>, Var<'t>, i64) -> Var<'t>) -> Grads<'t> {
    let from: DType = cx.args[0].dtype();
    smallvec![from.is_float().then(|| of(cx.dy(), cx.out(), dim(cx.attrs)).to(from))]
}
