//! Modules made of modules: [`Sequential`] and [`Frozen`].

use crate::nn::{Context, Module};
use std::collections::BTreeSet;
use std::sync::Arc;
use tracecast_ir::Var;

/// Modules one after another, called `0`, `1`, … unless they are given names.
///
/// ```
/// use tracecast::nn::{Linear, Module, Relu, Sequential};
///
/// let model = Sequential::new().then(Linear::new(64, 128)).then(Relu).then(Linear::new(128, 10));
/// let names: Vec<_> = model.entries()?.into_iter().map(|entry| entry.name).collect();
/// assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Default)]
pub struct Sequential {
    modules: Vec<(String, Box<dyn Module>)>,
}

impl Sequential {
    /// No module: the operand itself.
    pub fn new() -> Self {
        Sequential::default()
    }

    /// The same with one more module, called by its number.
    #[must_use]
    pub fn then(self, module: impl Module + 'static) -> Self {
        let name = self.modules.len().to_string();
        self.named(name, module)
    }

    /// The same with one more module of that name. A name that another module has is refused when
    /// the model is recorded: their parameters would be one.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>, module: impl Module + 'static) -> Self {
        self.modules.push((name.into(), Box::new(module)));
        self
    }
}

impl Module for Sequential {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let mut seen = BTreeSet::new();
        if let Some((name, _)) = self.modules.iter().find(|(name, _)| !seen.insert(name)) {
            let why = format!("has two modules that are called `{name}`");
            cx.here(|| cx.trace().tracer().fail("Sequential", why));
        }
        self.modules.iter().fold(x, |x, (name, module)| cx.part(name, module.as_ref(), x))
    }
}

/// A module whose parameters are not trained: they are state of the program, and no gradient is
/// computed for them.
#[derive(Clone, Debug)]
pub struct Frozen<M>(
    /// The module.
    pub M,
);

impl<M: Module> Module for Frozen<M> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        self.0.forward(&cx.frozen(), x)
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        self.as_ref().forward(cx, x)
    }
}

impl<M: Module + ?Sized> Module for Arc<M> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        self.as_ref().forward(cx, x)
    }
}
