//! How much room the folder takes: files that were used longest ago go first.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A file that was begun so long ago is nobody's any more.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

/// Removes compiled kernels, those whose file was touched longest ago first, until the rest takes
/// three quarters of that many bytes, if all of them take more; and what processes that ended too
/// soon have left. Only files of the cache's own names are touched.
///
/// What cannot be listed or removed stays: the cache works without it.
pub(super) fn tidy(folder: &Path, most: u64) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut kernels: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(about) = entry.metadata() else { continue };
        if !about.is_file() {
            continue;
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("code") => kernels.push((modified(&about), about.len(), path)),
            Some("unfinished") if is_old(&about) => {
                let _ = fs::remove_file(&path);
            }
            _ => {}
        }
    }
    let mut total: u64 = kernels.iter().map(|(_, bytes, _)| bytes).sum();
    if total <= most {
        return;
    }
    kernels.sort();
    for (_, bytes, path) in kernels {
        if total <= most / 4 * 3 {
            break;
        }
        // Another process may have removed it just now.
        let _ = fs::remove_file(path);
        total -= bytes;
    }
}

fn modified(about: &Metadata) -> SystemTime {
    about.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

fn is_old(about: &Metadata) -> bool {
    modified(about).elapsed().is_ok_and(|age| age > ABANDONED)
}
