//! The first two derivatives of the logarithm of the gamma function of an f64: the asymptotic series from 8 on, and reciprocals for the steps there. Numbers
//! below zero are reflected.
//!
//! Zeros of the first are differences of two numbers of about 2, or more below zero: there only the absolute error is small.

use super::trigonometric::sine_and_cosine;
use super::{Double, log_f64, nearest, poly};
use std::f64::consts::PI;

/// Steps to where the series is exact enough.
const STEPS: usize = 8;

/// Bernoulli's numbers, beginning with 1/6.
const BERNOULLI: [f64; 11] = [
    1.0 / 6.0,
    -1.0 / 30.0,
    1.0 / 42.0,
    -1.0 / 30.0,
    5.0 / 66.0,
    -691.0 / 2730.0,
    7.0 / 6.0,
    -3617.0 / 510.0,
    43867.0 / 798.0,
    -174_611.0 / 330.0,
    854_513.0 / 138.0,
];

/// Over twice their places.
const HALVED: [f64; 11] = {
    let (mut all, mut i) = (BERNOULLI, 0);
    while i < 11 {
        all[i] /= (2 * i + 2) as f64;
        i += 1;
    }
    all
};

/// `x` less the nearest integer, without its sign: exact.
#[inline(always)]
fn beside_integer<D: Double>(x: D) -> D {
    /// 2^51: from it to twice as much there are halves, but the sum with the shifter would have none.
    const HALVES: f64 = 2_251_799_813_685_248.0;
    let (a, halves) = (x.abs(), D::splat(HALVES));
    let near = D::select(a.lt(halves), a, a.sub(halves));
    let r = near.sub(nearest(near));
    D::select(a.lt(D::splat(2.0 * HALVES)), r, D::splat(0.0))
}

/// What is left of `x` after reflection, from zero on; what is large enough for the series; and the sum of `each` of the reciprocals of the steps to there.
#[inline(always)]
fn shifted<D: Double>(x: D, each: impl Fn(D) -> D) -> (D::Mask, D, D) {
    let (zero, one) = (D::splat(0.0), D::splat(1.0));
    let is_negative = x.lt(zero);
    let x = D::select(is_negative, one.sub(x), x);
    let mut sum = zero;
    let mut step = STEPS;
    // The largest come last.
    while step > 0 {
        step -= 1;
        sum = sum.add(each(one.div(x.add(D::splat(step as f64)))));
    }
    let is_small = x.lt(D::splat(STEPS as f64));
    let y = D::select(is_small, x.add(D::splat(STEPS as f64)), x);
    (is_negative, y, D::select(is_small, sum, zero))
}

/// The derivative of `lgamma`: infinite at zero, with the other sign; NaN at the negative integers and at -inf.
#[inline(always)]
pub fn digamma_f64<D: Double>(x: D) -> D {
    let zero = D::splat(0.0);
    let (is_negative, y, sum) = shifted(x, |u| u);
    let u = D::splat(1.0).div(y);
    let z = u.mul(u);
    let far = log_f64(y).sub(D::splat(0.5).mul(u).add(z.mul(poly(z, HALVED)))).sub(sum);
    // ψ(x) = ψ(1 - x) - π cot πx.
    let r = zero.sub(beside_integer(x));
    let (sine, cosine) = sine_and_cosine(r.mul(D::splat(PI)));
    let cotangent = cosine.mul(D::splat(PI)).div(sine);
    let reflected =
        far.sub(D::select(r.abs().lt(D::splat(1.0e-300)), D::splat(f64::NAN), cotangent));
    let reflected = D::select(x.abs().lt(D::splat(1.0e-20)), D::splat(-1.0).div(x), reflected);
    let positive = D::select(x.lt(D::splat(1.0e-20)), D::splat(-1.0).div(x), far);
    D::select(is_negative, reflected, positive)
}

/// The second derivative of `lgamma`: infinite at zero and at the negative integers.
#[inline(always)]
pub fn trigamma_f64<D: Double>(x: D) -> D {
    let (is_negative, y, sum) = shifted(x, |u| u.mul(u));
    let u = D::splat(1.0).div(y);
    let z = u.mul(u);
    let far = sum.add(u.add(z.mul(D::splat(0.5)).add(z.mul(u).mul(poly(z, BERNOULLI)))));
    // ψ'(x) = (π / sin πx)² - ψ'(1 - x).
    let (sine, _) = sine_and_cosine(beside_integer(x).mul(D::splat(PI)));
    let q = D::splat(PI).div(sine);
    D::select(is_negative, q.mul(q).sub(far), far)
}
