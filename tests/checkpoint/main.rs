//! Checkpoints: what is saved comes back bit for bit, here, in another process, in PyTorch and in
//! years; and whatever happens to a process that saves, a whole file is there.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod disk;
mod fits;
mod forever;
mod hub;
mod killed;
mod pytorch;
mod resume;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tracecast::prelude::*;

/// A folder of a test's own, gone afterwards.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tracecast-checkpoint-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names of the files in it, and their sizes.
    pub(crate) fn files(&self) -> Vec<(String, u64)> {
        files_in(&self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn files_in(folder: &Path) -> Vec<(String, u64)> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<(String, u64)> = entries
        .filter_map(|entry| {
            let entry = entry.unwrap();
            // It may have been renamed since the folder was listed.
            Some((entry.file_name().into_string().unwrap(), entry.metadata().ok()?.len()))
        })
        .collect();
    files.sort();
    files
}

/// A file that is kept in the repository.
pub(crate) fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/checkpoints").join(name)
}

/// What a store holds, byte for byte.
pub(crate) fn contents(store: &Store) -> Vec<(String, TensorType, Vec<u8>)> {
    let entry = |name: &str| {
        let value = store.get(name).unwrap();
        (name.to_owned(), value.ty().clone(), value.bytes().to_vec())
    };
    store.names().map(entry).collect()
}
