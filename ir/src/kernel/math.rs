//! The scalar functions of the language, defined down to the bits.
//!
//! Each function of an f32 is a fixed sequence of IEEE operations on a [`Lane`]. An interpreter
//! runs it on `f32`, a device on vectors of them, and both get the same bits, whatever the width.
//! `ir/tests/accuracy.rs` has the bound of each, in units in the last place of the exact value,
//! subnormal numbers included; a NaN result may carry any payload. The functions of an f64 are
//! sequences on a [`Double`] in the same way; of angles beyond a million they are those of the
//! `libm` crate, which is plain Rust and the same on every machine.
//!
//! The polynomials are minimax fits made for these sequences; the reductions are the classic ones:
//! powers of two for `exp` and `log` (Cody and Waite), multiples of π/2 for `sin`, `cos` and `tan`
//! (three parts up to 2^17, in f64 beyond).

mod double;
mod error_function;
mod fma;
mod gamma;
mod hyperbolic;
mod powers;
#[cfg(test)]
mod tests;
mod trigonometric;

pub use double::{
    Double, SHORT, acos_f64, acosh_f64, asin_f64, asinh_f64, atan_f64, atanh_f64, cos_f64,
    cosh_f64, digamma_f64, erf_f64, erfc_f64, erfcx_f64, erfinv_f64, exp_f64, exp2_f64, expm1_f64,
    lgamma_f64, log_f64, log1p_f64, log2_f64, log10_f64, ndtri_f64, sin_f64, sinh_f64, tan_f64,
    tanh_f64, trigamma_f64,
};
pub use error_function::{erfc, erfcx, erfinv, ndtri};
pub use fma::{emulated_fma, fma};
pub use gamma::{digamma, lgamma, trigamma};
pub use hyperbolic::{acosh, asinh, atanh, cosh, sinh};
pub use powers::{exp2, expm1, log1p, log2, log10};
pub use trigonometric::{acos, asin, atan, cos, sin, tan};

/// The length of the blocks along `k` in which a contraction is summed.
///
/// Within a block the accumulator starts at zero and takes `fma(a, b, acc)` in order of `k`; block
/// sums are added in order, beginning with the first block's sum itself.
pub const CONTRACT_BLOCK: usize = 512;

/// One f32 or a vector of them, with the operations the functions are made of.
///
/// Every operation acts on each lane alone and rounds once, to nearest even, with subnormals kept.
/// Masks are `Bits` with all bits of a lane set or none.
pub trait Lane: Copy {
    /// The same lanes as 32-bit integers, wrapping.
    type Bits: Copy;

    /// The number in every lane.
    fn splat(v: f32) -> Self;
    /// The integer in every lane.
    fn splat_bits(v: u32) -> Self::Bits;
    /// `self + o`.
    fn add(self, o: Self) -> Self;
    /// `self - o`.
    fn sub(self, o: Self) -> Self;
    /// `self * o`.
    fn mul(self, o: Self) -> Self;
    /// `self / o`.
    fn div(self, o: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// `self` where `self > o`, else `o`: a NaN in either gives `o`.
    fn max(self, o: Self) -> Self;
    /// `self` where `self < o`, else `o`: a NaN in either gives `o`.
    fn min(self, o: Self) -> Self;
    /// The mask of `self < o`, false for NaN.
    fn lt(self, o: Self) -> Self::Bits;
    /// The mask of `self == o`, false for NaN.
    fn eq(self, o: Self) -> Self::Bits;
    /// `a` where the mask is set, else `b`.
    fn select(mask: Self::Bits, a: Self, b: Self) -> Self;
    /// The bits of the number.
    fn bits(self) -> Self::Bits;
    /// The number of the bits.
    fn from_bits(b: Self::Bits) -> Self;
    /// Integer sum.
    fn int_add(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// Integer difference.
    fn int_sub(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// Bitwise and.
    fn and(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// Bitwise or.
    fn or(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// Bitwise exclusive or.
    fn xor(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// Shift left.
    fn shl<const N: i32>(a: Self::Bits) -> Self::Bits;
    /// Shift right, keeping the sign.
    fn sar<const N: i32>(a: Self::Bits) -> Self::Bits;
    /// The mask of integer equality.
    fn int_eq(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// `self` times two to the power of `n`, which also comes as an integer, between -252 and 254;
    /// rounded once. `self` is 2^-20 to 4, or NaN.
    #[inline(always)]
    fn scale(self, n: Self, whole: Self::Bits) -> Self {
        let _ = n;
        scale_in_steps(self, whole)
    }
    /// The same for `n` between -150 and 0: the first product is exact.
    #[inline(always)]
    fn scale_down(self, n: Self, whole: Self::Bits) -> Self {
        let _ = n;
        let raised = self.mul(power_of_two(Self::int_add(whole, Self::splat_bits(64))));
        raised.mul(Self::splat(1.0 / 18_446_744_073_709_551_616.0))
    }
    /// `e` and `m` with `self = 2^e m`, `m` from 1 to below 2, for numbers above zero. Zeros have
    /// -inf and 1, infinity has inf and 1; below zero `m` is NaN and `e` any number or infinite,
    /// and of a NaN both or one of them are NaN.
    #[inline(always)]
    fn parts(self) -> (Self, Self) {
        parts_of_bits(self)
    }
    /// `self`, with `exact(x)` in the lanes where `self` is not to be used: those with the mask
    /// clear.
    fn or_exact(self, good: Self::Bits, x: Self, exact: fn(f32) -> f32) -> Self;
}

const SIGN: u32 = 0x8000_0000;
/// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum, in two's complement.
const SHIFTER: f32 = 12_582_912.0;
const LN2_HIGH: f32 = f32::from_bits(0x3f31_7218);
const LN2_LOW: f32 = f32::from_bits(0xb102_e308);

/// Evaluates a polynomial, constant term first, by Horner's rule with fused steps.
#[inline(always)]
fn poly<L: Lane, const N: usize>(x: L, c: [f32; N]) -> L {
    let mut p = L::splat(c[N - 1]);
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        p = p.fma(x, L::splat(c[i]));
    }
    p
}

#[inline(always)]
fn abs<L: Lane>(x: L) -> L {
    L::from_bits(L::and(x.bits(), L::splat_bits(!SIGN)))
}

/// `magnitude`, which is not negative, with the sign of `x`.
#[inline(always)]
fn with_sign<L: Lane>(magnitude: L, x: L) -> L {
    L::from_bits(L::or(magnitude.bits(), L::and(x.bits(), L::splat_bits(SIGN))))
}

/// The power of two with an integer exponent between -126 and 127.
#[inline(always)]
fn power_of_two<L: Lane>(n: L::Bits) -> L {
    L::from_bits(L::shl::<23>(L::int_add(n, L::splat_bits(127))))
}

/// `e` to the power `x`: 0 below -104, infinite from about 88.73, subnormal results rounded.
#[inline(always)]
pub fn exp<L: Lane>(x: L) -> L {
    let (p, n, whole) = exp_parts(L::splat(89.0).min(L::splat(-104.0).max(x)), None);
    p.scale(n, whole)
}

/// [`exp`] of what is not above zero: the same bits in fewer steps.
#[inline(always)]
pub fn exp_of_negative<L: Lane>(x: L) -> L {
    let (p, n, whole) = exp_parts(L::splat(-104.0).max(x), None);
    p.scale_down(n, whole)
}

/// `e` to the power `x + low`, from -170 to 170: a number about 1, and the power of two to multiply
/// it with, for [`Lane::scale`].
#[inline(always)]
fn exp_parts<L: Lane>(x: L, low: Option<L>) -> (L, L, L::Bits) {
    let t = x.fma(L::splat(std::f32::consts::LOG2_E), L::splat(SHIFTER));
    let n = t.sub(L::splat(SHIFTER));
    let r = n.fma(L::splat(-LN2_HIGH), x);
    let r = n.fma(L::splat(-LN2_LOW), r);
    let r = low.map_or(r, |low| r.add(low));
    let q =
        poly(r, [0.5, 1.666_666_6e-1, 4.166_628e-2, 8.333_504e-3, 1.394_575_1e-3, 1.978_911_8e-4]);
    let p = q.fma(r.mul(r), r).add(L::splat(1.0));
    (p, n, L::int_sub(t.bits(), L::splat_bits(SHIFTER.to_bits())))
}

/// [`Lane::scale`] made of products: of two factors, since `2^n` alone may be out of range; only
/// the last product can be inexact.
#[inline(always)]
pub fn scale_in_steps<L: Lane>(p: L, n: L::Bits) -> L {
    let half = L::sar::<1>(n);
    p.mul(power_of_two(half)).mul(power_of_two(L::int_sub(n, half)))
}

/// The natural logarithm: -inf at zeros, NaN below.
#[inline(always)]
pub fn log<L: Lane>(x: L) -> L {
    let (e, f) = split(x);
    let (z, tail) = log_tail(f);
    let r = f.add(z.fma(L::splat(-0.5), e.fma(L::splat(LOG_2[1]), tail)));
    e.fma(L::splat(LOG_2[0]), r)
}

/// ln 2 as a number below it and the rest: both above zero, so that an infinite exponent makes an
/// infinite logarithm.
const LOG_2: [f32; 2] = [f32::from_bits(0x3f31_7217), 5.769_999e-8];

/// `e` and `f` with `x = 2^e (1 + f)`, `1 + f` from sqrt(1/2) to sqrt(2). Zeros have `e` -inf,
/// infinity has inf, and `f` is 0 there; below zero and for NaN `f` is NaN.
#[inline(always)]
fn split<L: Lane>(x: L) -> (L, L) {
    let (e, m) = x.parts();
    let (zero, one) = (L::splat(0.0), L::splat(1.0));
    let large = L::splat(std::f32::consts::SQRT_2).lt(m);
    let f = m.fma(L::select(large, L::splat(0.5), one), L::splat(-1.0));
    (e.add(L::select(large, one, zero)), f)
}

/// [`Lane::parts`] made of integers.
#[inline(always)]
pub fn parts_of_bits<L: Lane>(x: L) -> (L, L) {
    let zero = L::splat(0.0);
    let tiny = x.lt(L::splat(f32::MIN_POSITIVE));
    let y = L::select(tiny, x.mul(L::splat(33_554_432.0)), x).bits();
    let m = L::or(L::and(y, L::splat_bits(0x007f_ffff)), L::splat_bits(127 << 23));
    let e = whole_to_float::<L>(L::sar::<23>(y));
    let e = e.sub(L::select(tiny, L::splat(152.0), L::splat(127.0)));
    let e = L::select(x.lt(L::splat(f32::INFINITY)), e, x);
    let e = L::select(x.eq(zero), L::splat(f32::NEG_INFINITY), e);
    (e, L::select(x.lt(zero), L::splat(f32::NAN), L::from_bits(m)))
}

/// The integer `n` and `m` from sqrt(1/2) to sqrt(2) with `x = 2^n m`, for finite `x` above zero
/// that is not subnormal.
#[inline(always)]
fn exponent_of<L: Lane>(x: L) -> (L::Bits, L) {
    let root_half = L::splat_bits(0x3f35_04f3);
    let i = L::int_sub(x.bits(), root_half);
    let m = L::int_add(L::and(i, L::splat_bits(0x007f_ffff)), root_half);
    (L::sar::<23>(i), L::from_bits(m))
}

/// An integer of at most 22 bits as a float.
#[inline(always)]
fn whole_to_float<L: Lane>(n: L::Bits) -> L {
    L::from_bits(L::int_add(n, L::splat_bits(SHIFTER.to_bits()))).sub(L::splat(SHIFTER))
}

/// `z` and `t` with `log(1 + f) = f - z/2 + t`, `1 + f` from sqrt(1/2) to sqrt(2); `z` is the
/// square of `f`.
#[inline(always)]
fn log_tail<L: Lane>(f: L) -> (L, L) {
    let z = f.mul(f);
    let p = poly(
        f,
        [
            3.333_333_4e-1,
            -2.499_996_6e-1,
            2.000_003_6e-1,
            -1.666_943_4e-1,
            1.428_694_9e-1,
            -1.242_509_7e-1,
            1.101_198_9e-1,
            -1.079_397_05e-1,
            1.074_368_36e-1,
            -6.151_907e-2,
        ],
    );
    (z, p.mul(f).mul(z))
}

/// The hyperbolic tangent.
///
/// `(e^2x - 1) / (e^2x + 1)`, with the numerator made directly; a polynomial where rounding the
/// denominator would show.
#[inline(always)]
pub fn tanh<L: Lane>(x: L) -> L {
    const HALF_LN2: f32 = 0.5 * f32::from_bits(0x3f31_7218);
    let a = abs(x);
    let z = a.mul(a);
    let p = poly(z, [-3.333_328_4e-1, 1.332_366_8e-1, -5.110_243_3e-2]);
    let small = p.mul(z).fma(a, a);
    // From about 9 the result is 1. 2x = n * ln 2 + 2r.
    let b = L::splat(9.1).min(a);
    let t = b.fma(L::splat(2.0 * std::f32::consts::LOG2_E), L::splat(SHIFTER));
    let n = t.sub(L::splat(SHIFTER));
    let r = n.fma(L::splat(-HALF_LN2), b);
    let rr = r.mul(r);
    // In two parts, which do not wait for each other.
    let low = poly(r, [2.0, 1.333_326_1]);
    let high = poly(r, [6.666_649e-1, 2.676_225e-1]);
    let p = L::splat(8.912_776_6e-2).fma(rr, high).fma(rr, low);
    let q = p.fma(rr, r.add(r));
    let power = L::from_bits(L::int_add(L::shl::<23>(t.bits()), L::splat_bits(127 << 23)));
    let e = power.fma(q, power.sub(L::splat(1.0)));
    let large = e.div(e.add(L::splat(2.0)));
    with_sign(L::select(a.lt(L::splat(0.3)), small, large), x)
}

/// The error function of `a` from 0 to 0.875.
#[inline(always)]
fn erf_near_zero<L: Lane>(a: L) -> L {
    let p = poly(
        a.mul(a),
        [
            1.283_791_7e-1,
            -3.761_263_8e-1,
            1.128_378_96e-1,
            -2.686_595_2e-2,
            5.222_850_5e-3,
            -8.516_628e-4,
            1.155_457e-4,
            -1.067_261_7e-5,
        ],
    );
    a.fma(p, a)
}

/// The error function.
#[inline(always)]
pub fn erf<L: Lane>(x: L) -> L {
    let a = abs(x);
    let small = erf_near_zero(a);
    // Beyond 4 the result is 1; before, the logarithm of 1 - erf is a polynomial.
    let b = L::splat(4.0).min(a);
    let p = poly(
        b,
        [
            -1.620_222_3e-4,
            1.129_453_2,
            6.334_735e-1,
            1.081_390_1e-1,
            -2.502_713e-2,
            4.135_641_3e-3,
            -4.270_824_4e-4,
            2.045_133_6e-5,
        ],
    );
    let large = L::splat(1.0).sub(exp(L::splat(0.0).sub(p)));
    with_sign(L::select(a.lt(L::splat(0.875)), small, large), x)
}

impl Lane for f32 {
    type Bits = u32;

    #[inline(always)]
    fn splat(v: f32) -> f32 {
        v
    }
    #[inline(always)]
    fn splat_bits(v: u32) -> u32 {
        v
    }
    #[inline(always)]
    fn add(self, o: f32) -> f32 {
        self + o
    }
    #[inline(always)]
    fn sub(self, o: f32) -> f32 {
        self - o
    }
    #[inline(always)]
    fn mul(self, o: f32) -> f32 {
        self * o
    }
    #[inline(always)]
    fn div(self, o: f32) -> f32 {
        self / o
    }
    #[inline(always)]
    fn fma(self, b: f32, c: f32) -> f32 {
        fma(self, b, c)
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn max(self, o: f32) -> f32 {
        if self > o { self } else { o }
    }
    #[inline(always)]
    fn min(self, o: f32) -> f32 {
        if self < o { self } else { o }
    }
    #[inline(always)]
    fn lt(self, o: f32) -> u32 {
        if self < o { u32::MAX } else { 0 }
    }
    #[inline(always)]
    fn eq(self, o: f32) -> u32 {
        if self == o { u32::MAX } else { 0 }
    }
    #[inline(always)]
    fn select(mask: u32, a: f32, b: f32) -> f32 {
        if mask != 0 { a } else { b }
    }
    #[inline(always)]
    fn bits(self) -> u32 {
        self.to_bits()
    }
    #[inline(always)]
    fn from_bits(b: u32) -> f32 {
        f32::from_bits(b)
    }
    #[inline(always)]
    fn int_add(a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn int_sub(a: u32, b: u32) -> u32 {
        a.wrapping_sub(b)
    }
    #[inline(always)]
    fn and(a: u32, b: u32) -> u32 {
        a & b
    }
    #[inline(always)]
    fn or(a: u32, b: u32) -> u32 {
        a | b
    }
    #[inline(always)]
    fn xor(a: u32, b: u32) -> u32 {
        a ^ b
    }
    #[inline(always)]
    fn shl<const N: i32>(a: u32) -> u32 {
        a << N
    }
    #[inline(always)]
    fn sar<const N: i32>(a: u32) -> u32 {
        ((a as i32) >> N) as u32
    }
    #[inline(always)]
    fn int_eq(a: u32, b: u32) -> u32 {
        if a == b { u32::MAX } else { 0 }
    }
    #[inline(always)]
    fn or_exact(self, good: u32, x: f32, exact: fn(f32) -> f32) -> f32 {
        if good != 0 { self } else { exact(x) }
    }
}
