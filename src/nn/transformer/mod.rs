//! Attention, and the layers and models that PyTorch makes of it.

mod attention;
mod block;
mod cache;
mod model;

pub use attention::{Attend, MultiheadAttention};
pub use block::{Source, Target, TransformerDecoderLayer, TransformerEncoderLayer};
pub use cache::KvCache;
pub use model::{Transformer, TransformerDecoder, TransformerEncoder, Translate};

use crate::nn::{Context, Gelu, Module, Relu};
use tracecast_ir::{DType, Var};

/// What stands between the two matrix products of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// [`Relu`].
    #[default]
    Relu,
    /// [`Gelu`].
    Gelu,
}

impl Activation {
    fn of<'t>(self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        match self {
            Activation::Relu => Relu.forward(cx, x),
            Activation::Gelu => Gelu.forward(cx, x),
        }
    }
}

/// The settings that all layers of a model share.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Settings {
    width: usize,
    heads: usize,
    feedforward: usize,
    dropout: f64,
    activation: Activation,
    eps: f64,
    batch_first: bool,
    norm_first: bool,
    bias: bool,
    dtype: DType,
}

impl Settings {
    fn new(width: usize, heads: usize) -> Self {
        Settings {
            width,
            heads,
            feedforward: 2048,
            dropout: 0.1,
            activation: Activation::Relu,
            eps: 1e-5,
            batch_first: false,
            norm_first: false,
            bias: true,
            dtype: DType::F32,
        }
    }
}

/// The methods of layers and models that change [`Settings`].
macro_rules! settings {
    ($name:ident) => {
        impl $name {
            $crate::setters::setters! {
                /// With that many numbers between the two matrix products, in the place of 2048.
                feedforward(width: usize) => settings.feedforward = width;
                /// With dropouts of another probability than 0.1.
                dropout(p: f64) => settings.dropout = p;
                /// With another activation than `Relu`.
                activation(activation: Activation) => settings.activation = activation;
                /// With another number than 1e-5 added to variances.
                eps(eps: f64) => settings.eps = eps;
                /// With the batch along the first axis.
                batch_first() => settings.batch_first = true;
                /// With norms in front of attention and matrix products, and not behind their sums.
                norm_first() => settings.norm_first = true;
                /// Without biases.
                without_bias() => settings.bias = false;
                /// With parameters of another dtype.
                dtype(dtype: DType) => settings.dtype = dtype;
            }
        }
    };
}
use settings;
