//! [`Checkpoint`]: a part of a model whose values backward recomputes.

use crate::nn::{Context, Layer, Module};
use tracecast_ir::Var;

/// A module, or a layer, whose values backward recomputes instead of keeping them from forward:
/// activation checkpointing, as
/// [`torch.utils.checkpoint`](https://docs.pytorch.org/docs/stable/checkpoint.html).
///
/// Memory for what the module takes and gives, time for its forward once more. Parameters keep
/// their names, and no bit of any result changes: dropout drops the same elements again, and
/// statistics advance once. See [`Trace::checkpoint`](crate::Trace::checkpoint).
///
/// ```
/// use tracecast::nn::{Checkpoint, Gelu, Linear, Module, Sequential};
///
/// let block = || Sequential::new().then(Linear::new(64, 256)).then(Gelu).then(Linear::new(256, 64));
/// let model = Sequential::new().then(Checkpoint(block())).then(Checkpoint(block()));
/// assert_eq!(model.entries()?[0].name, "0.0.weight");
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoint<M>(
    /// The module.
    pub M,
);

impl<M: Module> Module for Checkpoint<M> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.trace().checkpoint(|| self.0.forward(cx, x))
    }
}

impl<L: Layer> Layer for Checkpoint<L> {
    type Input<'t> = L::Input<'t>;
    type Output<'t> = L::Output<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, input: L::Input<'t>) -> L::Output<'t> {
        cx.trace().checkpoint(|| self.0.forward(cx, input))
    }
}
