//! [`Scalable`]: what an eager scaler can scale: tensors, and containers of what can be scaled.

use crate::amp::ScalerError;
use crate::eager::DeviceTensor;
use crate::error::Result;

/// A tensor, or something that holds tensors and can be made again with others.
pub trait Scalable: Clone {
    /// The same with each tensor replaced by what `scale` returns for it.
    ///
    /// # Errors
    /// The first error of `scale`; a part that is no tensor.
    fn scaled(&self, scale: &mut dyn FnMut(&DeviceTensor) -> Result<DeviceTensor>) -> Result<Self>;
}

/// Tensors in lists whose shape is only known at run time.
#[derive(Clone, Debug)]
pub enum Nested {
    /// A tensor.
    Tensor(DeviceTensor),
    /// A list of such.
    List(Vec<Nested>),
    /// A plain number, which cannot be scaled.
    Number(f64),
}

impl Scalable for DeviceTensor {
    fn scaled(&self, scale: &mut dyn FnMut(&DeviceTensor) -> Result<DeviceTensor>) -> Result<Self> {
        scale(self)
    }
}

impl Scalable for Nested {
    fn scaled(&self, scale: &mut dyn FnMut(&DeviceTensor) -> Result<DeviceTensor>) -> Result<Self> {
        match self {
            Nested::Tensor(tensor) => scale(tensor).map(Nested::Tensor),
            Nested::List(list) => list.scaled(scale).map(Nested::List),
            Nested::Number(number) => Err(ScalerError::NotTensor(*number).into()),
        }
    }
}

impl<S: Scalable> Scalable for Vec<S> {
    fn scaled(&self, scale: &mut dyn FnMut(&DeviceTensor) -> Result<DeviceTensor>) -> Result<Self> {
        self.iter().map(|part| part.scaled(scale)).collect()
    }
}

macro_rules! tuples {
    ($(($($part:ident $at:tt),+))+) => { $(
        impl<$($part: Scalable),+> Scalable for ($($part,)+) {
            fn scaled(
                &self,
                scale: &mut dyn FnMut(&DeviceTensor) -> Result<DeviceTensor>,
            ) -> Result<Self> {
                Ok(($(self.$at.scaled(scale)?,)+))
            }
        }
    )+ };
}

tuples! { (A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) }
