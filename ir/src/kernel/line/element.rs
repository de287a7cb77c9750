//! The elements of lines: how each dtype is read, accumulated, shown and compared.

use crate::kernel::half;
use crate::kernel::math;

/// An element of a line.
pub(super) trait Element: Copy {
    /// What sums and products are accumulated in.
    type Sum: Number;
    /// What logarithms are computed in.
    type Log: Number;
    /// The bytes of an element.
    const BYTES: usize;

    /// The element of those bytes, of which there are enough.
    fn read(bytes: &[u8]) -> Self;
    /// Writes it.
    fn write(self, bytes: &mut [u8]);
    /// As what is accumulated.
    fn to_sum(self) -> Self::Sum;
    /// The nearest element.
    fn from_sum(sum: Self::Sum) -> Self;
    /// As what logarithms are computed in.
    fn to_log(self) -> Self::Log;
    /// The nearest element.
    fn from_log(log: Self::Log) -> Self;
    /// A number that compares as the element does: zeros are equal, NaN is the largest.
    fn key(self) -> u64;
    /// How many low bytes of keys differ.
    const KEY_BYTES: usize;
    /// True for NaN.
    fn is_nan(self) -> bool;
}

/// What results so far are computed in.
pub(super) trait Number: Copy {
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Infinite below, or the least integer.
    const LEAST: Self;
    /// The sum; integers wrap.
    fn plus(self, o: Self) -> Self;
    /// The product; integers wrap.
    fn times(self, o: Self) -> Self;
    /// The logarithm of the sum of the powers of `e`.
    fn log_plus(self, o: Self) -> Self;
}

macro_rules! float_number {
    ($float:ident, $exp:expr, $log1p:expr) => {
        impl Number for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LEAST: Self = $float::NEG_INFINITY;

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
                // Infinities of one sign have no difference, and beside the larger of others the smaller one is nothing.
                if least == most && most.is_infinite() {
                    return most;
                }
                most + $log1p($exp(least - most))
            }
        }
    };
}

float_number!(f32, math::exp, math::log1p);
float_number!(f64, math::exp_f64, math::log1p_f64);

impl Number for i64 {
    const ZERO: Self = 0;
    const ONE: Self = 1;
    const LEAST: Self = i64::MIN;

    #[inline(always)]
    fn plus(self, o: Self) -> Self {
        self.wrapping_add(o)
    }
    #[inline(always)]
    fn times(self, o: Self) -> Self {
        self.wrapping_mul(o)
    }
    /// Not asked for: logarithms are of floats.
    fn log_plus(self, o: Self) -> Self {
        self.max(o)
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

macro_rules! elements {
    ($($name:ident: $raw:ident, $bytes:literal, $sum:ident, $log:ident, $to_sum:expr, $from_sum:expr, $to_log:expr, $from_log:expr, $key:expr, $key_bytes:literal, $is_nan:expr;)*) => { $(
        #[doc = concat!("An element of ", stringify!($raw), " bits.")]
        #[derive(Clone, Copy)]
        pub(super) struct $name($raw);

        impl Element for $name {
            type Sum = $sum;
            type Log = $log;
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
            fn to_sum(self) -> $sum {
                $to_sum(self.0)
            }
            #[inline(always)]
            fn from_sum(sum: $sum) -> Self {
                $name($from_sum(sum))
            }
            #[inline(always)]
            fn to_log(self) -> $log {
                $to_log(self.0)
            }
            #[inline(always)]
            fn from_log(log: $log) -> Self {
                $name($from_log(log))
            }
            #[inline(always)]
            fn key(self) -> u64 {
                $key(self.0)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $is_nan(self.0)
            }
        }
    )* };
}

elements! {
    F32: f32, 4, f64, f32, |x: f32| f64::from(x), |s: f64| s as f32, |x: f32| x, |l: f32| l, key_of_f32, 4, |x: f32| x.is_nan();
    F64: f64, 8, f64, f64, |x: f64| x, |s: f64| s, |x: f64| x, |l: f64| l,
        |x: f64| {
            let bits = (x + 0.0).to_bits();
            if x.is_nan() { u64::MAX } else { bits ^ if bits >> 63 == 1 { u64::MAX } else { 1 << 63 } }
        }, 8, |x: f64| x.is_nan();
    F16: u16, 2, f32, f32, half::f16_to_f32, half::f32_to_f16, half::f16_to_f32, half::f32_to_f16,
        |x: u16| key_of_f32(half::f16_to_f32(x)), 4, |x: u16| half::f16_to_f32(x).is_nan();
    BF16: u16, 2, f32, f32, half::bf16_to_f32, half::f32_to_bf16, half::bf16_to_f32, half::f32_to_bf16,
        |x: u16| key_of_f32(half::bf16_to_f32(x)), 4, |x: u16| half::bf16_to_f32(x).is_nan();
    I64: i64, 8, i64, i64, |x: i64| x, |s: i64| s, |x: i64| x, |l: i64| l, |x: i64| (x as u64) ^ (1 << 63), 8, |_: i64| false;
    I32: i32, 4, i64, i64, |x: i32| i64::from(x), |s: i64| s as i32, |x: i32| i64::from(x), |l: i64| l as i32,
        |x: i32| u64::from((x as u32) ^ (1 << 31)), 4, |_: i32| false;
    U8: u8, 1, i64, i64, |x: u8| i64::from(x), |s: i64| s as u8, |x: u8| i64::from(x), |l: i64| l as u8,
        |x: u8| u64::from(x), 1, |_: u8| false;
}

/// Evaluates `$body` with `$element` as the element of `$dtype`; truth values are bytes. Goes on behind it if there is none.
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
