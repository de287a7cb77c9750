//! Writing files: one, or several with an index.

use super::Metadata;
use super::header::Header;
use super::index::Index;
use crate::error::{Error, Result};
use crate::files::{self, Replacement};
use crate::tensor::Tensor;
use std::fs;
use std::io;
use std::path::Path;
use tracecast_ir::TensorType;

/// Writes tensors under their names. A file of that name is replaced as a whole or, if anything
/// goes wrong, left as it was.
///
/// # Errors
/// If two have one name, the format has no such dtype, or the file cannot be written.
pub fn write<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    metadata: &Metadata,
) -> Result<()> {
    let tensors: Vec<(&str, &Tensor)> = tensors.into_iter().collect();
    let types: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor.ty().clone())).collect();
    let values = |at: usize| Ok(tensors[at].1.clone());
    write_each(path, &types, metadata, values)
}

/// Writes tensors of these names and types, each of which `value` is asked for when it is its turn,
/// by its place in the list: no two of them need be in memory at once. A file of that name is
/// replaced as a whole or, if anything goes wrong, left as it was.
///
/// # Errors
/// The first of `value`; or if a value is not of its type, two have one name, the format has no
/// such dtype, or the file cannot be written.
pub fn write_each(
    path: impl AsRef<Path>,
    types: &[(&str, TensorType)],
    metadata: &Metadata,
    mut value: impl FnMut(usize) -> Result<Tensor>,
) -> Result<()> {
    let path = path.as_ref();
    // The widest elements first, so that each is aligned where the file is mapped; then by name, so
    // that equal tensors are equal files.
    let mut order: Vec<usize> = (0..types.len()).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(types[*at].1.dtype.bytes()), types[*at].0));
    let listed: Vec<_> = order.iter().map(|at| types[*at].clone()).collect();
    let wrong = |message| Error::Safetensors { path: path.to_owned(), message };
    let head = Header::encode(&listed, metadata).map_err(wrong)?;
    let written = Replacement::of(path).write(|to| {
        to.write_all(&head)?;
        for (at, (name, ty)) in order.iter().zip(&listed) {
            let tensor = value(*at).map_err(Failed::Value)?;
            if tensor.ty() != ty {
                return Err(Failed::Value(Error::state(name, Error::expected(ty, tensor.ty()))));
            }
            to.write_all(tensor.bytes())?;
        }
        Ok(())
    });
    written.map_err(|failed| match failed {
        Failed::Value(error) => error,
        Failed::File(source) => Error::Io { path: path.to_owned(), source },
    })
}

/// Why a file was not written.
enum Failed {
    Value(Error),
    File(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::File(error)
    }
}

/// Writes tensors to files of at most `most_bytes` bytes of elements each, or one tensor that has
/// more, and an index of them, whose name ends with `.index.json`. For the index
/// `model.safetensors.index.json` the files are `model-1-00001-of-00003.safetensors` and so on; the
/// first number is another one each time, so that the files of the old index stay as they are until
/// the new index is there.
///
/// # Errors
/// As [`write()`]; or if the index has another name.
pub fn write_sharded<'a>(
    index: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    metadata: &Metadata,
    most_bytes: u64,
) -> Result<()> {
    let index = index.as_ref();
    let io = |source| Error::Io { path: index.to_owned(), source };
    let stem = index.file_name().and_then(|name| name.to_str()).and_then(|name| {
        Some(name.strip_suffix(".index.json")?.trim_end_matches(".safetensors").to_owned())
    });
    let stem = stem.ok_or_else(|| Error::Safetensors {
        path: index.to_owned(),
        message: "the name of an index ends with `.index.json`".to_owned(),
    })?;
    let shards = cut(tensors, most_bytes);
    let folder = match index.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let old: Vec<(String, u64)> = shards_in(folder, &stem).map_err(io)?;
    let number = old.iter().map(|(_, number)| number + 1).max().unwrap_or(1);
    let name =
        |at: usize| format!("{stem}-{number}-{:05}-of-{:05}.safetensors", at + 1, shards.len());
    let written = (|| {
        let (mut places, mut total) = (Metadata::new(), 0);
        for (at, shard) in shards.iter().enumerate() {
            write(folder.join(name(at)), shard.iter().copied(), metadata)?;
            for (tensor_name, tensor) in shard {
                total += tensor.bytes().len() as u64;
                if places.insert((*tensor_name).to_owned(), name(at)).is_some() {
                    let message = format!("two tensors are called `{tensor_name}`");
                    return Err(Error::Safetensors { path: index.to_owned(), message });
                }
            }
        }
        files::replace(index, Index::encode(&places, total).as_bytes()).map_err(io)
    })();
    // Nobody reads the old ones any more, or the new ones; what cannot be removed goes with the
    // next index.
    let unused: Vec<String> = match &written {
        Ok(()) => old.into_iter().map(|(file, _)| file).collect(),
        Err(_) => (0..shards.len()).map(name).collect(),
    };
    unused.iter().for_each(|file| drop(fs::remove_file(folder.join(file))));
    written
}

/// The tensors in their order, in parts of at most that many bytes or of one tensor.
fn cut<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    most_bytes: u64,
) -> Vec<Vec<(&'a str, &'a Tensor)>> {
    let (mut shards, mut filled): (Vec<Vec<_>>, u64) = (vec![Vec::new()], 0);
    for (name, tensor) in tensors {
        let bytes = tensor.bytes().len() as u64;
        if filled + bytes > most_bytes && shards.last().is_some_and(|shard| !shard.is_empty()) {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        shards.last_mut().expect("there is always one").push((name, tensor));
    }
    shards
}

/// The files in a folder that have names of shards of this stem, and the number in them that tells
/// when they were written.
fn shards_in(folder: &Path, stem: &str) -> io::Result<Vec<(String, u64)>> {
    let digits = |text: &str, count: usize| {
        text.len() >= count && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let number = |name: &str| {
        let rest = name.strip_prefix(stem)?.strip_prefix('-')?.strip_suffix(".safetensors")?;
        let (number, rest) = rest.split_once('-')?;
        let (part, of) = rest.split_once("-of-")?;
        (digits(number, 1) && digits(part, 5) && digits(of, 5)).then(|| number.parse().ok())?
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().into_string();
        found.extend(name.ok().and_then(|name| number(&name).map(|number| (name.clone(), number))));
    }
    Ok(found)
}
