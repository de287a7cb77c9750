//! The inverse of the error function of an f64, and of the normal distribution.
//!
//! Up to 0.93 it is a polynomial in `w = -log(1 - y²)`; beyond, a rough one in the square root of
//! `w`, and a step of Halley's towards the zero of `log(erfc y) - log q`, which is nearly straight.

use super::error_function::scaled_complement;
use super::{Double, log_f64, poly};
use std::f64::consts::{FRAC_2_SQRT_PI, SQRT_2};

/// `erfinv(x) / x` in `w - 1`, `w` to 2.
const NEAR: [f64; 16] = [
    1.127_374_393_689_227_8,
    2.478_328_702_862_109_3e-1,
    4.250_709_244_824_824_6e-3,
    -2.376_369_955_578_904e-3,
    1.001_217_762_290_860_1e-4,
    3.820_187_248_768_644e-5,
    -4.275_585_700_235_219e-6,
    -5.652_252_316_268_906e-7,
    1.223_170_912_624_975_8e-7,
    6.040_147_657_069_496e-9,
    -3.024_055_115_246_008_7e-9,
    1.655_819_436_787_874_2e-11,
    6.744_272_955_940_592e-11,
    -3.698_950_375_832_715_5e-12,
    -1.272_021_033_030_345_4e-12,
    1.352_491_116_302_969_8e-13,
];

/// `erfinv(x) / (x sqrt w)` in `(sqrt w - 2) / (sqrt w + 2) - 0.3`, `w` from 2 to 750, to six
/// digits.
const FAR: [f64; 16] = [
    9.561_682_093_082_224e-1,
    1.150_281_610_603_591_2e-1,
    -4.895_679_569_990_159e-2,
    -9.919_671_664_897_517e-2,
    2.828_149_309_458_346_5e-1,
    -1.599_246_780_214_981_5,
    6.316_421_522_011_771,
    -5.445_460_501_429_552,
    -31.16384811696316,
    61.523043039896734,
    74.51701831900807,
    -222.23087609433543,
    -72.68509249012843,
    363.1877846483471,
    -2.263_214_044_188_95,
    -206.83140557003009,
];

/// The `y` from zero on with `erf y = a` and `erfc y = q`; infinite where `q` is zero, NaN below.
#[inline(always)]
fn inverse<D: Double>(a: D, q: D) -> D {
    let (zero, half, one, two) = (D::splat(0.0), D::splat(0.5), D::splat(1.0), D::splat(2.0));
    let w = zero.sub(log_f64(q.mul(two.sub(q))));
    let near = a.mul(poly(w.sub(one), NEAR));
    let root = w.sqrt();
    let t = root.sub(two).div(root.add(two)).sub(D::splat(0.3));
    let y = a.mul(root).mul(poly(t, FAR));
    let scaled = scaled_complement(y);
    let short = y.short();
    let rest = y.sub(short).mul(y.add(short));
    let gap = zero.sub(log_f64(q)).sub(short.mul(short)).sub(rest).add(log_f64(scaled));
    let slope = D::splat(FRAC_2_SQRT_PI).div(scaled);
    let step = gap.div(slope);
    let bend = slope.sub(y.add(y)).mul(half);
    let far = y.add(step.div(one.add(step.mul(bend))));
    let y = D::select(w.lt(two), near, far);
    let end = D::select(q.lt(zero), D::splat(f64::NAN), one.div(q.abs()));
    D::select(zero.lt(q), y, end)
}

/// The inverse of the error function: infinite at -1 and 1, NaN outside.
#[inline(always)]
pub fn erfinv_f64<D: Double>(x: D) -> D {
    let a = x.abs();
    inverse(a, D::splat(1.0).sub(a)).with_sign(x)
}

/// The number that a normal number is below with probability `p`: infinite at 0 and 1, NaN outside.
#[inline(always)]
pub fn ndtri_f64<D: Double>(p: D) -> D {
    let (zero, half, one) = (D::splat(0.0), D::splat(0.5), D::splat(1.0));
    let is_low = p.lt(half);
    let least = D::select(is_low, p, one.sub(p));
    let q = least.add(least);
    let y = inverse(one.sub(q), q).mul(D::splat(SQRT_2));
    D::select(is_low, zero.sub(y), y)
}
