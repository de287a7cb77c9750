//! [`DeviceTensor`]: a value that stays on its device between ops.

use crate::eager::Eager;
use crate::error::{Error, Result};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracecast_ir::{DType, Shape, TensorType};
use tracecast_runtime::{Store, Tensor};

/// The name of the only entry of a tensor's own store.
const VALUE: &str = "value";

/// A tensor of an [`Eager`] context. A clone is the same tensor; its value can change, its type
/// cannot.
///
/// The value lives on the host until the first op that reads it, and on the device from then on.
#[derive(Clone)]
pub struct DeviceTensor {
    eager: Eager,
    ty: TensorType,
    value: Arc<Mutex<Store>>,
    /// Why there is no value.
    failed: Option<Arc<Error>>,
}

impl DeviceTensor {
    pub(crate) fn new(eager: Eager, value: Tensor) -> Self {
        let ty = value.ty().clone();
        let value = Arc::new(Mutex::new(Store::new().with(VALUE, value)));
        DeviceTensor { eager, ty, value, failed: None }
    }

    /// What stands for the result of an op that failed.
    pub(super) fn failed(eager: Eager, error: Error) -> Self {
        let error = match error {
            Error::Shared(error) => error,
            error => Arc::new(error),
        };
        let ty = TensorType { dtype: DType::F32, shape: Shape::unknown() };
        DeviceTensor { eager, ty, value: Arc::default(), failed: Some(error) }
    }

    /// Why there is no value, if there is none.
    ///
    /// # Errors
    /// That of the first op that failed among those it is made by.
    pub fn check(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |error| Err(Error::Shared(error.clone())))
    }

    /// Room for a value that a program is about to write.
    pub(crate) fn reserved(eager: Eager, ty: TensorType) -> Self {
        let mut store = Store::new();
        store.reserve(VALUE, ty.clone());
        DeviceTensor { eager, ty, value: Arc::new(Mutex::new(store)), failed: None }
    }

    /// Where it lives.
    pub fn eager(&self) -> &Eager {
        &self.eager
    }

    /// Its type; that of an op that failed has [unknown](tracecast_ir::Size::UNKNOWN) sizes.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The dtype of its elements.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The current value.
    ///
    /// # Errors
    /// If the device fails, or an op that it is made by has failed.
    pub fn to_host(&self) -> Result<Tensor> {
        self.check()?;
        self.lock().get(VALUE)
    }

    /// Gives it another value of its type.
    ///
    /// # Errors
    /// If the value has another type, or the device fails.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        self.check()?;
        self.lock().set(VALUE, value)
    }

    /// This tensor if it lives there, else a copy that does.
    ///
    /// # Errors
    /// If the device fails.
    pub fn to(&self, eager: &Eager) -> Result<DeviceTensor> {
        if self.eager.same_device(eager) {
            return Ok(self.clone());
        }
        Ok(eager.tensor(self.to_host()?))
    }

    /// True if both are the same tensor, so that a change of one is a change of the other.
    pub fn is(&self, other: &DeviceTensor) -> bool {
        Arc::ptr_eq(&self.value, &other.value)
    }

    /// The only element as f64.
    pub(crate) fn number(&self) -> Result<f64> {
        let value = self.to_host()?;
        match value.to_f64s()[..] {
            [number] => Ok(number),
            _ => Err(tracecast_runtime::Error::Tensor(format!(
                "expected one element, found {}",
                self.ty
            ))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of an operand within a program.
pub(crate) fn port(i: usize) -> String {
    format!("x{i}")
}

/// Runs `body` on a store that has the values of these different tensors, which nobody else can use
/// meanwhile.
pub(crate) fn with_values<R>(
    tensors: &[&DeviceTensor],
    body: impl FnOnce(&mut Store) -> R,
) -> Result<R> {
    // Everybody locks in the order of addresses, so nobody waits for another in a circle.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|i| Arc::as_ptr(&tensors[*i].value).addr());
    let mut locked: Vec<(usize, MutexGuard<'_, Store>)> =
        order.into_iter().map(|i| (i, tensors[i].lock())).collect();
    let mut store = Store::new();
    for (i, own) in &mut locked {
        own.transfer(VALUE, &mut store, &port(*i))?;
    }
    let result = body(&mut store);
    for (i, own) in &mut locked {
        store.transfer(&port(*i), own, VALUE)?;
    }
    Ok(result)
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTensor({} on {})", self.ty, self.eager.device().name())
    }
}
