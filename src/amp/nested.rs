//! [`Scalable`]: what a scaler can scale: tensors, and containers of what can be scaled.

use crate::amp::ScalerError;
use crate::eager::DeviceTensor;
use crate::error::Result;
use tracecast_ir::Var;

/// A tensor, or something that holds tensors and can be made again with others. `T` is what a
/// tensor is: a [`DeviceTensor`] of an eager loop, a [`Var`] of a recorded step.
pub trait Scalable<T = DeviceTensor>: Clone {
    /// The same with each tensor replaced by what `scale` returns for it.
    ///
    /// # Errors
    /// The first error of `scale`; a part that is no tensor.
    fn scaled(&self, scale: &mut dyn FnMut(&T) -> Result<T>) -> Result<Self>;
}

/// Tensors in lists whose shape is only known at run time.
#[derive(Clone, Debug)]
pub enum Nested<T = DeviceTensor> {
    /// A tensor.
    Tensor(T),
    /// A list of such.
    List(Vec<Nested<T>>),
    /// A plain number, which cannot be scaled.
    Number(f64),
}

impl Scalable for DeviceTensor {
    fn scaled(&self, scale: &mut dyn FnMut(&DeviceTensor) -> Result<DeviceTensor>) -> Result<Self> {
        scale(self)
    }
}

impl<'t> Scalable<Var<'t>> for Var<'t> {
    fn scaled(&self, scale: &mut dyn FnMut(&Var<'t>) -> Result<Var<'t>>) -> Result<Self> {
        scale(self)
    }
}

impl<T: Clone> Scalable<T> for Nested<T> {
    fn scaled(&self, scale: &mut dyn FnMut(&T) -> Result<T>) -> Result<Self> {
        match self {
            Nested::Tensor(tensor) => scale(tensor).map(Nested::Tensor),
            Nested::List(list) => list.scaled(scale).map(Nested::List),
            Nested::Number(number) => Err(ScalerError::NotTensor(*number).into()),
        }
    }
}

impl<T, S: Scalable<T>> Scalable<T> for Vec<S> {
    fn scaled(&self, scale: &mut dyn FnMut(&T) -> Result<T>) -> Result<Self> {
        self.iter().map(|part| part.scaled(scale)).collect()
    }
}

impl<T, S: Scalable<T>, const N: usize> Scalable<T> for [S; N] {
    fn scaled(&self, scale: &mut dyn FnMut(&T) -> Result<T>) -> Result<Self> {
        let mut parts = self.clone();
        for part in &mut parts {
            *part = part.scaled(scale)?;
        }
        Ok(parts)
    }
}

macro_rules! tuples {
    ($(($($part:ident $at:tt),+))+) => { $(
        impl<T, $($part: Scalable<T>),+> Scalable<T> for ($($part,)+) {
            fn scaled(&self, scale: &mut dyn FnMut(&T) -> Result<T>) -> Result<Self> {
                Ok(($(self.$at.scaled(scale)?,)+))
            }
        }
    )+ };
}

tuples! { (A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) }
