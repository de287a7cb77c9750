//! Activations that PyTorch computes in one kernel, from exponentials and pieces of lines: `elu`,
//! `softplus`, `mish` and their like.
//!
//! Where a branch is not taken its operand is replaced by zero first, so that no gradient is an
//! infinity times zero.

use super::activation::alike;
use crate::op::{Dispatch, Domain, FLOATS, InferCx, Rounding, composite, rule};
use crate::ops::cast::Cast;
use crate::ops::elementwise::Elementwise;
use crate::ops::functions::Functions;
use crate::ops::{infer, view::Views};
use crate::{Size, TensorType, Var};
use smallvec::smallvec;

crate::ops! { trait Curves;

/// `scale * x` above zero, else `scale * alpha * (exp(input_scale * x) - 1)`:
/// [`torch.nn.functional.elu`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.elu.html).
/// What is absent is 1.
ELU = elu(x; alpha: OptFloat, scale: OptFloat, input_scale: OptFloat) -> (y) {
    infer:    &infer::float_only,
    body:     composite(None, &|cx| {
        let get = |name| cx.attrs.float(name).unwrap_or(1.0);
        let (x, alpha, scale) = (cx.args[0], get("alpha"), get("scale"));
        let is_low = x.le(0.0);
        let low = is_low.choose(x, cx.tracer.zeros_like(x));
        let fall = low.mul(get("input_scale")).expm1();
        smallvec![is_low.choose(fall.mul(alpha * scale), x.mul(scale))]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40] {alpha = 0.5, scale = 1.5, input_scale = 2.0}"] },
}

/// `log(1 + exp(beta * x)) / beta`, and `x` where `beta * x` is above the threshold, which are 1
/// and 20 if absent:
/// [`torch.nn.functional.softplus`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softplus.html).
SOFTPLUS = softplus(x; beta: OptFloat, threshold: OptFloat) -> (y) {
    infer:    &infer::float_only,
    body:     composite(None, &|cx| {
        let (beta, threshold) = (cx.attrs.float("beta").unwrap_or(1.0), cx.attrs.float("threshold").unwrap_or(20.0));
        smallvec![rectified(cx.args[0], beta, threshold)]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40] {beta = 2.0, threshold = 0.5}"] },
}

/// `x * tanh(softplus(x))`:
/// [`torch.nn.functional.mish`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.mish.html).
MISH = mish(x) -> (y) {
    infer:    &infer::float_only,
    body:     composite(None, &|cx| smallvec![cx.args[0].mul(rectified(cx.args[0], 1.0, 20.0).tanh())]),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The logarithm of [`sigmoid`](crate::ops::elementwise::SIGMOID):
/// [`torch.nn.functional.logsigmoid`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.logsigmoid.html).
LOG_SIGMOID = log_sigmoid(x) -> (y) {
    infer:    &infer::float_only,
    body:     composite(None, &|cx| {
        let x = cx.args[0];
        let rest = x.abs().neg().exp().log1p();
        smallvec![x.minimum(cx.tracer.zeros_like(x)).sub(rest)]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// `x * (x + 3) / 6` from -3 to 3, zero below and `x` above:
/// [`torch.nn.functional.hardswish`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.hardswish.html).
HARDSWISH = hardswish(x) -> (y) {
    infer:    &infer::float_only,
    body:     composite(
        Some(rule(&|cx| smallvec![Some(cx.dy().hardswish_backward(cx.args[0]))])),
        &|cx| {
            let x = cx.args[0];
            let rise = x.add(3.0).clamp_to(Some(0.0), Some(6.0));
            smallvec![x.mul(rise).div(6.0)]
        },
    ),
    rounding: Rounding::result("the result; the gradient once"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40] in -5 5"] },
}

/// The gradient of [`HARDSWISH`] from its operand.
HARDSWISH_BACKWARD = hardswish_backward(dy, x) -> (dx) {
    dispatch: Dispatch::Internal,
    infer:    &alike,
    body:     composite(None, &|cx| {
        let (dy, x) = (cx.args[0], cx.args[1]);
        let bend = dy.mul(x.div(3.0).add(0.5));
        let above = x.lt(3.0).choose(bend, dy);
        smallvec![x.le(-3.0).choose(cx.tracer.zeros_like(dy), above)]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[40], T[40] in -2.9 2.9"] },
}

/// `x / 6 + 1 / 2` from -3 to 3, zero below and one above:
/// [`torch.nn.functional.hardsigmoid`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.hardsigmoid.html).
HARDSIGMOID = hardsigmoid(x) -> (y) {
    infer:    &infer::float_only,
    body:     composite(None, &|cx| {
        // A NaN stays one and has no gradient.
        let x = cx.args[0].isnan().choose(cx.args[0].detach(), cx.args[0]);
        let rise = x.add(3.0).div(6.0);
        let (zero, one) = (cx.tracer.zeros_like(x), cx.tracer.ones_like(x));
        smallvec![x.le(-3.0).choose(zero, x.ge(3.0).choose(one, rise))]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40] in -5 5"] },
}

/// The first half of axis `dim` times the [`sigmoid`](crate::ops::elementwise::SIGMOID) of the
/// second:
/// [`torch.nn.functional.glu`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.glu.html).
GLU = glu(x; dim: Int) -> (y) {
    infer:    &|cx| {
        let x = cx.operand(0);
        infer::need_float(x)?;
        let (axis, half) = half(cx)?;
        let mut sizes = x.shape.to_vec();
        sizes[axis] = half;
        Ok(crate::op::Inferred::one(TensorType::new(x.dtype, &sizes[..])))
    },
    body:     composite(None, &|cx| {
        let x = cx.args[0];
        let axis = x.shape().axis(cx.attrs.int("dim").expect("required")).expect("checked when recorded");
        let half = cx.results[0].shape[axis];
        let part = |from: Size| x.slice(axis as i64, from, from + half, 1);
        smallvec![part(0.into()).mul(part(half).sigmoid())]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 6] {dim = 1}", "T[4, 5] {dim = 0}"] },
}

/// `x` above zero, else `weight * x`, with one weight, or one for each position of the second axis:
/// [`torch.nn.functional.prelu`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.prelu.html).
PRELU = prelu(x, weight) -> (y) {
    infer:    &|cx| {
        let (x, weight) = (cx.operand(0), cx.operand(1));
        infer::need_float(x)?;
        if x.dtype != weight.dtype {
            return Err(format!("`weight` is {weight}, expected the dtype of {x}"));
        }
        let channels = if x.shape.rank() > 1 { x.shape[1] } else { Size::from(1) };
        let fits = weight.shape.rank() < 2 && (weight.numel() == 1 || cx.must.equal(weight.numel(), channels));
        if !fits {
            return Err(format!("`weight` is {weight}, expected 1 number or {channels} for {x}"));
        }
        infer::same(cx)
    },
    body:     composite(None, &|cx| {
        let (x, weight) = (cx.args[0], cx.args[1]);
        let mut along = vec![Size::from(1); x.rank()];
        if x.rank() > 1 {
            along[1] = weight.ty().numel();
        }
        let slope = weight.reshape(&along).expand_to(&x.shape());
        smallvec![x.gt(0.0).choose(x, x.mul(slope))]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[5]", "T[7], T[1]"] },
}
}

/// `log(1 + exp(beta * x)) / beta`, by pieces.
fn rectified(x: Var<'_>, beta: f64, threshold: f64) -> Var<'_> {
    let scaled = x.mul(beta);
    let large = scaled.gt(threshold);
    let low = large.choose(x.tracer().zeros_like(x), scaled);
    large.choose(x, low.exp().log1p().div(beta))
}

/// The axis that is halved, and half of its size.
fn half(cx: &InferCx<'_>) -> Result<(usize, Size), String> {
    let x = cx.operand(0);
    if x.shape.rank() == 0 {
        return Err(format!("{x} has no axis to halve"));
    }
    let axis = x.shape.axis(cx.attrs.int("dim").expect("required"))?;
    let size = x.shape[axis];
    if !cx.must.hold(size.multiple_of(2)) {
        return Err(format!("axis {axis} of {x} has no halves"));
    }
    Ok((axis, size / 2))
}
