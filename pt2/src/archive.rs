//! [`Archive`]: the entries of a `.pt2` file by name and place, checked before anything is read.
//!
//! PyTorch writes a zip whose entries are not compressed, so an entry is a range of the file and
//! memory is bounded by the file's size. Pickles are never read. Tensors are read on demand,
//! straight from the file into their memory. The file is not mapped: no program can promise that
//! nobody cuts it meanwhile, and a page that is gone ends the process.

use crate::zip::{self, Entry};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Mutex;
use tracecast_ir::eval::{Bytes, Value};
use tracecast_ir::{DType, TensorType};
use tracecast_runtime::Tensor;

/// The longest description that is read, in bytes: that of a program of about a million ops.
const LONGEST: u64 = 1 << 30;

/// How many bytes a tensor may have in any file.
const LEAST: u64 = 1 << 20;

/// A file and the places of its entries.
pub(crate) struct Archive {
    file: Mutex<File>,
    /// In bytes.
    length: u64,
    /// Without the folder that has the archive's name.
    entries: HashMap<String, Place>,
}

/// Where the bytes of an entry are.
#[derive(Clone, Copy)]
struct Place {
    start: u64,
    bytes: u64,
}

/// How a stored tensor lies in its entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) entry: String,
    pub(crate) ty: TensorType,
    pub(crate) strides: Vec<usize>,
    /// In elements.
    pub(crate) offset: usize,
}

impl Archive {
    /// Reads the directory of a file.
    pub(crate) fn open(path: &Path) -> Result<Archive, String> {
        let mut file = File::open(path).map_err(|e| e.to_string())?;
        let length = file.metadata().map_err(|e| e.to_string())?.len();
        let mut entries = HashMap::new();
        let mut root: Option<String> = None;
        for Entry { name, start, bytes } in zip::entries(&mut file, length)? {
            if name.ends_with('/') {
                continue;
            }
            let (folder, inside) =
                name.split_once('/').ok_or_else(|| format!("`{name}` lies in no folder"))?;
            let odd = |part: &str| part.is_empty() || part == "." || part == "..";
            if odd(folder) || inside.split('/').any(odd) || name.contains(['\\', '\0']) {
                return Err(format!("`{name}` is no path inside of an archive"));
            }
            if root.get_or_insert_with(|| folder.to_owned()) != folder {
                return Err(format!(
                    "`{name}` lies beside the folder `{}`",
                    root.unwrap_or_default()
                ));
            }
            if entries.insert(inside.to_owned(), Place { start, bytes }).is_some() {
                return Err(format!("two entries have the name `{name}`"));
            }
        }
        let archive = Archive { file: Mutex::new(file), length, entries };
        match archive.text("archive_format") {
            Ok(format) if format.trim() == "pt2" => {}
            _ => {
                return Err(
                    "is no archive of torch.export: `archive_format` is not `pt2`".to_owned()
                );
            }
        }
        if let Ok(order) = archive.text("byteorder")
            && order.trim() != "little"
        {
            return Err(format!("has numbers in {} endian order", order.trim()));
        }
        Ok(archive)
    }

    /// The only program of the archive.
    pub(crate) fn program(&self) -> Result<Json, String> {
        let is_program = |name: &&String| name.starts_with("models/") && name.ends_with(".json");
        let mut names: Vec<&String> = self.entries.keys().filter(is_program).collect();
        names.sort();
        match names[..] {
            [one] => self.json(one),
            [] => Err("has no program in `models`".to_owned()),
            _ => Err(format!("has {} programs: {names:?}; one is expected", names.len())),
        }
    }

    /// The description of stored tensors in a folder, `weights` or `constants`; nothing if there is
    /// none.
    pub(crate) fn config(&self, folder: &str) -> Result<Option<Json>, String> {
        let suffix = "_config.json";
        let prefix = format!("data/{folder}/");
        let mut names: Vec<&String> = self.entries.keys().collect();
        names.retain(|name| name.starts_with(&prefix) && name.ends_with(suffix));
        match names[..] {
            [] => Ok(None),
            [one] => self.json(one).map(Some),
            _ => Err(format!("has {} descriptions of {folder}; one is expected", names.len())),
        }
    }

    fn json(&self, name: &str) -> Result<Json, String> {
        serde_json::from_slice(&self.bytes(name)?).map_err(|e| format!("`{name}`: {e}"))
    }

    fn text(&self, name: &str) -> Result<String, String> {
        String::from_utf8(self.bytes(name)?).map_err(|e| format!("`{name}`: {e}"))
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>, String> {
        let place = self.place(name)?;
        if place.bytes > LONGEST {
            return Err(format!("`{name}` has {} bytes, more than {LONGEST}", place.bytes));
        }
        let mut bytes = vec![0; place.bytes as usize];
        self.read_at(place.start, &mut bytes).map_err(|e| format!("`{name}`: {e}"))?;
        Ok(bytes)
    }

    fn place(&self, name: &str) -> Result<Place, String> {
        self.entries.get(name).copied().ok_or_else(|| format!("has no entry `{name}`"))
    }

    fn read_at(&self, start: u64, to: &mut [u8]) -> std::io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(to)
    }

    /// Whether a stored tensor lies within its entry. Strides may show an element many times, but
    /// not more than memory of the file's size holds.
    pub(crate) fn check(&self, stored: &Stored) -> Result<(), String> {
        self.span(stored)?;
        let bytes = stored.ty.bytes().get() as u64;
        let most = self.length.max(LEAST);
        if bytes > most {
            return Err(format!(
                "{} has {bytes} bytes, and the file has {}",
                stored.ty, self.length
            ));
        }
        Ok(())
    }

    /// Where the elements of a stored tensor begin, and how many bytes from there to behind its
    /// last one.
    fn span(&self, stored: &Stored) -> Result<(Place, usize), String> {
        let place = self.place(&stored.entry)?;
        let size = bytes_of(stored.ty.dtype);
        let sizes = stored.ty.shape.numbers();
        let last = sizes.iter().zip(&stored.strides).try_fold(0usize, |sum, (size, stride)| {
            size.saturating_sub(1).checked_mul(*stride)?.checked_add(sum)
        });
        let count =
            if sizes.contains(&0) { Some(0) } else { last.and_then(|last| last.checked_add(1)) };
        let begin = stored.offset.checked_mul(size);
        let span = count.and_then(|count| count.checked_mul(size));
        let end = begin.zip(span).and_then(|(begin, span)| begin.checked_add(span));
        match (begin, span, end) {
            (Some(begin), Some(span), Some(end)) if end as u64 <= place.bytes => {
                let start = place.start + begin as u64;
                Ok((Place { start, bytes: span as u64 }, span))
            }
            _ => Err(format!(
                "`{}` has {} bytes, too few for {} with strides {:?} from {}",
                stored.entry, place.bytes, stored.ty, stored.strides, stored.offset
            )),
        }
    }

    /// Reads a stored tensor: a dense one straight into its memory.
    pub(crate) fn read(&self, stored: &Stored) -> Result<Tensor, String> {
        let (place, span) = self.span(stored)?;
        let sizes = stored.ty.shape.numbers();
        let size = bytes_of(stored.ty.dtype);
        let mut bytes = Bytes::to_write(span)?;
        self.read_at(place.start, &mut bytes).map_err(|e| format!("`{}`: {e}", stored.entry))?;
        if !is_dense(&sizes, &stored.strides) {
            let mut dense = Bytes::to_write(stored.ty.bytes().get())?;
            for (at, element) in dense.chunks_exact_mut(size).enumerate() {
                let from = place_of(at, &sizes, &stored.strides) * size;
                element.copy_from_slice(&bytes[from..from + size]);
            }
            bytes = dense;
        }
        if stored.ty.dtype == DType::Bool {
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Value::new(stored.ty.clone(), bytes).map(Tensor::from)
    }
}

fn bytes_of(dtype: DType) -> usize {
    TensorType::scalar(dtype).bytes().get()
}

/// Whether the elements follow each other in row-major order.
fn is_dense(sizes: &[usize], strides: &[usize]) -> bool {
    let mut dense = 1;
    sizes.iter().zip(strides).rev().all(|(size, stride)| {
        let fits = *size == 1 || *stride == dense;
        dense *= size;
        fits
    }) || sizes.contains(&0)
}

/// The place of an element in row-major order.
fn place_of(at: usize, sizes: &[usize], strides: &[usize]) -> usize {
    let mut rest = at;
    let each = sizes.iter().zip(strides).rev().map(|(size, stride)| {
        let index = rest % size;
        rest /= size;
        index * stride
    });
    each.sum()
}
