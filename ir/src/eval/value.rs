//! [`Value`]: a tensor as the interpreter sees it.

use super::bytes::Bytes;
use crate::kernel::Scalar;
use crate::kernel::interpret::scalar::{convert, is_nan, read, write};
use crate::{DType, TensorType};

/// A type and a dense, row-major, little-endian buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The type.
    pub ty: TensorType,
    /// The elements.
    pub bytes: Bytes,
}

impl Value {
    /// The value with these elements.
    ///
    /// # Errors
    /// If the number of bytes is not that of the type, or there are no kernels for its dtype.
    pub fn new(ty: TensorType, bytes: impl Into<Bytes>) -> Result<Self, String> {
        let bytes = bytes.into();
        ty.check_numbers()?;
        if !ty.dtype.is_computable() {
            return Err(format!("no kernels exist for dtype {}", ty.dtype));
        }
        if ty.bytes() != bytes.len() {
            return Err(format!("{ty} takes {} bytes, found {}", ty.bytes(), bytes.len()));
        }
        Ok(Value { ty, bytes })
    }

    /// Zeros.
    ///
    /// # Errors
    /// If there are no kernels for the dtype, or more elements than memory takes.
    pub fn zeros(ty: TensorType) -> Result<Self, String> {
        ty.check_numbers()?;
        let bytes = Bytes::zeroed(ty.bytes().get()).map_err(|e| format!("{ty}: {e}"))?;
        Value::new(ty, bytes)
    }

    /// A value of any content, all of whose bytes are to be written.
    ///
    /// # Errors
    /// If there are no kernels for the dtype, or more elements than memory takes.
    pub fn to_write(ty: TensorType) -> Result<Self, String> {
        ty.check_numbers()?;
        let bytes = Bytes::to_write(ty.bytes().get()).map_err(|e| format!("{ty}: {e}"))?;
        Value::new(ty, bytes)
    }

    /// The numbers as the dtype holds them: floats rounded once, integers as `cast` makes them.
    ///
    /// # Errors
    /// If the count is not that of the type, or there are no kernels for its dtype.
    pub fn from_f64s(ty: TensorType, numbers: &[f64]) -> Result<Self, String> {
        ty.check_numbers()?;
        if ty.numel() != numbers.len() {
            return Err(format!("{ty} takes {} numbers, found {}", ty.numel(), numbers.len()));
        }
        Value::from_fn(ty, |i| numbers[i])
    }

    /// The numbers that a function gives for each position, as [`from_f64s`](Value::from_f64s)
    /// holds them.
    ///
    /// # Errors
    /// If there are no kernels for the dtype, or more elements than memory takes.
    pub fn from_fn(ty: TensorType, mut number: impl FnMut(usize) -> f64) -> Result<Self, String> {
        let mut value = Value::to_write(ty)?;
        for i in 0..value.ty.numel().get() {
            let bits = number(i).to_bits();
            write(&mut value.bytes, value.ty.dtype, i as i64, Scalar::F64, bits)
                .ok_or_else(|| format!("{} takes {} bytes", value.ty, value.ty.bytes()))?;
        }
        Ok(value)
    }

    /// The elements as f64; beyond 2^53 integers are rounded.
    pub fn to_f64s(&self) -> Vec<f64> {
        let from = Scalar::of(self.ty.dtype).unwrap_or(Scalar::F64);
        let element = |i| read(&self.bytes, self.ty.dtype, i).unwrap_or(0);
        (0..self.ty.numel().get() as i64)
            .map(|i| f64::from_bits(convert(element(i), from, Scalar::F64)))
            .collect()
    }

    /// The same numbers in another dtype, as the op `cast` makes them.
    ///
    /// # Errors
    /// If there are no kernels for the dtype.
    pub fn cast(&self, dtype: DType) -> Result<Value, String> {
        let mut to = Value::to_write(self.ty.with_dtype(dtype))?;
        let from = Scalar::of(self.ty.dtype).unwrap_or(Scalar::F64);
        for i in 0..self.ty.numel().get() as i64 {
            read(&self.bytes, self.ty.dtype, i)
                .and_then(|bits| write(&mut to.bytes, dtype, i, from, bits))
                .ok_or_else(|| format!("{} does not fill its bytes", self.ty))?;
        }
        Ok(to)
    }

    /// The position of the first element that differs, bit by bit except that all NaNs are equal;
    /// `None` if none does and the types are the same.
    pub fn first_difference(&self, other: &Value) -> Option<usize> {
        if self.ty != other.ty {
            return Some(0);
        }
        let scalar = Scalar::of(self.ty.dtype).unwrap_or(Scalar::I64);
        (0..self.ty.numel().get()).find(|&i| {
            let at = |v: &Value| read(&v.bytes, v.ty.dtype, i as i64).unwrap_or(0);
            let (a, b) = (at(self), at(other));
            a != b && !(is_nan(scalar, a) && is_nan(scalar, b))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_where_the_dtype_holds_them() {
        for dtype in DType::COMPUTABLE {
            let v = Value::from_f64s(TensorType::new(dtype, [2]), &[0.0, 1.0]).unwrap();
            assert_eq!(v.to_f64s(), [0.0, 1.0], "{dtype}");
        }
        let nan = |bits: u32| {
            Value::new(TensorType::new(DType::F32, [1]), bits.to_le_bytes().to_vec()).unwrap()
        };
        assert_eq!(nan(0x7fc0_0000).first_difference(&nan(0xffc0_0001)), None);
        assert_eq!(nan(0).first_difference(&nan(0x8000_0000)), Some(0));
        let thirds =
            Value::from_f64s(TensorType::new(DType::F64, [2]), &[1.0 / 3.0, 300.7]).unwrap();
        assert_eq!(thirds.cast(DType::BF16).unwrap().to_f64s(), [0.333_984_375, 300.0]);
        assert_eq!(thirds.cast(DType::U8).unwrap().to_f64s(), [0.0, 255.0]);
        let whole = thirds.cast(DType::I64).unwrap();
        assert_eq!(whole.cast(DType::U8).unwrap().to_f64s(), [0.0, 44.0], "integers wrap");
        assert!(Value::new(TensorType::scalar(DType::I8), vec![0]).is_err());
        for sizes in [[usize::MAX, 2], [1 << 53, 1], [usize::MAX, 0]] {
            assert!(Value::zeros(TensorType::new(DType::F32, sizes)).is_err(), "{sizes:?}");
        }
    }
}
