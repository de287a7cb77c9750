//! [`TensorType`]: what is known of a value before it exists.

use crate::{DType, Shape, Size};
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
    pub fn numel(&self) -> Size {
        self.shape.numel()
    }

    /// The size in bytes.
    pub fn bytes(&self) -> Size {
        self.numel() * self.dtype.bytes()
    }

    /// Checks that it is the type of something that exists: every size is a number, and the size in
    /// bytes can be addressed.
    ///
    /// # Errors
    /// As [`check_size`](TensorType::check_size), or if a size depends on names or is of an op that
    /// failed.
    pub fn check_numbers(&self) -> Result<(), String> {
        if self.shape.has_names() || self.shape.is_unknown() {
            return Err(format!("{self} has a size that is no number"));
        }
        self.check_size()
    }

    /// Checks that sizes that are numbers are not negative, and that the size in bytes can be
    /// addressed, with room to compute with it. Axes of size 0 do not make others smaller. What
    /// names make of it is checked when they have numbers.
    ///
    /// # Errors
    /// If a size is negative, or the element count or the byte count overflows or is beyond every
    /// machine's memory.
    pub fn check_size(&self) -> Result<(), String> {
        const LARGEST: i64 = 1 << 56;
        let mut bytes = Some(self.dtype.bytes().max(1) as i64);
        for size in &*self.shape {
            match size.number() {
                Some(0) => {}
                Some(n) if n < 0 => return Err(format!("{self} has a negative size")),
                Some(n) => bytes = bytes.and_then(|b| b.checked_mul(n)).filter(|b| *b <= LARGEST),
                None if size.has_names() => {}
                None => bytes = None,
            }
        }
        bytes.map(|_| ()).ok_or_else(|| format!("{self} has too many elements to address"))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
