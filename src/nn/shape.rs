//! Modules that move elements and change none: [`Identity`], [`Flatten`], [`Unflatten`],
//! [`PixelShuffle`] and their like.

use crate::nn::modules::modules;
use crate::nn::{Context, Module};
use tracecast_ir::ops::view::Views;
use tracecast_ir::{Size, Var};

/// The operand itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity;

impl Module for Identity {
    fn forward<'t>(&self, _: &Context<'t>, x: Var<'t>) -> Var<'t> {
        x
    }
}

/// Several axes as one:
/// [`torch.nn.Flatten`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Flatten.html).
///
/// ```
/// use tracecast::nn::{Embedding, Flatten, Linear, Sequential};
/// // Sixteen characters, each of them a vector of 8 numbers, are a row of 128.
/// let model = Sequential::new().then(Embedding::new(28, 8)).then(Flatten::new()).then(Linear::new(16 * 8, 28));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flatten {
    start: i64,
    end: i64,
}

impl Flatten {
    /// Each example as one row: all axes but the first become one; where there is no other it has
    /// one number.
    pub fn new() -> Self {
        Flatten::axes(1, -1)
    }

    /// The axes from `start` up to and with `end`.
    pub fn axes(start: i64, end: i64) -> Self {
        Flatten { start, end }
    }
}

impl Default for Flatten {
    fn default() -> Self {
        Flatten::new()
    }
}

impl Module for Flatten {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        if x.is_poison() {
            return x;
        }
        cx.here(|| match (self.start, self.end, x.rank()) {
            (1, -1, 0) => {
                cx.trace().tracer().fail("Flatten", "takes a row for each example, found no axis")
            }
            (1, -1, 1) => x.reshape([x.size(0), Size::from(1)]),
            (start, end, _) => x.flatten(start, end),
        })
    }
}

/// One axis as several:
/// [`torch.nn.Unflatten`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Unflatten.html).
///
/// ```
/// use tracecast::nn::{Linear, Sequential, Unflatten};
/// // A row of 128 numbers is 16 vectors of 8.
/// let model = Sequential::new().then(Linear::new(28, 128)).then(Unflatten::new(-1, [16, 8]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unflatten {
    dim: i64,
    sizes: Vec<i64>,
}

impl Unflatten {
    /// The axis `dim` as axes of these sizes, of which one may be -1.
    pub fn new(dim: i64, sizes: impl Into<Vec<i64>>) -> Self {
        Unflatten { dim, sizes: sizes.into() }
    }
}

impl Module for Unflatten {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.here(|| x.unflatten(self.dim, &self.sizes))
    }
}

modules! {
    /// Channels as pixels: `[…, C·r², H, W]` as `[…, C, H·r, W·r]` with `r = factor`:
    /// [`torch.nn.PixelShuffle`](https://docs.pytorch.org/docs/stable/generated/torch.nn.PixelShuffle.html).
    #[derive(Eq)]
    PixelShuffle { factor: i64 } = |x, own| x.pixel_shuffle(own.factor);
    /// Pixels as channels: `[…, C, H·r, W·r]` as `[…, C·r², H, W]` with `r = factor`:
    /// [`torch.nn.PixelUnshuffle`](https://docs.pytorch.org/docs/stable/generated/torch.nn.PixelUnshuffle.html).
    #[derive(Eq)]
    PixelUnshuffle { factor: i64 } = |x, own| x.pixel_unshuffle(own.factor);
    /// The channels of each group taken in turn: `[N, g·C, …]` with channel `i·C + j` at `j·g + i`:
    /// [`torch.nn.ChannelShuffle`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ChannelShuffle.html).
    #[derive(Eq)]
    ChannelShuffle { groups: i64 } = |x, own| x.channel_shuffle(own.groups);
}
