//! [`Tensor`]: values on the host, with their type. Rows and other parts of them are in `rows`,
//! printing in `print`.

mod print;
mod rows;

use crate::arena::ALIGNMENT;
use crate::error::{Error, Result};
use half::{bf16, f16};
use std::sync::Arc;
use tracecast_ir::eval::{Bytes, Value};
use tracecast_ir::kernel::{math, philox};
use tracecast_ir::{DType, Shape, TensorType};

/// A dense row-major tensor on the host. Copies share their elements.
#[derive(Clone, PartialEq)]
pub struct Tensor(Arc<Value>);

/// A Rust type that elements of some dtype have.
pub trait Element: Copy + Send + Sync + 'static {
    /// The dtype.
    const DTYPE: DType;

    /// Writes the little-endian bytes of some elements, which fill the room.
    fn write(elements: &[Self], to: &mut [u8]);

    /// The elements that little-endian bytes stand for.
    fn read(bytes: &[u8]) -> Vec<Self>;

    /// The element that little-endian bytes stand for, if they are those of one.
    fn read_one(bytes: &[u8]) -> Option<Self>;
}

macro_rules! elements {
    ($($ty:ident = $dtype:ident;)*) => { $(
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;

            fn write(elements: &[Self], to: &mut [u8]) {
                let places = to.as_chunks_mut().0;
                places.iter_mut().zip(elements).for_each(|(b, e)| *b = e.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().map(|b| $ty::from_le_bytes(*b)).collect()
            }

            fn read_one(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map($ty::from_le_bytes)
            }
        }
    )* };
}

elements! {
    f32 = F32;
    f64 = F64;
    f16 = F16;
    bf16 = BF16;
    i32 = I32;
    i64 = I64;
    u8 = U8;
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;

    fn write(elements: &[Self], to: &mut [u8]) {
        to.iter_mut().zip(elements).for_each(|(b, e)| *b = u8::from(*e));
    }

    fn read(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|b| *b != 0).collect()
    }

    fn read_one(bytes: &[u8]) -> Option<Self> {
        let [byte] = bytes else { return None };
        Some(*byte != 0)
    }
}

impl Tensor {
    /// The tensor of that shape with these elements, in row-major order.
    ///
    /// ```
    /// use tracecast_runtime::Tensor;
    /// let x = Tensor::new([2, 2], &[1f32, 2.0, 3.0, 4.0])?;
    /// assert_eq!(x.to_string(), "f32[2, 2] 1, 2, 3, 4");
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are more or fewer elements than the shape has places.
    pub fn new<T: Element>(shape: impl Into<Shape>, elements: &[T]) -> Result<Self> {
        let ty = checked(TensorType::new(T::DTYPE, shape))?;
        if ty.numel() != elements.len() {
            return Err(Error::Tensor(format!(
                "{ty} takes {} elements, found {}",
                ty.numel(),
                elements.len()
            )));
        }
        let mut all = Value::to_write(ty).map_err(Error::Tensor)?;
        T::write(elements, &mut all.bytes);
        Ok(Tensor::from(all))
    }

    /// One number.
    pub fn scalar<T: Element>(element: T) -> Self {
        Tensor::of_numbers(TensorType::scalar(T::DTYPE), &[element])
    }

    /// The tensor whose elements these little-endian bytes are; for bool every byte but 0 is true.
    ///
    /// # Errors
    /// If the number of bytes is not that of the type.
    pub fn from_bytes(ty: TensorType, bytes: impl Into<Bytes>) -> Result<Self> {
        let mut bytes = bytes.into();
        if ty.dtype == DType::Bool {
            bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Value::new(ty, bytes).map(Tensor::from).map_err(Error::Tensor)
    }

    /// A tensor in the memory of an owner, row-major, without a copy. The owner is dropped with the
    /// last copy of the tensor. The memory is only read: what would write to it, as a store does,
    /// writes to a copy.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tracecast_runtime::Tensor;
    /// use tracecast_ir::{DType, TensorType};
    /// let owner: Arc<[u8]> = Arc::new([1, 2, 3]);
    /// let x = Tensor::borrowed(TensorType::new(DType::U8, [3]), owner.clone())?;
    /// assert_eq!((x.to_string(), x.bytes().as_ptr()), ("u8[3] 1, 2, 3".to_owned(), owner.as_ptr()));
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the number of bytes is not that of the type, they are not aligned for its elements, or a
    /// truth value is neither 0 nor 1.
    pub fn borrowed(
        ty: TensorType,
        owner: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<Self> {
        let value = Value::new(ty, Bytes::borrowed(owner)).map_err(Error::Tensor)?;
        aligned(&value, value.ty.dtype.bytes())?;
        if value.ty.dtype == DType::Bool && value.bytes.iter().any(|byte| *byte > 1) {
            let message = format!("{}: a truth value is a byte of 0 or 1", value.ty);
            return Err(Error::Tensor(message));
        }
        Ok(Tensor::from(value))
    }

    /// Memory of an owner for a result, row-major:
    /// [`Executable::run_into`](crate::Executable::run_into) writes it. Until then it may hold
    /// anything.
    ///
    /// # Errors
    /// If the number of bytes is not that of the type, or they do not begin with a cache line of 64
    /// bytes.
    pub fn lent(
        ty: TensorType,
        owner: impl AsRef<[u8]> + AsMut<[u8]> + Send + Sync + 'static,
    ) -> Result<Self> {
        let value = Value::new(ty, Bytes::lent(owner)).map_err(Error::Tensor)?;
        aligned(&value, ALIGNMENT)?;
        Ok(Tensor::from(value))
    }

    /// The numbers, as the dtype holds them.
    ///
    /// # Errors
    /// If there are more or fewer numbers than the type has places.
    pub fn from_f64s(ty: TensorType, numbers: &[f64]) -> Result<Self> {
        Value::from_f64s(ty, numbers).map(Tensor::from).map_err(Error::Tensor)
    }

    /// The numbers that a function gives for each position in row-major order, as the dtype holds
    /// them.
    ///
    /// # Errors
    /// If the type has too many elements.
    pub fn from_fn(ty: TensorType, number: impl FnMut(usize) -> f64) -> Result<Self> {
        Value::from_fn(ty, number).map(Tensor::from).map_err(Error::Tensor)
    }

    /// Zeros.
    ///
    /// # Errors
    /// If the type has too many elements.
    pub fn zeros(ty: TensorType) -> Result<Self> {
        Value::zeros(ty).map(Tensor::from).map_err(Error::Tensor)
    }

    /// The same number everywhere.
    ///
    /// # Errors
    /// If the type has too many elements.
    pub fn full(ty: TensorType, number: f64) -> Result<Self> {
        let one =
            Value::from_f64s(TensorType::scalar(ty.dtype), &[number]).map_err(Error::Tensor)?;
        if one.bytes.iter().all(|byte| *byte == 0) {
            return Tensor::zeros(ty);
        }
        let mut all = Value::to_write(ty).map_err(Error::Tensor)?;
        for element in all.bytes.chunks_exact_mut(one.bytes.len()) {
            element.copy_from_slice(&one.bytes);
        }
        Ok(Tensor::from(all))
    }

    /// Numbers from 0 up to but not including 1, in f32; the same for the same seed on every
    /// machine.
    ///
    /// # Errors
    /// If the shape has too many elements.
    pub fn rand(shape: impl Into<Shape>, seed: u64) -> Result<Self> {
        Tensor::drawn(shape.into(), |i| {
            philox::uniform_f32(philox::random_bits(seed as i64, 0, 0, i))
        })
    }

    /// Normally distributed numbers with mean 0 and variance 1, in f32; the same for the same seed
    /// on every machine.
    ///
    /// # Errors
    /// If the shape has too many elements.
    pub fn randn(shape: impl Into<Shape>, seed: u64) -> Result<Self> {
        Tensor::drawn(shape.into(), |i| {
            let [a, b, ..] = philox::random_quad(seed as i64, 0, 1, i);
            let radius = (-2.0 * math::log_f64((f64::from(a) + 1.0) / 4_294_967_296.0)).sqrt();
            let angle = f64::from(b) / 4_294_967_296.0 * std::f64::consts::TAU;
            (radius * math::cos_f64(angle)) as f32
        })
    }

    fn drawn(shape: Shape, draw: impl Fn(u64) -> f32) -> Result<Self> {
        let mut all =
            Value::to_write(TensorType { dtype: DType::F32, shape }).map_err(Error::Tensor)?;
        for (i, element) in all.bytes.chunks_exact_mut(size_of::<f32>()).enumerate() {
            element.copy_from_slice(&draw(i as u64).to_le_bytes());
        }
        Ok(Tensor::from(all))
    }

    /// The type.
    pub fn ty(&self) -> &TensorType {
        &self.0.ty
    }

    /// The sizes along the axes.
    pub fn shape(&self) -> &Shape {
        &self.0.ty.shape
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.0.ty.dtype
    }

    /// The bytes to be written anew, if nobody else holds the tensor.
    pub(crate) fn own_bytes(&mut self) -> Option<&mut [u8]> {
        self.own_value().map(|value| &mut value.bytes[..])
    }

    /// A tensor of any content, all of whose elements are to be written.
    pub(crate) fn to_write(ty: TensorType) -> Result<Self> {
        Value::to_write(ty).map(Tensor::from).map_err(Error::Tensor)
    }

    /// What it holds, if nobody else holds the tensor.
    pub(crate) fn own_value(&mut self) -> Option<&mut Value> {
        Arc::get_mut(&mut self.0)
    }

    /// The elements as little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// The value as the interpreter takes it.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The elements.
    ///
    /// # Errors
    /// If they are of another dtype; see [`Tensor::cast`] and [`Tensor::to_f64s`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.expect_dtype(T::DTYPE)?;
        Ok(T::read(self.bytes()))
    }

    /// The only element.
    ///
    /// # Errors
    /// If there is not exactly one, or it is of another dtype.
    pub fn item<T: Element>(&self) -> Result<T> {
        self.expect_dtype(T::DTYPE)?;
        T::read_one(self.bytes())
            .ok_or_else(|| Error::Tensor(format!("expected one element, found {}", self.ty())))
    }

    /// The tensor of a type without names, which has as many places as there are elements.
    fn of_numbers<T: Element>(ty: TensorType, elements: &[T]) -> Self {
        let mut bytes = vec![0; size_of_val(elements)];
        T::write(elements, &mut bytes);
        Tensor(Arc::new(Value { ty, bytes: bytes.into() }))
    }

    fn expect_dtype(&self, dtype: DType) -> Result<()> {
        if self.dtype() == dtype {
            return Ok(());
        }
        Err(Error::Tensor(format!("expected elements of {dtype}, found {}", self.ty())))
    }

    /// The elements as f64, whatever their dtype; beyond 2^53 integers are rounded.
    pub fn to_f64s(&self) -> Vec<f64> {
        self.0.to_f64s()
    }

    /// The same numbers in another dtype, as the op `cast` makes them.
    ///
    /// # Errors
    /// If there are no kernels for the dtype.
    pub fn cast(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        self.0.cast(dtype).map(Tensor::from).map_err(Error::Tensor)
    }

    /// The same elements in row-major order under another shape.
    ///
    /// # Errors
    /// If the shape has another number of elements.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let ty = checked(TensorType { dtype: self.dtype(), shape: shape.into() })?;
        if ty.numel() != self.ty().numel() {
            let message = format!("{} does not have as many elements as {}", self.ty(), ty.shape);
            return Err(Error::Tensor(message));
        }
        Tensor::from_bytes(ty, self.0.bytes.clone())
    }
}

impl From<Value> for Tensor {
    fn from(value: Value) -> Self {
        Tensor(Arc::new(value))
    }
}

fn checked(ty: TensorType) -> Result<TensorType> {
    ty.check_numbers().map_err(Error::Tensor)?;
    Ok(ty)
}

/// Refuses bytes of others that begin elsewhere; where there are none, any address will do.
fn aligned(value: &Value, to: usize) -> Result<()> {
    if value.bytes.is_empty() || value.bytes.as_ptr().addr().is_multiple_of(to) {
        return Ok(());
    }
    let (ty, at) = (&value.ty, value.bytes.as_ptr());
    Err(Error::Tensor(format!("{ty}: bytes aligned to {to} are expected, found some at {at:p}")))
}

/// Bytes for a value of that type, all of which are to be written.
pub(crate) fn room(ty: &TensorType) -> Result<Bytes> {
    Value::to_write(ty.clone()).map(|value| value.bytes).map_err(Error::Tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_go_in_and_come_out() {
        fn check<T: Element + PartialEq + std::fmt::Debug>(v: [T; 2]) {
            let x = Tensor::new([2], &v).unwrap();
            assert_eq!((x.dtype(), x.to_vec::<T>().unwrap().as_slice()), (T::DTYPE, &v[..]));
            assert_eq!(Tensor::scalar(v[1]).item::<T>().unwrap(), v[1]);
        }
        check([1.5f32, -2.0]);
        check([1.5f64, -2.0]);
        check([f16::from_f32(1.5), f16::NEG_INFINITY]);
        check([bf16::from_f32(1.5), bf16::MAX]);
        check([i32::MIN, 7]);
        check([i64::MAX, -7]);
        check([0u8, 255]);
        check([true, false]);
    }

    #[test]
    fn wrong_counts_and_types_are_errors() {
        assert!(
            Tensor::new([3], &[1f32]).is_err() && Tensor::new([usize::MAX, 2], &[1f32]).is_err()
        );
        assert!(Tensor::randn([1usize << 40, 1usize << 40], 0).is_err());
        assert!(Tensor::zeros(TensorType::new(DType::F64, [usize::MAX / 4])).is_err());
        let vast = TensorType::new(DType::F32, [1usize << 53]);
        assert!(Tensor::zeros(vast.clone()).is_err() && Tensor::full(vast, 1.0).is_err());
        assert!(Tensor::rand([1usize << 53], 0).is_err());
        let x = Tensor::new([2], &[1f32, 2.0]).unwrap();
        assert!(x.item::<f32>().is_err() && x.to_vec::<f64>().is_err() && x.reshape([3]).is_err());
        assert_eq!(x.cast(DType::I64).unwrap().to_vec::<i64>().unwrap(), [1, 2]);
    }

    #[test]
    fn memory_of_others_has_to_fit() {
        struct From(Bytes, usize);
        impl AsRef<[u8]> for From {
            fn as_ref(&self) -> &[u8] {
                &self.0[self.1..]
            }
        }
        impl AsMut<[u8]> for From {
            fn as_mut(&mut self) -> &mut [u8] {
                &mut self.0[self.1..]
            }
        }
        let ty = TensorType::new(DType::F32, [2]);
        let from = |at: usize, bytes: usize| From(Bytes::zeroed(at + bytes).unwrap(), at);
        assert_eq!(Tensor::borrowed(ty.clone(), from(4, 8)).unwrap().to_f64s(), [0.0; 2]);
        let odd = Tensor::borrowed(ty.clone(), from(2, 8)).unwrap_err().to_string();
        assert!(odd.contains("f32[2]") && odd.contains("aligned to 4"), "{odd}");
        assert!(Tensor::borrowed(ty.clone(), from(4, 12)).is_err());
        assert!(
            Tensor::lent(ty.clone(), from(64, 8)).is_ok() && Tensor::lent(ty, from(4, 8)).is_err()
        );
        let truth = |byte: u8| Tensor::borrowed(TensorType::new(DType::Bool, [1]), vec![byte]);
        assert!(truth(1).is_ok() && truth(2).is_err());
    }

    #[test]
    fn draws_have_the_right_moments() {
        let moments = |v: Vec<f64>| {
            let mean = v.iter().sum::<f64>() / v.len() as f64;
            (mean, v.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / v.len() as f64)
        };
        let (mean, variance) = moments(Tensor::randn([100, 100], 7).unwrap().to_f64s());
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        let (mean, variance) = moments(Tensor::rand([100, 100], 7).unwrap().to_f64s());
        assert!(
            (mean - 0.5).abs() < 0.02 && (variance - 1.0 / 12.0).abs() < 0.005,
            "{mean} {variance}"
        );
        assert_ne!(Tensor::randn([4], 1).unwrap(), Tensor::randn([4], 2).unwrap());
    }
}
