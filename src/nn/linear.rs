//! [`Linear`] and [`Bilinear`]: matrix products and a bias.

use crate::entry::Start;
use crate::nn::{Context, Layer, Module};
use crate::setters::setters;
use tracecast_ir::ops::linalg::Products;
use tracecast_ir::{DType, TensorType, Var};

/// `x · weightᵀ + bias` along the last axis:
/// [`torch.nn.Linear`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html).
///
/// `x` is `[…, inputs]`, the result `[…, outputs]`; `weight` is `[outputs, inputs]`, `bias`
/// `[outputs]`. Both start evenly distributed within `1 / sqrt(inputs)` of zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    inputs: usize,
    outputs: usize,
    dtype: DType,
    bias: bool,
    zero_bias: bool,
    tied: Option<String>,
}

impl Linear {
    /// From `inputs` to `outputs` numbers, in f32, with a bias.
    pub fn new(inputs: usize, outputs: usize) -> Self {
        Linear { inputs, outputs, dtype: DType::F32, bias: true, zero_bias: false, tied: None }
    }

    setters! {
        /// Without a bias.
        without_bias() => bias = false;
        /// With parameters of another dtype.
        dtype(dtype: DType) => dtype = dtype;
    }

    /// With a bias that starts as zeros.
    pub(super) fn zero_bias(mut self) -> Self {
        self.zero_bias = true;
        self
    }

    setters! {
        /// With the weight of another module, such as `embed.weight`, in the place of its own. If
        /// that one is frozen, so is this.
        tied_to(weight: impl Into<String>) => tied = Some(weight.into());
    }
}

impl Module for Linear {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let (ty, start) =
            (TensorType::new(self.dtype, [self.outputs, self.inputs]), within(self.inputs));
        let weight = match &self.tied {
            Some(name) => cx.tied_as("weight", name, ty),
            None => cx.parameter("weight", ty, start.clone()),
        };
        let ty = TensorType::new(self.dtype, [self.outputs]);
        let start = if self.zero_bias { Start::Constant(0.0) } else { start };
        let bias = self.bias.then(|| cx.parameter("bias", ty, start));
        cx.here(|| x.linear(weight, bias))
    }
}

/// Evenly distributed within `1 / sqrt(inputs)` of zero.
pub(super) fn within(inputs: usize) -> Start {
    let bound = if inputs == 0 { 0.0 } else { 1.0 / (inputs as f64).sqrt() };
    Start::Uniform(-bound, bound)
}

/// `x1ᵀ · weight[k] · x2 + bias[k]` for each result `k`, along the last axes:
/// [`torch.nn.Bilinear`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Bilinear.html).
///
/// The operands are `[…, first]` and `[…, second]`, the result `[…, outputs]`; `weight` is
/// `[outputs, first, second]`, `bias` `[outputs]`. Both start evenly distributed within
/// `1 / sqrt(first)` of zero.
///
/// ```
/// use tracecast::nn::{Bilinear, Layer};
/// let names: Vec<String> = Bilinear::new(2, 3, 4).entries()?.into_iter().map(|entry| entry.name).collect();
/// assert_eq!(names, ["weight", "bias"]);
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Bilinear {
    first: usize,
    second: usize,
    outputs: usize,
    dtype: DType,
    bias: bool,
}

impl Bilinear {
    /// From `first` and `second` to `outputs` numbers, in f32, with a bias.
    pub fn new(first: usize, second: usize, outputs: usize) -> Self {
        Bilinear { first, second, outputs, dtype: DType::F32, bias: true }
    }

    setters! {
        /// Without a bias.
        without_bias() => bias = false;
        /// With parameters of another dtype.
        dtype(dtype: DType) => dtype = dtype;
    }
}

impl Layer for Bilinear {
    type Input<'t> = (Var<'t>, Var<'t>);
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, (x1, x2): (Var<'t>, Var<'t>)) -> Var<'t> {
        let start = within(self.first);
        let ty = TensorType::new(self.dtype, [self.outputs, self.first, self.second]);
        let weight = cx.parameter("weight", ty, start.clone());
        let ty = TensorType::new(self.dtype, [self.outputs]);
        let bias = self.bias.then(|| cx.parameter("bias", ty, start));
        cx.here(|| x1.bilinear(x2, weight, bias))
    }
}
