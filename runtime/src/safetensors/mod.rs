//! Tensors in `.safetensors` files: a header of JSON with names, types and places, and then the
//! bytes of the elements.
//!
//! PyTorch and most others read and write this format, and it holds every dtype of tensors as it
//! is. [`Archive`] reads one file, or several by an index (`model.safetensors.index.json`);
//! [`write()`] and [`write_sharded`] write them.
//!
//! Files are not trusted. Names are unique, places fill the file without gaps, and types fit their
//! places before memory is taken for an element. A tensor is read from the file straight into its
//! memory: one copy. A file is not mapped for this, since no program can promise that nobody
//! changes or cuts it meanwhile, as a mapping asks; to map and then to copy takes the same time.
//!
//! The reader is our own because that of the crate `safetensors` wants the whole file in memory or
//! mapped, and lets the last of two entries of one name win. Tests compare the two.

mod header;
mod index;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::Archive;
pub use write::{write, write_each, write_sharded};

use std::collections::BTreeMap;

/// What is said about a whole file: texts by name.
pub type Metadata = BTreeMap<String, String>;
