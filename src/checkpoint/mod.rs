//! Models and training states in files that last.
//!
//! [`save_model`] writes what a model is made of under the names and shapes of PyTorch's `state_dict`, and [`load_model`] reads such files,
//! PyTorch's too. The whole state of a training step, to go on with it in another process bit for bit, is written by
//! [`TrainStep::save`](crate::TrainStep::save). Both are safetensors files, which hold every dtype as it is.
//!
//! A file is written whole: after a crash in the midst of it the old one is still there. A file is loaded whole: at any error the store is as it
//! was. Loading is strict unless it is told otherwise, and nothing starts anew in silence.
//!
//! ```
//! use tracecast::checkpoint::{Load, load_model, save_model};
//! use tracecast::nn::{Linear, Module};
//! use tracecast::prelude::*;
//!
//! let path = std::env::temp_dir().join(format!("model-{}.safetensors", std::process::id()));
//! let model = Linear::new(4, 2);
//! let mut store = Store::new();
//! model.init(&mut store, 0)?;
//! save_model(&model, &store, &path)?;
//!
//! let mut other = Store::new();
//! load_model(&model, &mut other, &path, &Load::strict())?;
//! assert_eq!(other.get("weight")?, store.get("weight")?);
//!
//! // What does not fit is listed.
//! let wider = Linear::new(8, 2).without_bias();
//! let error = load_model(&wider, &mut other, &path, &Load::strict()).unwrap_err().to_string();
//! assert!(error.contains("`weight` is f32[2, 4], expected f32[2, 8]") && error.contains("unexpected: bias"));
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), tracecast::Error>(())
//! ```

mod entries;
mod read;

pub(crate) use entries::Kept;
pub use read::{Load, Loaded};

use crate::entry::Entry;
use crate::error::Result;
use crate::nn::Module;
use entries::{Kind, header};
use std::path::Path;
use tracecast_ir::TensorType;
use tracecast_runtime::{Error, Store, safetensors};

/// Writes the entries of a model: its parameters and what else PyTorch would have in its `state_dict`, under the same names. The state of
/// random number generators is none of them.
///
/// A model whose layers share a parameter ([`Linear::tied_to`](crate::nn::Linear::tied_to)) has it once, under the name of its owner.
///
/// # Errors
/// If an entry is not in the store or of another type there, or the file cannot be written; then the old one stays.
pub fn save_model(
    module: &(impl Module + ?Sized),
    store: &Store,
    path: impl AsRef<Path>,
) -> Result<()> {
    save(Kind::Model, &Kept::of_model(&module.entries()), store, path.as_ref())
}

/// Reads the entries of a model into a store, in the place of those that are there: from a file that [`save_model`] or PyTorch has written, from
/// the files of an index (`model.safetensors.index.json`), or from a whole training state, of which only the model is looked at.
///
/// # Errors
/// If the file cannot be read, or does not have what `load` asks for: [`Error::Checkpoint`] lists all that is
/// missing, unexpected or of another type. The store is as it was before.
pub fn load_model(
    module: &(impl Module + ?Sized),
    store: &mut Store,
    path: impl AsRef<Path>,
    load: &Load,
) -> Result<Loaded> {
    read::model(&Kept::of_model(&module.entries()), store, path.as_ref(), load)
}

/// Writes the whole training state: these entries, which are a model's and a step's, and everything else that the store holds.
pub(crate) fn save_state(
    model: &[Entry],
    step: &[Entry],
    store: &Store,
    path: &Path,
) -> Result<()> {
    save(Kind::Training, &Kept::of_state(model, step, store), store, path)
}

/// Reads a whole training state.
pub(crate) fn load_state(
    model: &[Entry],
    step: &[Entry],
    store: &mut Store,
    path: &Path,
    load: &Load,
) -> Result<Loaded> {
    let kept = Kept::of_state(model, step, store);
    read::state(&kept, store, path, load)
}

fn save(kind: Kind, kept: &[Kept], store: &Store, path: &Path) -> Result<()> {
    let mut types: Vec<(&str, TensorType)> = Vec::new();
    for Kept { name, in_file, ty } in kept {
        match store.ty(name) {
            Some(found) if found == ty => types.push((in_file, ty.clone())),
            Some(found) => {
                let message = format!("expected {ty}, found {found}");
                return Err(Error::State { name: name.clone(), message });
            }
            // The store says what it has instead.
            None => return Err(store.get(name).map(drop).expect_err("it is not there")),
        }
    }
    let value = |at: usize| store.get(&kept[at].name);
    safetensors::write_each(path, &types, &header(kind), value)
}
