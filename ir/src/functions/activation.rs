//! Activations made of pieces of lines, or of several ops in PyTorch as well.

use super::named;
use crate::ops::elementwise::Elementwise;
use crate::ops::nn::{Curves, Softmaxes};
use crate::ops::reduce::Reductions;
use crate::{IntoDims, TensorType, Var};

/// The constants of `selu`.
const ALPHA: f64 = 1.673_263_242_354_377_2;
const SCALE: f64 = 1.050_700_987_355_480_5;

impl<'t> Var<'t> {
    /// `x` between two numbers, which have no gradient:
    /// [`torch.nn.functional.hardtanh`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.hardtanh.html).
    #[track_caller]
    pub fn hardtanh(self, least: f64, most: f64) -> Var<'t> {
        named(self, "hardtanh", || {
            if least > most {
                return Err(format!("{least} lies above {most}"));
            }
            // Between integers a fraction is cut off.
            let cut = |v: f64| match self.dtype() {
                crate::DType::U8 => v.trunc().clamp(0.0, 255.0),
                dtype if dtype.is_float() => v,
                _ => v.trunc(),
            };
            let number = |v: f64| self.tracer().full(TensorType::scalar(self.dtype()), cut(v));
            let (least, most) = (cut(least), cut(most));
            let low = self.le(least).choose(number(least), self);
            Ok(low.ge(most).choose(number(most), low))
        })
    }

    /// Between 0 and 6:
    /// [`torch.nn.functional.relu6`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.relu6.html).
    #[track_caller]
    pub fn relu6(self) -> Var<'t> {
        named(self, "relu6", || Ok(self.hardtanh(0.0, 6.0)))
    }

    /// `x` above zero, else `slope * x`:
    /// [`torch.nn.functional.leaky_relu`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.leaky_relu.html).
    #[track_caller]
    pub fn leaky_relu(self, slope: f64) -> Var<'t> {
        named(self, "leaky_relu", || Ok(self.gt(0.0).choose(self, self.mul(slope))))
    }

    /// `x` above the threshold, else the value:
    /// [`torch.nn.functional.threshold`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.threshold.html).
    #[track_caller]
    pub fn threshold(self, threshold: f64, value: f64) -> Var<'t> {
        named(self, "threshold", || {
            let value = self.tracer().full(TensorType::scalar(self.dtype()), value);
            Ok(self.le(threshold).choose(value, self))
        })
    }

    /// Zero from `-lambda` to `lambda`, else `x`:
    /// [`torch.nn.functional.hardshrink`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.hardshrink.html).
    #[track_caller]
    pub fn hardshrink(self, lambda: f64) -> Var<'t> {
        named(self, "hardshrink", || {
            let within = self.ge(-lambda).logical_and(self.le(lambda));
            Ok(within.choose(self.tracer().zeros_like(self), self))
        })
    }

    /// Nearer to zero by `lambda`, as far as zero:
    /// [`torch.nn.functional.softshrink`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softshrink.html).
    #[track_caller]
    pub fn softshrink(self, lambda: f64) -> Var<'t> {
        named(self, "softshrink", || {
            if lambda.is_nan() || lambda < 0.0 {
                return Err(format!("`lambda` is {lambda}, expected at least 0"));
            }
            let rest = self.isnan().choose(self, self.tracer().zeros_like(self));
            let low = self.lt(-lambda).choose(self.add(lambda), rest);
            Ok(self.gt(lambda).choose(self.sub(lambda), low))
        })
    }

    /// `x - tanh(x)`.
    #[track_caller]
    pub fn tanhshrink(self) -> Var<'t> {
        named(self, "tanhshrink", || Ok(self.sub(self.tanh())))
    }

    /// `x / (1 + |x|)`.
    #[track_caller]
    pub fn softsign(self) -> Var<'t> {
        named(self, "softsign", || Ok(self.div(self.abs().add(1.0))))
    }

    /// [`softmax`](Softmaxes::softmax) of `-x`.
    #[track_caller]
    pub fn softmin(self, dim: impl IntoDims) -> Var<'t> {
        named(self, "softmin", || Ok(self.neg().softmax(dim)))
    }

    /// [`softmax`](Softmaxes::softmax), and zeros where all of the axis is minus infinity: a row
    /// without anything to attend to.
    #[track_caller]
    pub fn safe_softmax(self, dim: impl IntoDims) -> Var<'t> {
        let dim = dim.into();
        named(self, "safe_softmax", || {
            if self.ty().numel() == 0 {
                return Ok(self.softmax(dim));
            }
            let masked = self.amax([dim.one()?].keep()).eq(f64::NEG_INFINITY);
            let y = masked.choose(self.tracer().zeros_like(self), self).softmax(dim);
            Ok(masked.choose(y.tracer().zeros_like(y), y))
        })
    }

    /// [`elu`](Curves::elu) with a slope of 1 at zero:
    /// [`torch.nn.functional.celu`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.celu.html).
    #[track_caller]
    pub fn celu(self, alpha: f64) -> Var<'t> {
        named(self, "celu", || {
            if alpha == 0.0 {
                return Err("`alpha` is 0".to_owned());
            }
            Ok(self.elu(Some(alpha), None, Some(1.0 / alpha)))
        })
    }

    /// [`elu`](Curves::elu) that keeps mean and variance:
    /// [`torch.nn.functional.selu`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.selu.html).
    #[track_caller]
    pub fn selu(self) -> Var<'t> {
        named(self, "selu", || Ok(self.elu(Some(ALPHA), Some(SCALE), None)))
    }
}
