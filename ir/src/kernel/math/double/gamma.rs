//! The logarithm of the gamma function of an f64 and its first two derivatives: the asymptotic
//! series from 8 on, and the steps there. Numbers below zero are reflected.
//!
//! Near its zeros at 1 and 2 the logarithm is a polynomial with the zero as a factor. Its zeros
//! below zero are differences of two numbers, and those of the first derivative are of two numbers
//! of about 2, or more below zero: there only the absolute error is small. The polynomials
//! interpolate at Chebyshev's points.

use super::trigonometric::sine_and_cosine;
use super::{Double, log_f64, nearest, poly};
use std::f64::consts::PI;

/// `log Γ(1 + f) / f` in `f / (2 + f)`, `f` from -1/2 to 1/2.
const AT_ONE: [f64; 20] = [
    -5.772_156_649_015_329e-1,
    1.644_934_066_848_226_6,
    4.219_152_930_209_909e-2,
    6.040_954_591_781_38e-1,
    1.247_704_001_862_415_4e-2,
    3.749_971_193_131_547e-1,
    5.952_815_030_094_569e-3,
    2.723_218_177_811_364e-1,
    3.472_358_851_040_659_4e-3,
    2.138_892_509_158_251_7e-1,
    2.273_010_249_969_322_4e-3,
    1.761_221_226_605_778_3e-1,
    1.571_215_902_704_739_7e-3,
    1.500_515_977_017_726_5e-1,
    2.346_326_335_773_173_3e-3,
    1.268_063_725_551_323_3e-1,
    -1.861_904_192_662_094e-2,
    1.153_581_818_102_665_7e-1,
    1.281_270_349_270_756e-1,
    2.995_770_712_587_913e-1,
];

/// `log Γ(2 + f) / f` in `f / (4 + f)`, `f` from -1/2 to 1.
const AT_TWO: [f64; 16] = [
    4.227_843_350_984_671_3e-1,
    1.289_868_133_696_452_8,
    2.122_313_168_452_775_7e-1,
    4.517_662_393_724_119e-1,
    1.177_718_379_412_277_1e-1,
    2.794_296_278_372_753e-1,
    8.028_367_974_759_933e-2,
    2.031_461_051_347_486_2e-1,
    6.075_785_776_785_107e-2,
    1.597_229_592_709_639_2e-1,
    4.885_390_372_753_82e-2,
    1.317_020_331_206_520_7e-1,
    4.113_889_899_597_098e-2,
    1.093_952_262_029_417_2e-1,
    3.291_287_246_984_823e-2,
    1.358_454_899_322_319_7e-1,
];

/// Stirling's series over `1/x`, in `1/x²`, `x` from 8.
const STIRLING: [f64; 7] = [
    8.333_333_333_333_333e-2,
    -2.777_777_777_773_988e-3,
    7.936_507_897_524_059e-4,
    -5.952_365_845_057_049e-4,
    8.414_700_852_503_147e-4,
    -1.890_382_993_887_715e-3,
    5.065_905_360_156_132e-3,
];

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
    /// 2^51: from it to twice as much there are halves, but the sum with the shifter would have
    /// none.
    const HALVES: f64 = 2_251_799_813_685_248.0;
    let (a, halves) = (x.abs(), D::splat(HALVES));
    let near = D::select(a.lt(halves), a, a.sub(halves));
    let r = near.sub(nearest(near));
    D::select(a.lt(D::splat(2.0 * HALVES)), r, D::splat(0.0))
}

/// What is left of `x` after reflection, from zero on; what is large enough for the series; and the
/// sum of `each` of the reciprocals of the steps to there.
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

/// The logarithm of the gamma function for `a` from 1/2 on, and, with `is_small`, that of 1 plus
/// `f`, which is `x` then.
#[inline(always)]
fn log_gamma<D: Double>(x: D, a: D, is_small: D::Mask) -> D {
    let (half, one, two, three) = (D::splat(0.5), D::splat(1.0), D::splat(2.0), D::splat(3.0));
    // Γ(y + k) is Γ(y) times the factors of the steps.
    let (mut y, mut product) = (a, one);
    let is_near = a.lt(D::splat(8.0));
    let mut step = 0;
    while step < 5 {
        let less = y.sub(one);
        let stays = y.lt(three);
        product = D::select(stays, product, product.mul(less));
        y = D::select(stays, y, less);
        step += 1;
    }
    let is_at_one = a.lt(D::splat(1.5));
    let f = D::select(is_small, x, D::select(is_at_one, a.sub(one), y.sub(two)));
    let t = f.div(f.add(D::select(is_at_one, two, D::splat(4.0))));
    let near = D::select(is_at_one, poly(t, AT_ONE), poly(t, AT_TWO)).mul(f);
    let log = log_f64(D::select(is_small, a, D::select(is_near, product, a)));
    let u = one.div(a);
    let series = D::splat(HALF_LOG_TAU).add(u.mul(poly(u.mul(u), STIRLING)));
    let far = a.sub(half).mul(log.sub(one)).add(series);
    let steps = D::select(is_small, D::splat(0.0).sub(log), log);
    D::select(is_near, near.add(steps), far)
}

/// `(log 2π - 1) / 2`.
const HALF_LOG_TAU: f64 = 0.418_938_533_204_672_7;

/// The logarithm of the magnitude of the gamma function: infinite at zero, at the negative integers
/// and at the infinities.
#[inline(always)]
pub fn lgamma_f64<D: Double>(x: D) -> D {
    let a = x.abs();
    let is_small = a.lt(D::splat(0.5));
    let positive = log_gamma(x, a, is_small);
    // log Γ(x) = log(π / (|x| |sin πx|)) - log Γ(|x|).
    let (sine, _) = sine_and_cosine(beside_integer(x).mul(D::splat(PI)));
    let reflected = log_f64(D::splat(PI).div(a.mul(sine.abs()))).sub(positive);
    // At integers the sine is zero, and far out there are no others.
    let is_integer = sine.abs().lt(D::splat(1.0e-300));
    let reflected = D::select(is_integer, D::splat(f64::INFINITY), reflected);
    let reflected = D::select(is_small, positive, reflected);
    D::select(x.lt(D::splat(0.0)), reflected, positive)
}

/// The derivative of `lgamma`: infinite at zero, with the other sign; NaN at the negative integers
/// and at -inf.
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
