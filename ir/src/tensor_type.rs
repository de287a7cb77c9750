//! [`TensorType`]: what is known of a value before it exists.

use crate::{DType, Shape};
use std::fmt;

/// The dtype and the shape of a value, printed `bf16[32, 10]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The type of each element.
    pub dtype: DType,
    /// The sizes along the axes.
    pub shape: Shape,
}

impl TensorType {
    /// The type of a tensor of `dtype` elements in `shape`.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        TensorType { dtype, shape: shape.into() }
    }

    /// The type of one number.
    pub fn scalar(dtype: DType) -> Self {
        TensorType { dtype, shape: Shape::scalar() }
    }

    /// The same shape with another dtype.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        TensorType { dtype, shape: self.shape.clone() }
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.numel() * self.dtype.bytes()
    }

    /// Checks that the size in bytes can be addressed, with room to compute with it. Axes of size 0 do not make others smaller.
    ///
    /// # Errors
    /// If the element count or the byte count overflows or is beyond every machine's memory.
    pub fn check_size(&self) -> Result<(), String> {
        const LARGEST: usize = 1 << 56;
        let mut sizes = self.shape.iter().filter(|&&n| n != 0);
        sizes
            .try_fold(self.dtype.bytes().max(1), |bytes, &n| {
                bytes.checked_mul(n).filter(|&b| b <= LARGEST)
            })
            .map(|_| ())
            .ok_or_else(|| format!("{self} has too many elements to address"))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
