//! What belongs to the error function: its complement, also scaled, and the inverses.
//!
//! The complement is `e^-x² R(x)` with the rational `R` of Shepherd and Laframboise:
//! `(1 + 2x) R(x)` is a polynomial in `(x - k) / (x + k)`. The inverses are polynomials in
//! `w = -log(1 - y²)`, and in the tails in its square root, as Giles has them, here in one over it.

use super::{Lane, abs, erf_near_zero, exp_parts, log, poly, with_sign};

/// `(1 + 2a) e^(a²) erfc(a)` in `(a - 2) / (a + 2)`.
const SCALED: [f32; 12] = [
    1.276_978_4,
    -9.276_377e-2,
    -1.660_306_9e-1,
    1.640_491_8e-1,
    -5.421_438_8e-2,
    -8.016_579e-3,
    8.694_949e-3,
    1.210_916_3e-3,
    -1.401_660_5e-3,
    -3.507_784e-4,
    1.630_131_6e-4,
    6.061_341e-5,
];

/// From here on `e^(a²) erfc(a)` is one over `a sqrt(π)`, and below it `1 / (a + 1/2)` is far from
/// zero.
const FAR: f32 = 1.0e30;

/// `erfinv(x) / x` in `w - 2.5`, `w` to 5.
const ERFINV_NEAR: [f32; 10] = [
    1.501_409_4,
    2.466_402_8e-1,
    -4.177_631_3e-3,
    -1.252_750_2e-3,
    2.185_404_7e-4,
    -4.949_096e-6,
    -3.513_348e-6,
    4.615_482_7e-7,
    2.732_034_5e-8,
    -8.372_533e-9,
];

/// `erfinv(x) / (x sqrt(w))` in `1/sqrt(w) - 0.35`, `w` from 5 to 16.4.
const ERFINV_FAR: [f32; 9] = [
    9.415_343e-1,
    -1.625_710_7e-1,
    3.156_042_7e-1,
    1.326_185_8,
    3.329_378,
    -6.675_41,
    -7.701_689e1,
    8.269_332e1,
    1.030_188_5e3,
];

/// `ndtri(p) / (2p - 1)` in `w - 2.5`, `w` to 5.
const NDTRI_NEAR: [f32; 10] = [
    2.123_313_4,
    3.488_020_3e-1,
    -5.907_533_7e-3,
    -1.771_610_2e-3,
    3.086_577e-4,
    -7.043_604_5e-6,
    -4.866_692e-6,
    6.650_136e-7,
    3.055_116_7e-8,
    -1.286_624_85e-8,
];

/// `ndtri(p) / ((2p - 1) sqrt(w))` in `1/sqrt(w) - 0.27`, `w` from 5 to 103.
const NDTRI_FAR: [f32; 13] = [
    1.352_014_9,
    -2.747_767_3e-1,
    1.609_152e-1,
    7.769_397_5e-1,
    3.363_030_9e-1,
    1.496_133_5e1,
    5.219_089_5e1,
    -1.707_329_7e2,
    -1.893_804_9e3,
    8.907_131_3e2,
    3.174_434_2e4,
    2.360_628_7e3,
    -2.386_374_4e5,
];

/// `e^(a²) erfc(a)` for `a` from zero to [`FAR`], as a number and its correction.
#[inline(always)]
fn scaled_complement<L: Lane>(a: L) -> (L, L) {
    let t = a.sub(L::splat(2.0)).div(a.add(L::splat(2.0)));
    // Half the polynomial over a + 1/2, and what the roundings of both lost.
    let half = L::splat(0.5);
    let (p, below) = (poly(t, SCALED).mul(half), a.add(half));
    let added = below.sub(a);
    let lost = a.sub(below.sub(added)).add(half.sub(added));
    let reciprocal = L::splat(1.0).div(below);
    let q = p.mul(reciprocal);
    let minus = L::splat(0.0).sub(q);
    (q, minus.fma(lost, minus.fma(below, p)).mul(reciprocal))
}

/// `e` to the power `sign * a²` times `q + rest`; `a` at most 11.
#[inline(always)]
fn times_gaussian<L: Lane>(a: L, sign: f32, (q, rest): (L, L)) -> L {
    let sign = L::splat(sign);
    let square = a.mul(a);
    let low = a.fma(a, L::splat(0.0).sub(square));
    let (p, n, whole) = exp_parts(square.mul(sign), Some(low.mul(sign)));
    p.fma(q, p.mul(rest)).scale(n, whole)
}

/// One minus the error function.
#[inline(always)]
pub fn erfc<L: Lane>(x: L) -> L {
    let a = L::splat(10.5).min(abs(x));
    let one = L::splat(1.0);
    let small = one.sub(with_sign(erf_near_zero(a), x));
    let tail = times_gaussian(a, -1.0, scaled_complement(a));
    let large = L::select(x.lt(L::splat(0.0)), L::splat(2.0).sub(tail), tail);
    L::select(a.lt(L::splat(0.4375)), small, large)
}

/// `e^(x²)` times one minus the error function.
#[inline(always)]
pub fn erfcx<L: Lane>(x: L) -> L {
    let a = abs(x);
    let (q, rest) = scaled_complement(L::splat(FAR).min(a));
    let twice = times_gaussian(L::splat(11.0).min(a), 1.0, (L::splat(2.0), L::splat(0.0)));
    let far = L::splat(0.5 * std::f32::consts::FRAC_2_SQRT_PI).div(a);
    let y = L::select(a.lt(L::splat(FAR)), q.add(rest), far);
    L::select(x.lt(L::splat(0.0)), twice.sub(y), y)
}

/// The square root of `w` times a polynomial in one over it, less `centre`.
#[inline(always)]
fn far<L: Lane, const N: usize>(w: L, centre: f32, c: [f32; N]) -> L {
    let root = w.sqrt();
    poly(L::splat(1.0).div(root).sub(L::splat(centre)), c).mul(root)
}

/// The inverse of the error function: infinite at -1 and 1, NaN outside.
#[inline(always)]
pub fn erfinv<L: Lane>(x: L) -> L {
    let one = L::splat(1.0);
    let w = L::splat(0.0).sub(log(L::splat(0.0).sub(x).fma(x, one)));
    let near = poly(w.sub(L::splat(2.5)), ERFINV_NEAR);
    let far = far(w, 0.35, ERFINV_FAR);
    let y = L::select(w.lt(L::splat(5.0)), near, far).mul(x);
    L::select(abs(x).eq(one), with_sign(L::splat(f32::INFINITY), x), y)
}

/// The number that a normal number is below with probability `p`: infinite at 0 and 1, NaN outside.
#[inline(always)]
pub fn ndtri<L: Lane>(p: L) -> L {
    let one = L::splat(1.0);
    let w = L::splat(0.0).sub(log(p.mul(one.sub(p)).mul(L::splat(4.0))));
    let near = poly(w.sub(L::splat(2.5)), NDTRI_NEAR);
    let far = far(w, 0.27, NDTRI_FAR);
    let y = L::select(w.lt(L::splat(5.0)), near, far).mul(L::splat(2.0).fma(p, L::splat(-1.0)));
    let y = L::select(p.eq(L::splat(0.0)), L::splat(f32::NEG_INFINITY), y);
    L::select(p.eq(one), L::splat(f32::INFINITY), y)
}
