//! Reading a checkpoint: everything is compared before anything changes.

use super::entries::{KEY, Kept, Kind, MODEL, OTHER, VERSION};
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::path::Path;
use tracecast_runtime::safetensors::Archive;
use tracecast_runtime::{Store, Tensor};

/// How exactly a file has to fit.
///
/// ```
/// use tracecast::checkpoint::Load;
/// // A pretrained model in bf16, without the head that is to be trained.
/// let load = Load::partial().converting();
/// # let _ = load;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Load {
    partial: bool,
    converting: bool,
}

impl Load {
    /// Every entry is in the file, the file has nothing else, and all types are equal.
    pub fn strict() -> Self {
        Load { partial: false, converting: false }
    }

    /// What both have is loaded. What is missing keeps its value in the store, if it has one there; [`Loaded`] lists it, and what is
    /// unexpected. An entry of another type is an error all the same.
    pub fn partial() -> Self {
        Load { partial: true, converting: false }
    }

    /// Floats of another dtype are converted to that of the entry, as the op `cast` does, as PyTorch's `load_state_dict` does in silence;
    /// [`Loaded`] lists them.
    pub fn converting(mut self) -> Self {
        self.converting = true;
        self
    }
}

/// What was loaded and what was not, each list in order of the names in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// How many entries were loaded.
    pub count: usize,
    /// Entries that the file does not have; empty if loading was strict.
    pub missing: Vec<String>,
    /// What the file has besides; empty if loading was strict.
    pub unexpected: Vec<String>,
    /// What was of another dtype in the file.
    pub converted: Vec<String>,
}

/// Reads the entries of a model, which have other names in a training state.
pub(super) fn model(kept: &[Kept], store: &mut Store, path: &Path, load: &Load) -> Result<Loaded> {
    let archive = Archive::open(path)?;
    if kind(&archive, path)? != Some(Kind::Training) {
        let names: Vec<String> = archive.names().map(str::to_owned).collect();
        return Reading { archive, names, path, load }.read(kept, store);
    }
    let prefixed: Vec<Kept> = kept
        .iter()
        .map(|k| Kept { in_file: format!("{MODEL}{}", k.in_file), ..k.clone() })
        .collect();
    let names = archive.names().filter(|name| name.starts_with(MODEL)).map(str::to_owned);
    let names = names.collect();
    Reading { archive, names, path, load }.read(&prefixed, store)
}

/// Reads a whole training state. Entries that nobody knows of are taken as they are.
pub(super) fn state(kept: &[Kept], store: &mut Store, path: &Path, load: &Load) -> Result<Loaded> {
    let archive = Archive::open(path)?;
    if kind(&archive, path)? != Some(Kind::Training) {
        let message = "is a model and no training state: load_model reads it".to_owned();
        return Err(Error::Safetensors { path: path.to_owned(), message });
    }
    let known: HashSet<&str> = kept.iter().map(|kept| kept.in_file.as_str()).collect();
    let others = archive.names().filter(|name| !known.contains(name)).filter_map(|in_file| {
        let name = in_file.strip_prefix(OTHER)?.to_owned();
        Some(Kept { name, in_file: in_file.to_owned(), ty: archive.ty(in_file)? })
    });
    let kept: Vec<Kept> = kept.iter().cloned().chain(others).collect();
    let names = archive.names().map(str::to_owned).collect();
    Reading { archive, names, path, load }.read(&kept, store)
}

/// What the file says it is; nothing if it is not one of ours.
fn kind(archive: &Archive, path: &Path) -> Result<Option<Kind>> {
    let Some(text) = archive.metadata().get(KEY) else { return Ok(None) };
    let wrong = |message: String| Error::Safetensors { path: path.to_owned(), message };
    let unknown = || wrong(format!("says that it is `{text}`, which is not known here"));
    let (name, version) = text.split_once(' ').ok_or_else(unknown)?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(unknown)?;
    match version.parse::<u32>() {
        Ok(version) if (1..=VERSION).contains(&version) => Ok(Some(kind)),
        Ok(version) if version > VERSION => Err(wrong(format!(
            "is of version {version} of the format, later than {VERSION}, the last that is known here"
        ))),
        _ => Err(unknown()),
    }
}

/// A file that is being read.
struct Reading<'a> {
    archive: Archive,
    /// The names in it that somebody has to expect.
    names: Vec<String>,
    path: &'a Path,
    load: &'a Load,
}

impl Reading<'_> {
    /// Compares, reads and only then changes the store.
    fn read(mut self, kept: &[Kept], store: &mut Store) -> Result<Loaded> {
        let (loaded, found) = self.compare(kept)?;
        let mut values = Vec::with_capacity(found.len());
        for kept in found {
            let value = self.archive.read(&kept.in_file)?;
            values.push((kept, value.cast(kept.ty.dtype)?));
        }
        values
            .into_iter()
            .for_each(|(kept, value): (&Kept, Tensor)| store.insert(&kept.name, value));
        Ok(loaded)
    }

    /// What will be loaded, and which entries these are.
    fn compare<'k>(&self, kept: &'k [Kept]) -> Result<(Loaded, Vec<&'k Kept>)> {
        let (mut loaded, mut found, mut differing) = (Loaded::default(), Vec::new(), Vec::new());
        for kept in kept {
            let Kept { in_file, ty, .. } = kept;
            match self.archive.ty(in_file) {
                None if !self.archive.contains(in_file) => loaded.missing.push(in_file.clone()),
                Some(has) if has == *ty => found.push(kept),
                Some(has)
                    if self.load.converting
                        && has.shape == ty.shape
                        && has.dtype.is_float()
                        && ty.dtype.is_float() =>
                {
                    loaded.converted.push(in_file.clone());
                    found.push(kept);
                }
                _ => {
                    let has = self.archive.describe(in_file);
                    differing.push(format!("`{in_file}` is {has}, expected {ty}"));
                }
            }
        }
        let expected: HashSet<&str> = kept.iter().map(|kept| kept.in_file.as_str()).collect();
        let unexpected = self.names.iter().filter(|name| !expected.contains(name.as_str()));
        loaded.unexpected = unexpected.cloned().collect();
        loaded.missing.sort();
        loaded.count = found.len();
        let fits = loaded.missing.is_empty() && loaded.unexpected.is_empty();
        if differing.is_empty() && (fits || self.load.partial) {
            return Ok((loaded, found));
        }
        let Loaded { missing, unexpected, .. } = loaded;
        // Only what is wrong is told: a partial load takes what is missing as it is.
        let (missing, unexpected) =
            if self.load.partial { (Vec::new(), Vec::new()) } else { (missing, unexpected) };
        Err(Error::Checkpoint { path: self.path.to_owned(), missing, unexpected, differing })
    }
}
