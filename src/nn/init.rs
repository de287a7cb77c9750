//! How parameters start, under the names of PyTorch's `torch.nn.init`: each gives a [`Start`], and
//! [`put`] writes the numbers into a store.
//!
//! ```
//! use tracecast::nn::{Linear, Module, Start, init};
//! use tracecast::prelude::*;
//!
//! let mut store = Store::new();
//! Linear::new(64, 32).init(&mut store, 0)?;
//! let shape = store.get("weight")?.shape().clone();
//! init::put(&mut store, "weight", init::kaiming_normal(&shape, init::Fan::In, init::gain_of_relu()), 1)?;
//! init::put(&mut store, "bias", Start::Constant(0.0), 1)?;
//! # Ok::<(), tracecast::Error>(())
//! ```
//!
//! `torch.nn.init.uniform_`, `normal_`, `trunc_normal_`, `orthogonal_`, `sparse_`, `constant_`,
//! `ones_` and `zeros_` are [`Start::Uniform`], [`Start::Normal`], [`Start::Truncated`],
//! [`Start::Orthogonal`], [`Start::Sparse`] and [`Start::Constant`].

use crate::entry::{Entry, Start};
use crate::error::{Error, Result};
use tracecast_ir::{DType, Shape, TensorType};
use tracecast_runtime::{Store, Tensor};

/// Writes other first values into an entry of a store, which keeps its type. Equal names and seeds
/// give equal values.
///
/// # Errors
/// If the store has no such entry, or the start does not fit its type.
pub fn put(store: &mut Store, name: &str, start: Start, seed: u64) -> Result<()> {
    let ty = store.get(name)?.ty().clone();
    Entry::param(name, ty, start).put(store, seed)
}

/// By which side of a weight it is scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fan {
    /// By how many numbers each result is made of: results keep their variance.
    #[default]
    In,
    /// By how many results each number goes into: gradients keep their variance.
    Out,
}

/// How many numbers each result is made of, and how many results each number goes into, for a
/// weight `[out, in, …]`. A weight of less than two axes counts as one of one row.
pub fn fans(shape: &Shape) -> [f64; 2] {
    let sizes: Vec<f64> = shape.numbers().iter().map(|n| *n as f64).collect();
    let inner: f64 = sizes.iter().skip(2).product();
    match sizes[..] {
        [out, into, ..] => [into * inner, out * inner],
        [one] => [one, 1.0],
        [] => [1.0, 1.0],
    }
}

/// The gain that [`Relu`](crate::nn::Relu) asks for: the root of 2. [`Tanh`](crate::nn::Tanh) asks
/// for 5/3, [`Selu`](crate::nn::Selu) for 3/4, [`LeakyRelu`](crate::nn::LeakyRelu) for
/// `sqrt(2 / (1 + slope²))`, others for 1.
pub fn gain_of_relu() -> f64 {
    std::f64::consts::SQRT_2
}

/// Even numbers of the variance `gain² · 2 / (in + out)`:
/// [`xavier_uniform_`](https://docs.pytorch.org/docs/stable/nn.init.html#torch.nn.init.xavier_uniform_).
pub fn xavier_uniform(shape: &Shape, gain: f64) -> Start {
    even(gain * (2.0 / fans(shape).iter().sum::<f64>()).sqrt())
}

/// Normal numbers of the variance `gain² · 2 / (in + out)`:
/// [`xavier_normal_`](https://docs.pytorch.org/docs/stable/nn.init.html#torch.nn.init.xavier_normal_).
pub fn xavier_normal(shape: &Shape, gain: f64) -> Start {
    Start::Normal(0.0, finite(gain * (2.0 / fans(shape).iter().sum::<f64>()).sqrt()))
}

/// Even numbers of the variance `gain² / fan`:
/// [`kaiming_uniform_`](https://docs.pytorch.org/docs/stable/nn.init.html#torch.nn.init.kaiming_uniform_).
pub fn kaiming_uniform(shape: &Shape, fan: Fan, gain: f64) -> Start {
    even(gain / side(shape, fan).sqrt())
}

/// Normal numbers of the variance `gain² / fan`:
/// [`kaiming_normal_`](https://docs.pytorch.org/docs/stable/nn.init.html#torch.nn.init.kaiming_normal_).
pub fn kaiming_normal(shape: &Shape, fan: Fan, gain: f64) -> Start {
    Start::Normal(0.0, finite(gain / side(shape, fan).sqrt()))
}

/// Ones on the diagonal of a matrix, else zeros:
/// [`eye_`](https://docs.pytorch.org/docs/stable/nn.init.html#torch.nn.init.eye_).
///
/// # Errors
/// If no tensor has that many rows and columns.
pub fn eye(rows: usize, columns: usize) -> Result<Start> {
    let ty = TensorType::new(DType::F32, [rows, columns]);
    let is_diagonal = |i: usize| columns > 0 && i / columns == i % columns;
    Ok(Start::Given(Tensor::from_fn(ty, |i| f64::from(u8::from(is_diagonal(i))))?))
}

/// Ones where the middle of a kernel `[out, in, …]` hands a channel on, in each group of outputs,
/// else zeros: [`dirac_`](https://docs.pytorch.org/docs/stable/nn.init.html#torch.nn.init.dirac_).
///
/// # Errors
/// A shape of less than 3 or more than 5 axes, outputs that the groups do not divide, or no tensor
/// of that shape.
pub fn dirac(shape: &Shape, groups: usize) -> Result<Start> {
    let sizes = shape.numbers();
    let fits = (3..=5).contains(&sizes.len()) && groups > 0 && sizes[0].is_multiple_of(groups);
    if !fits {
        let message =
            format!("`dirac` takes [out, in, …] with outputs in {groups} groups, found {shape}");
        return Err(Error::Option { option: "start", message });
    }
    let each = sizes[0] / groups;
    let is_one = |mut i: usize| {
        let mut at = vec![0; sizes.len()];
        for (axis, size) in sizes.iter().enumerate().rev() {
            (at[axis], i) = (i % size, i / size);
        }
        let is_middle = (2..sizes.len()).all(|axis| at[axis] == sizes[axis] / 2);
        at[0] % each == at[1] && is_middle
    };
    let ty = TensorType { dtype: DType::F32, shape: shape.clone() };
    Ok(Start::Given(Tensor::from_fn(ty, |i| f64::from(u8::from(is_one(i))))?))
}

fn side(shape: &Shape, fan: Fan) -> f64 {
    let [into, out] = fans(shape);
    if fan == Fan::In { into } else { out }
}

/// Even numbers of this deviation.
fn even(deviation: f64) -> Start {
    let bound = finite(deviation * 3f64.sqrt());
    Start::Uniform(-bound, bound)
}

/// A weight without elements has no fan.
fn finite(deviation: f64) -> f64 {
    if deviation.is_finite() { deviation } else { 0.0 }
}
