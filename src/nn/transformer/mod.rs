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
            /// With that many numbers between the two matrix products, in the place of 2048.
            #[must_use]
            pub fn feedforward(mut self, width: usize) -> Self {
                self.settings.feedforward = width;
                self
            }

            /// With dropouts of another probability than 0.1.
            #[must_use]
            pub fn dropout(mut self, p: f64) -> Self {
                self.settings.dropout = p;
                self
            }

            /// With another activation than `Relu`.
            #[must_use]
            pub fn activation(mut self, activation: Activation) -> Self {
                self.settings.activation = activation;
                self
            }

            /// With another number than 1e-5 added to variances.
            #[must_use]
            pub fn eps(mut self, eps: f64) -> Self {
                self.settings.eps = eps;
                self
            }

            /// With the batch along the first axis.
            #[must_use]
            pub fn batch_first(mut self) -> Self {
                self.settings.batch_first = true;
                self
            }

            /// With norms in front of attention and matrix products, and not behind their sums.
            #[must_use]
            pub fn norm_first(mut self) -> Self {
                self.settings.norm_first = true;
                self
            }

            /// Without biases.
            #[must_use]
            pub fn without_bias(mut self) -> Self {
                self.settings.bias = false;
                self
            }

            /// With parameters of another dtype.
            #[must_use]
            pub fn dtype(mut self, dtype: DType) -> Self {
                self.settings.dtype = dtype;
                self
            }
        }
    };
}
use settings;
