//! Modules: parts of a model with parameters of their own, named as PyTorch's `state_dict` names
//! them.
//!
//! A [`Module`] is a description: sizes and settings, no values. [`Module::init`] puts the first
//! values into a store; [`Module::forward`] records what it computes, with parameters as ports. A
//! parameter that is used twice under one name is *tied*; one behind [`Frozen`] is other state,
//! which no gradient reaches.
//!
//! A part that takes several values or gives several, such as a loss, is a [`Layer`] and is called
//! by [`Context::apply`]. Settings, defaults and starts of parameters are those of PyTorch's class
//! of the same name.

mod activation;
mod batch_norm;
mod call;
mod checkpoint;
mod context;
mod conv;
mod declare;
mod declared;
mod distance;
mod dropout;
mod embedding;
mod for_input;
pub mod init;
mod layer;
mod linear;
mod loss;
mod modules;
mod norm;
mod pad;
mod pool;
mod recurrent;
mod sequential;
mod shape;
mod summary;
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
pub use call::Model;
pub use checkpoint::Checkpoint;
pub use context::Context;
pub use conv::{
    Conv, Conv1d, Conv2d, Conv3d, ConvTranspose, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
};
pub use declared::Tie;
pub use distance::{CosineSimilarity, PairwiseDistance};
pub use dropout::{AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout};
pub use embedding::Embedding;
pub use for_input::ForInput;
pub use layer::{ForInputs, Layer, Values};
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

pub use summary::{EntryNote, ModuleNote, Summary};

pub use crate::entry::{Entry, Reader, Start};

use crate::amp::Autocast;
use crate::error::Result;
use declared::Declared;
use tracecast_ir::{TensorType, Var};
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
    /// It is what `forward` asks the [`Context`] for, which is called without a run to find out:
    /// `x` and what is computed from it have no type then. `forward` may compute with a size and
    /// give it to ops. Splits whose arguments say how many parts there are work: `chunk`,
    /// `tensor_split`, `split_at`, `split_with_sizes`. No module writes this method.
    ///
    /// # Errors
    /// If `forward` panics, decides by a type or by a size, or calls `split` or `unbind`, whose
    /// number of parts follows from a size: [`for_input`](Module::for_input) is the way then.
    fn entries(&self) -> Result<Vec<Entry>> {
        Ok(Declared::of(|cx| _ = self.forward(cx, cx.unknown()))?.entries())
    }

    /// The parameters of other modules that it uses in the place of its own: see
    /// [`Linear::tied_to`].
    ///
    /// # Errors
    /// As [`entries`](Module::entries).
    fn ties(&self) -> Result<Vec<Tie>> {
        Ok(Declared::of(|cx| _ = self.forward(cx, cx.unknown()))?.ties())
    }

    /// What it keeps in the store if it is called `path` in another module.
    ///
    /// # Errors
    /// As [`entries`](Module::entries).
    fn under(&self, path: &str) -> Result<Vec<Entry>> {
        Ok(self.entries()?.into_iter().map(|entry| entry.under(path)).collect())
    }

    /// The same module, whose parameters are found with an input of this type: for one whose
    /// `forward` decides by the sizes of what it is given. A run may give it any other type.
    ///
    /// ```
    /// use tracecast::nn::{Context, Linear, Module};
    /// use tracecast::prelude::*;
    ///
    /// /// A layer for each position.
    /// struct Each;
    ///
    /// impl Module for Each {
    ///     fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
    ///         let parts = x.unbind(1).into_iter().enumerate();
    ///         let parts = parts.map(|(i, part)| cx.call(&i.to_string(), &Linear::new(4, 2), part));
    ///         stack(&parts.collect::<Vec<_>>(), 1)
    ///     }
    /// }
    ///
    /// let mut store = Store::new();
    /// let error = Each.init(&mut store, 0).unwrap_err().to_string();
    /// assert!(error.contains("for_input"));
    /// // [examples, positions, numbers]
    /// Each.for_input(TensorType::new(DType::F32, [1, 3, 4])).init(&mut store, 0)?;
    /// assert!(store.contains("2.weight") && !store.contains("3.weight"));
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    fn for_input(self, x: TensorType) -> ForInput<Self>
    where
        Self: Sized,
    {
        ForInput::new(self, x)
    }

    /// What it is made of, module by module: parameters, their shapes and bytes.
    ///
    /// ```
    /// use tracecast::nn::{Linear, Module, Relu, Sequential};
    /// use tracecast::prelude::*;
    ///
    /// let model = Sequential::new().then(Linear::new(4, 8)).then(Relu).then(Linear::new(8, 2));
    /// let summary = model.summary()?;
    /// assert_eq!((summary.trained(), summary.bytes()), (58, 232));
    ///
    /// // With the type of an input: what each module gives, and in which dtype it computes.
    /// let x = TensorType::new(DType::F32, [1, 4]);
    /// let low = model.summary_of(x, Some(&Autocast::new("cpu").dtype(DType::BF16)))?;
    /// assert_eq!(low.modules[0].result.as_ref().unwrap().to_string(), "bf16[1, 8]");
    /// println!("{low}");
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`entries`](Module::entries).
    fn summary(&self) -> Result<Summary> {
        Summary::of(self)
    }

    /// The same with the type of what each module gives, for an input of this type, in an autocast
    /// region if one is given.
    ///
    /// # Errors
    /// An op that does not take what it is given; as [`entries`](Module::entries).
    fn summary_of(&self, x: TensorType, region: Option<&Autocast>) -> Result<Summary> {
        Summary::of_run(self, x, region)
    }

    /// Puts first values into a store, in the place of what is there. Equal seeds give equal
    /// values.
    ///
    /// # Errors
    /// If no tensor has the type of a parameter; as [`entries`](Module::entries).
    fn init(&self, store: &mut Store, seed: u64) -> Result<()> {
        self.entries()?.iter().try_for_each(|entry| entry.put(store, seed))
    }
}
