//! Calls of modules and layers at a [`Context`], and [`Model`], the module at the top.

use crate::entry::Entry;
use crate::nn::{Context, Layer, Module};
use tracecast_ir::Var;

impl<'t> Context<'t> {
    /// Records a part of the module that is called `name`; its ops are recorded at the line of this
    /// call.
    #[track_caller]
    pub fn call(&self, name: &str, module: &(impl Module + ?Sized), x: Var<'t>) -> Var<'t> {
        self.of_caller(std::ptr::from_ref(module).cast()).part(name, module, x)
    }

    /// The same for a part that takes several values or gives several:
    /// `cx.apply("rnn", &self.rnn, (x, state))`.
    #[track_caller]
    pub fn apply<L: Layer + ?Sized>(
        &self,
        name: &str,
        layer: &L,
        input: impl Into<L::Input<'t>>,
    ) -> L::Output<'t> {
        self.of_caller(std::ptr::from_ref(layer).cast()).layer(name, layer, input)
    }

    /// Records a part of the module that is called `name`, at the line where this module is called.
    /// The part belongs to the module that the user called, and may be made for this call alone.
    pub(crate) fn part(&self, name: &str, module: &(impl Module + ?Sized), x: Var<'t>) -> Var<'t> {
        let inside = self.inside(name);
        let y = self.trace().tracer().scope(name, || module.forward(&inside, x));
        self.shown(inside.path(), y);
        y
    }

    /// The same for a part that takes several values or gives several.
    pub(crate) fn layer<L: Layer + ?Sized>(
        &self,
        name: &str,
        layer: &L,
        input: impl Into<L::Input<'t>>,
    ) -> L::Output<'t> {
        let inside = self.inside(name);
        let input = input.into();
        self.trace().tracer().scope(name, || layer.forward(&inside, input))
    }
}

/// A module and the place it is called at: what a training step hands to the closure that computes
/// the loss.
pub struct Model<'m, 't> {
    module: &'m dyn Module,
    context: Context<'t>,
}

impl<'m, 't> Model<'m, 't> {
    /// A module at a place.
    pub fn new(module: &'m dyn Module, context: Context<'t>) -> Self {
        // One whose parameters are not known before it is called has no frozen ones that another is
        // tied to.
        Model::of(module, context, &module.entries().unwrap_or_default())
    }

    /// A module of these entries at a place.
    pub(crate) fn of(module: &'m dyn Module, context: Context<'t>, entries: &[Entry]) -> Self {
        Model { module, context: context.with_entries(entries) }
    }

    /// Records what the model computes; the ops of its layers are recorded at the line of this
    /// call.
    #[track_caller]
    pub fn forward(&self, x: Var<'t>) -> Var<'t> {
        self.module.forward(&self.context.at_caller(), x)
    }

    /// The place it is called at.
    pub fn context(&self) -> &Context<'t> {
        &self.context
    }
}
