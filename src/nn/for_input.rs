//! [`ForInput`] and [`ForInputs`]: modules that say the types of their inputs, for those whose
//! `forward` decides by sizes.

use crate::nn::{Context, Layer, Module, Values};
use tracecast_ir::{TensorType, Var};

/// A [`Module`] whose parameters are found with an input of a type: made by [`Module::for_input`].
#[derive(Clone, Debug, PartialEq)]
pub struct ForInput<M> {
    module: M,
    input: TensorType,
}

impl<M> ForInput<M> {
    pub(super) fn new(module: M, input: TensorType) -> Self {
        ForInput { module, input }
    }
}

impl<M: Module> Module for ForInput<M> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        self.module.forward(cx, cx.typed(x, &self.input))
    }
}

/// A [`Layer`] whose parameters are found with inputs of these types: made by
/// [`Layer::for_inputs`].
#[derive(Clone, Debug, PartialEq)]
pub struct ForInputs<L> {
    layer: L,
    inputs: Vec<TensorType>,
}

impl<L> ForInputs<L> {
    pub(super) fn new(layer: L, inputs: Vec<TensorType>) -> Self {
        ForInputs { layer, inputs }
    }
}

impl<L: Layer> Layer for ForInputs<L> {
    type Input<'t> = L::Input<'t>;
    type Output<'t> = L::Output<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, input: L::Input<'t>) -> L::Output<'t> {
        self.layer.forward(cx, input.typed(cx, &mut self.inputs.iter()))
    }
}
