//! Files that are written whole: whoever opens one finds all of its old bytes or all of its new
//! ones, whatever happens meanwhile.
//!
//! A [`Replacement`] is written as a draft beside the file, forced to the disk and renamed; then
//! its folder is forced to the disk too. If anything goes wrong the old file stays, and no draft.
//! Everything in this workspace that writes a file of the user's does it here.
//!
//! * A link stays, also one that leads to nothing yet; what it leads to is replaced.
//! * A file that is replaced keeps its permissions. Other hard links to it keep the old bytes.
//! * Pipes, terminals and other devices are written to as they are.
//! * A limit of the process on the size of files is an error, and not the signal that the system
//!   has for it (Linux).
//! * What a process leaves that is ended in the midst of writing is removed by the next one that
//!   replaces the same file.

mod bounded;
mod draft;

use draft::Draft;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// How many links are followed to a file that is not there yet, as Linux does.
const MOST_LINKS: usize = 40;

/// Replaces a file by these bytes.
///
/// ```
/// use tracecast_runtime::files;
/// let path = std::env::temp_dir().join(format!("replace-{}.txt", std::process::id()));
/// files::replace(&path, b"old")?;
/// files::replace(&path, b"new")?;
/// assert_eq!(std::fs::read(&path)?, b"new");
/// std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If the file cannot be written; the old one stays.
pub fn replace(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
    Replacement::of(path.as_ref()).write(|to| to.write_all(bytes))
}

/// Tells before long work whether a file can be replaced after it. Nothing is changed.
///
/// # Errors
/// If its folder takes no new file, or the path is that of a folder.
pub fn probe(path: impl AsRef<Path>) -> io::Result<()> {
    match Place::of(path.as_ref())? {
        Place::File(target, _) => Draft::begin(&target, false).map(drop),
        Place::Device => Ok(()),
    }
}

/// A file that is about to be replaced.
#[derive(Clone, Copy, Debug)]
pub struct Replacement<'p> {
    path: &'p Path,
    in_cache: bool,
}

impl<'p> Replacement<'p> {
    /// Of the file at this path.
    pub fn of(path: &'p Path) -> Self {
        Replacement { path, in_cache: false }
    }

    /// Of a file of a cache, which only this user may open. It is not forced to the disk, so its
    /// reader has to notice damage, and drafts that were left are the cache's to remove; whatever
    /// has the file's name, a link or a pipe, gives way to the file.
    #[must_use]
    pub fn in_cache(mut self) -> Self {
        self.in_cache = true;
        self
    }

    /// Writes the new bytes with `body`, and puts them in the place of the old ones.
    ///
    /// # Errors
    /// That of `body`, or if the file cannot be written; the old one stays.
    pub fn write<E: From<io::Error>>(
        self,
        body: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        let place = match self.in_cache {
            true => Place::File(self.path.to_owned(), None),
            false => Place::of(self.path)?,
        };
        let (target, permissions) = match place {
            Place::File(target, permissions) => (target, permissions),
            Place::Device => {
                let device = OpenOptions::new().write(true).open(self.path)?;
                return written(BufWriter::new(device), body).map(drop);
            }
        };
        let private = self.in_cache || permissions.is_some();
        let draft = Draft::begin(&target, private)?;
        let file = written(BufWriter::new(bounded::Bounded::new(draft.file())), body)?;
        let file: &File = file.into_inner();
        if let Some(permissions) = permissions {
            file.set_permissions(permissions)?;
        }
        if self.in_cache {
            return Ok(draft.put(&target)?);
        }
        file.sync_all()?;
        draft.put(&target)?;
        draft::sync_folder_of(&target)?;
        draft::remove_abandoned(&target);
        Ok(())
    }
}

/// What `body` has written to, all of it handed on.
fn written<W: Write, E: From<io::Error>>(
    mut to: BufWriter<W>,
    body: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<W, E> {
    body(&mut to)?;
    to.into_inner().map_err(|error| error.into_error().into())
}

/// What a path leads to.
enum Place {
    /// A file that is there with these permissions, or can be made; not a link.
    File(PathBuf, Option<Permissions>),
    /// What takes bytes and keeps none.
    Device,
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        match fs::metadata(path) {
            Ok(about) if about.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(about) if !about.is_file() => Ok(Place::Device),
            Ok(about) => Ok(Place::File(fs::canonicalize(path)?, Some(about.permissions()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Place::File(end_of_links(path)?, None))
            }
            Err(error) => Err(error),
        }
    }
}

/// Where a path leads at the end of which there is nothing.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut end = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&end) {
            Ok(to) => end = end.parent().unwrap_or(Path::new("")).join(to),
            // Not a link: nothing is there.
            Err(_) => return Ok(end),
        }
    }
    Err(io::Error::other(format!("more than {MOST_LINKS} links")))
}

#[cfg(test)]
mod tests;
