//! Powers and logarithms beside [`exp`](super::exp) and [`log`](super::log): of other bases, and of
//! what is close to one.

use super::{LN2_HIGH, LN2_LOW, Lane, SHIFTER, exponent_of, log_tail, poly, power_of_two, split};
use std::f32::consts::{LOG2_E, LOG10_E};

/// `2^r = 1 + r p(r)`, `r` from -1/2 to 1/2.
const EXP2: [f32; 6] =
    [6.931_472e-1, 2.402_265e-1, 5.550_359_2e-2, 9.618_074e-3, 1.339_114_6e-3, 1.545_801_8e-4];

/// `e^r = 1 + r + r² p(r)`, `r` from -ln 2 / 2 to ln 2 / 2.
const EXPM1: [f32; 5] = [5.0e-1, 1.666_654_3e-1, 4.166_645e-2, 8.366_541e-3, 1.393_620_3e-3];

/// Two to the power `x`: 0 below -150, infinite from 128.
#[inline(always)]
pub fn exp2<L: Lane>(x: L) -> L {
    let x = L::splat(129.0).min(L::splat(-151.0).max(x));
    let t = x.add(L::splat(SHIFTER));
    let n = t.sub(L::splat(SHIFTER));
    let r = x.sub(n);
    let p = poly(r, EXP2);
    let p = p.fma(r, L::splat(1.0));
    p.scale(n, L::int_sub(t.bits(), L::splat_bits(SHIFTER.to_bits())))
}

/// `e` to the power `x`, minus one.
///
/// With `x = n ln 2 + r`: `2^n (e^r - 1) + (2^n - 1)`, both halved, since `2^128` is no number.
#[inline(always)]
pub fn expm1<L: Lane>(x: L) -> L {
    let b = L::splat(89.0).min(L::splat(-18.0).max(x));
    let t = b.fma(L::splat(LOG2_E), L::splat(SHIFTER));
    let n = t.sub(L::splat(SHIFTER));
    let r = n.fma(L::splat(-LN2_HIGH), b);
    let r = n.fma(L::splat(-LN2_LOW), r);
    let rise = poly(r, EXPM1).fma(r.mul(r), r);
    let whole = L::int_sub(t.bits(), L::splat_bits(SHIFTER.to_bits() + 1));
    let half = power_of_two::<L>(whole);
    let y = half.fma(rise, half.sub(L::splat(0.5)));
    // Half of a subnormal number is not exact.
    L::select(super::abs(x).lt(L::splat(1.0e-8)), x, y.add(y))
}

/// The natural logarithm of `1 + x`: -inf at -1, NaN below.
#[inline(always)]
pub fn log1p<L: Lane>(x: L) -> L {
    let one = L::splat(1.0);
    let sum = x.add(one);
    // What the sum has lost by rounding.
    let lost = x.sub(sum.sub(one));
    let (n, m) = exponent_of(sum);
    let e = super::whole_to_float::<L>(n);
    // In two steps, since 2^-128 is no power that a number's bits can be made of.
    let half = lost.mul(L::splat(0.5));
    let f = half.fma(power_of_two(L::int_sub(L::splat_bits(1), n)), m.sub(one));
    let (z, tail) = log_tail(f);
    let y = e.fma(L::splat(LN2_LOW), tail);
    let r = f.add(z.fma(L::splat(-0.5), y));
    let r = log_ends(sum, e.fma(L::splat(LN2_HIGH), r));
    L::select(super::abs(x).lt(L::splat(1.0e-30)), x, r)
}

/// The logarithm `r` of `x`, or what it is where `x` is not finite and above zero.
#[inline(always)]
fn log_ends<L: Lane>(x: L, r: L) -> L {
    let zero = L::splat(0.0);
    let positive = zero.lt(x);
    let special = L::select(positive, x, L::splat(f32::NAN));
    let special = L::select(x.eq(zero), L::splat(f32::NEG_INFINITY), special);
    L::select(L::and(positive, x.lt(L::splat(f32::INFINITY))), r, special)
}

/// The logarithm to base two: -inf at zeros, NaN below.
#[inline(always)]
pub fn log2<L: Lane>(x: L) -> L {
    const LOW: f32 = 1.925_963e-8;
    let (e, f) = split(x);
    let (z, tail) = log_tail(f);
    let rest = z.fma(L::splat(-0.5), tail).fma(L::splat(LOG2_E), f.mul(L::splat(LOW)));
    f.fma(L::splat(LOG2_E), rest).add(e)
}

/// The logarithm to base ten: -inf at zeros, NaN below.
#[inline(always)]
pub fn log10<L: Lane>(x: L) -> L {
    const LOW: f32 = -1.010_305e-8;
    /// The logarithm of two as [`LOG_2`](super::LOG_2) has the other.
    const TWO: [f32; 2] = [f32::from_bits(0x3e9a_209a), 1.548_131_3e-8];
    let (e, f) = split(x);
    let (z, tail) = log_tail(f);
    let low = e.fma(L::splat(TWO[1]), f.mul(L::splat(LOW)));
    let rest = z.fma(L::splat(-0.5), tail).fma(L::splat(LOG10_E), low);
    e.fma(L::splat(TWO[0]), f.fma(L::splat(LOG10_E), rest))
}
