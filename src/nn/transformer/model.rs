//! [`TransformerEncoder`], [`TransformerDecoder`] and [`Transformer`]: layers one after the other.

use super::attention::{Masks, masks};
use super::{
    Activation, Settings, Source, Target, TransformerDecoderLayer, TransformerEncoderLayer,
    settings,
};
use crate::nn::init::xavier_uniform;
use crate::nn::{Context, Layer, Values};
use crate::setters::setters;
use tracecast_ir::{DType, Var};

/// Encoder layers one after the other:
/// [`torch.nn.TransformerEncoder`](https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoder.html).
///
/// It takes a [`Source`] and gives a tensor of its type. The layers are `layers.0`, `layers.1` and
/// so on.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerEncoder {
    layer: TransformerEncoderLayer,
    layers: usize,
    norm: bool,
}

impl TransformerEncoder {
    /// That many layers with the settings of this one.
    pub fn new(layer: TransformerEncoderLayer, layers: usize) -> Self {
        TransformerEncoder { layer, layers, norm: false }
    }

    setters! {
        /// With a norm behind the last layer, called `norm`.
        norm() => norm = true;
    }
}

impl Layer for TransformerEncoder {
    type Input<'t> = Source<'t>;
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, Source { mut x, masks }: Source<'t>) -> Var<'t> {
        for layer in 0..self.layers {
            x = cx.layer(&format!("layers.{layer}"), &self.layer, Source { x, masks });
        }
        let norm = self.layer.settings().norm();
        if self.norm { cx.part("norm", &norm, x) } else { x }
    }
}

/// Decoder layers one after the other:
/// [`torch.nn.TransformerDecoder`](https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerDecoder.html).
///
/// It takes a [`Target`] and gives a tensor of the type of its input. The layers are `layers.0`,
/// `layers.1` and so on.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerDecoder {
    layer: TransformerDecoderLayer,
    layers: usize,
    norm: bool,
}

impl TransformerDecoder {
    /// That many layers with the settings of this one.
    pub fn new(layer: TransformerDecoderLayer, layers: usize) -> Self {
        TransformerDecoder { layer, layers, norm: false }
    }

    setters! {
        /// With a norm behind the last layer, called `norm`.
        norm() => norm = true;
    }
}

impl Layer for TransformerDecoder {
    type Input<'t> = Target<'t>;
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, given: Target<'t>) -> Var<'t> {
        let mut x = given.x;
        for layer in 0..self.layers {
            x = cx.layer(&format!("layers.{layer}"), &self.layer, Target { x, ..given });
        }
        let norm = self.layer.settings().norm();
        if self.norm { cx.part("norm", &norm, x) } else { x }
    }
}

/// What a [`Transformer`] takes: made of source and target, with masks for each attention.
#[derive(Clone, Copy, Debug)]
pub struct Translate<'t> {
    source: Source<'t>,
    target: Var<'t>,
    masks: Masks<'t>,
    memory_masks: Masks<'t>,
}

impl<'t> Translate<'t> {
    /// `source` is what an encoder takes, with its masks, and `target` `[T, N, width]`, with
    /// `batch_first` `[N, T, width]`, or `[T, width]`.
    pub fn new(source: impl Into<Source<'t>>, target: Var<'t>) -> Self {
        let (masks, memory_masks) = Default::default();
        Translate { source: source.into(), target, masks, memory_masks }
    }
}

masks!(Translate: masks, mask = "tgt_mask", key_padding = "tgt_key_padding_mask");
masks!(Translate: memory_masks, memory_mask = "memory_mask", memory_key_padding = "memory_key_padding_mask");
masks!(Translate: causal);

impl<'t> From<(Var<'t>, Var<'t>)> for Translate<'t> {
    fn from((source, target): (Var<'t>, Var<'t>)) -> Self {
        Translate::new(source, target)
    }
}

impl<'t> Values<'t> for Translate<'t> {
    fn unknown(cx: &Context<'t>) -> Self {
        Translate::new(Var::unknown(cx), Var::unknown(cx))
    }
}

/// An encoder and a decoder with norms behind them:
/// [`torch.nn.Transformer`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Transformer.html).
///
/// It takes a [`Translate`] and gives a tensor of the type of the target. The parameters are those
/// of `encoder` and `decoder`; all that have more than one axis start as [`xavier_uniform`].
///
/// ```
/// use tracecast::nn::{Context, Layer, Transformer};
/// use tracecast::prelude::*;
///
/// let model = Transformer::new(8, 2).layers(1, 1).feedforward(16).batch_first();
/// let mut store = Store::new();
/// model.init(&mut store, 0)?;
/// assert!(store.contains("decoder.layers.0.multihead_attn.out_proj.weight"));
/// let run = jit(Options::new(), move |t| {
///     t.output("y", model.forward(&Context::evaluation(t), (t.input("source"), t.input("target")).into()));
/// });
/// let (source, target) = (Tensor::new([1, 4, 8], &[0.5f32; 32])?, Tensor::new([1, 3, 8], &[0.25f32; 24])?);
/// let out = run.run(&mut store, &[("source", &source), ("target", &target)])?;
/// assert_eq!(out["y"].shape()[..], [1, 3, 8]);
/// # Ok::<(), tracecast::Error>(())
/// ```
///
/// # Errors
/// Of the trace: as [`MultiheadAttention`](super::MultiheadAttention).
#[derive(Clone, Debug, PartialEq)]
pub struct Transformer {
    settings: Settings,
    layers: [usize; 2],
}

impl Transformer {
    /// Over `width` numbers with that many heads, six layers each, in f32; the batch lies along the
    /// second axis.
    pub fn new(width: usize, heads: usize) -> Self {
        Transformer { settings: Settings::new(width, heads), layers: [6, 6] }
    }

    setters! {
        /// With other numbers of encoder and decoder layers.
        layers(encoder: usize, decoder: usize) => layers = [encoder, decoder];
    }
}

settings!(Transformer);

impl Layer for Transformer {
    type Input<'t> = Translate<'t>;
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, given: Translate<'t>) -> Var<'t> {
        let Translate { source, target, masks, memory_masks } = given;
        let [encoder, decoder] = self.layers;
        let cx = cx.starting(|ty| (ty.shape.rank() > 1).then(|| xavier_uniform(&ty.shape, 1.0)));
        let layer = TransformerEncoderLayer::of(self.settings);
        let encoder = TransformerEncoder::new(layer, encoder).norm();
        let memory = cx.layer("encoder", &encoder, source);
        let layer = TransformerDecoderLayer::of(self.settings);
        let decoder = TransformerDecoder::new(layer, decoder).norm();
        cx.layer("decoder", &decoder, Target { x: target, memory, masks, memory_masks })
    }
}
