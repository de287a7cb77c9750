//! [`TransformerEncoderLayer`] and [`TransformerDecoderLayer`].

use super::attention::{Masks, masks};
use super::{Activation, Attend, MultiheadAttention, Settings, settings};
use crate::nn::{Context, Dropout, Layer, LayerNorm, Linear, Module, Values};
use tracecast_ir::{DType, Var};

/// What an encoder takes: made of its input alone, with masks as in [`Attend`].
#[derive(Clone, Copy, Debug)]
pub struct Source<'t> {
    pub(super) x: Var<'t>,
    pub(super) masks: Masks<'t>,
}

impl<'t> Source<'t> {
    /// `x` is `[L, N, width]`, with `batch_first` `[N, L, width]`, or `[L, width]`.
    pub fn new(x: Var<'t>) -> Self {
        Source { x, masks: Masks::default() }
    }
}

masks!(Source: masks, mask = "src_mask", key_padding = "src_key_padding_mask");
masks!(Source: causal);

impl<'t> From<Var<'t>> for Source<'t> {
    fn from(x: Var<'t>) -> Self {
        Source::new(x)
    }
}

impl<'t> Values<'t> for Source<'t> {
    fn unknown(cx: &Context<'t>) -> Self {
        Source::new(Var::unknown(cx))
    }
}

/// What a decoder takes: made of its input and what the encoder gave, with masks for both as in
/// [`Attend`].
#[derive(Clone, Copy, Debug)]
pub struct Target<'t> {
    pub(super) x: Var<'t>,
    pub(super) memory: Var<'t>,
    pub(super) masks: Masks<'t>,
    pub(super) memory_masks: Masks<'t>,
}

impl<'t> Target<'t> {
    /// `x` is `[T, N, width]`, with `batch_first` `[N, T, width]`, or `[T, width]`; the memory has
    /// `L` in the place of `T`.
    pub fn new(x: Var<'t>, memory: Var<'t>) -> Self {
        Target { x, memory, masks: Masks::default(), memory_masks: Masks::default() }
    }
}

masks!(Target: masks, mask = "tgt_mask", key_padding = "tgt_key_padding_mask");
masks!(Target: memory_masks, memory_mask = "memory_mask", memory_key_padding = "memory_key_padding_mask");
masks!(Target: causal);

impl<'t> From<(Var<'t>, Var<'t>)> for Target<'t> {
    fn from((x, memory): (Var<'t>, Var<'t>)) -> Self {
        Target::new(x, memory)
    }
}

impl<'t> Values<'t> for Target<'t> {
    fn unknown(cx: &Context<'t>) -> Self {
        Target::new(Var::unknown(cx), Var::unknown(cx))
    }
}

impl Settings {
    pub(super) fn norm(&self) -> LayerNorm {
        let norm = LayerNorm::new(self.width).eps(self.eps).dtype(self.dtype);
        if self.bias { norm } else { norm.without_bias() }
    }

    fn linear(&self, inputs: usize, outputs: usize) -> Linear {
        let linear = Linear::new(inputs, outputs).dtype(self.dtype);
        if self.bias { linear } else { linear.without_bias() }
    }

    fn dropped<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        Dropout::new(self.dropout).forward(cx, x)
    }

    /// Attention of that name, and a dropout.
    fn attention<'t>(&self, cx: &Context<'t>, name: &str, given: Attend<'t>) -> Var<'t> {
        let layer = MultiheadAttention::new(self.width, self.heads).dropout(self.dropout);
        let layer = layer.dtype(self.dtype).without_weights();
        let layer = if self.bias { layer } else { layer.without_bias() };
        let layer = if self.batch_first { layer.batch_first() } else { layer };
        let (y, _) = cx.layer(name, &layer, given);
        self.dropped(cx, y)
    }

    /// Two matrix products.
    fn products<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let up = cx.part("linear1", &self.linear(self.width, self.feedforward), x);
        let up = self.dropped(cx, self.activation.of(cx, up));
        let down = cx.part("linear2", &self.linear(self.feedforward, self.width), up);
        self.dropped(cx, down)
    }

    /// `x` and what `body` makes of it, with a norm of that name in front or behind.
    fn beside<'t>(
        &self,
        cx: &Context<'t>,
        norm: &str,
        x: Var<'t>,
        body: impl FnOnce(Var<'t>) -> Var<'t>,
    ) -> Var<'t> {
        let normed = |x| cx.part(norm, &self.norm(), x);
        if self.norm_first {
            let y = body(normed(x));
            return cx.here(|| x + y);
        }
        let y = body(x);
        normed(cx.here(|| x + y))
    }
}

/// Attention of a sequence to itself and two matrix products, each added to what it is made of:
/// [`torch.nn.TransformerEncoderLayer`](https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html).
///
/// It takes a [`Source`] and gives a tensor of its type. The parameters are those of `self_attn`,
/// `linear1`, `linear2`, `norm1` and `norm2`.
///
/// ```
/// use tracecast::nn::{Layer, TransformerEncoderLayer};
/// let layer = TransformerEncoderLayer::new(64, 8).feedforward(256).dropout(0.0).norm_first();
/// assert_eq!(layer.entries()?.len(), 12);
/// # Ok::<(), tracecast::Error>(())
/// ```
///
/// # Errors
/// Of the trace: as [`MultiheadAttention`].
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerEncoderLayer {
    settings: Settings,
}

impl TransformerEncoderLayer {
    /// Over `width` numbers with that many heads, in f32; the batch lies along the second axis.
    pub fn new(width: usize, heads: usize) -> Self {
        TransformerEncoderLayer { settings: Settings::new(width, heads) }
    }

    pub(super) fn of(settings: Settings) -> Self {
        TransformerEncoderLayer { settings }
    }

    pub(super) fn settings(&self) -> Settings {
        self.settings
    }
}

settings!(TransformerEncoderLayer);

impl Layer for TransformerEncoderLayer {
    type Input<'t> = Source<'t>;
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, Source { x, masks }: Source<'t>) -> Var<'t> {
        let own = &self.settings;
        let x = own.beside(cx, "norm1", x, |x| {
            own.attention(cx, "self_attn", Attend::from(x).masked(masks))
        });
        own.beside(cx, "norm2", x, |x| own.products(cx, x))
    }
}

/// Attention of a sequence to itself, to what an encoder gave, and two matrix products, each added
/// to what it is made of:
/// [`torch.nn.TransformerDecoderLayer`](https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerDecoderLayer.html).
///
/// It takes a [`Target`] and gives a tensor of the type of its input. The parameters are those of
/// `self_attn`, `multihead_attn`, `linear1`, `linear2`, `norm1`, `norm2` and `norm3`.
///
/// # Errors
/// Of the trace: as [`MultiheadAttention`].
#[derive(Clone, Debug, PartialEq)]
pub struct TransformerDecoderLayer {
    settings: Settings,
}

impl TransformerDecoderLayer {
    /// Over `width` numbers with that many heads, in f32; the batch lies along the second axis.
    pub fn new(width: usize, heads: usize) -> Self {
        TransformerDecoderLayer { settings: Settings::new(width, heads) }
    }

    pub(super) fn of(settings: Settings) -> Self {
        TransformerDecoderLayer { settings }
    }

    pub(super) fn settings(&self) -> Settings {
        self.settings
    }
}

settings!(TransformerDecoderLayer);

impl Layer for TransformerDecoderLayer {
    type Input<'t> = Target<'t>;
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, given: Target<'t>) -> Var<'t> {
        let own = &self.settings;
        let x = own.beside(cx, "norm1", given.x, |x| {
            own.attention(cx, "self_attn", Attend::from(x).masked(given.masks))
        });
        let x = own.beside(cx, "norm2", x, |x| {
            let attend = Attend::new(x, given.memory, given.memory);
            own.attention(cx, "multihead_attn", attend.masked(given.memory_masks))
        });
        own.beside(cx, "norm3", x, |x| own.products(cx, x))
    }
}
