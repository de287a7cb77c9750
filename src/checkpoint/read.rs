//! Reading a checkpoint: everything is compared before anything changes.

use super::entries::{KEY, Kept, Kind, MODEL, OTHER, VERSION};
use super::names::Names;
use super::source::Source;
use crate::error::{Error, Result};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use tracecast_ir::TensorType;
use tracecast_runtime::{Store, Tensor};

/// How exactly a file has to fit, and how its names and shapes become those of the model.
///
/// ```
/// use tracecast::checkpoint::Load;
/// // A pretrained model in bf16, without the head that is to be trained.
/// let load = Load::partial().converting();
/// // A file of another library: `encoder.layer.3.ln.gamma` is `layers.3.norm.weight`, and matrices are stored input by output.
/// let load = load
///     .prefix("encoder.")
///     .rename("layer.*.ln.gamma", "layers.*.norm.weight")
///     .transpose(&["layers.*.fc.weight"]);
/// # let _ = load;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Load {
    partial: bool,
    converting: bool,
    pub(super) names: Names,
}

impl Load {
    /// Every entry is in the file, the file has nothing else, and all types are equal.
    pub fn strict() -> Self {
        Load { partial: false, converting: false, names: Names::default() }
    }

    /// What both have is loaded. What is missing keeps its value in the store, if it has one there;
    /// [`Loaded`] lists it, and what is unexpected. An entry of another type is an error all the
    /// same.
    pub fn partial() -> Self {
        Load { partial: true, ..Load::strict() }
    }

    /// Floats of another dtype are converted to that of the entry, as the op `cast` does, as
    /// PyTorch's `load_state_dict` does in silence; [`Loaded`] lists them.
    pub fn converting(mut self) -> Self {
        self.converting = true;
        self
    }

    /// Names of the file begin with this, and those of the model do not: `model.`, `module.`. A
    /// name without it is unexpected.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.names.prefix(prefix.into());
        self
    }

    /// Names of the file that fit the first pattern are those of the model that the second one
    /// makes of them: `*` stands for any run of characters without a dot, `**` for any run, and
    /// stars stand for the same in both. Every name goes through all of these in order, behind
    /// [`prefix`](Load::prefix). Two names of the file may become one: then their tensors have to
    /// be equal.
    pub fn rename(mut self, from: &str, to: &str) -> Self {
        self.names.rename(from, to);
        self
    }

    /// Matrices whose names in the model fit one of these patterns lie transposed in the file, as
    /// those of Hugging Face's `Conv1D`.
    pub fn transpose(mut self, names: &[&str]) -> Self {
        self.names.transpose(names);
        self
    }

    /// Names of the file that fit one of these patterns are left alone, as masks that other
    /// libraries keep as buffers.
    pub fn ignore(mut self, names: &[&str]) -> Self {
        self.names.ignore(names);
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

/// Reads the entries of a model, which have other names in a training state. `aliases` are names
/// under which a file may have them as well.
pub(super) fn model(
    kept: &[Kept],
    aliases: &[(String, String)],
    store: &mut Store,
    path: &Path,
    load: &Load,
) -> Result<Loaded> {
    let source = Source::open(path)?;
    let mut names = load.names.checked()?.clone();
    let mut in_file = source.names();
    if kind(&source, path)? == Some(Kind::Training) {
        // The rest is the step's.
        in_file.retain(|name| name.starts_with(MODEL));
        names.prefix_first(MODEL);
    }
    let found = Found::of(in_file, &names, aliases);
    Reading { source, found, names, path, load }.read(kept, store)
}

/// Reads a whole training state. Entries that nobody knows of are taken as they are.
pub(super) fn state(kept: &[Kept], store: &mut Store, path: &Path, load: &Load) -> Result<Loaded> {
    let source = Source::open(path)?;
    if kind(&source, path)? != Some(Kind::Training) {
        let message = "is a model and no training state: load_model reads it".to_owned();
        return Err(Error::Safetensors { path: path.to_owned(), message });
    }
    if load.names != Names::default() {
        let message =
            "a training state has the names of its step: only a model is loaded under others"
                .to_owned();
        return Err(Error::Option { option: "load", message });
    }
    let known: HashSet<&str> = kept.iter().map(|kept| kept.in_file.as_str()).collect();
    let names = source.names();
    let others = names.iter().filter(|name| !known.contains(name.as_str())).filter_map(|in_file| {
        let name = in_file.strip_prefix(OTHER)?.to_owned();
        Some(Kept { name, in_file: in_file.clone(), ty: source.ty(in_file)? })
    });
    let kept: Vec<Kept> = kept.iter().cloned().chain(others).collect();
    let found = Found::of(names, &load.names, &[]);
    Reading { source, found, names: load.names.clone(), path, load }.read(&kept, store)
}

/// What the file says it is; nothing if it is not one of ours.
fn kind(source: &Source, path: &Path) -> Result<Option<Kind>> {
    let Some(text) = source.metadata().and_then(|metadata| metadata.get(KEY)) else {
        return Ok(None);
    };
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

/// The names of a file by those that they are in the model.
struct Found {
    by_model: BTreeMap<String, Vec<String>>,
    /// Those that are none of the model's.
    unexpected: Vec<String>,
}

impl Found {
    fn of(in_file: Vec<String>, names: &Names, aliases: &[(String, String)]) -> Self {
        let mut found = Found { by_model: BTreeMap::new(), unexpected: Vec::new() };
        for name in in_file.into_iter().filter(|name| !names.ignores(name)) {
            match names.of_model(&name) {
                Some(of_model) => found.by_model.entry(of_model).or_default().push(name),
                None => found.unexpected.push(name),
            }
        }
        for (alias, owner) in aliases {
            if let Some(names) = found.by_model.remove(alias) {
                found.by_model.entry(owner.clone()).or_default().extend(names);
            }
        }
        found
    }
}

/// A file that is being read.
struct Reading<'a> {
    source: Source,
    found: Found,
    names: Names,
    path: &'a Path,
    load: &'a Load,
}

impl Reading<'_> {
    /// Compares, reads and only then changes the store.
    fn read(mut self, kept: &[Kept], store: &mut Store) -> Result<Loaded> {
        let (loaded, found) = self.compare(kept)?;
        let mut values = Vec::with_capacity(found.len());
        for kept in found {
            let value = self.value(kept)?;
            values.push((kept, value.cast(kept.ty.dtype)?));
        }
        values
            .into_iter()
            .for_each(|(kept, value): (&Kept, Tensor)| store.insert(&kept.name, value));
        Ok(loaded)
    }

    /// The value of an entry, which is the same under all names that it has in the file.
    fn value(&mut self, kept: &Kept) -> Result<Tensor> {
        let names = &self.found.by_model[&kept.in_file];
        let value = self.source.read(&names[0])?;
        for other in &names[1..] {
            if self.source.read(other)?.bytes() != value.bytes() {
                let first = &names[0];
                let differing =
                    vec![format!("`{first}` and `{other}` are one parameter here, and differ")];
                return Err(self.refusal(Loaded::default(), differing));
            }
        }
        if self.names.transposes(&kept.in_file) { transposed(&value) } else { Ok(value) }
    }

    /// What will be loaded, and which entries these are.
    fn compare<'k>(&self, kept: &'k [Kept]) -> Result<(Loaded, Vec<&'k Kept>)> {
        let (mut loaded, mut found, mut differing) = (Loaded::default(), Vec::new(), Vec::new());
        for kept in kept {
            let Kept { in_file, ty, .. } = kept;
            let Some(names) = self.found.by_model.get(in_file) else {
                loaded.missing.push(self.names.in_file(in_file));
                continue;
            };
            let is_turned = self.names.transposes(in_file);
            let wanted = if is_turned { turned(ty) } else { ty.clone() };
            let mut converts = false;
            let before = differing.len();
            for name in names {
                match self.source.ty(name) {
                    Some(has) if has == wanted => {}
                    Some(has)
                        if self.load.converting
                            && has.shape == wanted.shape
                            && has.dtype.is_float()
                            && ty.dtype.is_float() =>
                    {
                        converts = true;
                    }
                    _ => {
                        let has = self.source.describe(name);
                        let is_turned = if is_turned { ", transposed" } else { "" };
                        differing.push(format!("`{name}` is {has}, expected {wanted}{is_turned}"));
                    }
                }
            }
            if differing.len() == before {
                found.push(kept);
                loaded.converted.extend(converts.then(|| names[0].clone()));
            }
        }
        let expected: HashSet<&str> = kept.iter().map(|kept| kept.in_file.as_str()).collect();
        let others =
            self.found.by_model.iter().filter(|(name, _)| !expected.contains(name.as_str()));
        loaded.unexpected = others.flat_map(|(_, names)| names).cloned().collect();
        loaded.unexpected.extend(self.found.unexpected.iter().cloned());
        loaded.unexpected.sort();
        loaded.missing.sort();
        loaded.count = found.len();
        let fits = loaded.missing.is_empty() && loaded.unexpected.is_empty();
        if differing.is_empty() && (fits || self.load.partial) {
            return Ok((loaded, found));
        }
        Err(self.refusal(loaded, differing))
    }

    /// Only what is wrong is told: a partial load takes what is missing as it is.
    fn refusal(&self, loaded: Loaded, differing: Vec<String>) -> Error {
        let Loaded { missing, unexpected, .. } = loaded;
        let (missing, unexpected) =
            if self.load.partial { (Vec::new(), Vec::new()) } else { (missing, unexpected) };
        Error::Checkpoint { path: self.path.to_owned(), missing, unexpected, differing }
    }
}

/// The type of a matrix with rows for columns; another type as it is.
pub(super) fn turned(ty: &TensorType) -> TensorType {
    match ty.shape[..] {
        [rows, columns] => TensorType::new(ty.dtype, [columns, rows]),
        _ => ty.clone(),
    }
}

/// A matrix with rows for columns; another tensor as it is.
pub(super) fn transposed(matrix: &Tensor) -> Result<Tensor> {
    let &[rows, columns] = &matrix.shape().numbers()[..] else { return Ok(matrix.clone()) };
    let (size, from) = (matrix.dtype().bytes(), matrix.bytes());
    let mut bytes = Vec::with_capacity(from.len());
    for column in 0..columns {
        for row in 0..rows {
            bytes.extend_from_slice(&from[(row * columns + column) * size..][..size]);
        }
    }
    Tensor::from_bytes(turned(matrix.ty()), bytes)
}
