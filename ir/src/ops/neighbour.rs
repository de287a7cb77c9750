//! `nextafter`: the float beside another one.

use super::elementwise::Elementwise;
use super::infer;
use crate::kernel::{Cmp, Scalar, ScalarOp, Val};
use crate::op::{Domain, FLOATS, Facts, MapCx, Rounding, WithItself, core, map, rule};
use smallvec::smallvec;

crate::ops! { trait Neighbours;

/// The next float of the dtype after `x` towards `other`; `other` if they are equal:
/// [`torch.nextafter`](https://docs.pytorch.org/docs/stable/generated/torch.nextafter.html). Its
/// gradient is that of `x` where they differ.
NEXTAFTER = nextafter(x, other) -> (y) {
    infer:    &|cx| {
        let inferred = infer::promoted(cx)?;
        infer::need_float(&inferred.results[0])?;
        Ok(inferred)
    },
    body:     core(
        rule(&|cx| {
            let is_equal = cx.args[0].eq(cx.args[1]);
            smallvec![Some(is_equal.choose(cx.tracer.zeros_like(cx.dy()), cx.dy())), None]
        }),
        map(&|cx, x| beside(cx, x[0], x[1])),
    ),
    rounding: Rounding::RESULT,
    facts:    Facts::new().with_itself(WithItself::Operand),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]", "T[7], T[]"] },
}
}

/// A float is moved by a little more than half the step to its neighbour, and rounded (Rump,
/// Zimmermann, Boldo, Melquiond: Computing predecessor and successor in rounding to nearest, 2009).
/// Near the smallest numbers the step is that between them.
fn beside(cx: &mut MapCx<'_>, x: Val, other: Val) -> Val {
    let (ty, dtype) = (cx.scalar(), cx.result.dtype);
    let float = dtype.storage().float.expect("a float");
    let least = 2 - (1 << (float.exponent_bits - 1));
    let bits = float.fraction_bits as i32;
    let power = |n: i32| 2f64.powi(n);
    let half = power(-bits - 1);
    let number = |cx: &mut MapCx<'_>, v: f64| cx.body.constant(ty, v);
    let size = cx.body.unary(ScalarOp::Abs, x);
    let is_up = cx.body.cmp(Cmp::Lt, x, other);
    let moved = |cx: &mut MapCx<'_>, from: Val, step: Val| {
        let down = cx.body.unary(ScalarOp::Neg, step);
        let step = cx.body.select(is_up, step, down);
        let sum = cx.body.binary(ScalarOp::Add, from, step);
        cx.body.as_dtype(sum, dtype)
    };
    let part = |cx: &mut MapCx<'_>, of: Val| {
        let factor = cx.body.constant(ty, half * (1.0 + 2.0 * half));
        cx.body.binary(ScalarOp::Mul, of, factor)
    };
    let step = part(cx, size);
    let mut y = moved(cx, x, step);
    if dtype == ty.dtype() {
        // The part of a small number is none, and is taken of a larger one.
        let up = number(cx, power(2 * bits));
        let down = number(cx, power(-2 * bits));
        let (large, size) =
            (cx.body.binary(ScalarOp::Mul, x, up), cx.body.binary(ScalarOp::Mul, size, up));
        let step = part(cx, size);
        let large = moved(cx, large, step);
        let scaled = cx.body.binary(ScalarOp::Mul, large, down);
        y = choose_below(cx, power(least + 2 * bits), x, scaled, y);
    }
    let step = number(cx, power(least + 1) * power(-bits - 1));
    let small = moved(cx, x, step);
    let small = {
        // What becomes zero keeps the sign that it had.
        let zero = number(cx, 0.0);
        let is_zero = cx.body.cmp(Cmp::Eq, small, zero);
        let signed = cx.body.binary(ScalarOp::Mul, x, zero);
        cx.body.select(is_zero, signed, small)
    };
    y = choose_below(cx, power(least + 1), x, small, y);
    y = inward(cx, x, largest(ty, bits, least), y);
    let is_equal = cx.body.cmp(Cmp::Eq, x, other);
    let y = cx.body.select(is_equal, other, y);
    let sum = cx.body.binary(ScalarOp::Add, x, other);
    let [x_is_nan, other_is_nan] = [x, other].map(|v| cx.body.cmp(Cmp::Ne, v, v));
    let is_nan = cx.body.binary(ScalarOp::Or, x_is_nan, other_is_nan);
    cx.body.select(is_nan, sum, y)
}

/// The largest number of a float with that many bits behind the leading one, whose smallest
/// exponent of a normal number is `least`.
fn largest(ty: Scalar, bits: i32, least: i32) -> f64 {
    match ty {
        Scalar::F64 => f64::MAX,
        _ => (2.0 - 2f64.powi(-bits)) * 2f64.powi(1 - least),
    }
}

/// The first where `x` is closer to zero than `bound`.
fn choose_below(cx: &mut MapCx<'_>, bound: f64, x: Val, first: Val, second: Val) -> Val {
    let bound = cx.constant(bound);
    let size = cx.body.unary(ScalarOp::Abs, x);
    let is_below = cx.body.cmp(Cmp::Lt, size, bound);
    cx.body.select(is_below, first, second)
}

/// The largest number with its sign where `x` is infinite.
fn inward(cx: &mut MapCx<'_>, x: Val, largest: f64, y: Val) -> Val {
    let [infinity, most, least, zero] =
        [f64::INFINITY, largest, -largest, 0.0].map(|v| cx.constant(v));
    let size = cx.body.unary(ScalarOp::Abs, x);
    let is_infinite = cx.body.cmp(Cmp::Eq, size, infinity);
    let is_negative = cx.body.cmp(Cmp::Lt, x, zero);
    let end = cx.body.select(is_negative, least, most);
    cx.body.select(is_infinite, end, y)
}
