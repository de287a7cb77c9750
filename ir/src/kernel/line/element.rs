//! The elements of lines: how each dtype is read, accumulated, shown and compared.

use crate::kernel::half;
use crate::kernel::math;

/// An element of a line.
pub(super) trait Element: Copy {
    /// The bytes of an element.
    const BYTES: usize;
    /// How many low bytes of keys differ.
    const KEY_BYTES: usize;

    /// The element of those bytes, of which there are enough.
    fn read(bytes: &[u8]) -> Self;
    /// Writes it.
    fn write(self, bytes: &mut [u8]);
    /// A number that compares as the element does: zeros are equal, NaN is the largest.
    fn key(self) -> u64;
}

/// An element that is scanned in place; 16-bit floats are widened first.
pub(super) trait Scanned: Element {
    /// What sums and products are accumulated in.
    type Sum: Number;
    /// What compares as the element does, and what logarithms are computed in.
    type Own: Number;

    /// As what is accumulated.
    fn to_sum(self) -> Self::Sum;
    /// The nearest element.
    fn from_sum(sum: Self::Sum) -> Self;
    /// As what is compared.
    fn to_own(self) -> Self::Own;
    /// The element itself.
    fn from_own(own: Self::Own) -> Self;
}

/// What results so far are computed in.
pub(super) trait Number: Copy + PartialOrd {
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Infinite below, or the least integer.
    const LEAST: Self;
    /// Infinite above, or the largest integer.
    const MOST: Self;
    /// The sum; integers wrap.
    fn plus(self, o: Self) -> Self;
    /// The product; integers wrap.
    fn times(self, o: Self) -> Self;
    /// The logarithm of the sum of the powers of `e`.
    fn log_plus(self, o: Self) -> Self;
    /// True for what is no number.
    fn is_nan(self) -> bool;
    /// Its bits, with zeros in front.
    fn to_word(self) -> u64;
    /// The number of those bits.
    fn from_word(word: u64) -> Self;
}

macro_rules! float_number {
    ($float:ident, $bits:ident, $exp:expr, $log1p:expr) => {
        impl Number for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LEAST: Self = $float::NEG_INFINITY;
            const MOST: Self = $float::INFINITY;

            #[inline(always)]
            fn plus(self, o: Self) -> Self {
                self + o
            }
            #[inline(always)]
            fn times(self, o: Self) -> Self {
                self * o
            }
            #[inline(always)]
            fn log_plus(self, o: Self) -> Self {
                let (least, most) = if self < o { (self, o) } else { (o, self) };
                let sum = most + $log1p($exp(least - most));
                // Infinities of one sign have no difference.
                if least == most && most.is_infinite() { most } else { sum }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $float::is_nan(self)
            }
            #[inline(always)]
            fn to_word(self) -> u64 {
                u64::from(self.to_bits())
            }
            #[inline(always)]
            fn from_word(word: u64) -> Self {
                $float::from_bits(word as $bits)
            }
        }
    };
}

float_number!(f32, u32, math::exp, math::log1p);
float_number!(f64, u64, math::exp_f64, math::log1p_f64);

impl Number for i64 {
    const ZERO: Self = 0;
    const ONE: Self = 1;
    const LEAST: Self = i64::MIN;
    const MOST: Self = i64::MAX;

    #[inline(always)]
    fn plus(self, o: Self) -> Self {
        self.wrapping_add(o)
    }
    #[inline(always)]
    fn times(self, o: Self) -> Self {
        self.wrapping_mul(o)
    }
    /// Not asked for: logarithms are of floats.
    #[inline(always)]
    fn log_plus(self, o: Self) -> Self {
        self.max(o)
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
    #[inline(always)]
    fn to_word(self) -> u64 {
        self.cast_unsigned()
    }
    #[inline(always)]
    fn from_word(word: u64) -> Self {
        word.cast_signed()
    }
}

/// The keys of an order of f32.
#[inline(always)]
fn key_of_f32(x: f32) -> u64 {
    if x.is_nan() {
        return u64::from(u32::MAX);
    }
    let bits = (x + 0.0).to_bits();
    u64::from(bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 })
}

/// The keys of an order of f64.
#[inline(always)]
fn key_of_f64(x: f64) -> u64 {
    if x.is_nan() {
        return u64::MAX;
    }
    let bits = (x + 0.0).to_bits();
    bits ^ if bits >> 63 == 1 { u64::MAX } else { 1 << 63 }
}

macro_rules! elements {
    ($($name:ident: $raw:ident, $bytes:literal, $key:expr, $key_bytes:literal;)*) => { $(
        #[doc = concat!("An element that lies in memory as ", stringify!($raw), ".")]
        #[derive(Clone, Copy)]
        pub(super) struct $name($raw);

        impl Element for $name {
            const BYTES: usize = $bytes;
            const KEY_BYTES: usize = $key_bytes;

            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                let mut raw = [0; $bytes];
                raw.copy_from_slice(&bytes[..$bytes]);
                $name($raw::from_le_bytes(raw))
            }
            #[inline(always)]
            fn write(self, bytes: &mut [u8]) {
                bytes[..$bytes].copy_from_slice(&self.0.to_le_bytes());
            }
            #[inline(always)]
            fn key(self) -> u64 {
                $key(self.0)
            }
        }
    )* };
}

elements! {
    F32: f32, 4, key_of_f32, 4;
    F64: f64, 8, key_of_f64, 8;
    F16: u16, 2, |x: u16| key_of_f32(half::f16_to_f32(x)), 4;
    BF16: u16, 2, |x: u16| key_of_f32(half::bf16_to_f32(x)), 4;
    Widened: f32, 4, key_of_f32, 4;
    I64: i64, 8, |x: i64| x.cast_unsigned() ^ (1 << 63), 8;
    I32: i32, 4, |x: i32| u64::from(x.cast_unsigned() ^ (1 << 31)), 4;
    U8: u8, 1, |x: u8| u64::from(x), 1;
}

macro_rules! scanned {
    ($($name:ident: $sum:ident, $own:ident, $from_sum:expr, $from_own:expr;)*) => { $(
        impl Scanned for $name {
            type Sum = $sum;
            type Own = $own;

            #[inline(always)]
            fn to_sum(self) -> $sum {
                $sum::from(self.0)
            }
            #[inline(always)]
            fn from_sum(sum: $sum) -> Self {
                $name($from_sum(sum))
            }
            #[inline(always)]
            fn to_own(self) -> $own {
                $own::from(self.0)
            }
            #[inline(always)]
            fn from_own(own: $own) -> Self {
                $name($from_own(own))
            }
        }
    )* };
}

scanned! {
    F32: f64, f32, |s: f64| s as f32, |o: f32| o;
    F64: f64, f64, |s: f64| s, |o: f64| o;
    Widened: f32, f32, |s: f32| s, |o: f32| o;
    I64: i64, i64, |s: i64| s, |o: i64| o;
    I32: i64, i64, |s: i64| s as i32, |o: i64| o as i32;
    U8: i64, i64, |s: i64| s as u8, |o: i64| o as u8;
}

/// Evaluates `$body` with `$element` as the element of `$dtype`; truth values are bytes. Goes on
/// behind it if there is none.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:block) => {
        match $dtype {
            DType::F32 => {
                type $element = element::F32;
                $body
            }
            DType::F64 => {
                type $element = element::F64;
                $body
            }
            DType::F16 => {
                type $element = element::F16;
                $body
            }
            DType::BF16 => {
                type $element = element::BF16;
                $body
            }
            DType::I64 => {
                type $element = element::I64;
                $body
            }
            DType::I32 => {
                type $element = element::I32;
                $body
            }
            DType::U8 | DType::Bool => {
                type $element = element::U8;
                $body
            }
            _ => {}
        }
    };
}

pub(super) use with_element;
