//! Functions of an f64 that run in vectors: fixed sequences of IEEE operations on a [`Double`].
//!
//! No product is added in the same step, since a machine without that instruction would take a call
//! for each. The bound of each is
//! [`Function::bound_of_doubles`](crate::kernel::Function::bound_of_doubles). The logarithm is
//! fdlibm's, and the powers are Taylor's.

mod error_function;
mod gamma;
mod inverse;
mod inverse_error;
mod trigonometric;

pub use error_function::{erf_f64, erfc_f64, erfcx_f64};
pub use gamma::{digamma_f64, lgamma_f64, trigamma_f64};
pub use inverse::{acos_f64, acosh_f64, asin_f64, asinh_f64, atan_f64, atanh_f64};
pub use inverse_error::{erfinv_f64, ndtri_f64};
pub use trigonometric::{cos_f64, sin_f64, tan_f64};

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// One f64 or a vector of them.
///
/// Every operation acts on each lane alone and rounds once, to nearest even, with subnormals kept.
pub trait Double: Copy {
    /// Truth values.
    type Mask: Copy;

    /// The number in every lane.
    fn splat(v: f64) -> Self;
    /// `self + o`.
    fn add(self, o: Self) -> Self;
    /// `self - o`.
    fn sub(self, o: Self) -> Self;
    /// `self * o`.
    fn mul(self, o: Self) -> Self;
    /// `self / o`.
    fn div(self, o: Self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// `self` where `self > o`, else `o`: a NaN in either gives `o`.
    fn max(self, o: Self) -> Self;
    /// `self` where `self < o`, else `o`: a NaN in either gives `o`.
    fn min(self, o: Self) -> Self;
    /// The mask of `self < o`, false for NaN.
    fn lt(self, o: Self) -> Self::Mask;
    /// `a` where the mask is set, else `b`.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// Without its sign.
    fn abs(self) -> Self;
    /// `self`, which is not negative, with the sign of `x`.
    fn with_sign(self, x: Self) -> Self;
    /// The first 21 bits of the number, which it is cut down to: their square is exact.
    fn short(self) -> Self;
    /// `self` times two to the power of `n`, an integer between -2000 and 2000; rounded once.
    /// `self` is 2^-20 to 4, or NaN.
    fn scale(self, n: Self) -> Self;
    /// `e` and `m` with `self = 2^e m`, `m` from 1 to below 2, for numbers above zero. Zeros have
    /// -inf and 1, infinity has inf and 1; below zero `m` is NaN and `e` any number or infinite,
    /// and of a NaN both or one of them are NaN.
    fn parts(self) -> (Self, Self);
    /// `self`, with `exact(x)` in the lanes where the mask is clear.
    fn or_exact(self, good: Self::Mask, x: Self, exact: fn(f64) -> f64) -> Self;
}

/// The bits of a short number: sign, exponent, and the first 20 bits of the fraction.
pub const SHORT: u64 = 0xffff_ffff_0000_0000;

/// Adding 1.5 * 2^52 leaves the nearest integer.
const SHIFTER: f64 = 6_755_399_441_055_744.0;

/// ln 2 in two parts, the first of which times an exponent is exact.
const LOG_2: [f64; 2] =
    [f64::from_bits(0x3fe6_2e42_fee0_0000), f64::from_bits(0x3dea_39ef_3579_3c76)];

/// `(e^r - 1 - r) / r²`: one over the factorials from 2 on.
const POWER: [f64; 12] = {
    let (mut all, mut n, mut product) = ([0.0; 12], 0, 1.0);
    while n < 12 {
        product *= (n + 2) as f64;
        all[n] = 1.0 / product;
        n += 1;
    }
    all
};

/// `(log (1 + s) - log (1 - s)) / s - 2` in `s²`, from its first power on.
const LOG: [f64; 7] = [
    6.666_666_666_666_735e-1,
    3.999_999_999_940_942e-1,
    2.857_142_874_366_239e-1,
    2.222_219_843_214_978_4e-1,
    1.818_357_216_161_805e-1,
    1.531_383_769_920_937_3e-1,
    1.479_819_860_511_658_6e-1,
];

/// A polynomial, constant term first.
#[inline(always)]
fn poly<D: Double, const N: usize>(x: D, c: [f64; N]) -> D {
    let mut p = D::splat(c[N - 1]);
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        p = p.mul(x).add(D::splat(c[i]));
    }
    p
}

/// `e^r - 1` for `r` about zero.
#[inline(always)]
fn rise<D: Double>(r: D) -> D {
    poly(r, POWER).mul(r.mul(r)).add(r)
}

/// The nearest integer.
#[inline(always)]
fn nearest<D: Double>(x: D) -> D {
    x.add(D::splat(SHIFTER)).sub(D::splat(SHIFTER))
}

/// `n` and `e^r - 1` with `x = n ln 2 + r`, for `x` from -750 to 750.
#[inline(always)]
fn power<D: Double>(x: D) -> (D, D) {
    let n = nearest(x.mul(D::splat(LOG2_E)));
    let r = x.sub(n.mul(D::splat(LOG_2[0]))).sub(n.mul(D::splat(LOG_2[1])));
    (n, rise(r))
}

/// `e` to the power `x`.
#[inline(always)]
pub fn exp_f64<D: Double>(x: D) -> D {
    let (n, q) = power(D::splat(710.0).min(D::splat(-746.0).max(x)));
    D::splat(1.0).add(q).scale(n)
}

/// Two to the power `x`.
#[inline(always)]
pub fn exp2_f64<D: Double>(x: D) -> D {
    let x = D::splat(1025.0).min(D::splat(-1076.0).max(x));
    let n = nearest(x);
    D::splat(1.0).add(rise(x.sub(n).mul(D::splat(LN_2)))).scale(n)
}

/// A quarter of `e^x - 1`: that of a finite number, and of half as much again, is finite.
#[inline(always)]
fn quarter<D: Double>(x: D) -> D {
    let (n, q) = power(x);
    let quarter = D::splat(0.25).scale(n);
    quarter.mul(q).add(quarter.sub(D::splat(0.25)))
}

/// `e` to the power `x`, less one.
#[inline(always)]
pub fn expm1_f64<D: Double>(x: D) -> D {
    let y = quarter(D::splat(710.0).min(D::splat(-40.0).max(x))).mul(D::splat(4.0));
    // A part of a subnormal number is not exact.
    D::select(x.abs().lt(D::splat(1.0e-17)), x, y)
}

/// The hyperbolic sine.
#[inline(always)]
pub fn sinh_f64<D: Double>(x: D) -> D {
    let a = x.abs();
    let e = quarter(D::splat(710.5).min(a));
    let e = e.add(e);
    // With e^a - 1 = 2e the result is e + e / (2e + 1), whose quotient goes towards a half.
    let quotient = e.div(e.add(e).add(D::splat(1.0)));
    let y = e.add(quotient.min(D::splat(0.5)));
    D::select(a.lt(D::splat(1.0e-9)), a, y).with_sign(x)
}

/// The hyperbolic cosine.
#[inline(always)]
pub fn cosh_f64<D: Double>(x: D) -> D {
    let (n, q) = power(D::splat(710.5).min(x.abs()));
    let half = D::splat(1.0).add(q).scale(n.sub(D::splat(1.0)));
    half.add(D::splat(0.25).div(half))
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh_f64<D: Double>(x: D) -> D {
    let a = x.abs();
    let (n, q) = power(D::splat(44.0).min(a.add(a)));
    let one = D::splat(1.0);
    let p = one.scale(n);
    let e = p.mul(q).add(p.sub(one));
    e.div(e.add(D::splat(2.0))).with_sign(x)
}

/// `e`, `f`, half the square of `f` and `rest` with `x = 2^e (1 + f)`, `1 + f` from sqrt(1/2) to
/// sqrt(2), and `log(1 + f)` that is `f - (square - rest)`.
#[inline(always)]
fn log_parts<D: Double>(x: D) -> [D; 4] {
    let (e, m) = x.parts();
    let (zero, half, one) = (D::splat(0.0), D::splat(0.5), D::splat(1.0));
    let large = D::splat(SQRT_2).lt(m);
    let f = D::select(large, m.mul(half), m).sub(one);
    let e = e.add(D::select(large, one, zero));
    let s = f.div(D::splat(2.0).add(f));
    let z = s.mul(s);
    let square = f.mul(f).mul(half);
    [e, f, square, s.mul(square.add(poly(z, LOG).mul(z)))]
}

/// The natural logarithm of `x` and `more`, a number that is small beside 1.
#[inline(always)]
fn log_and<D: Double>(x: D, more: D) -> D {
    let [e, f, square, rest] = log_parts(x);
    // Both parts are above zero, so that an infinite exponent makes an infinite logarithm.
    let low = rest.add(e.mul(D::splat(LOG_2[1])).add(more));
    e.mul(D::splat(LOG_2[0])).add(f.sub(square.sub(low)))
}

/// The natural logarithm: -inf at zeros, NaN below.
#[inline(always)]
pub fn log_f64<D: Double>(x: D) -> D {
    log_and(x, D::splat(0.0))
}

/// The natural logarithm of `1 + x`: -inf at -1, NaN below.
#[inline(always)]
pub fn log1p_f64<D: Double>(x: D) -> D {
    let (zero, one) = (D::splat(0.0), D::splat(1.0));
    let sum = x.add(one);
    // What the sum has lost by rounding.
    let lost = x.sub(sum.sub(one)).div(sum);
    let lost = D::select(zero.lt(sum), lost, zero);
    let lost = D::select(sum.lt(D::splat(f64::INFINITY)), lost, zero);
    D::select(x.abs().lt(D::splat(1.0e-17)), x, log_and(sum, lost))
}

/// The logarithm to a base: `one` is that of `e` and `two` that of 2, each in two parts, of which
/// the first are short.
#[inline(always)]
fn log_to_base<D: Double>(x: D, one: [f64; 2], two: [f64; 2]) -> D {
    let [e, f, square, rest] = log_parts(x);
    let high = f.sub(square).short();
    let low = f.sub(high).sub(square).add(rest);
    let more = low.add(high).mul(D::splat(one[1])).add(low.mul(D::splat(one[0])));
    let (a, b) = (e.mul(D::splat(two[0])), high.mul(D::splat(one[0])));
    let sum = a.add(b);
    let lost = a.sub(sum).add(b).add(e.mul(D::splat(two[1])).add(more));
    // Of an infinite exponent nothing is lost.
    sum.add(D::select(e.abs().lt(D::splat(1.0e4)), lost, D::splat(0.0)))
}

/// The logarithm to base two: -inf at zeros, NaN below.
#[inline(always)]
pub fn log2_f64<D: Double>(x: D) -> D {
    let one = [f64::from_bits(0x3ff7_1547_6520_0000), f64::from_bits(0x3de7_05fc_2eef_a200)];
    log_to_base(x, one, [1.0, 0.0])
}

/// The logarithm to base ten: -inf at zeros, NaN below.
#[inline(always)]
pub fn log10_f64<D: Double>(x: D) -> D {
    let one = [f64::from_bits(0x3fdb_cb7b_1520_0000), f64::from_bits(0x3dbb_9438_ca9a_add5)];
    let two = [f64::from_bits(0x3fd3_4413_509f_6000), f64::from_bits(0x3d59_fef3_11f1_2b36)];
    log_to_base(x, one, two)
}

impl Double for f64 {
    type Mask = bool;

    #[inline(always)]
    fn splat(v: f64) -> f64 {
        v
    }
    #[inline(always)]
    fn add(self, o: f64) -> f64 {
        self + o
    }
    #[inline(always)]
    fn sub(self, o: f64) -> f64 {
        self - o
    }
    #[inline(always)]
    fn mul(self, o: f64) -> f64 {
        self * o
    }
    #[inline(always)]
    fn div(self, o: f64) -> f64 {
        self / o
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
    #[inline(always)]
    fn max(self, o: f64) -> f64 {
        if self > o { self } else { o }
    }
    #[inline(always)]
    fn min(self, o: f64) -> f64 {
        if self < o { self } else { o }
    }
    #[inline(always)]
    fn lt(self, o: f64) -> bool {
        self < o
    }
    #[inline(always)]
    fn select(mask: bool, a: f64, b: f64) -> f64 {
        if mask { a } else { b }
    }
    #[inline(always)]
    fn abs(self) -> f64 {
        f64::abs(self)
    }
    #[inline(always)]
    fn with_sign(self, x: f64) -> f64 {
        self.copysign(x)
    }
    #[inline(always)]
    fn short(self) -> f64 {
        f64::from_bits(self.to_bits() & SHORT)
    }
    #[inline(always)]
    fn or_exact(self, good: bool, x: f64, exact: fn(f64) -> f64) -> f64 {
        if good { self } else { exact(x) }
    }
    #[inline(always)]
    fn scale(self, n: f64) -> f64 {
        // Of two factors, since 2^n alone may be out of range; only the last product can be
        // inexact.
        let power = |n: i64| f64::from_bits(((n + 1023) as u64) << 52);
        let n = n as i64;
        self * power(n >> 1) * power(n - (n >> 1))
    }
    #[inline(always)]
    fn parts(self) -> (f64, f64) {
        let tiny = self < f64::MIN_POSITIVE;
        // 2^54.
        let y = if tiny { self * 18_014_398_509_481_984.0 } else { self }.to_bits();
        let e = (y >> 52) as f64 - if tiny { 1077.0 } else { 1023.0 };
        let m = f64::from_bits(y & 0x000f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000);
        match self {
            x if x < 0.0 => (e, f64::NAN),
            0.0 => (f64::NEG_INFINITY, m),
            x if x < f64::INFINITY => (e, m),
            x => (x, m),
        }
    }
}
