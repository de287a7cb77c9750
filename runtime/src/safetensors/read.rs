//! [`Archive`]: tensors of a file, or of several by an index, read one by one.

use super::Metadata;
use super::header::{Header, Item, LENGTH, LONGEST};
use super::index::Index;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use tracecast_ir::{DType, TensorType};

/// The tensors of a file, or of the files of an index, which are read on demand.
///
/// ```
/// use tracecast_runtime::safetensors::{Archive, Metadata, write};
/// use tracecast_runtime::Tensor;
/// let path = std::env::temp_dir().join(format!("archive-{}.safetensors", std::process::id()));
/// write(&path, [("w", &Tensor::new([2], &[1f32, 2.0])?)], &Metadata::new())?;
/// let mut archive = Archive::open(&path)?;
/// assert_eq!(archive.names().collect::<Vec<_>>(), ["w"]);
/// assert_eq!(archive.ty("w").unwrap().to_string(), "f32[2]");
/// assert_eq!(archive.read("w")?.to_vec::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_file(&path).map_err(|source| tracecast_runtime::Error::Io { path, source })?;
/// # Ok::<(), tracecast_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct Archive {
    files: Vec<Opened>,
    /// With the number of the file that has it.
    items: BTreeMap<String, (usize, Item)>,
    metadata: Metadata,
}

/// A file with tensors.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
    /// Where the bytes of elements begin.
    data: u64,
}

impl Archive {
    /// The tensors of a file; if its name ends with `.json`, of the files that it names as an
    /// index. None of them is read.
    ///
    /// # Errors
    /// If a file cannot be read, is not of this format, or the index and the files do not agree.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.extension().is_some_and(|extension| extension == "json") {
            return Archive::of_index(path);
        }
        let (opened, Header { items, metadata }) = Opened::open(path)?;
        let items = items.into_iter().map(|item| (item.name.clone(), (0, item))).collect();
        Ok(Archive { files: vec![opened], items, metadata })
    }

    fn of_index(path: &Path) -> Result<Self> {
        let wrong = |message| Error::Safetensors { path: path.to_owned(), message };
        let mut text = Vec::new();
        regular(path)?.read_to_end(&mut text).map_err(|source| at(path, source))?;
        let Index(places) = Index::parse(&text).map_err(wrong)?;
        let mut names: Vec<&String> = places.values().collect();
        names.sort();
        names.dedup();
        let mut archive =
            Archive { files: Vec::new(), items: BTreeMap::new(), metadata: Metadata::new() };
        for (number, name) in names.into_iter().enumerate() {
            let (opened, header) = Opened::open(&path.with_file_name(name))?;
            for item in header.items {
                // What the index does not know of is there as well, so that nobody loses it in
                // silence.
                if places.get(&item.name).is_some_and(|place| place != name) {
                    continue;
                }
                if let Some((_, twice)) = archive.items.insert(item.name.clone(), (number, item)) {
                    return Err(wrong(format!(
                        "two files have `{}`, and the index does not say which",
                        twice.name
                    )));
                }
            }
            archive.files.push(opened);
            for (key, value) in header.metadata {
                archive.metadata.entry(key).or_insert(value);
            }
        }
        match places.iter().find(|(name, _)| !archive.items.contains_key(*name)) {
            Some((name, file)) => {
                Err(wrong(format!("`{name}` is not in `{file}`, where the index has it")))
            }
            None => Ok(archive),
        }
    }

    /// The names of its tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.items.keys().map(String::as_str)
    }

    /// True if there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.items.contains_key(name)
    }

    /// The type of a tensor; `None` if there is none of that name, or its dtype has no name here.
    pub fn ty(&self, name: &str) -> Option<TensorType> {
        let (_, item) = self.items.get(name)?;
        Some(TensorType::new(item.dtype?, item.shape.clone()))
    }

    /// The type of a tensor in words, also where the dtype has no name here; empty if there is no
    /// such tensor.
    pub fn describe(&self, name: &str) -> String {
        match (self.ty(name), self.items.get(name)) {
            (Some(ty), _) => ty.to_string(),
            (None, Some((_, item))) => format!("{}{}", item.kind, item.shape),
            (None, None) => String::new(),
        }
    }

    /// What is said about the whole file, or about the first file of an index that says it.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// A tensor.
    ///
    /// # Errors
    /// If there is none of that name, tensors have no such dtype, there is too little memory, or
    /// the file cannot be read.
    pub fn read(&mut self, name: &str) -> Result<Tensor> {
        let ty = self.ty(name);
        let Some((number, item)) = self.items.get(name) else {
            let path = self.files.first().map_or(PathBuf::new(), |first| first.path.clone());
            return Err(Error::Safetensors {
                path,
                message: format!("there is no tensor `{name}`"),
            });
        };
        let Opened { path, file, data } = &mut self.files[*number];
        let wrong = |why: String| Error::Safetensors {
            path: path.clone(),
            message: format!("tensor `{name}`: {why}"),
        };
        let ty = ty.ok_or_else(|| wrong(format!("tensors here have no dtype {}", item.kind)))?;
        let mut tensor = Tensor::to_write(ty).map_err(|error| wrong(error.to_string()))?;
        if let Some(bytes) = tensor.own_bytes() {
            let from = file.seek(SeekFrom::Start(*data + item.at));
            from.and_then(|_| file.read_exact(bytes)).map_err(|source| at(path, source))?;
        }
        if item.dtype == Some(DType::Bool) && tensor.bytes().iter().any(|byte| *byte > 1) {
            return Err(wrong("a truth value is neither 0 nor 1".to_owned()));
        }
        Ok(tensor)
    }
}

impl Opened {
    fn open(path: &Path) -> Result<(Self, Header)> {
        let wrong = |message| Error::Safetensors { path: path.to_owned(), message };
        let io = |source| at(path, source);
        let mut file = regular(path)?;
        let length = file.metadata().map_err(io)?.len();
        let mut size = [0; LENGTH];
        let head = LENGTH as u64;
        if length < head {
            return Err(wrong(format!(
                "is no safetensors file: {length} bytes are too few for a header"
            )));
        }
        file.read_exact(&mut size).map_err(io)?;
        let size = u64::from_le_bytes(size);
        if size > LONGEST || size > length - head {
            let why = format!("a header of {size} bytes does not fit into {length}");
            return Err(wrong(format!("is no safetensors file, or is cut off: {why}")));
        }
        let mut text = vec![0; size as usize];
        file.read_exact(&mut text).map_err(io)?;
        let data = head + size;
        let header = Header::parse(&text, length - data).map_err(wrong)?;
        Ok((Opened { path: path.to_owned(), file, data }, header))
    }
}

/// Opens a file, and nothing that would wait for somebody to write to it.
fn regular(path: &Path) -> Result<File> {
    let about = fs::metadata(path).map_err(|source| at(path, source))?;
    if !about.is_file() {
        let message = "is not a file".to_owned();
        return Err(Error::Safetensors { path: path.to_owned(), message });
    }
    File::open(path).map_err(|source| at(path, source))
}

fn at(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
