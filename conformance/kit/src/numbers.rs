//! Random numbers for inputs, the same for the same name and step.

use tracecast_ir::ops::sample::Range;
use tracecast_ir::{DType, TensorType};
use tracecast_runtime::{Result, Tensor};

/// A row of numbers (xorshift64).
pub(crate) struct Numbers(u64);

impl Numbers {
    /// Those of an input in a step.
    pub(crate) fn of(name: &str, step: u64) -> Self {
        let seed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Numbers(
            name.bytes()
                .fold(seed, |word, byte| (word ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)),
        )
    }

    /// From 0 up to 1.
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One that an op takes there.
    pub(crate) fn within(&mut self, range: Range, dtype: DType) -> f64 {
        let unit = self.unit();
        match range {
            Range::Any if dtype == DType::Bool => f64::from(u8::from(unit < 0.5)),
            Range::Any if dtype.is_float() => unit * 4.0 - 2.0,
            Range::Any => (unit * 3.0).floor(),
            Range::Positive if dtype.is_float() => unit + 0.2,
            Range::NonZero if dtype.is_float() => {
                (unit * 2.0 - 1.0) + if unit < 0.5 { -0.2 } else { 0.2 }
            }
            Range::Positive | Range::NonZero => 1.0 + (unit * 5.0).floor(),
            Range::Between(low, high) if dtype.is_float() => low + (high - low) * unit,
            Range::Between(low, high) => low + ((high - low) * unit).floor(),
        }
    }
}

/// A tensor of numbers about as large as 1.
pub(crate) fn random(ty: &TensorType, name: &str, step: u64) -> Result<Tensor> {
    let mut numbers = Numbers::of(name, step);
    Tensor::from_fn(ty.clone(), |_| numbers.within(Range::Any, ty.dtype))
}
