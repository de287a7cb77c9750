//! Activations as modules without parameters.

use crate::nn::{Context, Entry, Module};
use tracecast_ir::Var;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::nn::activation::Activations;

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
