//! Powers and what is made of exponentials and logarithms of two operands: `pow`, `hypot`,
//! `logaddexp`, `xlogy`.
//!
//! Powers of 16-bit floats and f32 are computed in f64 and rounded once; those of f64 lose as many
//! last bits as the logarithm of the result has digits.

use super::elementwise::{Elementwise, binary};
use super::functions::Functions;
use super::infer;
use crate::kernel::{Cmp, Scalar, ScalarOp};
use crate::op::{
    Dispatch, Domain, FLOATS, Facts, Grad, GradCx, Grads, InferCx, NUMBERS, Rounding, composite,
    core, map, rule,
};
use crate::{Attrs, DType, Number, Var};
use smallvec::smallvec;
use std::f64::consts::{LN_2, PI};

crate::ops! { trait Powers;

/// One divided by the operand.
RECIPROCAL = reciprocal(x) -> (y) {
    infer:    &infer::float,
    body:     composite(
        Some(rule(&|cx| smallvec![Some(cx.dy().neg().mul(cx.out().mul(cx.out())))])),
        &|cx| smallvec![cx.tracer.ones_like(cx.args[0]).div(cx.args[0])],
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] != 0"] },
}

/// The operand to the power of the second:
/// [`torch.pow`](https://docs.pytorch.org/docs/stable/generated/torch.pow.html). Integers to a
/// power below zero are 0, but for 1 and -1.
POW = pow(x, exponent: optional | OptNumber) -> (y) {
    dispatch: Dispatch::Listed { overload: "Tensor_Tensor" },
    infer:    &|cx| {
        let inferred = binary(cx, infer::arithmetic)?;
        let power = cx.attrs.float("scalar").filter(|v| *v < 0.0);
        match (power, inferred.results[0].dtype) {
            (Some(v), dtype) if dtype.is_int() => Err(format!("an integer to the power of {v}: cast {} to a float", cx.types[0])),
            _ => Ok(inferred),
        }
    },
    body:     composite(Some(rule(&power_gradient)), &|cx| {
        let (x, number) = (cx.args[0], cx.attrs.number("scalar"));
        let value = number.and_then(Number::value).filter(|_| x.dtype().is_float());
        let few = value.and_then(|v| few(x, v));
        if let Some(y) = few {
            return smallvec![y];
        }
        let by = cx.args.get(1).copied();
        let by = by.unwrap_or_else(|| cx.tracer.full(x.ty(), number.expect("checked by infer")));
        if x.dtype().is_float() {
            smallvec![power(x.to(DType::F64), by.to(DType::F64)).to(x.dtype())]
        } else {
            smallvec![x.integer_power(by)]
        }
    }),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[7] > 0, T[7] > 0", "T[7] > 0, none {scalar = 3.0}"] },
}

/// An integer to the power of another, wrapped.
INTEGER_POWER = integer_power(x, exponent) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &infer::integers,
    body:     core(Grad::Zero, map(&|cx, x| {
        let ty = cx.scalar();
        let (zero, one) = (cx.body.constant(ty, 0.0), cx.body.constant(ty, 1.0));
        let (mut value, mut square) = (one, x[0]);
        // Above that the bits of the power change nothing but of odd numbers, whose order divides
        // 2^62.
        for k in 0..if ty == Scalar::I64 { 62 } else { 31 } {
            let bit = cx.body.constant(ty, 2f64.powi(k));
            let has = cx.body.binary(ScalarOp::And, x[1], bit);
            let has = cx.body.cmp(Cmp::Ne, has, zero);
            let product = cx.body.binary(ScalarOp::Mul, value, square);
            value = cx.body.select(has, product, value);
            square = cx.body.binary(ScalarOp::Mul, square, square);
        }
        // To a negative power: 1 of 1, and of -1 the power of its parity.
        let minus = cx.body.unary(ScalarOp::Neg, one);
        let odd = cx.body.binary(ScalarOp::And, x[1], one);
        let odd = cx.body.cmp(Cmp::Ne, odd, zero);
        let sign = cx.body.select(odd, minus, one);
        let (is_one, is_minus) = (cx.body.cmp(Cmp::Eq, x[0], one), cx.body.cmp(Cmp::Eq, x[0], minus));
        let of_minus = cx.body.select(is_minus, sign, zero);
        let below = cx.body.select(is_one, one, of_minus);
        let is_below = cx.body.cmp(Cmp::Lt, x[1], zero);
        cx.body.select(is_below, below, value)
    })),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: &[DType::I64, DType::I32, DType::U8], samples: &["T[3, 5], T[3, 5]"] },
}

/// The square root of `x² + other²`:
/// [`torch.hypot`](https://docs.pytorch.org/docs/stable/generated/torch.hypot.html).
HYPOT = hypot(x, other) -> (y) {
    infer:    &floats,
    body:     composite(
        Some(rule(&|cx| {
            let part = |i: usize| Some(cx.dy().mul(cx.args[i].div(cx.out())));
            smallvec![part(0), part(1)]
        })),
        &|cx| {
            let (x, y) = (cx.args[0].abs(), cx.args[1].abs());
            let (large, small) = (x.maximum(y), x.minimum(y));
            let ratio = large.eq(0.0).choose(large, small.div(large));
            let root = ratio.mul(ratio).add(1.0).sqrt().mul(large);
            let is_infinite = x.isinf().logical_or(y.isinf());
            smallvec![is_infinite.choose(cx.tracer.full(x.ty(), f64::INFINITY), root)]
        },
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] != 0, T[3, 5] != 0"] },
}

/// The logarithm of `exp(x) + exp(other)`:
/// [`torch.logaddexp`](https://docs.pytorch.org/docs/stable/generated/torch.logaddexp.html).
LOGADDEXP = logaddexp(x, other) -> (y) {
    infer:    &floats,
    body:     composite(
        Some(rule(&|cx| share(cx, 1.0))),
        &|cx| smallvec![of_sum(cx.args[0], cx.args[1], 1.0)],
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]"] },
}

/// The logarithm to base 2 of `2^x + 2^other`:
/// [`torch.logaddexp2`](https://docs.pytorch.org/docs/stable/generated/torch.logaddexp2.html).
LOGADDEXP2 = logaddexp2(x, other) -> (y) {
    infer:    &floats,
    body:     composite(
        Some(rule(&|cx| share(cx, LN_2))),
        &|cx| smallvec![of_sum(cx.args[0], cx.args[1], LN_2)],
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]"] },
}

/// `x * log(other)`, zero where `x` is zero:
/// [`torch.xlogy`](https://docs.pytorch.org/docs/stable/generated/torch.xlogy.html).
XLOGY = xlogy(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::float_arithmetic),
    body:     composite(
        Some(rule(&|cx| {
            let (x, y) = (cx.args[0], second(cx.args, cx.attrs));
            let flat = x.eq(0.0).logical_and(y.le(0.0));
            let dx = flat.choose(cx.tracer.zeros_like(x), cx.dy().xlogy(y));
            let dy = cx.args.get(1).map(|y| cx.dy().mul(x).div(*y));
            [Some(dx)].into_iter().chain(dy.map(Some)).collect()
        })),
        &|cx| {
            let (x, y) = (cx.args[0], second(cx.args, cx.attrs));
            let product = x.eq(0.0).choose(cx.tracer.zeros_like(x), x.mul(y.log()));
            smallvec![y.isnan().choose(y, product)]
        },
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    facts:    Facts::new().takes_number(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] > 0", "T[7], none {scalar = 3.0}"] },
}

/// `x * log(1 + other)`, zero where `x` is zero:
/// [`torch.special.xlog1py`](https://docs.pytorch.org/docs/stable/special.html#torch.special.xlog1py).
XLOG1PY = xlog1py as "special_xlog1py"(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::float_arithmetic),
    body:     composite(
        Some(rule(&|cx| {
            let (x, y) = (cx.args[0], second(cx.args, cx.attrs));
            let flat = x.eq(0.0).logical_and(y.le(-1.0));
            let dx = flat.choose(cx.tracer.zeros_like(x), cx.dy().xlog1py(y));
            let dy = cx.args.get(1).map(|y| cx.dy().mul(x).div(y.add(1.0)));
            [Some(dx)].into_iter().chain(dy.map(Some)).collect()
        })),
        &|cx| {
            let (x, y) = (cx.args[0], second(cx.args, cx.attrs));
            let product = x.eq(0.0).choose(cx.tracer.zeros_like(x), x.mul(y.log1p()));
            smallvec![y.isnan().choose(y, product)]
        },
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    facts:    Facts::new().takes_number(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] > 0", "T[7], none {scalar = 3.0}"] },
}

/// The angle of the point with the heights `x` over the places `other`:
/// [`torch.atan2`](https://docs.pytorch.org/docs/stable/generated/torch.atan2.html).
ATAN2 = atan2(x, other) -> (y) {
    infer:    &infer::float_arithmetic,
    body:     composite(
        Some(rule(&|cx| {
            let (x, y) = (cx.args[0], cx.args[1]);
            let square = x.mul(x).add(y.mul(y));
            // At the origin there is no slope, nor so near that the square is none.
            let scale = square.eq(0.0).choose(square, square.reciprocal());
            let (dx, dy) = (y.mul(scale), x.neg().mul(scale));
            smallvec![Some(cx.dy().mul(dx)), Some(cx.dy().mul(dy))]
        })),
        &|cx| smallvec![angle(cx.args[0], cx.args[1])],
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] != 0, T[3, 5] != 0"] },
}
}

/// The second operand, or the number in its place as a tensor like the first.
fn second<'t>(args: &[Var<'t>], attrs: &Attrs) -> Var<'t> {
    let number = || attrs.number("scalar").expect("checked by infer");
    args.get(1).copied().unwrap_or_else(|| args[0].tracer().full(args[0].ty(), number()))
}

/// Floats alone, promoted: PyTorch has no kernels of integers.
fn floats(cx: &InferCx<'_>) -> infer::Answer {
    let inferred = infer::promoted(cx)?;
    infer::need_float(&inferred.results[0])?;
    Ok(inferred)
}

/// The angle of a point.
fn angle<'t>(height: Var<'t>, place: Var<'t>) -> Var<'t> {
    let number = |v: f64| height.tracer().full(height.ty(), v);
    let (up, along) = (height.abs(), place.abs());
    let both = |v: f64| up.eq(v).logical_and(along.eq(v));
    let within = up.div(along).atan();
    let within = both(0.0).choose(number(0.0), within);
    let within = both(f64::INFINITY).choose(number(PI / 4.0), within);
    let whole = place.signbit().choose(within.rsub(PI), within);
    height.signbit().choose(whole.neg(), whole)
}

/// The powers that PyTorch multiplies.
fn few(x: Var<'_>, power: f64) -> Option<Var<'_>> {
    let one = || x.tracer().ones_like(x);
    let square = || x.mul(x);
    Some(match power {
        0.0 => one(),
        1.0 => x,
        2.0 => square(),
        3.0 => square().mul(x),
        0.5 => x.sqrt(),
        -0.5 => x.rsqrt(),
        -1.0 => one().div(x),
        -2.0 => one().div(square()),
        _ => return None,
    })
}

/// `x` to the power of `by`, in f64.
fn power<'t>(x: Var<'t>, by: Var<'t>) -> Var<'t> {
    let (t, one) = (x.tracer(), x.tracer().ones_like(x));
    let size = x.abs();
    let plain = size.log().mul(by).exp();
    let is_one = size.eq(1.0).logical_and(by.isnan().logical_not());
    let plain = is_one.choose(one, plain);
    let half = by.mul(0.5);
    let is_whole = by.floor().eq(by);
    let is_odd = is_whole.logical_and(half.floor().ne(half));
    let signed = is_odd.logical_and(x.signbit()).choose(plain.neg(), plain);
    let is_below = x.lt(0.0).logical_and(x.isinf().logical_not());
    let is_none =
        is_below.logical_and(is_whole.logical_not()).logical_and(by.isnan().logical_not());
    let y = is_none.choose(t.full(x.ty(), f64::NAN), signed);
    by.eq(0.0).logical_or(x.eq(1.0)).choose(one, y)
}

fn power_gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (x, dy) = (cx.args[0], cx.dy());
    if let Some(v) = cx.attrs.float("scalar") {
        if v == 0.0 {
            return smallvec![Some(cx.tracer.zeros_like(x))];
        }
        return smallvec![Some(dy.mul(x.pow(v - 1.0).mul(v)))];
    }
    let by = second(cx.args, cx.attrs);
    let zero = cx.tracer.zeros_like(x);
    let slope = by.mul(x.pow(by.sub(1.0)));
    let dx = by.eq(0.0).choose(zero, dy.mul(slope));
    if cx.args.len() == 1 {
        return smallvec![Some(dx)];
    }
    let flat = x.eq(0.0).logical_and(by.ge(0.0));
    smallvec![Some(dx), Some(dy.mul(flat.choose(zero, cx.out().mul(x.log()))))]
}

/// `log(exp(unit * x) + exp(unit * y)) / unit`.
fn of_sum<'t>(x: Var<'t>, y: Var<'t>, unit: f64) -> Var<'t> {
    let largest = x.maximum(y);
    let gap = x.sub(y).abs().mul(-unit).exp();
    let rest = gap.log1p().div(unit);
    let is_same = x.isinf().logical_and(x.eq(y));
    is_same.choose(x, largest.add(rest))
}

/// What of the gradient of [`of_sum`] each operand gets.
fn share<'t>(cx: &GradCx<'_, 't>, unit: f64) -> Grads<'t> {
    let (x, y) = (cx.args[0], cx.args[1]);
    let part = |mine: Var<'t>, other: Var<'t>| {
        let ratio = other.sub(mine).mul(unit).exp();
        Some(cx.dy().div(ratio.add(1.0)))
    };
    smallvec![part(x, y), part(y, x)]
}
