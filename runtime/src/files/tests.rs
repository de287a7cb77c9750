//! What is old stays or is replaced as a whole, wherever a path leads and whatever goes wrong.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of this test's own, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("tracecast-files-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_body_that_fails_leaves_the_old_file_and_nothing_else() {
    let folder = Folder::new();
    let path = folder.path("a");
    replace(&path, b"old").unwrap();
    let failed = Replacement::of(&path).write(|to| {
        to.write_all(&[1; 100_000])?;
        assert_eq!(folder.names().len(), 2);
        Err(io::Error::other("no more"))
    });
    assert_eq!(failed.unwrap_err().to_string(), "no more");
    assert_eq!((folder.names(), fs::read(&path).unwrap()), (vec!["a".to_owned()], b"old".into()));
    let panicked = std::panic::catch_unwind(|| {
        Replacement::of(&path).write(|_| -> io::Result<()> { panic!("in the midst") })
    });
    assert!(panicked.is_err());
    assert_eq!((folder.names(), fs::read(&path).unwrap()), (vec!["a".to_owned()], b"old".into()));
}

#[test]
fn old_bytes_are_there_until_all_new_ones_are() {
    let folder = Folder::new();
    let path = folder.path("a");
    replace(&path, b"old").unwrap();
    let write = Replacement::of(&path).write(|to| {
        to.write_all(&[7; 100_000])?;
        to.flush()?;
        assert_eq!(fs::read(&path)?, b"old");
        Ok::<(), io::Error>(())
    });
    write.unwrap();
    assert_eq!(fs::read(&path).unwrap(), [7; 100_000]);
    assert_eq!(folder.names(), ["a"]);
}

#[test]
fn names_of_255_bytes_are_no_different() {
    let folder = Folder::new();
    for length in [254, 255] {
        let path = folder.path(&"n".repeat(length));
        replace(&path, b"1").unwrap();
        replace(&path, b"2").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
    }
    assert!(replace(folder.path(&"n".repeat(256)), b"1").is_err());
    assert_eq!(folder.names().len(), 2);
}

#[test]
fn paths_that_name_no_file_are_errors() {
    let folder = Folder::new();
    let kind = |path: &Path| replace(path, b"x").unwrap_err().kind();
    assert_eq!(kind(&folder.0), io::ErrorKind::IsADirectory);
    assert_eq!(kind(&folder.path("no/such")), io::ErrorKind::NotFound);
    assert_eq!(kind(Path::new("")), io::ErrorKind::InvalidFilename);
    for path in [folder.0.clone(), folder.path("no/such")] {
        assert!(probe(path).is_err());
    }
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn a_probe_changes_nothing() {
    let folder = Folder::new();
    let path = folder.path("a");
    probe(&path).unwrap();
    assert_eq!(folder.names(), [""; 0]);
    replace(&path, b"old").unwrap();
    probe(&path).unwrap();
    assert_eq!((folder.names(), fs::read(&path).unwrap()), (vec!["a".to_owned()], b"old".into()));
}

#[test]
fn drafts_of_processes_that_ended_are_removed_and_no_others() {
    let folder = Folder::new();
    let path = folder.path("a");
    drop(Draft::begin(&path, false).unwrap());
    let name = |kept: &Draft| kept.path().file_name().unwrap().to_str().unwrap().to_owned();
    // What a process leaves that ends in the midst of it: the file, and no lock.
    let left = name(&Draft::begin(&path, false).unwrap());
    fs::write(folder.path(&left), b"half").unwrap();
    let (busy, of_other) =
        (Draft::begin(&path, false).unwrap(), Draft::begin(&folder.path("b"), false).unwrap());
    let of_other_left = name(&Draft::begin(&folder.path("b"), false).unwrap());
    fs::write(folder.path(&of_other_left), b"half").unwrap();
    replace(&path, b"new").unwrap();
    let mut kept = vec!["a".to_owned(), name(&busy), name(&of_other), of_other_left];
    kept.sort();
    assert_eq!(folder.names(), kept);
    drop((busy, of_other));
    replace(folder.path("b"), b"new").unwrap();
    assert_eq!(folder.names(), ["a", "b"]);
}

#[test]
fn writers_at_once_leave_the_bytes_of_one() {
    let folder = Folder::new();
    let path = folder.path("a");
    std::thread::scope(|scope| {
        for byte in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..20 {
                    replace(path, &vec![byte; 10_000 + usize::from(byte)]).unwrap();
                    let found = fs::read(path).unwrap();
                    assert_eq!(found.len(), 10_000 + usize::from(found[0]));
                    assert!(found.iter().all(|b| *b == found[0]));
                }
            });
        }
    });
    assert_eq!(folder.names(), ["a"]);
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn modes_are_kept() {
        let folder = Folder::new();
        let path = folder.path("a");
        replace(&path, b"old").unwrap();
        let fresh = mode(&path);
        fs::write(folder.path("b"), b"").unwrap();
        assert_eq!(fresh, mode(&folder.path("b")), "a new file is like any other");
        for kept in [0o444, 0o600, 0o640, 0o755] {
            fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            replace(&path, b"new").unwrap();
            assert_eq!(mode(&path), kept);
        }
        // While it is written nobody sees more of it than of the old file.
        let write = Replacement::of(&path).write(|_| {
            let draft = folder.names().into_iter().find(|name| name.ends_with("unfinished"));
            assert_eq!(mode(&folder.path(&draft.unwrap())), 0o600);
            Ok::<(), io::Error>(())
        });
        write.unwrap();
    }

    #[test]
    fn links_stay_and_what_they_lead_to_is_replaced_or_made() {
        let folder = Folder::new();
        fs::create_dir(folder.path("sub")).unwrap();
        symlink("sub/there", folder.path("a")).unwrap();
        symlink("a", folder.path("b")).unwrap();
        for bytes in [b"1", b"2"] {
            // Dangling at first.
            replace(folder.path("b"), bytes).unwrap();
            assert_eq!(fs::read(folder.path("sub/there")).unwrap(), bytes);
        }
        for name in ["a", "b"] {
            assert!(fs::symlink_metadata(folder.path(name)).unwrap().is_symlink());
        }
        symlink("no/such/folder/file", folder.path("c")).unwrap();
        assert_eq!(replace(folder.path("c"), b"x").unwrap_err().kind(), io::ErrorKind::NotFound);
        symlink("d", folder.path("d")).unwrap();
        assert!(replace(folder.path("d"), b"x").is_err());
        assert_eq!(folder.names(), ["a", "b", "c", "d", "sub"]);
    }

    #[test]
    fn devices_and_pipes_are_written_to() {
        replace("/dev/null", b"x").unwrap();
        probe("/dev/null").unwrap();
        let folder = Folder::new();
        let pipe = folder.path("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        replace(&pipe, b"through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert_eq!(folder.names(), ["pipe"]);
    }

    #[test]
    fn in_a_cache_a_file_takes_the_place_of_whatever_is_there() {
        let folder = Folder::new();
        let path = folder.path("a");
        let write = || Replacement::of(&path).in_cache().write(|to| to.write_all(b"code"));
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        write().unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"code".into(), 0o600));
        fs::remove_file(&path).unwrap();
        fs::write(folder.path("other"), b"mine").unwrap();
        symlink("other", &path).unwrap();
        write().unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read(folder.path("other")).unwrap(), b"mine");
        assert_eq!(folder.names(), ["a", "other"]);
    }
}
