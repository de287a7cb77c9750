//! [`Linear`]: a matrix product and a bias.

use crate::entry::{Entry, Start};
use crate::nn::{Context, Module};
use tracecast_ir::ops::linalg::Products;
use tracecast_ir::{DType, TensorType, Var};

/// `x · weightᵀ + bias` along the last axis.
///
/// Weight and bias start evenly distributed within `1 / sqrt(in)` of zero, as PyTorch's do.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    inputs: usize,
    outputs: usize,
    dtype: DType,
    bias: bool,
    tied: Option<String>,
}

impl Linear {
    /// From `inputs` to `outputs` numbers, in f32, with a bias.
    pub fn new(inputs: usize, outputs: usize) -> Self {
        Linear { inputs, outputs, dtype: DType::F32, bias: true, tied: None }
    }

    /// Without a bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// With parameters of another dtype.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// With the weight of another module, such as `embed.weight`, in the place of its own. If that one is frozen, so is this.
    #[must_use]
    pub fn tied_to(mut self, weight: impl Into<String>) -> Self {
        self.tied = Some(weight.into());
        self
    }

    fn weight(&self) -> TensorType {
        TensorType::new(self.dtype, [self.outputs, self.inputs])
    }
}

impl Module for Linear {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let weight = match &self.tied {
            Some(name) => cx.tied(name, self.weight()),
            None => cx.parameter("weight", self.weight()),
        };
        let bias =
            self.bias.then(|| cx.parameter("bias", TensorType::new(self.dtype, [self.outputs])));
        cx.here(|| x.linear(weight, bias))
    }

    fn ties(&self) -> Vec<String> {
        self.tied.iter().cloned().collect()
    }

    fn entries(&self) -> Vec<Entry> {
        let bound = if self.inputs == 0 { 0.0 } else { 1.0 / (self.inputs as f64).sqrt() };
        let start = Start::Uniform(-bound, bound);
        let weight = self.tied.is_none().then(|| Entry::param("weight", self.weight(), start));
        let bias = self
            .bias
            .then(|| Entry::param("bias", TensorType::new(self.dtype, [self.outputs]), start));
        weight.into_iter().chain(bias).collect()
    }
}
