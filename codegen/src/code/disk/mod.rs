//! Compiled kernels in a folder, for other processes to use: a file for each kernel, named after
//! the hash of its key.
//!
//! What is read will be run, so a file is believed only if nobody else can have written it and
//! nothing about it is odd: folder and file belong to the user of this process and nobody else may
//! write them, the file says that it is of this format, its checksum is right, and the key in it is
//! the whole key that is asked for. The key has the kernel, the instruction set, the versions, and
//! a hash of the sources of the compiler. Everything else is as if the file were not there, except
//! that it is said why.
//!
//! A file is written whole (`tracecast_runtime::files`), so readers find all of it or nothing,
//! however many write at once. The folder is kept from growing without end: `evict`.

mod evict;
mod record;
#[cfg(test)]
mod tests;

use crate::checksum::checksum;
use crate::code::object::Object;
use record::{decode, encode};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use tracecast_runtime::files::Replacement;

/// A folder of compiled kernels.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: PathBuf,
    #[cfg(unix)]
    user: u32,
    /// Written since the folder was tidied.
    written: AtomicU64,
}

/// The bytes of files that a folder may take, but for what was written since it was tidied last: at
/// the start of a process and after every sixteenth part of them.
const MOST: u64 = 256 << 20;

/// What there was for a key.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    /// The functions.
    Functions(Vec<Object>),
    /// No file.
    Nothing,
    /// A file that is not to be used, and why.
    Refused(String),
}

impl Disk {
    /// The cache in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// If the folder cannot be written to, or others may write to it.
    pub(crate) fn open(folder: &Path) -> Result<Self, String> {
        let here = |e: &dyn std::fmt::Display| format!("code cache {}: {e}", folder.display());
        private_folder(folder).map_err(|e| here(&e))?;
        let probe = temporary(folder);
        let made = create(&probe).and_then(|file| file.metadata()).map_err(|e| here(&e))?;
        fs::remove_file(&probe).map_err(|e| here(&e))?;
        #[cfg(unix)]
        let disk = {
            use std::os::unix::fs::MetadataExt;
            Disk { folder: folder.to_owned(), user: made.uid(), written: AtomicU64::new(0) }
        };
        #[cfg(not(unix))]
        let disk = {
            let _ = made;
            Disk { folder: folder.to_owned(), written: AtomicU64::new(0) }
        };
        let own = fs::metadata(folder).map_err(|e| here(&e))?;
        disk.is_private(&own).map_err(|why| here(&why))?;
        evict::tidy(&disk.folder, MOST);
        Ok(disk)
    }

    /// The functions of a kernel.
    pub(crate) fn load(&self, key: &[u8]) -> Found {
        let path = self.path(key);
        let read = || -> Result<Option<Vec<Object>>, String> {
            // Before it is opened: a pipe would wait for somebody to write to it.
            match fs::metadata(&path) {
                Ok(about) if !about.is_file() => return Err("is not a file".to_owned()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Ok(_) | Err(_) => {}
            }
            let mut file = match File::open(&path) {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(e.to_string()),
            };
            let about = file.metadata().map_err(|e| e.to_string())?;
            self.is_private(&about)?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(|e| e.to_string())?;
            let functions = decode(&bytes, key)?;
            // It is in use: others are to be removed before it. Where this fails it counts as old.
            let _ = file.set_modified(SystemTime::now());
            Ok(Some(functions))
        };
        match read() {
            Ok(Some(functions)) => Found::Functions(functions),
            Ok(None) => Found::Nothing,
            Err(why) => Found::Refused(format!("{} is not used: {why}", path.display())),
        }
    }

    /// Keeps the functions of a kernel.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn store(&self, key: &[u8], functions: &[Object]) -> Result<(), String> {
        let Some(bytes) = encode(key, functions) else { return Ok(()) };
        let path = self.path(key);
        let written = Replacement::of(&path).in_cache().write(|to| to.write_all(&bytes));
        written.map_err(|e: io::Error| format!("{} is not written: {e}", path.display()))?;
        let size = bytes.len() as u64;
        if self.written.fetch_add(size, Ordering::Relaxed) + size > MOST / 16 {
            self.written.store(0, Ordering::Relaxed);
            evict::tidy(&self.folder, MOST);
        }
        Ok(())
    }

    fn path(&self, key: &[u8]) -> PathBuf {
        self.folder.join(format!("{:032x}.code", checksum(key)))
    }

    /// Errors with the reason if others may have written it.
    #[cfg(unix)]
    fn is_private(&self, about: &fs::Metadata) -> Result<(), String> {
        use std::os::unix::fs::MetadataExt;
        if about.uid() != self.user {
            return Err(format!("it belongs to user {}, not {}", about.uid(), self.user));
        }
        if about.mode() & 0o022 != 0 {
            return Err(format!("others may write to it (mode {:o})", about.mode() & 0o777));
        }
        Ok(())
    }

    #[cfg(not(unix))]
    fn is_private(&self, _: &fs::Metadata) -> Result<(), String> {
        Ok(())
    }
}

/// Makes the folder and those above it, for this user alone.
fn private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// A new file that only this user may open.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// A name that nobody else uses now.
fn temporary(folder: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{}-{number}.unfinished", std::process::id()))
}
