//! The logarithm of the gamma function and its first two derivatives.
//!
//! Near the zeros at 1 and 2 they are polynomials with the zero as a factor, far out Stirling's
//! series; numbers below zero are reflected. Each of the zeros below zero is close to the
//! difference of two numbers of about its distance from zero: there only the absolute error is
//! small.

use super::{Lane, SHIFTER, SIGN, abs, exponent_of, log, log_tail, poly, whole_to_float};

/// `log Γ(1 + f) / f`, `f` from -1/2 to 1/2.
const AT_ONE: [f32; 14] = [
    -5.772_157e-1,
    8.224_67e-1,
    -4.006_837_3e-1,
    2.705_796e-1,
    -2.074_831e-1,
    1.696_440_4e-1,
    -1.421_703_4e-1,
    1.236_596_85e-1,
    -1.282_707_9e-1,
    1.173_795_5e-1,
    -1.591_001_8e-2,
    6.327_076_3e-3,
    -2.247_976_7e-1,
    2.206_082_8e-1,
];

/// `log Γ(2 + f) / f`, `f` from -1/2 to 1.
const AT_TWO: [f32; 11] = [
    4.227_843_3e-1,
    3.224_670_3e-1,
    -6.735_172e-2,
    2.058_085e-2,
    -7.394_474e-3,
    2.894_662_6e-3,
    -1.146_331_2e-3,
    4.649_694e-4,
    -2.971_042_7e-4,
    2.148_841e-4,
    -6.991_991e-5,
];

/// Stirling's series over `1/x`, in `1/x²`, `x` from 3.
const STIRLING: [f32; 3] = [8.333_327e-2, -2.772_809_2e-3, 6.972_406e-4];

/// `ψ(2 + f) / (2 + f - root)`, `f` from -1 to 1.
const DIGAMMA: [f32; 13] = [
    7.853_075e-1,
    -2.607_387e-1,
    1.089_997_8e-1,
    -4.955_920_2e-2,
    2.345_320_2e-2,
    -1.127_120_5e-2,
    5.508_153_7e-3,
    -2.966_042_6e-3,
    1.494_319e-3,
    -3.209_951_4e-4,
    1.374_646_1e-4,
    -4.107_131_4e-4,
    2.127_795_9e-4,
];

/// `(log x - 1/2x - ψ(x)) x²` in `1/x²`, `x` from 3.
const DIGAMMA_FAR: [f32; 4] = [8.333_329e-2, -8.329_473e-3, 3.855_646_1e-3, -2.780_228_9e-3];

/// `(1/r - π cot πr) / r` in `r²`, `r` to 1/2.
const COTANGENT: [f32; 7] =
    [3.289_868, 2.164_638, 2.035_429_2, 1.988_597_5, 2.228_896_4, 7.277_365e-1, 5.197_191_7];

/// `sin(πr) = r (π + p(r²))`, `r` to 1/2, π as the nearest number.
const SINE: [f32; 6] =
    [-8.748_924e-8, -5.167_712_7, 2.550_160_4, -5.992_175_3e-1, 8.188_733e-2, -6.763_375_4e-3];

/// `ψ'(x) - 1/x - 1/2x²` over `1/x³`, in `1/x`, `x` from 1.
const TRIGAMMA: [f32; 9] = [
    1.666_685_8e-1,
    -6.182_686e-5,
    -3.255_252e-2,
    -5.215_119_6e-3,
    4.436_904_6e-2,
    -4.870_841_3e-2,
    2.801_577_4e-2,
    -8.746_506e-3,
    1.165_054e-3,
];

/// `x` less the nearest integer: exact, from -0.5 to 0.5, and zero from 2^23 on.
#[inline(always)]
fn beside_integer<L: Lane>(x: L) -> L {
    const HALVES: f32 = 4_194_304.0;
    let a = abs(x);
    // From 2^22 to 2^23 there are halves, but the sum with the shifter would have none.
    let near = L::select(a.lt(L::splat(HALVES)), a, a.sub(L::splat(HALVES)));
    let n = near.add(L::splat(SHIFTER)).sub(L::splat(SHIFTER));
    let r = flipped(near.sub(n), x);
    L::select(a.lt(L::splat(2.0 * HALVES)), r, L::splat(0.0))
}

/// `sin πr` for `r` from -1/2 to 1/2.
#[inline(always)]
fn sine_of_turn<L: Lane>(r: L) -> L {
    r.fma(L::splat(std::f32::consts::PI), poly(r.mul(r), SINE).mul(r))
}

/// `r` with the other sign where `x` is below zero.
#[inline(always)]
fn flipped<L: Lane>(r: L, x: L) -> L {
    L::from_bits(L::xor(r.bits(), L::and(x.bits(), L::splat_bits(SIGN))))
}

/// The logarithm of the magnitude of the gamma function: infinite at zero, at the negative integers
/// and at the infinities.
#[inline(always)]
pub fn lgamma<L: Lane>(x: L) -> L {
    let (zero, one, half) = (L::splat(0.0), L::splat(1.0), L::splat(0.5));
    let a = abs(x);
    let small = a.lt(half);
    // log Γ(1 + f) = f A(f) for |f| <= 1/2, and log Γ(2 + f) = f B(f) from there to 1. Below 1/2 it
    // is log Γ(1 + x) - log |x|.
    let at_one = a.lt(L::splat(1.5));
    let f = L::select(small, x, a.sub(one));
    let g = a.sub(L::splat(2.0));
    let low = L::select(at_one, poly(f, AT_ONE).mul(f), poly(g, AT_TWO).mul(g));
    let positive = L::select(a.lt(L::splat(3.0)), low, stirling(a));
    // log Γ(x) = log π - log(|x| |sin πx|) - log Γ(|x|).
    let r = beside_integer(x);
    let sine = abs(sine_of_turn(r));
    let other = log(L::select(small, a, a.mul(sine)));
    let reflected = L::splat(1.144_729_9).sub(other).sub(positive);
    let reflected = L::select(sine.eq(zero), L::splat(f32::INFINITY), reflected);
    let y = L::select(x.lt(zero), reflected, positive);
    L::select(small, positive.sub(other), y)
}

/// The logarithm of the gamma function from 3 on: `(x - 1/2) (log x - 1) + c + S(1/x²) / x`, the
/// product in two parts.
#[inline(always)]
fn stirling<L: Lane>(x: L) -> L {
    /// ln 2 in two parts, the first of which times an exponent is exact.
    const PARTS: [f32; 2] = [f32::from_bits(0x3f31_7200), 1.428_606_8e-6];
    let one = L::splat(1.0);
    let (n, m) = exponent_of(x);
    let (e, f) = (whole_to_float::<L>(n), m.sub(one));
    let (z, tail) = log_tail(f);
    let rest = e.fma(L::splat(PARTS[1]), z.fma(L::splat(-0.5), tail));
    // e ln 2 + f and what it has lost; from that 1 is taken, and again.
    let product = e.mul(L::splat(PARTS[0]));
    let sum = product.add(f);
    let lost = f.sub(sum.sub(product));
    let less = sum.sub(one);
    let lost_again = L::splat(-1.0).sub(less.sub(sum));
    let low = rest.add(lost).add(lost_again);
    let high = less.add(low);
    let low = low.sub(high.sub(less));
    let factor = x.sub(L::splat(0.5));
    let main = factor.mul(high);
    let main_low = factor.fma(high, L::splat(0.0).sub(main));
    let u = one.div(x);
    let series = u.fma(poly(u.mul(u), STIRLING), L::splat(0.418_938_55));
    let y = main.add(main_low.add(factor.fma(low, series)));
    L::select(main.lt(L::splat(f32::INFINITY)), y, main)
}

/// The derivative of [`lgamma`]: infinite at zero, with the other sign; NaN at the negative
/// integers and at -inf.
#[inline(always)]
pub fn digamma<L: Lane>(x: L) -> L {
    let (zero, one) = (L::splat(0.0), L::splat(1.0));
    let negative = x.lt(zero);
    let small = x.lt(one);
    let y = L::select(small, L::select(negative, one.sub(x), x.add(one)), x);
    let near = poly(y.sub(L::splat(2.0)), DIGAMMA);
    let near = near.mul(y.sub(L::splat(1.461_632_1)).sub(L::splat(1.243_815e-8)));
    let u = one.div(y);
    let z = u.mul(u);
    let far = log(y).sub(u.fma(L::splat(0.5), z.mul(poly(z, DIGAMMA_FAR))));
    let y = L::select(y.lt(L::splat(3.0)), near, far);
    // ψ(x) = ψ(1 + x) - 1/x = ψ(1 - x) - π cot πx, where π cot πr is 1/r - r C(r²).
    let r = L::select(negative, beside_integer(x), x);
    let cot = poly(r.mul(r), COTANGENT).mul(r);
    let below = one.div(r);
    let reflected = y.sub(below.sub(cot));
    let reflected = L::select(r.eq(zero), L::splat(f32::NAN), reflected);
    let y = L::select(small, L::select(negative, reflected, y.sub(below)), y);
    L::select(x.eq(zero), L::splat(-1.0).div(x), y)
}

/// The derivative of [`digamma`]: infinite at zero and at the negative integers.
#[inline(always)]
pub fn trigamma<L: Lane>(x: L) -> L {
    let (zero, one) = (L::splat(0.0), L::splat(1.0));
    let negative = x.lt(zero);
    let small = x.lt(one);
    let y = L::select(small, L::select(negative, one.sub(x), x.add(one)), x);
    let u = one.div(y);
    let z = u.mul(u);
    let y = u.add(poly(u, TRIGAMMA).mul(u).fma(z, z.mul(L::splat(0.5))));
    // ψ'(x) = ψ'(1 + x) + 1/x² = (π / sin πx)² - ψ'(1 - x).
    let r = beside_integer(x);
    let divisor = L::select(negative, sine_of_turn(r), x);
    let q = L::select(negative, L::splat(std::f32::consts::PI), one).div(divisor);
    let squared = q.mul(q);
    let reflected = L::select(negative, squared.sub(y), squared.add(y));
    L::select(small, reflected, y)
}
