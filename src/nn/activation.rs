//! Modules without parameters: activations, and [`Flatten`].

use crate::nn::{Context, Entry, Module};
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::nn::activation::Activations;
use tracecast_ir::ops::view::Views;
use tracecast_ir::{Size, Var};

/// The operand where it is above zero, else zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relu;

impl Module for Relu {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.here(|| x.relu())
    }

    fn entries(&self) -> Vec<Entry> {
        Vec::new()
    }
}

/// The operand times the share of a normal distribution below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gelu;

impl Module for Gelu {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.here(|| x.gelu(None))
    }

    fn entries(&self) -> Vec<Entry> {
        Vec::new()
    }
}

/// The operand times its sigmoid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silu;

impl Module for Silu {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.here(|| x.silu())
    }

    fn entries(&self) -> Vec<Entry> {
        Vec::new()
    }
}

/// The hyperbolic tangent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tanh;

impl Module for Tanh {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.here(|| x.tanh())
    }

    fn entries(&self) -> Vec<Entry> {
        Vec::new()
    }
}

/// `1 / (1 + exp(-x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sigmoid;

impl Module for Sigmoid {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.here(|| x.sigmoid())
    }

    fn entries(&self) -> Vec<Entry> {
        Vec::new()
    }
}

/// Each example as one row: all axes but the first become one, as with PyTorch's `Flatten()`; where there is no other it has one number.
///
/// ```
/// use tracecast::nn::{Embedding, Flatten, Linear, Sequential};
/// // Sixteen characters, each of them a vector of 8 numbers, are a row of 128.
/// let model = Sequential::new().then(Embedding::new(28, 8)).then(Flatten).then(Linear::new(16 * 8, 28));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flatten;

impl Module for Flatten {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.here(|| {
            if x.is_poison() {
                return x;
            }
            let shape = x.shape();
            let [rows, inside @ ..] = &shape[..] else {
                return cx.trace().fail("Flatten", "takes a row for each example, found no axis");
            };
            let width = inside.iter().fold(Size::from(1), |all, size| all * *size);
            x.reshape(&[*rows, width])
        })
    }

    fn entries(&self) -> Vec<Entry> {
        Vec::new()
    }
}
