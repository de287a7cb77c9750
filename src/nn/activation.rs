//! Activations: modules of one operand that compute each element, or each line of elements, by
//! itself.

use crate::entry::Start;
use crate::nn::modules::modules;
use crate::nn::{Context, Module};
use crate::setters::setters;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::nn::activation::Activations;
use tracecast_ir::ops::nn::{Curves, Softmaxes};
use tracecast_ir::ops::random::Random;
use tracecast_ir::{DType, TensorType, Var};

/// Activations without settings: the name and the function.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident = $function:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;

        impl Module for $name {
            fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
                let function: fn(Var<'t>) -> Var<'t> = $function;
                cx.here(|| function(x))
            }
        }
    )*};
}

plain! {
    /// The operand where it is above zero, else zero.
    Relu = |x| x.relu();
    /// Between 0 and 6.
    Relu6 = |x| x.relu6();
    /// The operand times the share of a normal distribution below it.
    Gelu = |x| x.gelu(None);
    /// [`Gelu`] by an approximation with `tanh`: `nn.GELU(approximate="tanh")`.
    GeluTanh = |x| x.gelu(Some("tanh"));
    /// The operand times its sigmoid.
    Silu = |x| x.silu();
    /// `x * tanh(log(1 + exp(x)))`.
    Mish = |x| x.mish();
    /// The hyperbolic tangent.
    Tanh = |x| x.tanh();
    /// `x - tanh(x)`.
    Tanhshrink = |x| x.tanhshrink();
    /// `1 / (1 + exp(-x))`.
    Sigmoid = |x| x.sigmoid();
    /// The logarithm of [`Sigmoid`].
    LogSigmoid = |x| x.log_sigmoid();
    /// `x * relu6(x + 3) / 6`.
    Hardswish = |x| x.hardswish();
    /// `relu6(x + 3) / 6`.
    Hardsigmoid = |x| x.hardsigmoid();
    /// `x / (1 + |x|)`.
    Softsign = |x| x.softsign();
    /// [`Elu`] that keeps mean and variance of normal numbers.
    Selu = |x| x.selu();
    /// [`Softmax`] over the channels of `[N, C, H, W]` or `[C, H, W]`:
    /// [`torch.nn.Softmax2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Softmax2d.html).
    Softmax2d = softmax_of_images;
}

modules! {
    /// `x` above zero, else `alpha * (exp(x) - 1)`, `alpha` 1 by default:
    /// [`torch.nn.ELU`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ELU.html).
    Elu { alpha: f64 } or { 1.0 } = |x, own| x.elu(Some(own.alpha), None, None);
    /// [`Elu`] with a slope of 1 at zero, `alpha` 1 by default:
    /// [`torch.nn.CELU`](https://docs.pytorch.org/docs/stable/generated/torch.nn.CELU.html).
    Celu { alpha: f64 } or { 1.0 } = |x, own| x.celu(own.alpha);
    /// `x` above zero, else `slope * x`, 0.01 by default:
    /// [`torch.nn.LeakyReLU`](https://docs.pytorch.org/docs/stable/generated/torch.nn.LeakyReLU.html).
    LeakyRelu { slope: f64 } or { 0.01 } = |x, own| x.leaky_relu(own.slope);
    /// Zero from `-lambda` to `lambda`, 0.5 by default, else `x`:
    /// [`torch.nn.Hardshrink`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Hardshrink.html).
    Hardshrink { lambda: f64 } or { 0.5 } = |x, own| x.hardshrink(own.lambda);
    /// Nearer to zero by `lambda`, 0.5 by default, as far as zero:
    /// [`torch.nn.Softshrink`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Softshrink.html).
    Softshrink { lambda: f64 } or { 0.5 } = |x, own| x.softshrink(own.lambda);
    /// Between two numbers, -1 and 1 by default:
    /// [`torch.nn.Hardtanh`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Hardtanh.html).
    Hardtanh { least: f64, most: f64 } or { -1.0, 1.0 } = |x, own| x.hardtanh(own.least, own.most);
    /// `log(1 + exp(beta * x)) / beta`, and `x` where `beta * x` is above the threshold, 1 and 20
    /// by default:
    /// [`torch.nn.Softplus`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Softplus.html).
    Softplus { beta: f64, threshold: f64 } or { 1.0, 20.0 } = |x, own| x.softplus(Some(own.beta), Some(own.threshold));
    /// `x` above the threshold, else the value:
    /// [`torch.nn.Threshold`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Threshold.html).
    Threshold { threshold: f64, value: f64 } = |x, own| x.threshold(own.threshold, own.value);
    /// The first half of an axis, the last by default, times the [`Sigmoid`] of the second:
    /// [`torch.nn.GLU`](https://docs.pytorch.org/docs/stable/generated/torch.nn.GLU.html).
    Glu { dim: i64 } or { -1 } = |x, own| x.glu(own.dim);
    /// Exponentials along an axis, divided by their sum:
    /// [`torch.nn.Softmax`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Softmax.html).
    Softmax { dim: i64 } = |x, own| x.softmax(own.dim);
    /// [`Softmax`] of `-x`.
    Softmin { dim: i64 } = |x, own| x.softmin(own.dim);
    /// The logarithm of [`Softmax`].
    LogSoftmax { dim: i64 } = |x, own| x.log_softmax(own.dim);
    /// `x` above zero, else a slope times `x`, evenly drawn between two bounds for each element
    /// while training and their mean otherwise; from 1/8 to 1/3 by default:
    /// [`torch.nn.RReLU`](https://docs.pytorch.org/docs/stable/generated/torch.nn.RReLU.html). The
    /// generator is that of [`Dropout`](crate::nn::Dropout).
    RRelu { lower: f64, upper: f64 } or { 0.125, 1.0 / 3.0 } = |x, own, cx| sloped(cx, x, own);
}

/// The softmax over the channels of images.
fn softmax_of_images(x: Var<'_>) -> Var<'_> {
    if x.is_poison() || matches!(x.rank(), 3 | 4) {
        return x.softmax(-3);
    }
    x.tracer().fail("Softmax2d", format!("takes 3 or 4 axes, found {}", x.ty()))
}

/// `x` above zero, else `weight * x` with a trained weight:
/// [`torch.nn.PReLU`](https://docs.pytorch.org/docs/stable/generated/torch.nn.PReLU.html).
///
/// `weight` has one number, or one for each position of the second axis; each starts as 0.25.
#[derive(Clone, Debug, PartialEq)]
pub struct PRelu {
    weights: usize,
    start: f64,
    dtype: DType,
}

impl PRelu {
    /// With that many weights of f32: 1, or as many as there are channels.
    pub fn new(weights: usize) -> Self {
        PRelu { weights, start: 0.25, dtype: DType::F32 }
    }

    setters! {
        /// With weights that start as another number.
        start(start: f64) => start = start;
        /// With weights of another dtype.
        dtype(dtype: DType) => dtype = dtype;
    }
}

impl Module for PRelu {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let ty = TensorType::new(self.dtype, [self.weights]);
        let weight = cx.parameter("weight", ty, Start::Constant(self.start));
        cx.here(|| x.prelu(weight))
    }
}

/// The operand above zero, else times a slope: one drawn for each element while training, else the
/// mean of the bounds.
fn sloped<'t>(cx: &Context<'t>, x: Var<'t>, own: &RRelu) -> Var<'t> {
    if !cx.is_training() {
        return x.leaky_relu((own.lower + own.upper) / 2.0);
    }
    let (rng, stream) = cx.draw();
    let slope = x.tracer().zeros_like(x).uniform(rng, own.lower, own.upper, stream);
    x.ge(0.0).choose(x, x.mul(slope))
}
