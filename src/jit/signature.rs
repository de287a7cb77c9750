//! What a run is given, as far as programs depend on it: [`Given`] inputs, the [`State`] that it
//! finds, and the [`Signature`] of both.

use crate::error::{Error, Result};
use crate::names::AxisNames;
use crate::trace::Types;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use tracecast_ir::TensorType;
use tracecast_ir::hash::FxHasher;
use tracecast_runtime::{Store, Tensor, Weights};

/// The entries that a run finds under their names.
pub(super) trait State {
    /// The type of an entry.
    fn ty(&self, name: &str) -> Option<&TensorType>;
    /// The names, sorted.
    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_>;
    /// A number that no other names and types have, 0 aside.
    fn layout(&self) -> u64;
}

impl State for Store {
    fn ty(&self, name: &str) -> Option<&TensorType> {
        Store::ty(self, name)
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(Store::names(self))
    }

    fn layout(&self) -> u64 {
        Store::layout(self)
    }
}

impl State for Weights {
    fn ty(&self, name: &str) -> Option<&TensorType> {
        Weights::ty(self, name)
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(Weights::names(self))
    }

    fn layout(&self) -> u64 {
        self.version()
    }
}

/// The inputs of a run by name.
pub(super) struct Given<'a> {
    inputs: &'a [(&'a str, &'a Tensor)],
    /// There if there are many.
    types: Option<HashMap<&'a str, &'a TensorType>>,
}

/// The most names that are compared one by one.
const FEW: usize = 32;

impl<'a> Given<'a> {
    pub(super) fn of(inputs: &'a [(&'a str, &'a Tensor)]) -> Self {
        let all = || inputs.iter().map(|(name, tensor)| (*name, tensor.ty())).collect();
        Given { inputs, types: (inputs.len() > FEW).then(all) }
    }

    /// The type of an input.
    pub(super) fn ty(&self, name: &str) -> Option<&'a TensorType> {
        match &self.types {
            Some(types) => types.get(name).copied(),
            None => {
                let mut inputs = self.inputs.iter();
                inputs.find(|(known, _)| *known == name).map(|(_, tensor)| tensor.ty())
            }
        }
    }

    /// A hash of names and types that does not depend on their order.
    pub(super) fn hash(&self) -> u64 {
        let one = |(name, tensor): &(&str, &Tensor)| {
            let mut hasher = FxHasher::default();
            (name, tensor.ty()).hash(&mut hasher);
            hasher.finish()
        };
        self.inputs.iter().map(one).fold(0, u64::wrapping_add)
    }
}

/// What a compilation is for. Sizes that are to be names are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Signature {
    inputs: BTreeMap<String, TensorType>,
    /// Which sizes stand there as 0 because they are to be names.
    open: Vec<(String, usize)>,
    store: BTreeMap<String, TensorType>,
}

impl Signature {
    /// Of these types, the sizes that have names left open.
    pub(super) fn of(types: &Types, names: &AxisNames) -> Self {
        let Types { mut inputs, store, .. } = types.clone();
        let mut open = Vec::new();
        for (name, ty) in &mut inputs {
            let axes = names.get(name).filter(|axes| axes.len() == ty.shape.rank());
            for (axis, (size, named)) in
                ty.shape.iter_mut().zip(axes.into_iter().flatten()).enumerate()
            {
                if named.is_some() {
                    *size = 0.into();
                    open.push((name.clone(), axis));
                }
            }
        }
        Signature { inputs, open, store }
    }
}

/// The types of what a run is given.
///
/// # Errors
/// If an input is given twice.
pub(super) fn types(state: &dyn State, inputs: &[(&str, &Tensor)]) -> Result<Types> {
    let mut types = Types::default();
    for (name, tensor) in inputs {
        if types.inputs.insert((*name).to_owned(), tensor.ty().clone()).is_some() {
            let (name, message) = ((*name).to_owned(), "is given twice".to_owned());
            return Err(Error::Input { name, message });
        }
    }
    let known = state.names().filter_map(|name| Some((name.to_owned(), state.ty(name)?.clone())));
    types.store = known.collect();
    Ok(types)
}
