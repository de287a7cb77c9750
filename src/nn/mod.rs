//! Modules: parts of a model with parameters of their own, named as PyTorch's `state_dict` names them.
//!
//! A [`Module`] is a description: sizes and settings, no values. [`Module::init`] puts the first values into a store;
//! [`Module::forward`] records what it computes, with parameters as ports. A parameter that is used twice under one name is
//! *tied*; one behind [`Frozen`] is other state, which no gradient reaches.
//!
//! A part that takes several values or gives several, such as a loss, is a [`Layer`] and is called by [`Context::apply`].
//! Settings, defaults and starts of parameters are those of PyTorch's class of the same name.

mod activation;
mod batch_norm;
mod checkpoint;
mod context;
mod conv;
mod declared;
mod distance;
mod dropout;
mod embedding;
pub mod init;
mod layer;
mod linear;
mod loss;
mod norm;
mod pad;
mod pool;
mod recurrent;
mod sequential;
mod shape;
mod transformer;
mod upsample;

pub use activation::{
    Celu, Elu, Gelu, GeluTanh, Glu, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyRelu,
    LogSigmoid, LogSoftmax, Mish, PRelu, RRelu, Relu, Relu6, Selu, Sigmoid, Silu, Softmax,
    Softmax2d, Softmin, Softplus, Softshrink, Softsign, Tanh, Tanhshrink, Threshold,
};
pub use batch_norm::{
    BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, InstanceNorm, InstanceNorm1d,
    InstanceNorm2d, InstanceNorm3d, LocalResponseNorm,
};
pub use checkpoint::Checkpoint;
pub use context::{Context, Model};
pub use conv::{
    Conv, Conv1d, Conv2d, Conv3d, ConvTranspose, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
};
pub use distance::{CosineSimilarity, PairwiseDistance};
pub use dropout::{AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout};
pub use embedding::Embedding;
pub use layer::{Layer, Values};
pub use linear::{Bilinear, Linear};
pub use loss::{
    BceLoss, BceWithLogitsLoss, CosineEmbeddingLoss, CrossEntropyLoss, GaussianNllLoss,
    HingeEmbeddingLoss, HuberLoss, KlDivLoss, L1Loss, LinearCrossEntropyLoss, MarginRankingLoss,
    MseLoss, MultiLabelMarginLoss, MultiLabelSoftMarginLoss, MultiMarginLoss, NllLoss,
    PoissonNllLoss, Reduction, SmoothL1Loss, SoftMarginLoss, TripletMarginLoss,
};
pub use norm::{LayerNorm, RmsNorm};
pub use pad::{
    CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d, ConstantPad3d,
    ReflectionPad1d, ReflectionPad2d, ReflectionPad3d, ReplicationPad1d, ReplicationPad2d,
    ReplicationPad3d, ZeroPad1d, ZeroPad2d, ZeroPad3d,
};
pub use pool::{
    AdaptiveAvgPool, AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool,
    AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d, AvgPool, AvgPool1d, AvgPool2d,
    AvgPool3d, LpPool, LpPool1d, LpPool2d, LpPool3d, MaxPool, MaxPool1d, MaxPool2d, MaxPool3d,
    MaxUnpool, MaxUnpool1d, MaxUnpool2d, MaxUnpool3d,
};
pub use recurrent::{Gru, GruCell, Lstm, LstmCell, Nonlinearity, Rnn, RnnCell, Steps};
pub use sequential::{Frozen, Sequential};
pub use shape::{ChannelShuffle, Flatten, Identity, PixelShuffle, PixelUnshuffle, Unflatten};

pub use transformer::{
    Activation, Attend, KvCache, MultiheadAttention, Source, Target, Transformer,
    TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer,
    Translate,
};
pub use upsample::{Upsample, UpsamplingBilinear2d, UpsamplingNearest2d};

pub use crate::entry::{Entry, Start};

use crate::error::Result;
use declared::Declared;
use tracecast_ir::Var;
use tracecast_runtime::Store;

/// A part of a model.
///
/// ```
/// use tracecast::nn::{Context, LayerNorm, Linear, Module};
/// use tracecast::prelude::*;
///
/// /// `x + fc(norm(x))`
/// struct Residual {
///     norm: LayerNorm,
///     fc: Linear,
/// }
///
/// impl Module for Residual {
///     fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
///         let y = cx.call("norm", &self.norm, x);
///         x + cx.call("fc", &self.fc, y)
///     }
/// }
///
/// let block = Residual { norm: LayerNorm::new(8), fc: Linear::new(8, 8) };
/// let mut store = Store::new();
/// block.init(&mut store, 0)?;
/// assert!(store.contains("fc.weight"));
/// # Ok::<(), tracecast::Error>(())
/// ```
pub trait Module: Send + Sync {
    /// Records what the module computes from `x`.
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t>;

    /// What it keeps in the store, with names as seen from inside.
    ///
    /// It is what `forward` asks the [`Context`] for, which is called with a value of no type to find out: its sizes are
    /// [unknown](tracecast_ir::Size::UNKNOWN), and whatever is computed from it has no type either. So `forward` asks for the same
    /// parameters whatever `x` is, before a size of `x` decides anything. No module writes this method.
    fn entries(&self) -> Vec<Entry> {
        Declared::of(|cx| {
            self.forward(cx, cx.unknown());
        })
        .entries()
    }

    /// The full names of parameters of other modules that it uses in the place of its own: see [`Linear::tied_to`].
    fn ties(&self) -> Vec<String> {
        Declared::of(|cx| {
            self.forward(cx, cx.unknown());
        })
        .ties()
    }

    /// What it keeps in the store if it is called `path` in another module.
    fn under(&self, path: &str) -> Vec<Entry> {
        self.entries().into_iter().map(|entry| entry.under(path)).collect()
    }

    /// Puts first values into a store, in the place of what is there. Equal seeds give equal values.
    ///
    /// # Errors
    /// If no tensor has the type of a parameter.
    fn init(&self, store: &mut Store, seed: u64) -> Result<()> {
        self.entries().iter().try_for_each(|entry| entry.put(store, seed))
    }
}
