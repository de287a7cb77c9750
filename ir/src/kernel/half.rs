//! Conversions between the 16-bit floats and f32 or f64, in sequences of their own;
//! [`narrow`](super::narrow) has those of any float.
//!
//! A NaN stays a NaN, and becomes quiet when narrowed; what is too large becomes infinite;
//! subnormal results are kept. An f64 is narrowed directly: going through f32 would round twice.

use super::low_float::narrow_to;
use crate::dtype::{Float, Top};

const F16: Float = Float { exponent_bits: 5, fraction_bits: 10, top: Top::Infinite };
const BF16: Float = Float { exponent_bits: 8, fraction_bits: 7, top: Top::Infinite };

/// The exact value of f16 bits.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let wide = match magnitude {
        // Zero or subnormal: a whole number of 2^-24.
        0..0x0400 => (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits(),
        0x0400..0x7c00 => (magnitude << 13) + (112 << 23),
        0x7c00 => 0x7f80_0000,
        _ => (magnitude << 13) | 0x7fc0_0000,
    };
    f32::from_bits(sign | wide)
}

/// The exact value of bf16 bits.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bits of the f16 nearest to an f32.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let narrow = if magnitude > 0x7f80_0000 {
        0x7e00 | (magnitude >> 13) as u16 & 0x03ff
    } else if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude >= 0x3880_0000 {
        // Rounding may carry into the exponent, up to infinity.
        let rebased = magnitude - (112 << 23);
        ((rebased + 0x0fff + ((rebased >> 13) & 1)) >> 13) as u16
    } else {
        // Adding 0.5 rounds to the f16 subnormal step, 2^-24, in the low bits of the sum.
        (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000) as u16
    };
    sign | narrow
}

/// The bits of the bf16 nearest to an f32.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x0040;
    }
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// The bits of the f16 nearest to an f64.
pub fn f64_to_f16(x: f64) -> u16 {
    narrow_to(F16, x)
}

/// The bits of the bf16 nearest to an f64.
pub fn f64_to_bf16(x: f64) -> u16 {
    narrow_to(BF16, x)
}

/// The f16 value nearest to an f32.
#[inline(always)]
pub fn round_to_f16(x: f32) -> f32 {
    f16_to_f32(f32_to_f16(x))
}

/// The bf16 value nearest to an f32.
#[inline(always)]
pub fn round_to_bf16(x: f32) -> f32 {
    bf16_to_f32(f32_to_bf16(x))
}

/// The f16 value nearest to an f64.
pub fn round_to_f16_f64(x: f64) -> f64 {
    f64::from(f16_to_f32(f64_to_f16(x)))
}

/// The bf16 value nearest to an f64.
pub fn round_to_bf16_f64(x: f64) -> f64 {
    f64::from(bf16_to_f32(f64_to_bf16(x)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::half::{bf16, f16};

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    #[test]
    fn widening_is_exact_and_narrowing_its_inverse() {
        for bits in 0..=u16::MAX {
            let (f, b) = (f16_to_f32(bits), bf16_to_f32(bits));
            assert!(same(f, f16::from_bits(bits).to_f32_const()), "f16 {bits:#06x}");
            assert!(same(b, bf16::from_bits(bits).to_f32_const()), "bf16 {bits:#06x}");
            for (wide, narrow, narrow64, quiet) in [
                (f, f32_to_f16(f), f64_to_f16(f64::from(f)), 0x0200),
                (b, f32_to_bf16(b), f64_to_bf16(f64::from(b)), 0x0040),
            ] {
                if wide.is_nan() {
                    assert!(narrow == bits | quiet && narrow64 & quiet != 0);
                } else {
                    assert_eq!((narrow, narrow64), (bits, bits));
                }
            }
        }
    }

    /// Around every value and every midpoint between two neighbours, from f32 and from f64.
    #[test]
    fn ties_go_to_even() {
        type Format = (fn(u16) -> f32, fn(f32) -> u16, fn(f64) -> u16, u16);
        let formats: [Format; 2] = [
            (f16_to_f32, f32_to_f16, f64_to_f16, 0x7c00),
            (bf16_to_f32, f32_to_bf16, f64_to_bf16, 0x7f80),
        ];
        for (widen, from_f32, from_f64, infinity) in formats {
            for low in 0..infinity {
                let high = low + 1;
                // The value that would follow the largest one stands in for infinity.
                let top = match high {
                    0x7c00 if infinity == high => 65_536.0,
                    0x7f80 if infinity == high => 2f64.powi(128),
                    _ => f64::from(widen(high)),
                };
                let middle = (f64::from(widen(low)) + top) / 2.0;
                let even = if low % 2 == 0 { low } else { high };
                assert_eq!(from_f64(middle), even, "{middle:e}");
                assert_eq!(from_f64(-middle), even | 0x8000, "{middle:e}");
                assert_eq!(from_f64(middle.next_up()), high, "above {middle:e}");
                assert_eq!(from_f64(middle.next_down()), low, "below {middle:e}");
                let tie = middle as f32;
                if f64::from(tie) == middle {
                    assert_eq!(from_f32(tie), even, "{tie:e}");
                    assert_eq!(from_f32(-tie), even | 0x8000, "{tie:e}");
                    assert_eq!(from_f32(tie.next_up()), high, "above {tie:e}");
                    assert_eq!(from_f32(tie.next_down()), low, "below {tie:e}");
                }
            }
        }
    }

    #[test]
    fn f32_and_f64_agree_over_all_magnitudes() {
        for bits in (0..=u32::MAX).step_by(3571) {
            let x = f32::from_bits(bits);
            if !x.is_nan() {
                assert_eq!(f32_to_f16(x), f64_to_f16(f64::from(x)), "{x:e}");
                assert_eq!(f32_to_bf16(x), f64_to_bf16(f64::from(x)), "{x:e}");
                assert_eq!(round_to_f16(x), round_to_f16_f64(f64::from(x)) as f32);
                assert_eq!(round_to_bf16(x), round_to_bf16_f64(f64::from(x)) as f32);
            }
        }
    }

    #[test]
    fn an_f64_is_rounded_once() {
        // Just above a midpoint of bf16, but a midpoint once rounded to f32.
        let x = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!((f64_to_bf16(x), f32_to_bf16(x as f32)), (0x3f81, 0x3f80));
        let x = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!((f64_to_f16(x), f32_to_f16(x as f32)), (0x3c01, 0x3c00));
        assert_eq!((f64_to_f16(5e-324), f64_to_bf16(-5e-324)), (0, 0x8000));
        assert_eq!((f64_to_f16(f64::MAX), f64_to_bf16(f64::NEG_INFINITY)), (0x7c00, 0xff80));
    }
}
