//! [`LayerNorm`] and [`RmsNorm`]: each example brought to one size.

use crate::entry::Start;
use crate::nn::{Context, Module};
use crate::setters::setters;
use tracecast_ir::ops::length::Lengths;
use tracecast_ir::ops::nn::norm::Norms;
use tracecast_ir::{DType, Shape, TensorType, Var};

/// The last axes shifted and scaled to mean 0 and variance 1, then multiplied by `weight` and
/// shifted by `bias`, which have their shape:
/// [`torch.nn.LayerNorm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html).
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    shape: Shape,
    dtype: DType,
    eps: f64,
    affine: bool,
    bias: bool,
}

impl LayerNorm {
    /// Over the last axis, which has `width` elements; `eps` is 1e-5.
    pub fn new(width: usize) -> Self {
        LayerNorm::over([width])
    }

    /// Over the last axes, which have this shape.
    pub fn over(shape: impl Into<Shape>) -> Self {
        LayerNorm { shape: shape.into(), dtype: DType::F32, eps: 1e-5, affine: true, bias: true }
    }

    setters! {
        /// With another number added to the variance.
        eps(eps: f64) => eps = eps;
        /// Without weight and bias.
        without_affine() => affine = false;
        /// Without a bias.
        without_bias() => bias = false;
        /// With parameters of another dtype.
        dtype(dtype: DType) => dtype = dtype;
    }
}

impl Module for LayerNorm {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let ty = || TensorType { dtype: self.dtype, shape: self.shape.clone() };
        let one = |name, start| cx.parameter(name, ty(), Start::Constant(start));
        let weight = self.affine.then(|| one("weight", 1.0));
        let bias = (self.affine && self.bias).then(|| one("bias", 0.0));
        cx.here(|| x.layer_norm(weight, bias, &self.shape, self.eps))
    }
}

/// The last axes divided by the root of their mean square, then multiplied by `weight`, which has
/// their shape:
/// [`torch.nn.RMSNorm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.RMSNorm.html).
///
/// ```
/// use tracecast::nn::{Linear, Module, RmsNorm, Sequential};
/// let model = Sequential::new().then(RmsNorm::new(64)).then(Linear::new(64, 10));
/// assert_eq!(model.entries()?[0].name, "0.weight");
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    shape: Shape,
    dtype: DType,
    eps: Option<f64>,
    affine: bool,
}

impl RmsNorm {
    /// Over the last axis, which has `width` elements.
    pub fn new(width: usize) -> Self {
        RmsNorm::over([width])
    }

    /// Over the last axes, which have this shape.
    pub fn over(shape: impl Into<Shape>) -> Self {
        RmsNorm { shape: shape.into(), dtype: DType::F32, eps: None, affine: true }
    }

    setters! {
        /// With another number added to the mean square than the step of the dtype at 1.
        eps(eps: f64) => eps = Some(eps);
        /// Without a weight.
        without_affine() => affine = false;
        /// With a weight of another dtype.
        dtype(dtype: DType) => dtype = dtype;
    }
}

impl Module for RmsNorm {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let ty = TensorType { dtype: self.dtype, shape: self.shape.clone() };
        let weight = self.affine.then(|| cx.parameter("weight", ty, Start::Constant(1.0)));
        cx.here(|| x.rms_norm(weight, &self.shape, self.eps))
    }
}
