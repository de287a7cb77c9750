//! [`Draft`]: the new bytes of a file before they have its name, and what happens to drafts that
//! nobody finishes.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How names of drafts end.
const ENDING: &str = ".unfinished";

/// A file beside the one it is to replace, under a short name of its own. It is removed if it is
/// dropped, and locked as long as it is worked on, so that others can tell it from one that a
/// process has left.
pub(super) struct Draft {
    file: File,
    path: PathBuf,
    is_put: bool,
}

impl Draft {
    /// An empty draft for this file, which is no link; `private` if only this user may open it.
    ///
    /// # Errors
    /// If the path names no file, or its folder takes none.
    pub(super) fn begin(target: &Path, private: bool) -> io::Result<Self> {
        loop {
            let path = folder_of(target).join(name(target)?);
            let file = match create(&path, private) {
                // A process that had this one's number has left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            let draft = Draft { file, path, is_put: false };
            // Where files cannot be locked nobody takes one for abandoned either.
            let _ = draft.file.lock();
            // Before it was locked another process may have taken it for abandoned.
            if fs::symlink_metadata(&draft.path).is_ok() {
                return Ok(draft);
            }
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The path of the file until it is put.
    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it the name of the file, in the place of what has it.
    pub(super) fn put(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.is_put = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_put {
            // There is nobody to tell; the next one that writes the file tries again.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Has the disk keep a rename in the folder of this file.
pub(super) fn sync_folder_of(target: &Path) -> io::Result<()> {
    // Elsewhere folders cannot be opened.
    if cfg!(unix) { File::open(folder_of(target))?.sync_all() } else { Ok(()) }
}

/// Removes the drafts for this file that processes have left which ended too soon.
pub(super) fn remove_abandoned(target: &Path) {
    let Some(start) = name_start(target) else { return };
    let Ok(entries) = fs::read_dir(folder_of(target)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_draft =
            name.to_str().is_some_and(|name| name.starts_with(&start) && name.ends_with(ENDING));
        if !is_draft || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(file) = File::open(entry.path()) else { continue };
        if file.try_lock().is_ok() {
            // Another process may have removed it just now.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A name that no other draft has: however long the file's name is, this one is short.
fn name(target: &Path) -> io::Result<OsString> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let start = name_start(target).ok_or(io::ErrorKind::InvalidFilename)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(format!("{start}{}-{number}{ENDING}", std::process::id()).into())
}

/// How the names of all drafts for this file begin: with a hash of its name.
fn name_start(target: &Path) -> Option<String> {
    let bytes = target.file_name()?.as_encoded_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Some(format!(".{hash:016x}-"))
}

fn create(path: &Path, private: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if private {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = private;
    options.open(path)
}
