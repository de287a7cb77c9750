//! [`LayerNorm`]: each row shifted and scaled to mean 0 and variance 1.

use crate::entry::{Entry, Start};
use crate::nn::{Context, Module};
use tracecast_ir::ops::nn::norm::Norms;
use tracecast_ir::{DType, Shape, TensorType, Var};

/// The last axes normalised, then multiplied by `weight` and shifted by `bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    shape: Shape,
    dtype: DType,
    eps: f64,
    affine: bool,
}

impl LayerNorm {
    /// Over the last axis, which has `width` elements; `eps` is 1e-5.
    pub fn new(width: usize) -> Self {
        LayerNorm::over([width])
    }

    /// Over the last axes, which have this shape.
    pub fn over(shape: impl Into<Shape>) -> Self {
        LayerNorm { shape: shape.into(), dtype: DType::F32, eps: 1e-5, affine: true }
    }

    /// With another number added to the variance.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Without weight and bias.
    #[must_use]
    pub fn without_affine(mut self) -> Self {
        self.affine = false;
        self
    }

    /// With parameters of another dtype.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.shape.clone() }
    }
}

impl Module for LayerNorm {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let weight = self.affine.then(|| cx.parameter("weight", self.ty()));
        let bias = self.affine.then(|| cx.parameter("bias", self.ty()));
        cx.here(|| x.layer_norm(weight, bias, &self.shape, self.eps))
    }

    fn entries(&self) -> Vec<Entry> {
        if !self.affine {
            return Vec::new();
        }
        vec![
            Entry::param("weight", self.ty(), Start::Constant(1.0)),
            Entry::param("bias", self.ty(), Start::Constant(0.0)),
        ]
    }
}
