//! Division with a remainder: `fmod`, `remainder`, `floor_divide`, `gcd`.
//!
//! Remainders of 16-bit floats and f32 are exact whatever the quotient. Those of f64 are exact for
//! quotients below 2^53.

use super::elementwise::{Elementwise, binary};
use super::infer;
use super::mul_add::MulAdds;
use crate::kernel::{Cmp, Scalar, ScalarOp};
use crate::op::{Domain, ExpandCx, Facts, Grad, NUMBERS, Rounding, composite, core, map, rule};
use crate::{DType, Var};
use smallvec::smallvec;

crate::ops! { trait Divisions;

/// What is left of `x` by the quotient that is rounded towards zero, with the sign of `x`:
/// [`torch.fmod`](https://docs.pytorch.org/docs/stable/generated/torch.fmod.html). A zero divisor
/// is a data error for integers.
FMOD = fmod(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::arithmetic),
    body:     composite(
        Some(rule(&|cx| {
            let mut grads = smallvec![Some(cx.dy())];
            if let Some(y) = cx.args.get(1) {
                grads.push(Some(cx.dy().mul(cx.args[0].div(*y).trunc()).neg()));
            }
            grads
        })),
        &|cx| smallvec![left(cx.args[0], divisor(cx))],
    ),
    rounding: Rounding::nowhere("nowhere; each step of the gradient"),
    facts:    Facts::new().takes_number(),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[7], T[7] > 0", "T[7], none {scalar = 3.0}"] },
}

/// What is left of `x` by the quotient that is rounded down, with the sign of the divisor:
/// [`torch.remainder`](https://docs.pytorch.org/docs/stable/generated/torch.remainder.html). A zero
/// divisor is a data error for integers.
REMAINDER = remainder(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::arithmetic),
    body:     composite(
        Some(rule(&|cx| {
            let mut grads = smallvec![Some(cx.dy())];
            if let Some(y) = cx.args.get(1) {
                grads.push(Some(cx.dy().mul(cx.args[0].floor_divide(*y)).neg()));
            }
            grads
        })),
        &|cx| {
            let (x, y) = (cx.args[0], divisor(cx));
            smallvec![with_sign_of(left(x, y), y)]
        },
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    facts:    Facts::new().takes_number(),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[7], T[7] > 0", "T[7], none {scalar = 3.0}"] },
}

/// The quotient rounded down:
/// [`torch.floor_divide`](https://docs.pytorch.org/docs/stable/generated/torch.floor_divide.html).
/// A zero divisor is a data error for integers.
FLOOR_DIVIDE = floor_divide(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::arithmetic),
    body:     composite(Some(Grad::Zero), &|cx| {
        let (x, y) = (cx.args[0], divisor(cx));
        if !x.dtype().is_float() {
            let quotient = x.div_trunc(y);
            let rest = x.sub(quotient.mul(y));
            let is_below = rest.ne(0.0).logical_and(rest.lt(0.0).ne(y.lt(0.0)));
            return smallvec![is_below.choose(quotient.sub(1.0), quotient)];
        }
        // From the exact remainder the quotient is an integer but for one rounding.
        let (rest, plain) = (left(x, y), x.div(y));
        let whole = x.sub(rest).div(y);
        let is_other = rest.lt(0.0).ne(y.lt(0.0));
        let is_below = rest.ne(0.0).logical_and(is_other);
        let whole = is_below.choose(whole.sub(1.0), whole);
        let low = whole.floor();
        let is_above = whole.sub(low).gt(0.5);
        let near = is_above.choose(low.add(1.0), low);
        let near = whole.eq(0.0).choose(plain.mul(0.0), near);
        smallvec![y.eq(0.0).choose(plain, near)]
    }),
    rounding: Rounding::RESULT,
    facts:    Facts::new().takes_number(),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[7], T[7] > 0", "T[7], none {scalar = 3.0}"] },
}

/// The greatest common divisor of integers, not negative:
/// [`torch.gcd`](https://docs.pytorch.org/docs/stable/generated/torch.gcd.html).
GCD = gcd(x, other) -> (y) {
    infer:    &infer::integers,
    body:     core(Grad::Zero, map(&|cx, x| {
        let ty = cx.scalar();
        let (zero, one) = (cx.body.constant(ty, 0.0), cx.body.constant(ty, 1.0));
        let (mut a, mut b) = (x[0], x[1]);
        // As many steps as the largest numbers take, those of Fibonacci.
        for _ in 0..if ty == Scalar::I64 { 92 } else { 46 } {
            let done = cx.body.cmp(Cmp::Eq, b, zero);
            let by = cx.body.select(done, one, b);
            let rest = cx.body.binary(ScalarOp::Rem, a, by);
            let next = cx.body.select(done, a, b);
            b = cx.body.select(done, zero, rest);
            a = next;
        }
        cx.body.unary(ScalarOp::Abs, a)
    })),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().commutes(),
    domain:   Domain { dtypes: &[DType::I64, DType::I32, DType::U8], samples: &["T[3, 5], T[3, 5] > 0"] },
}
}

fn divisor<'t>(cx: &ExpandCx<'_, 't>) -> Var<'t> {
    let x = cx.args[0];
    cx.args.get(1).copied().unwrap_or_else(|| {
        cx.tracer.full(x.ty(), cx.attrs.number("scalar").expect("checked by infer"))
    })
}

/// What is left of `x` by the quotient that is rounded towards zero.
fn left<'t>(x: Var<'t>, y: Var<'t>) -> Var<'t> {
    let dtype = x.dtype();
    if !dtype.is_float() {
        return x.sub(x.div_trunc(y).mul(y));
    }
    let (wide, by) = (x.to(DType::F64), y.to(DType::F64).abs());
    // The quotient of two f32 has at most 2^277, and of each step's 2^50 all digits are known.
    let steps = if dtype == DType::F64 { 1 } else { 6 };
    let mut rest = wide.abs();
    for step in (0..steps).rev() {
        let by = by.mul(2f64.powi(50 * step));
        let quotient = rest.div(by).floor();
        let next = quotient.neg().mul_add(rest, by);
        let next = next.lt(0.0).choose(next.add(by), next);
        rest = next.ge(by).choose(next.sub(by), next);
    }
    if dtype == DType::F64 {
        // Of a quotient beyond 2^53 the last digits are not known: then nothing is left.
        let is_known = rest.ge(0.0).logical_and(rest.lt(by));
        let is_lost = is_known.logical_not().logical_and(by.gt(0.0));
        let zero = rest.tracer().zeros_like(rest);
        rest = is_lost.logical_and(wide.isfinite()).choose(zero, rest);
    }
    // Infinite divisors leave all of a finite number.
    let rest = by.isinf().logical_and(wide.isfinite()).choose(wide.abs(), rest);
    x.signbit().choose(rest.neg(), rest).to(dtype)
}

/// A remainder with the sign of the divisor.
fn with_sign_of<'t>(rest: Var<'t>, y: Var<'t>) -> Var<'t> {
    let is_other = rest.lt(0.0).ne(y.lt(0.0));
    rest.ne(0.0).logical_and(is_other).choose(rest.add(y), rest)
}
