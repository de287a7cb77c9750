//! [`ForInput`]: a module that states the type of its input, for one whose `forward` decides by
//! sizes.

use crate::nn::{Context, Module};
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
