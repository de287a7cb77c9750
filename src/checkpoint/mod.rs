//! Models and training states in files that last.
//!
//! [`save_model`] writes what a model is made of under the names and shapes of PyTorch's
//! `state_dict`, and [`load_model`] reads such files, PyTorch's too. The whole state of a training
//! step, to go on with it in another process bit for bit, is written by
//! [`TrainStep::save`](crate::TrainStep::save). Both are safetensors files, which hold every dtype
//! as it is.
//!
//! A file is written whole: after a crash in the midst of it the old one is still there. A file is
//! loaded whole: at any error the store is as it was. Loading is strict unless it is told
//! otherwise, and nothing starts anew in silence.
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
mod names;
mod read;
mod rename;
mod source;

pub(crate) use entries::Kept;
pub use read::{Load, Loaded};

use crate::entry::Entry;
use crate::error::Result;
use crate::nn::Module;
use entries::{Kind, header};
use names::Names;
use std::path::Path;
use tracecast_ir::TensorType;
use tracecast_runtime::{Error, Store, safetensors};

/// Writes the entries of a model: its parameters and what else PyTorch would have in its
/// `state_dict`, under the same names. The state of random number generators is none of them.
///
/// A model whose layers share a parameter ([`Linear::tied_to`](crate::nn::Linear::tied_to)) has it
/// once, under the name of its owner; [`save_model_as`] writes its other names too.
///
/// # Errors
/// If an entry is not in the store or of another type there, or the file cannot be written; then
/// the old one stays.
pub fn save_model(
    module: &(impl Module + ?Sized),
    store: &Store,
    path: impl AsRef<Path>,
) -> Result<()> {
    save_model_as(module, store, path, &Save::new())
}

/// How a model is written.
///
/// ```
/// use tracecast::checkpoint::{Load, Save};
/// let load = Load::strict().rename("block.*.**", "layers.*.**").transpose(&["layers.*.fc.weight"]);
/// // A file that whoever wrote the other one reads.
/// let save = Save::new().like(&load).with_tied_names();
/// # let _ = save;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Save {
    names: Names,
    tied: bool,
}

impl Save {
    /// Under the names and in the shapes that the model has.
    pub fn new() -> Self {
        Save::default()
    }

    /// Under the names and in the shapes of files that this loads: prefix, renames and transposed
    /// matrices go the other way.
    pub fn like(mut self, load: &Load) -> Self {
        self.names = load.names.clone();
        self
    }

    /// With parameters that layers share under all of their names, as PyTorch's `state_dict` has
    /// them.
    pub fn with_tied_names(mut self) -> Self {
        self.tied = true;
        self
    }
}

/// As [`save_model`], under other names or in other shapes.
///
/// # Errors
/// As [`save_model`]; a pattern without meaning, or two entries of one name.
pub fn save_model_as(
    module: &(impl Module + ?Sized),
    store: &Store,
    path: impl AsRef<Path>,
    save: &Save,
) -> Result<()> {
    let names = save.names.checked()?;
    let mut kept = Kept::of_model(&module.entries()?);
    if save.tied {
        let again = |(own, of): (String, String)| {
            let owner = kept.iter().find(|kept| kept.in_file == of)?;
            Some(Kept { in_file: own, ..owner.clone() })
        };
        let again: Vec<Kept> = aliases(module)?.into_iter().filter_map(again).collect();
        kept.extend(again);
    }
    let turns: Vec<bool> = kept.iter().map(|kept| names.transposes(&kept.in_file)).collect();
    kept.iter_mut().for_each(|kept| kept.in_file = names.in_file(&kept.in_file));
    write(Kind::Model, &kept, &turns, store, path.as_ref())
}

/// Names that parameters of other modules would have where they are used, with their own.
fn aliases(module: &(impl Module + ?Sized)) -> Result<Vec<(String, String)>> {
    Ok(module.ties()?.into_iter().filter_map(|tie| Some((tie.own?, tie.of))).collect())
}

/// Reads the entries of a model into a store, in the place of those that are there: from a file
/// that [`save_model`] or PyTorch has written, from the files of an index
/// (`model.safetensors.index.json`), from a folder with such a file or index, from an archive of
/// numpy arrays (`.npz`), or from a whole training state, of which only the model is looked at.
///
/// A parameter that layers share may be there under each of its names; what it has there has to be
/// equal.
///
/// # Errors
/// If the file cannot be read, or does not have what `load` asks for: [`Error::Checkpoint`] lists
/// all that is missing, unexpected or of another type. The store is as it was before.
pub fn load_model(
    module: &(impl Module + ?Sized),
    store: &mut Store,
    path: impl AsRef<Path>,
    load: &Load,
) -> Result<Loaded> {
    let kept = Kept::of_model(&module.entries()?);
    read::model(&kept, &aliases(module)?, store, path.as_ref(), load)
}

/// Writes the whole training state: these entries, which are a model's and a step's, and everything
/// else that the store holds.
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
    write(kind, kept, &vec![false; kept.len()], store, path)
}

/// Writes entries; for each whether it is a matrix that is written transposed.
fn write(kind: Kind, kept: &[Kept], turns: &[bool], store: &Store, path: &Path) -> Result<()> {
    let mut types: Vec<(&str, TensorType)> = Vec::new();
    for (Kept { name, in_file, ty }, turns) in kept.iter().zip(turns) {
        match store.ty(name) {
            Some(found) if found == ty => {
                types.push((in_file, if *turns { read::turned(ty) } else { ty.clone() }));
            }
            Some(found) => {
                let message = format!("expected {ty}, found {found}");
                return Err(Error::State { name: name.clone(), message });
            }
            // The store says what it has instead.
            None => return Err(store.get(name).map(drop).expect_err("it is not there")),
        }
    }
    let value = |at: usize| {
        let value = store.get(&kept[at].name)?;
        if turns[at] { read::transposed(&value) } else { Ok(value) }
    };
    safetensors::write_each(path, &types, &header(kind), value)
}
