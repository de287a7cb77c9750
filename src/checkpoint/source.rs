//! [`Source`]: the tensors of a file or a folder, by name, whatever its format.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tracecast_ir::TensorType;
use tracecast_runtime::safetensors::{Archive, Metadata};
use tracecast_runtime::{Tensor, npz};

/// What a folder of a hub has, the first of these that is there.
const IN_FOLDER: [&str; 2] = ["model.safetensors.index.json", "model.safetensors"];

pub(super) enum Source {
    Safetensors(Archive),
    Npz(npz::Archive, BTreeMap<String, TensorType>),
}

impl Source {
    /// A `.safetensors` file, the index of several (`.json`), an archive of numpy arrays (`.npz`),
    /// or a folder with one of the first two.
    ///
    /// # Errors
    /// If it cannot be read, or is none of these.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let path = if path.is_dir() { in_folder(path)? } else { path.to_owned() };
        if path.extension().is_none_or(|extension| extension != "npz") {
            return Ok(Source::Safetensors(Archive::open(path)?));
        }
        let mut archive = npz::Archive::open(path)?;
        let names: Vec<String> = archive.names().map(str::to_owned).collect();
        let typed = names.into_iter().map(|name| {
            let ty = archive.ty(&name)?;
            Ok((name, ty))
        });
        let types = typed.collect::<Result<_>>()?;
        Ok(Source::Npz(archive, types))
    }

    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Source::Safetensors(archive) => archive.names().map(str::to_owned).collect(),
            Source::Npz(_, types) => types.keys().cloned().collect(),
        }
    }

    /// The type of a tensor; nothing if there is none of that name, or it is of a dtype that
    /// tensors do not have.
    pub(super) fn ty(&self, name: &str) -> Option<TensorType> {
        match self {
            Source::Safetensors(archive) => archive.ty(name),
            Source::Npz(_, types) => types.get(name).cloned(),
        }
    }

    /// The type as the file has it.
    pub(super) fn describe(&self, name: &str) -> String {
        match self {
            Source::Safetensors(archive) => archive.describe(name).to_string(),
            Source::Npz(_, types) => types.get(name).map_or_else(String::new, ToString::to_string),
        }
    }

    pub(super) fn read(&mut self, name: &str) -> Result<Tensor> {
        match self {
            Source::Safetensors(archive) => archive.read(name),
            Source::Npz(archive, _) => archive.read(name),
        }
    }

    /// What the file says about itself.
    pub(super) fn metadata(&self) -> Option<&Metadata> {
        match self {
            Source::Safetensors(archive) => Some(archive.metadata()),
            Source::Npz(..) => None,
        }
    }
}

fn in_folder(folder: &Path) -> Result<PathBuf> {
    let found = IN_FOLDER.map(|name| folder.join(name)).into_iter().find(|path| path.is_file());
    found.ok_or_else(|| Error::Safetensors {
        path: folder.to_owned(),
        message: format!("is a folder without {}", IN_FOLDER.join(" or ")),
    })
}
