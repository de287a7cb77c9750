//! Activations beyond the elementwise core, and the gradients of those that PyTorch rounds once:
//! `gelu`, `silu`, `tanh_backward`, `sigmoid_backward`.

use crate::op::{Dispatch, Domain, FLOATS, Facts, InferCx, Rounding, composite, rule};
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::{Must, TensorType, Var};
use smallvec::smallvec;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

/// The factor of the cube in the approximation of `gelu`.
const CUBE: f64 = 0.044715;
/// The slope of its inner function: sqrt(2 / pi).
const SLOPE: f64 = SQRT_2 * FRAC_2_SQRT_PI * 0.5;

crate::ops! { trait Activations;

/// The gradient of [`tanh`](crate::ops::elementwise::TANH) from its result: `dy * (1 - y * y)`.
TANH_BACKWARD = tanh_backward(dy, y) -> (dx) {
    dispatch: Dispatch::Internal,
    infer:    &alike,
    body:     composite(None, &|cx| {
        let (dy, y) = (cx.args[0], cx.args[1]);
        smallvec![dy.mul(y.mul(y).rsub(1.0))]
    }),
    rounding: Rounding::RESULT,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] in -1 1"] },
}

/// The gradient of [`sigmoid`](crate::ops::elementwise::SIGMOID) from its result:
/// `dy * (1 - y) * y`.
SIGMOID_BACKWARD = sigmoid_backward(dy, y) -> (dx) {
    dispatch: Dispatch::Internal,
    infer:    &alike,
    body:     composite(None, &|cx| {
        let (dy, y) = (cx.args[0], cx.args[1]);
        smallvec![dy.mul(y.rsub(1.0)).mul(y)]
    }),
    rounding: Rounding::RESULT,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] in 0 1"] },
}

/// `x` times the probability that a normal number is below it: `x / 2 * (1 + erf(x / sqrt 2))`.
///
/// With `approximate` = `"tanh"`: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))`.
GELU = gelu(x; approximate: OptStr) -> (y) {
    infer:    &|cx| {
        by_tanh(cx.attrs.str("approximate"))?;
        infer::float_only(cx)
    },
    body:     composite(
        Some(rule(&|cx| smallvec![Some(cx.dy().gelu_backward(cx.args[0], cx.attrs.str("approximate")))])),
        &|cx| {
            let x = cx.args[0];
            smallvec![if by_tanh(cx.attrs.str("approximate")) == Ok(true) {
                x.div(argument(x, -1.0).exp().add(1.0))
            } else {
                x.mul(0.5).mul(half_erf(x).add(1.0))
            }]
        },
    ),
    rounding: Rounding::result("the result; the gradient once"),
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40] {approximate = \"tanh\"}"] },
}

/// The gradient of [`GELU`] from its operand.
GELU_BACKWARD = gelu_backward(dy, x; approximate: OptStr) -> (dx) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        by_tanh(cx.attrs.str("approximate"))?;
        alike(cx)
    },
    body:     composite(None, &|cx| {
        let (dy, x) = (cx.args[0], cx.args[1]);
        let slope = if by_tanh(cx.attrs.str("approximate")) == Ok(true) {
            let below = argument(x, 1.0).sigmoid();
            let inside = x.mul(x).mul(6.0 * CUBE * SLOPE).add(2.0 * SLOPE);
            let rise = x.mul(inside).mul(below.rsub(1.0)).add(1.0);
            below.mul(rise)
        } else {
            let below = half_erf(x).add(1.0).mul(0.5);
            let density = x.mul(x).mul(-0.5).exp().mul(FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * 0.5);
            below.add(x.mul(density))
        };
        smallvec![dy.mul(slope)]
    }),
    rounding: Rounding::RESULT,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]", "T[40], T[40] {approximate = \"tanh\"}"] },
}

/// `x * sigmoid(x)`.
SILU = silu(x) -> (y) {
    infer:    &infer::float_only,
    body:     composite(
        Some(rule(&|cx| smallvec![Some(cx.dy().silu_backward(cx.args[0]))])),
        &|cx| smallvec![cx.args[0].div(cx.args[0].neg().exp().add(1.0))],
    ),
    rounding: Rounding::result("the result; the gradient once"),
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The gradient of [`SILU`] from its operand: `dy * s * (1 + x * (1 - s))` with `s = sigmoid(x)`.
SILU_BACKWARD = silu_backward(dy, x) -> (dx) {
    dispatch: Dispatch::Internal,
    infer:    &alike,
    body:     composite(None, &|cx| {
        let (dy, x) = (cx.args[0], cx.args[1]);
        let s = x.sigmoid();
        smallvec![dy.mul(s).mul(x.mul(s.rsub(1.0)).add(1.0))]
    }),
    rounding: Rounding::RESULT,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]"] },
}
}

/// Two operands of one floating point type, which is the result's.
pub(super) fn alike(cx: &InferCx<'_>) -> infer::Answer {
    same_type(cx.must, cx.operand(0), cx.operand(1))?;
    infer::float_only(cx)
}

/// Fails unless two operands have one type.
pub(super) fn same_type(must: &Must<'_>, x: &TensorType, other: &TensorType) -> Result<(), String> {
    if x.dtype == other.dtype && must.alike(&x.shape, &other.shape) {
        Ok(())
    } else {
        Err(format!("operands are {x} and {other}, expected one type"))
    }
}

/// Whether `gelu` is approximated.
fn by_tanh(approximate: Option<&str>) -> Result<bool, String> {
    match approximate {
        None | Some("none") => Ok(false),
        Some("tanh") => Ok(true),
        Some(other) => Err(format!("`approximate` is {other:?}, expected \"none\" or \"tanh\"")),
    }
}

/// Twice the argument of `tanh` in the approximation of [`GELU`], times `sign`. `(1 + tanh u) / 2`
/// is made as `sigmoid(2u)`: that takes half the steps, and nothing cancels where `tanh u` is close
/// to -1.
fn argument(x: Var<'_>, sign: f64) -> Var<'_> {
    let slope = sign * 2.0 * SLOPE;
    x.mul(x.mul(x).mul(slope * CUBE).add(slope))
}

fn half_erf(x: Var<'_>) -> Var<'_> {
    x.mul(FRAC_1_SQRT_2).erf()
}
