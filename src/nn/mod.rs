//! Modules: parts of a model with parameters of their own, named as PyTorch's `state_dict` names them.
//!
//! A [`Module`] is a description: sizes and settings, no values. [`Module::init`] puts the first values into a store;
//! [`Module::forward`] records what it computes, with parameters as ports. A parameter that is used twice under one name is
//! *tied*; one behind [`Frozen`] is other state, which no gradient reaches.

mod activation;
mod context;
mod dropout;
mod embedding;
mod linear;
mod norm;
mod sequential;

pub use activation::{Flatten, Gelu, Relu, Sigmoid, Silu, Tanh};
pub use context::{Context, Model};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use linear::Linear;
pub use norm::LayerNorm;
pub use sequential::{Frozen, Sequential};

pub use crate::entry::{Entry, Start};

use crate::error::Result;
use tracecast_ir::Var;
use tracecast_runtime::Store;

/// A part of a model.
///
/// ```
/// use tracecast::nn::{Context, Entry, LayerNorm, Linear, Module};
/// use tracecast::prelude::*;
///
/// /// `x + fc(norm(x))`
/// struct Residual {
///     norm: LayerNorm,
///     fc: Linear,
/// }
///
/// impl Module for Residual {
///     fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
///         let y = cx.call("norm", &self.norm, x);
///         x + cx.call("fc", &self.fc, y)
///     }
///
///     fn entries(&self) -> Vec<Entry> {
///         [self.norm.under("norm"), self.fc.under("fc")].concat()
///     }
/// }
///
/// let block = Residual { norm: LayerNorm::new(8), fc: Linear::new(8, 8) };
/// let mut store = Store::new();
/// block.init(&mut store, 0)?;
/// assert!(store.contains("fc.weight"));
/// # Ok::<(), tracecast::Error>(())
/// ```
pub trait Module: Send + Sync {
    /// Records what the module computes from `x`.
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t>;

    /// What it keeps in the store, with names as seen from inside.
    fn entries(&self) -> Vec<Entry>;

    /// The full names of parameters of other modules that it uses in the place of its own: see [`Linear::tied_to`].
    fn ties(&self) -> Vec<String> {
        Vec::new()
    }

    /// What it keeps in the store if it is called `path` in another module.
    fn under(&self, path: &str) -> Vec<Entry> {
        self.entries().into_iter().map(|entry| entry.under(path)).collect()
    }

    /// Puts first values into a store, in the place of what is there. Equal seeds give equal values.
    ///
    /// # Errors
    /// If no tensor has the type of a parameter.
    fn init(&self, store: &mut Store, seed: u64) -> Result<()> {
        self.entries().iter().try_for_each(|entry| entry.put(store, seed))
    }
}
