//! [`Parameter`]: a trained tensor with its [`Gradient`], dense or sparse; and clipping by their
//! norm.

use crate::eager::{DeviceTensor, Eager};
use crate::error::Result;
use crate::optim::Clip;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracecast_ir::{DType, TensorType};
use tracecast_runtime::{Error, Tensor};

/// A trained tensor and its gradient. A clone is the same parameter.
#[derive(Clone)]
pub struct Parameter {
    value: DeviceTensor,
    grad: Arc<Mutex<Option<Gradient>>>,
}

impl Parameter {
    /// This tensor as a parameter without a gradient.
    pub fn new(value: DeviceTensor) -> Self {
        Parameter { value, grad: Arc::default() }
    }

    /// The tensor itself.
    pub fn value(&self) -> &DeviceTensor {
        &self.value
    }

    /// The gradient, if there is one.
    pub fn grad(&self) -> Option<Gradient> {
        self.lock().clone()
    }

    /// Gives it another gradient.
    ///
    /// # Errors
    /// If its type is not that of the parameter, or it lives elsewhere.
    pub fn set_grad(&self, grad: impl Into<Gradient>) -> Result<()> {
        let grad = grad.into();
        let (expected, found) = (self.value.ty(), grad.ty());
        if *expected != found {
            return Err(Error::Tensor(format!("gradient: expected {expected}, found {found}")));
        }
        if !self.value.eager().same_device(grad.values.eager()) {
            let message = format!(
                "gradient: expected one on {}, found one on {}",
                self.value.eager().device().name(),
                grad.values.eager().device().name()
            );
            return Err(Error::Device(message));
        }
        *self.lock() = Some(grad);
        Ok(())
    }

    /// Adds to the gradient; sets it if there is none.
    ///
    /// # Errors
    /// As [`set_grad`](Parameter::set_grad), or if the device fails.
    pub fn add_grad(&self, grad: impl Into<Gradient>) -> Result<()> {
        let grad = grad.into();
        let Some(so_far) = self.grad() else { return self.set_grad(grad) };
        let (sum, more) = (so_far.to_dense()?, grad.to_dense()?);
        if sum.ty() != more.ty() {
            let message = format!("gradient: expected {}, found {}", sum.ty(), more.ty());
            return Err(Error::Tensor(message));
        }
        sum.eager().run("add_grad", &[&sum, &more], |t, x| {
            t.update(x[0], x[0] + x[1]);
            Vec::new()
        })?;
        self.set_grad(sum)
    }

    /// Forgets the gradient.
    pub fn zero_grad(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Gradient>> {
        self.grad.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grad = if self.lock().is_some() { "with" } else { "without" };
        write!(f, "Parameter({} {grad} gradient)", self.value.ty())
    }
}

/// A gradient: a tensor, or some of its elements where all others are zero. A clone is the same
/// gradient.
#[derive(Clone, Debug)]
pub struct Gradient {
    values: DeviceTensor,
    sparse: Option<Arc<Places>>,
}

/// Where the elements of a sparse gradient belong, in row-major order of the whole.
#[derive(Debug)]
struct Places {
    ty: TensorType,
    offsets: Vec<usize>,
}

impl From<DeviceTensor> for Gradient {
    fn from(values: DeviceTensor) -> Self {
        Gradient { values, sparse: None }
    }
}

impl Gradient {
    /// These elements (one axis) at these places, one list of indices per axis of `shape`; where a
    /// place is given twice, the elements add up.
    ///
    /// # Errors
    /// If there are not as many indices as elements for each axis, or one lies outside.
    pub fn sparse(values: DeviceTensor, indices: &[Vec<usize>], shape: &[usize]) -> Result<Self> {
        let count = values.ty().numel().get();
        let fits = values.ty().shape.rank() == 1
            && indices.len() == shape.len()
            && indices.iter().all(|axis| axis.len() == count)
            && indices.iter().zip(shape).all(|(axis, size)| axis.iter().all(|i| i < size));
        if !fits {
            return Err(Error::Tensor(format!(
                "sparse gradient: expected for each axis of {shape:?} one index inside it per element of {}",
                values.ty()
            )));
        }
        let offset =
            |n: usize| indices.iter().zip(shape).fold(0, |at, (axis, size)| at * size + axis[n]);
        let offsets = (0..count).map(offset).collect();
        let ty = TensorType::new(values.dtype(), shape);
        Ok(Gradient { values, sparse: Some(Arc::new(Places { ty, offsets })) })
    }

    /// The elements: all of a dense gradient, the given ones of a sparse one.
    pub fn values(&self) -> &DeviceTensor {
        &self.values
    }

    /// True if only some elements are given.
    pub fn is_sparse(&self) -> bool {
        self.sparse.is_some()
    }

    /// The type of the whole.
    pub fn ty(&self) -> TensorType {
        self.sparse.as_ref().map_or_else(|| self.values.ty().clone(), |places| places.ty.clone())
    }

    /// All elements: the gradient's own tensor if it is dense.
    ///
    /// # Errors
    /// If the device fails.
    pub fn to_dense(&self) -> Result<DeviceTensor> {
        let Some(places) = &self.sparse else { return Ok(self.values.clone()) };
        let mut all = vec![0.0; places.ty.numel().get()];
        for (offset, sum) in self.sums(places, self.values.dtype())? {
            all[offset] = sum;
        }
        Ok(self.values.eager().tensor(Tensor::from_f64s(places.ty.clone(), &all)?))
    }

    /// The same with each place given once; a dense gradient is that already.
    ///
    /// # Errors
    /// If the device fails.
    pub fn coalesced(&self) -> Result<Gradient> {
        self.coalesced_in(self.values.dtype())
    }

    /// The same with sums made in f32 and rounded once.
    pub(crate) fn coalesced_wide(&self) -> Result<Gradient> {
        self.coalesced_in(DType::F32)
    }

    fn coalesced_in(&self, sum: DType) -> Result<Gradient> {
        let Some(places) = &self.sparse else { return Ok(self.clone()) };
        let sums = self.sums(places, sum)?;
        let (offsets, sums): (Vec<usize>, Vec<f64>) = sums.into_iter().unzip();
        let ty = TensorType::new(self.values.dtype(), [sums.len()]);
        let values = self.values.eager().tensor(Tensor::from_f64s(ty, &sums)?);
        let places = Places { ty: places.ty.clone(), offsets };
        Ok(Gradient { values, sparse: Some(Arc::new(places)) })
    }

    /// The sum at each place, rounded to that dtype after each addition.
    fn sums(&self, places: &Places, dtype: DType) -> Result<BTreeMap<usize, f64>> {
        let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
        for (offset, value) in places.offsets.iter().zip(self.values.to_host()?.to_f64s()) {
            let sum = match sums.get(offset) {
                None => value,
                Some(sum) => {
                    let ty = TensorType::scalar(dtype);
                    Tensor::from_f64s(ty, &[sum + value])?.to_f64s()[0]
                }
            };
            sums.insert(*offset, sum);
        }
        Ok(sums)
    }
}

/// Multiplies the gradients of some parameters on one device by `min(1, max_norm / (norm + 1e-6))`,
/// and returns the norm of all of them together, as PyTorch's `clip_grad_norm_`.
///
/// # Errors
/// If they live on several devices, or one fails.
pub fn clip_grad_norm(params: &[Parameter], max_norm: f64) -> Result<f64> {
    let grads: Vec<Gradient> = params.iter().filter_map(Parameter::grad).collect();
    let grads = grads.iter().map(Gradient::coalesced).collect::<Result<Vec<_>>>()?;
    let Some(first) = grads.first() else { return Ok(0.0) };
    let eager: Eager = first.values.eager().clone();
    let tensors: Vec<&DeviceTensor> = grads.iter().map(Gradient::values).collect();
    let clip = Clip::norm(max_norm);
    let norm = eager.run(&format!("clip_grad_norm {max_norm}"), &tensors, |t, x| {
        let mut clipped = x.to_vec();
        let norm = clip.record(t, &mut clipped).norm;
        for (grad, clipped) in x.iter().zip(clipped) {
            t.update(*grad, clipped);
        }
        norm.into_iter().collect()
    })?;
    let with_grads = params.iter().filter(|param| param.grad().is_some());
    for (param, grad) in with_grads.zip(&grads) {
        param.set_grad(grad.clone())?;
    }
    norm[0].number()
}
