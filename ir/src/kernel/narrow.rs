//! Conversions between the low-precision floats and f32 or f64: to nearest even, with a single
//! rounding.
//!
//! Each is computed from the dtype's row of the table ([`Float`]); those of f16 and bf16, which
//! every program uses, have sequences of their own in [`half`]. The bits of an element are those of
//! its bytes, little-endian.
//!
//! A NaN stays a NaN, and becomes quiet when narrowed; subnormal results are kept. What is too
//! large becomes infinite, or NaN in a float without infinities.

use super::half;
use super::low_float::{end, narrow_to};
use crate::dtype::{DType, Float, Top, power_of_two};

/// A low-precision float, as a type: what generic code over all of them is instantiated with.
pub trait LowFloat {
    /// Which dtype it is.
    const DTYPE: DType;
}

/// Something that is made for one low-precision float, whichever it is: see [`with`].
pub trait PerLowFloat {
    /// What is made.
    type Output;
    /// Makes it for the dtype of `F`.
    fn make<F: LowFloat>(self) -> Self::Output;
}

macro_rules! low_floats {
    ($($dtype:ident)*) => {
        /// What `per_float` makes for a dtype; `None` if that is no low-precision float.
        pub fn with<P: PerLowFloat>(dtype: DType, per_float: P) -> Option<P::Output> {
            match dtype {
                $(DType::$dtype => Some(per_float.make::<types::$dtype>()),)*
                _ => None,
            }
        }

        /// The low-precision floats as types.
        mod types {
            use super::{DType, LowFloat};
            $(
                pub(super) enum $dtype {}

                impl LowFloat for $dtype {
                    const DTYPE: DType = DType::$dtype;
                }
            )*
        }
    };
}

low_floats!(F8E4M3 F8E5M2 F8E4M3Fnuz F8E5M2Fnuz F16 BF16);

/// The exact value of an element of a low-precision float.
#[inline]
pub fn widen(dtype: DType, bits: u16) -> f32 {
    match dtype {
        DType::F16 => half::f16_to_f32(bits),
        DType::BF16 => half::bf16_to_f32(bits),
        _ => widen_from(row(dtype), bits),
    }
}

/// The element of a low-precision float nearest to an f32.
#[inline]
pub fn narrow(dtype: DType, x: f32) -> u16 {
    match dtype {
        DType::F16 => half::f32_to_f16(x),
        DType::BF16 => half::f32_to_bf16(x),
        // Every f32 is an f64, so nothing is rounded on the way.
        _ => narrow_to(row(dtype), f64::from(x)),
    }
}

/// The element of a low-precision float nearest to an f64.
#[inline]
pub fn narrow_f64(dtype: DType, x: f64) -> u16 {
    match dtype {
        DType::F16 => half::f64_to_f16(x),
        DType::BF16 => half::f64_to_bf16(x),
        _ => narrow_to(row(dtype), x),
    }
}

/// The value of a low-precision float nearest to an f32; of other dtypes, which hold every f32, the
/// number itself.
#[inline]
pub fn round(dtype: DType, x: f32) -> f32 {
    if dtype.is_low() { widen(dtype, narrow(dtype, x)) } else { x }
}

/// The value of a float nearest to an f64, rounded once; of other dtypes the number itself.
#[inline]
pub fn round_f64(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(x as f32),
        _ if dtype.is_low() => f64::from(widen(dtype, narrow_f64(dtype, x))),
        _ => x,
    }
}

/// The bits of a low-precision float; any other dtype has none that are asked for here.
fn row(dtype: DType) -> Float {
    dtype.storage().float.filter(|_| dtype.is_low()).expect("the dtype is a low-precision float")
}

/// The value of the bits of a float of at most 16 bits.
fn widen_from(float: Float, bits: u16) -> f32 {
    let bits = u32::from(bits);
    let sign = bits >> (float.exponent_bits + float.fraction_bits) & 1;
    let magnitude = bits & !(sign << (float.exponent_bits + float.fraction_bits));
    let is_nan = match float.top {
        Top::Infinite | Top::Finite => u64::from(magnitude) > end(float),
        Top::FiniteUnsignedZero => sign == 1 && magnitude == 0,
    };
    let value = if is_nan {
        f32::NAN
    } else if u64::from(magnitude) > float.largest_bits() {
        f32::INFINITY
    } else {
        let fraction = magnitude & ((1 << float.fraction_bits) - 1);
        // A subnormal number has the exponent of the smallest normal one, without the leading bit.
        let exponent = (magnitude >> float.fraction_bits) as i32;
        let leading = u32::from(exponent > 0) << float.fraction_bits;
        let scale = exponent.max(1) - float.bias() - float.fraction_bits as i32;
        ((fraction + leading) as f64 * power_of_two(scale)) as f32
    };
    if sign == 1 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn low() -> impl Iterator<Item = DType> {
        DType::ALL.into_iter().filter(|dtype| dtype.is_low())
    }

    fn magnitudes(dtype: DType) -> std::ops::RangeInclusive<u16> {
        0..=row(dtype).largest_bits() as u16
    }

    /// Around every number and every midpoint between two neighbours.
    #[test]
    fn ties_go_to_even() {
        for dtype in low() {
            for bits in magnitudes(dtype) {
                let (low, next) = (f64::from(widen(dtype, bits)), bits + 1);
                // The number that would follow the largest one is one step further.
                let step = if magnitudes(dtype).contains(&next) {
                    f64::from(widen(dtype, next)) - low
                } else {
                    low - f64::from(widen(dtype, bits - 1))
                };
                let (middle, even) = (low + step / 2.0, if bits % 2 == 0 { bits } else { next });
                let same = |x: f64, bits: u16| {
                    let expected = match bits {
                        _ if magnitudes(dtype).contains(&bits) => f64::from(widen(dtype, bits)),
                        _ if row(dtype).top == Top::Infinite => f64::INFINITY,
                        _ => f64::NAN,
                    };
                    for (x, expected) in [(x, expected), (-x, -expected)] {
                        let found = f64::from(widen(dtype, narrow_f64(dtype, x)));
                        let same = found == expected || found.is_nan() && expected.is_nan();
                        assert!(same, "{dtype} {x:e}: {found:e}, expected {expected:e}");
                    }
                };
                same(low, bits);
                same(middle, even);
                same(middle.next_up(), next);
                same(middle.next_down(), bits);
            }
        }
    }

    #[test]
    fn the_table_gives_what_the_sequences_of_16_bit_floats_give() {
        for dtype in [DType::F16, DType::BF16] {
            for bits in 0..=u16::MAX {
                let (wide, own) = (widen_from(row(dtype), bits), widen(dtype, bits));
                assert!(wide.to_bits() == own.to_bits() || wide.is_nan() && own.is_nan());
            }
            for bits in (0..=u32::MAX).step_by(3571) {
                let x = f32::from_bits(bits);
                if !x.is_nan() {
                    assert_eq!(narrow_to(row(dtype), f64::from(x)), narrow(dtype, x), "{x:e}");
                }
            }
        }
    }

    #[test]
    fn each_low_float_is_a_type() {
        struct Which;
        impl PerLowFloat for Which {
            type Output = DType;
            fn make<F: LowFloat>(self) -> DType {
                F::DTYPE
            }
        }
        for dtype in DType::ALL {
            assert_eq!(with(dtype, Which), Some(dtype).filter(|dtype| dtype.is_low()));
        }
    }

    #[test]
    fn numbers_come_back_and_ends_are_what_the_formats_say() {
        for dtype in low() {
            let sign = 1 << (dtype.storage().bits - 1);
            for bits in magnitudes(dtype).flat_map(|bits| [bits, bits | sign]) {
                let x = widen(dtype, bits);
                if !x.is_nan() {
                    assert_eq!((narrow(dtype, x), round(dtype, x)), (bits, x), "{dtype}");
                    assert_eq!(round_f64(dtype, x.into()), x.into(), "{dtype}");
                }
            }
            assert!(round(dtype, f32::NAN).is_nan() && round_f64(dtype, f64::NAN).is_nan());
        }
        let e4m3 = |x: f32| narrow(DType::F8E4M3, x);
        assert_eq!([448.0, 464.0, 465.0, f32::INFINITY].map(e4m3), [0x7e, 0x7e, 0x7f, 0x7f]);
        assert_eq!([-0.0, -448.0, f32::NEG_INFINITY].map(e4m3), [0x80, 0xfe, 0xff]);
        let e5m2 = |x: f32| narrow(DType::F8E5M2, x);
        assert_eq!([57344.0, 61439.0, 61440.0, -1e9].map(e5m2), [0x7b, 0x7b, 0x7c, 0xfc]);
        let fnuz = |x: f32| narrow(DType::F8E4M3Fnuz, x);
        assert_eq!([240.0, -0.0, 1e9, -1e9, -1e-9].map(fnuz), [0x7f, 0, 0x80, 0x80, 0]);
    }
}
