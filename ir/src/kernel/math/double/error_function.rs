//! The error function of an f64 and its complement, also scaled.
//!
//! Near zero it is a polynomial; the complement is `e^-x² R(x)` with the rational `R` of Shepherd
//! and Laframboise: `(1 + 2x) R(x)` is a polynomial in `(x - 3) / (x + 3)`. The polynomials
//! interpolate at Chebyshev's points.

use super::{Double, LOG_2, nearest, poly, rise};
use std::f64::consts::LOG2_E;

/// `erf a / a - 1` in `a²`, `a` to 0.875.
const NEAR_ZERO: [f64; 12] = [
    1.283_791_670_955_126e-1,
    -3.761_263_890_318_373_7e-1,
    1.128_379_167_095_431e-1,
    -2.686_617_064_493_303e-2,
    5.223_977_622_952_812e-3,
    -8.548_326_838_786_122e-4,
    1.205_532_428_408_170_2e-4,
    -1.492_538_005_672_312_6e-5,
    1.645_648_983_065_255e-6,
    -1.628_804_058_828_655_4e-7,
    1.411_586_140_956_320_5e-8,
    -8.649_130_172_891_781e-10,
];

/// `(1 + 2a) e^(a²) erfc a` in `(a - 3) / (a + 3)`.
const SCALED: [f64; 25] = [
    1.253_008_058_269_729_6,
    -1.356_211_061_245_811_7e-1,
    -4.756_229_435_345_087e-2,
    1.296_451_587_027_606e-1,
    -1.192_736_634_153_069_9e-1,
    6.830_802_734_397_848e-2,
    -2.377_051_491_864_588_8e-2,
    2.529_391_816_066_239e-3,
    1.888_690_359_156_155_3e-3,
    -7.798_322_721_083_991e-4,
    -1.051_597_998_150_117_7e-4,
    1.250_993_523_556_310_7e-4,
    4.949_484_992_570_595e-6,
    -2.010_056_793_128_922_7e-5,
    -7.315_105_164_159_062e-7,
    3.472_414_602_875_686e-6,
    3.568_383_915_399_220_4e-7,
    -6.166_496_077_604_353e-7,
    -1.416_006_494_026_598_7e-7,
    1.018_700_060_007_288_5e-7,
    4.180_784_698_845_582e-8,
    -1.332_636_481_300_383_4e-8,
    -8.500_397_929_772_615e-9,
    9.885_798_831_139_365e-10,
    8.864_219_016_427_092e-10,
];

/// The error function of `a` from 0 to 0.875.
#[inline(always)]
fn near_zero<D: Double>(a: D) -> D {
    a.add(a.mul(poly(a.mul(a), NEAR_ZERO)))
}

/// `e^(a²) erfc a` for `a` from zero on.
#[inline(always)]
pub(super) fn scaled_complement<D: Double>(a: D) -> D {
    let (half, three) = (D::splat(0.5), D::splat(3.0));
    let is_finite = a.lt(D::splat(1.0e200));
    let t = D::select(is_finite, a.sub(three).div(a.add(three)), D::splat(1.0));
    // Half of it over a + 1/2, from which the rounding of that sum is taken.
    let below = a.add(half);
    let is_small = a.lt(half);
    let (large, small) = (D::select(is_small, half, a), D::select(is_small, a, half));
    let lost = small.sub(below.sub(large));
    let q = poly(t, SCALED).mul(half).div(below);
    D::select(is_finite, q.sub(q.mul(lost.div(below))), q)
}

/// `e` to the power `sign * a²` times `q`; `a` at most 28.
#[inline(always)]
fn times_gaussian<D: Double>(a: D, sign: f64, q: D) -> D {
    let (sign, short) = (D::splat(sign), a.short());
    let x = short.mul(short).mul(sign);
    let low = a.sub(short).mul(a.add(short)).mul(sign);
    let n = nearest(x.mul(D::splat(LOG2_E)));
    let r = x.sub(n.mul(D::splat(LOG_2[0])));
    let r = r.add(low.sub(n.mul(D::splat(LOG_2[1]))));
    q.add(q.mul(rise(r))).scale(n)
}

/// One minus the error function of `a` from zero on.
#[inline(always)]
fn tail<D: Double>(a: D) -> D {
    let a = D::splat(28.0).min(a);
    times_gaussian(a, -1.0, scaled_complement(a))
}

/// The error function.
#[inline(always)]
pub fn erf_f64<D: Double>(x: D) -> D {
    let a = x.abs();
    let large = D::splat(1.0).sub(tail(a));
    D::select(a.lt(D::splat(0.875)), near_zero(a), large).with_sign(x)
}

/// One minus the error function.
#[inline(always)]
pub fn erfc_f64<D: Double>(x: D) -> D {
    let (a, one) = (x.abs(), D::splat(1.0));
    let small = one.sub(near_zero(a).with_sign(x));
    let tail = tail(a);
    let large = D::select(x.lt(D::splat(0.0)), D::splat(2.0).sub(tail), tail);
    D::select(a.lt(D::splat(0.4375)), small, large)
}

/// `e^(x²)` times one minus the error function.
#[inline(always)]
pub fn erfcx_f64<D: Double>(x: D) -> D {
    let a = x.abs();
    let y = scaled_complement(a);
    let twice = times_gaussian(D::splat(27.5).min(a), 1.0, D::splat(2.0));
    D::select(x.lt(D::splat(0.0)), twice.sub(y), y)
}
