//! The hyperbolic functions beside [`tanh`](super::tanh), and their inverses.

use super::{Lane, abs, exp_parts, log, poly, with_sign};
use std::f32::consts::LN_2;

/// `sinh r = r + r³ p(r²)`, `r` to 1.
const SINH: [f32; 4] = [1.666_666_7e-1, 8.333_311e-3, 1.984_265e-4, 2.783_767_3e-6];

/// `asinh r = r + r³ p(r²)`, `r` to 1.
const ASINH: [f32; 9] = [
    -1.666_666e-1,
    7.499_707e-2,
    -4.459_962e-2,
    3.006_301_4e-2,
    -2.099_954e-2,
    1.359_718_8e-2,
    -7.033_609_3e-3,
    2.405_525e-3,
    -3.898_430_4e-4,
];

/// `acosh(1 + r) = sqrt(2r) (1 + r p(r))`, `r` to 1.
const ACOSH: [f32; 7] = [
    -8.333_331e-2,
    1.874_940_7e-2,
    -5.574_630_6e-3,
    1.872_815_1e-3,
    -6.344_031e-4,
    1.774_239e-4,
    -2.743_929_9e-5,
];

/// `atanh r = r + r³ p(r²)`, `r` to 1/2.
const ATANH: [f32; 7] = [
    3.333_333_7e-1,
    1.999_962e-1,
    1.429_787_3e-1,
    1.092_857_35e-1,
    1.052_996_2e-1,
    1.678_759_2e-2,
    1.853_46e-1,
];

/// Half of `e` to the power `a`, for `a` from zero on.
#[inline(always)]
fn half_exp<L: Lane>(a: L) -> L {
    let (p, n, whole) = exp_parts(L::splat(91.0).min(a), None);
    p.scale(n.sub(L::splat(1.0)), L::int_sub(whole, L::splat_bits(1)))
}

/// The hyperbolic sine.
#[inline(always)]
pub fn sinh<L: Lane>(x: L) -> L {
    let a = abs(x);
    let z = a.mul(a);
    let small = poly(z, SINH).mul(z).fma(a, a);
    let half = half_exp(a);
    let large = half.sub(L::splat(0.25).div(half));
    with_sign(L::select(a.lt(L::splat(1.0)), small, large), x)
}

/// The hyperbolic cosine.
#[inline(always)]
pub fn cosh<L: Lane>(x: L) -> L {
    let half = half_exp(abs(x));
    half.add(L::splat(0.25).div(half))
}

/// The logarithm of `a + sqrt(square)`, where `square` is close to `a * a`, and of `2 a` where the
/// square would be too large.
#[inline(always)]
fn log_of_sum<L: Lane>(a: L, square: L) -> L {
    let huge = L::splat(1.0e8).lt(a);
    let sum = L::select(huge, a, a.add(square.sqrt()));
    log(sum).add(L::select(huge, L::splat(LN_2), L::splat(0.0)))
}

/// The inverse hyperbolic sine.
#[inline(always)]
pub fn asinh<L: Lane>(x: L) -> L {
    let a = abs(x);
    let z = a.mul(a);
    let small = poly(z, ASINH).mul(z).fma(a, a);
    let large = log_of_sum(a, a.fma(a, L::splat(1.0)));
    with_sign(L::select(a.lt(L::splat(1.0)), small, large), x)
}

/// The inverse hyperbolic cosine, NaN below 1.
#[inline(always)]
pub fn acosh<L: Lane>(x: L) -> L {
    let above = x.sub(L::splat(1.0));
    let root = above.add(above).sqrt();
    let small = poly(above, ACOSH).mul(above).fma(root, root);
    let large = log_of_sum(x, x.fma(x, L::splat(-1.0)));
    L::select(above.lt(L::splat(1.0)), small, large)
}

/// The inverse hyperbolic tangent, infinite at -1 and 1, NaN outside.
#[inline(always)]
pub fn atanh<L: Lane>(x: L) -> L {
    let a = abs(x);
    let one = L::splat(1.0);
    let z = a.mul(a);
    let small = poly(z, ATANH).mul(z).fma(a, a);
    let large = L::splat(0.5).mul(log(one.add(a).div(one.sub(a))));
    with_sign(L::select(a.lt(L::splat(0.5)), small, large), x)
}
