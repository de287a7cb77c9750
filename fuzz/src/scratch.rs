//! A folder for files that readers open by path: one for each thread, gone with it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static FOLDER: Folder = Folder::new();
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tracecast-fuzz-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Whoever cannot remove it leaves it to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What `body` makes of the folder.
pub(crate) fn within<T>(body: impl FnOnce(&Path) -> T) -> T {
    FOLDER.with(|folder| body(&folder.0))
}
