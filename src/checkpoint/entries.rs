//! [`Kept`]: the entries of a store that a file holds, and their names in it.
//!
//! A file of a model has the names that the model's entries have. A training state tells its parts
//! by the first word of a name:
//!
//! | in the file | in the store | what |
//! |---|---|---|
//! | `model.NAME` | `NAME` | an entry of the model |
//! | `random.NAME` | `NAME` | the model's random number generator: its seed and its step |
//! | `optim.…`, `amp.…`, `train.…`, `ema.…` | the same | the optimizer, the scaler, the count of steps, the averages |
//! | `state.NAME` | `NAME` | whatever else the store holds |

use crate::entry::{Entry, Start};
use std::collections::HashSet;
use tracecast_ir::TensorType;
use tracecast_runtime::Store;
use tracecast_runtime::safetensors::Metadata;

/// What the names of a model's entries start with in a training state.
pub(super) const MODEL: &str = "model.";
const RANDOM: &str = "random.";
/// What the names of entries start with that the step does not know.
pub(super) const OTHER: &str = "state.";

/// The version of the format that is written, and the last that is read. Every earlier one is read
/// as well.
pub(super) const VERSION: u32 = 1;
/// The key in a file's metadata under which it says what it is and of which version: `training 1`.
pub(super) const KEY: &str = "tracecast";

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    Training,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Model, Kind::Training];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Training => "training",
        }
    }
}

/// What a file says about itself. `format` is what readers of PyTorch's files ask for.
pub(super) fn header(kind: Kind) -> Metadata {
    let pairs = [("format", "pt".to_owned()), (KEY, format!("{} {VERSION}", kind.name()))];
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}

/// An entry of the store and its name in a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) in_file: String,
    pub(crate) ty: TensorType,
}

impl Kept {
    /// The entries of a model: what its generators hold is not part of it.
    pub(crate) fn of_model(model: &[Entry]) -> Vec<Kept> {
        let fixed = model.iter().filter(|entry| entry.start != Start::Seed);
        once(fixed.map(|entry| Kept::named(entry, "")))
    }

    /// All entries of a step and of its model, and whatever else is in the store.
    pub(crate) fn of_state(model: &[Entry], step: &[Entry], store: &Store) -> Vec<Kept> {
        let of_model = model.iter().map(|entry| match entry.start {
            Start::Seed => Kept::named(entry, RANDOM),
            _ => Kept::named(entry, MODEL),
        });
        let of_step = step.iter().map(|entry| Kept::named(entry, ""));
        let others = store.names().filter_map(|name| {
            let ty = store.ty(name)?.clone();
            Some(Kept { name: name.to_owned(), in_file: format!("{OTHER}{name}"), ty })
        });
        once(of_model.chain(of_step).chain(others))
    }

    fn named(entry: &Entry, prefix: &str) -> Kept {
        let Entry { name, ty, .. } = entry;
        Kept { name: name.clone(), in_file: format!("{prefix}{name}"), ty: ty.clone() }
    }
}

/// The first of those that share a name in the store.
fn once(kept: impl Iterator<Item = Kept>) -> Vec<Kept> {
    let mut names = HashSet::new();
    kept.filter(|kept| names.insert(kept.name.clone())).collect()
}
