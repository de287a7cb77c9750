//! `--code-cache`: what one process has compiled another one uses, two at once do not disturb each
//! other, and a damaged file is compiled anew.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const PROGRAM: &str = "graph @g(%x: f32[40, 30], %w: f32[30, 20] param) {
  %0 = matmul %x, %w : f32[40, 20]
  %1 = softmax %0 {dim = 1} : f32[40, 20]
  return y = %1
}
";

/// A folder with the program, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tracecast-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("g.tc"), PROGRAM).unwrap();
        Folder(path)
    }

    fn cache(&self) -> PathBuf {
        self.0.join("code")
    }

    /// Starts to profile the program with code from the cache.
    fn start(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_tracecast"))
            .args(["profile", "--runs", "3", "--compile"])
            .arg(self.0.join("g.tc"))
            .arg("--code-cache")
            .arg(self.cache())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.cache()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a run printed, and what it complained about. It has to end well.
fn printed(child: Child) -> (String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(status.success(), "{err}");
    (out, err)
}

fn is_code(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "code")
}

#[test]
fn processes_share_what_they_compile() {
    let folder = Folder::new("share");
    // All at once, on an empty folder.
    let all: Vec<Child> = (0..4).map(|_| folder.start()).collect();
    for child in all {
        let (out, err) = printed(child);
        assert_eq!(err, "");
        assert!(out.contains("fuse") && out.contains("contraction, "), "{out}");
    }
    let files = folder.files();
    assert!(!files.is_empty() && files.iter().all(|file| is_code(file)), "{files:?}");
    let (out, err) = printed(folder.start());
    assert_eq!((out.matches(", from disk\n").count(), err.as_str()), (files.len(), ""), "{out}");
    assert!(!out.contains(", compiled\n"), "{out}");
}

#[test]
fn damaged_files_are_replaced_with_a_warning() {
    let folder = Folder::new("damage");
    printed(folder.start());
    let file = folder.files().remove(0);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs::write(&file, bytes).unwrap();
    let (out, err) = printed(folder.start());
    let warns = err.starts_with("warning: ") && err.contains("is not used: its checksum is wrong");
    assert!(warns && err.lines().count() == 1, "{err}");
    assert_eq!(out.matches(", compiled\n").count(), 1, "{out}");
    assert_eq!(printed(folder.start()).1, "");
}

#[test]
fn a_device_that_compiles_nothing_says_so() {
    let folder = Folder::new("reference");
    let output = Command::new(env!("CARGO_BIN_EXE_tracecast"))
        .args(["profile", "--runs", "1", "--device", "reference"])
        .arg(folder.0.join("g.tc"))
        .arg("--code-cache")
        .arg(folder.cache())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said,
        "warning: --code-cache has no effect: the device `reference` compiles nothing\n"
    );
    assert!(!folder.cache().exists());
}
