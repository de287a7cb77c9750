//! The sine, cosine and tangent of an f64: the nearest multiple of π/2 is taken away in four parts,
//! as Cody and Waite do, up to a million; beyond, the numbers are those of `libm`. The polynomials
//! are fdlibm's.

use super::{Double, nearest, poly};
use std::f64::consts::FRAC_2_PI;

/// Numbers below it are reduced here.
const LARGE: f64 = 1.0e6;

/// π/2 as three numbers of 33 bits, whose products with the integers that come up are exact, and
/// the rest.
const HALF_PI: [f64; 4] = [
    f64::from_bits(0x3ff9_21fb_5440_0000),
    f64::from_bits(0x3dd0_b461_1a60_0000),
    f64::from_bits(0x3ba3_198a_2e00_0000),
    f64::from_bits(0x397b_839a_2520_49c1),
];

/// `(sin x - x) / x³` in `x²`.
const SINE: [f64; 6] = [
    -1.666_666_666_666_663_2e-1,
    8.333_333_333_322_49e-3,
    -1.984_126_982_985_795e-4,
    2.755_731_370_707_006_8e-6,
    -2.505_076_025_340_686_3e-8,
    1.589_690_995_211_55e-10,
];

/// `(cos x - 1 + x²/2) / x⁴` in `x²`.
const COSINE: [f64; 6] = [
    4.166_666_666_666_66e-2,
    -1.388_888_888_887_411e-3,
    2.480_158_728_947_673e-5,
    -2.755_731_435_139_066_3e-7,
    2.087_572_321_298_175e-9,
    -1.135_964_755_778_819_5e-11,
];

/// `a - b` and what its rounding has lost.
#[inline(always)]
fn difference<D: Double>(a: D, b: D) -> (D, D) {
    let s = a.sub(b);
    let t = s.sub(a);
    (s, a.sub(s.sub(t)).sub(b.add(t)))
}

/// An integer halved and rounded down, and the rest, 0 or 1.
#[inline(always)]
fn halved<D: Double>(n: D) -> (D, D) {
    let half = nearest(n.mul(D::splat(0.5)).sub(D::splat(0.25)));
    (half, n.sub(half.add(half)))
}

/// What is left of an angle, from -π/4 to π/4.
struct Reduced<D> {
    /// How many quarters of a turn were taken away.
    quarters: D,
    /// Of what is left.
    sine: D,
    cosine: D,
}

/// The sine and the cosine of what is left of `x`.
#[inline(always)]
fn reduced<D: Double>(x: D) -> Reduced<D> {
    let n = nearest(x.mul(D::splat(FRAC_2_PI)));
    let part = |i: usize| n.mul(D::splat(HALF_PI[i]));
    let (high, lost) = difference(x.sub(part(0)), part(1));
    let (high, lost_again) = difference(high, part(2));
    let low = lost.add(lost_again).sub(part(3));
    let r = high.add(low);
    let low = high.sub(r).add(low);
    let (half, one) = (D::splat(0.5), D::splat(1.0));
    let z = r.mul(r);
    let cube = z.mul(r);
    let [first, rest @ ..] = SINE;
    let tail = low.mul(half).sub(cube.mul(poly(z, rest)));
    let sine = r.sub(z.mul(tail).sub(low).sub(cube.mul(D::splat(first))));
    let square = z.mul(half);
    let near = one.sub(square);
    let tail = z.mul(z).mul(poly(z, COSINE)).sub(r.mul(low));
    let cosine = near.add(one.sub(near).sub(square).add(tail));
    Reduced { quarters: n, sine, cosine }
}

/// The sine of an angle that is a number of quarters of a turn more.
#[inline(always)]
fn turned<D: Double>(of: &Reduced<D>, quarters: D) -> D {
    let (pairs, odd) = halved(quarters);
    let (_, is_negative) = halved(pairs);
    let y = D::select(D::splat(0.5).lt(odd), of.cosine, of.sine);
    y.mul(D::splat(1.0).sub(is_negative.add(is_negative)))
}

/// The sine.
#[inline(always)]
pub fn sin_f64<D: Double>(x: D) -> D {
    let of = reduced(x);
    let a = x.abs();
    let y = D::select(a.lt(D::splat(1.0e-9)), x, turned(&of, of.quarters));
    y.or_exact(a.lt(D::splat(LARGE)), x, libm::sin)
}

/// The cosine.
#[inline(always)]
pub fn cos_f64<D: Double>(x: D) -> D {
    let of = reduced(x);
    let y = turned(&of, of.quarters.add(D::splat(1.0)));
    y.or_exact(x.abs().lt(D::splat(LARGE)), x, libm::cos)
}

/// The tangent.
#[inline(always)]
pub fn tan_f64<D: Double>(x: D) -> D {
    let of = reduced(x);
    let (_, odd) = halved(of.quarters);
    let is_odd = D::splat(0.5).lt(odd);
    let a = x.abs();
    let over = D::select(is_odd, of.cosine, of.sine);
    let under = D::select(is_odd, D::splat(0.0).sub(of.sine), of.cosine);
    let y = D::select(a.lt(D::splat(1.0e-9)), x, over.div(under));
    y.or_exact(a.lt(D::splat(LARGE)), x, libm::tan)
}

/// The sine and the cosine of an angle from -π/2 to π/2.
#[inline(always)]
pub(super) fn sine_and_cosine<D: Double>(x: D) -> (D, D) {
    let of = reduced(x);
    let sine = D::select(x.abs().lt(D::splat(1.0e-9)), x, turned(&of, of.quarters));
    (sine, turned(&of, of.quarters.add(D::splat(1.0))))
}
