//! [`Layer`]: a part of a model that takes several values or gives several.

use crate::entry::Entry;
use crate::error::Result;
use crate::nn::Context;
use crate::nn::declared::Declared;
use tracecast_ir::Var;
use tracecast_runtime::Store;

/// A part of a model that takes several values or gives several: a loss, a recurrent layer, attention.
///
/// A model that is trained has one operand and is a [`Module`](crate::nn::Module), which calls layers by [`Context::apply`] and takes
/// further inputs from [`Context::trace`].
///
/// ```
/// use tracecast::nn::{Context, Layer, Linear};
/// use tracecast::prelude::*;
///
/// /// `fc(a) + fc(b)` and the product of both.
/// struct Both(Linear);
///
/// impl Layer for Both {
///     type Input<'t> = (Var<'t>, Var<'t>);
///     type Output<'t> = (Var<'t>, Var<'t>);
///
///     fn forward<'t>(&self, cx: &Context<'t>, (a, b): (Var<'t>, Var<'t>)) -> (Var<'t>, Var<'t>) {
///         let (a, b) = (cx.call("fc", &self.0, a), cx.call("fc", &self.0, b));
///         (a + b, a * b)
///     }
/// }
///
/// let names: Vec<String> = Both(Linear::new(4, 2)).entries().into_iter().map(|entry| entry.name).collect();
/// assert_eq!(names, ["fc.weight", "fc.bias"]);
/// ```
pub trait Layer: Send + Sync {
    /// What it takes. [`Context::apply`] takes whatever converts to it.
    type Input<'t>: Values<'t>;
    /// What it gives.
    type Output<'t>;

    /// Records what the layer computes.
    fn forward<'t>(&self, cx: &Context<'t>, input: Self::Input<'t>) -> Self::Output<'t>;

    /// What it keeps in the store, with names as seen from inside: see [`Module::entries`](crate::nn::Module::entries).
    fn entries(&self) -> Vec<Entry> {
        Declared::of(|cx| drop(self.forward(cx, Self::Input::unknown(cx)))).entries()
    }

    /// Puts first values into a store, in the place of what is there. Equal seeds give equal values.
    ///
    /// # Errors
    /// If no tensor has the type of a parameter.
    fn init(&self, store: &mut Store, seed: u64) -> Result<()> {
        self.entries().iter().try_for_each(|entry| entry.put(store, seed))
    }
}

/// What a [`Layer`] takes: values, tuples of them, and those that may be absent.
pub trait Values<'t>: Sized {
    /// Values of no type, and nothing where it may be absent: what a layer gets that is asked for its parameters.
    fn unknown(cx: &Context<'t>) -> Self;
}

impl<'t> Values<'t> for Var<'t> {
    fn unknown(cx: &Context<'t>) -> Self {
        cx.unknown()
    }
}

impl<'t, V: Values<'t>> Values<'t> for Option<V> {
    fn unknown(_: &Context<'t>) -> Self {
        None
    }
}

impl<'t, A: Values<'t>, B: Values<'t>> Values<'t> for (A, B) {
    fn unknown(cx: &Context<'t>) -> Self {
        (A::unknown(cx), B::unknown(cx))
    }
}

impl<'t, A: Values<'t>, B: Values<'t>, C: Values<'t>> Values<'t> for (A, B, C) {
    fn unknown(cx: &Context<'t>) -> Self {
        (A::unknown(cx), B::unknown(cx), C::unknown(cx))
    }
}
