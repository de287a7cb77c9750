//! [`Layer`]: a part of a model that takes several values or gives several; [`ForInputs`]: one that
//! states the types of its inputs.

use crate::entry::Entry;
use crate::error::Result;
use crate::nn::Context;
use crate::nn::declared::Declared;
use std::slice;
use tracecast_ir::{TensorType, Var};
use tracecast_runtime::Store;

/// A part of a model that takes several values or gives several: a loss, a recurrent layer,
/// attention.
///
/// A model that is trained has one operand and is a [`Module`](crate::nn::Module), which calls
/// layers by [`Context::apply`] and takes further inputs from [`Context::trace`].
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
/// let names: Vec<String> = Both(Linear::new(4, 2)).entries()?.into_iter().map(|entry| entry.name).collect();
/// assert_eq!(names, ["fc.weight", "fc.bias"]);
/// # Ok::<(), tracecast::Error>(())
/// ```
pub trait Layer: Send + Sync {
    /// What it takes. [`Context::apply`] takes whatever converts to it.
    type Input<'t>: Values<'t>;
    /// What it gives.
    type Output<'t>;

    /// Records what the layer computes.
    fn forward<'t>(&self, cx: &Context<'t>, input: Self::Input<'t>) -> Self::Output<'t>;

    /// What it keeps in the store, with names as seen from inside: see
    /// [`Module::entries`](crate::nn::Module::entries).
    ///
    /// # Errors
    /// As there.
    fn entries(&self) -> Result<Vec<Entry>> {
        Ok(Declared::of(|cx| drop(self.forward(cx, Self::Input::unknown(cx))))?.entries())
    }

    /// The same layer, whose parameters are found with inputs of these types, in order: for one
    /// whose `forward` decides by sizes. An input that may be absent is there if a type is left for
    /// it. See [`Module::for_input`](crate::nn::Module::for_input).
    fn for_inputs(self, inputs: impl Into<Vec<TensorType>>) -> ForInputs<Self>
    where
        Self: Sized,
    {
        ForInputs::new(self, inputs.into())
    }

    /// Puts first values into a store, in the place of what is there. Equal seeds give equal
    /// values.
    ///
    /// # Errors
    /// If no tensor has the type of a parameter; as [`entries`](Layer::entries).
    fn init(&self, store: &mut Store, seed: u64) -> Result<()> {
        self.entries()?.iter().try_for_each(|entry| entry.put(store, seed))
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
    fn new(layer: L, inputs: Vec<TensorType>) -> Self {
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

/// What a [`Layer`] takes: values, tuples of them, and those that may be absent.
pub trait Values<'t>: Sized {
    /// Values of no type, and nothing where it may be absent: what a layer gets that is asked for
    /// its parameters.
    fn unknown(cx: &Context<'t>) -> Self;

    /// The same with the next of these types for each value that has none, where parameters are
    /// looked for.
    #[must_use]
    fn typed(self, _: &Context<'t>, _: &mut slice::Iter<'_, TensorType>) -> Self {
        self
    }
}

impl<'t> Values<'t> for Var<'t> {
    fn unknown(cx: &Context<'t>) -> Self {
        cx.unknown()
    }

    fn typed(self, cx: &Context<'t>, types: &mut slice::Iter<'_, TensorType>) -> Self {
        types.next().map_or(self, |ty| cx.typed(self, ty))
    }
}

impl<'t, V: Values<'t>> Values<'t> for Option<V> {
    fn unknown(_: &Context<'t>) -> Self {
        None
    }

    fn typed(self, cx: &Context<'t>, types: &mut slice::Iter<'_, TensorType>) -> Self {
        let is_there = self.is_some() || cx.is_declaring() && types.len() > 0;
        is_there.then(|| self.unwrap_or_else(|| V::unknown(cx)).typed(cx, types))
    }
}

impl<'t, A: Values<'t>, B: Values<'t>> Values<'t> for (A, B) {
    fn unknown(cx: &Context<'t>) -> Self {
        (A::unknown(cx), B::unknown(cx))
    }

    fn typed(self, cx: &Context<'t>, types: &mut slice::Iter<'_, TensorType>) -> Self {
        (self.0.typed(cx, types), self.1.typed(cx, types))
    }
}

impl<'t, A: Values<'t>, B: Values<'t>, C: Values<'t>> Values<'t> for (A, B, C) {
    fn unknown(cx: &Context<'t>) -> Self {
        (A::unknown(cx), B::unknown(cx), C::unknown(cx))
    }

    fn typed(self, cx: &Context<'t>, types: &mut slice::Iter<'_, TensorType>) -> Self {
        (self.0.typed(cx, types), self.1.typed(cx, types), self.2.typed(cx, types))
    }
}
