//! What the tool writes is old or new, whole, and what it reads is looked at before it is unpacked.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tracecast_runtime::{Tensor, npz};

const PROGRAM: &str =
    "graph @g(%x: f32[2000]) {\n  %0 = add %x, %x : f32[2000]\n  return y = %0\n}";

/// A folder with a program and its input, removed at the end of a test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tracecast-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("g.tc"), PROGRAM).unwrap();
        npz::write(path.join("in.npz"), [("x", &Tensor::rand([2000], 1).unwrap())]).unwrap();
        Folder(path)
    }

    /// Runs the tool in the folder; with a limit in blocks on the size of files.
    fn tool(&self, arguments: &str, blocks: Option<usize>) -> Output {
        let limit = blocks.map_or(String::new(), |blocks| format!("ulimit -f {blocks}; "));
        let line = format!("{limit}exec \"$TOOL\" {arguments}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).current_dir(&self.0);
        shell.env("TOOL", env!("CARGO_BIN_EXE_tracecast")).output().unwrap()
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
        drop(fs::remove_dir_all(&self.0));
    }
}

/// What the tool writes, as arguments that end with the name `out`.
const WRITERS: [&str; 4] = [
    "run g.tc --inputs in.npz --outputs out",
    "explain g.tc --html out",
    "profile g.tc --runs 1 --inputs in.npz --trace out",
    "train --epochs 1 --plot out",
];

/// A limit on the size of files is an error, and leaves the old file and nothing else.
#[test]
fn a_file_size_limit_leaves_the_old_file_and_an_error() {
    let folder = Folder::new("limit");
    for writer in WRITERS {
        fs::write(folder.path("out"), "old").unwrap();
        let ran = folder.tool(writer, Some(0));
        let error = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(1), "{writer}: {} {error}", ran.status);
        assert!(error.contains("out: ") && error.contains("ulimit"), "{writer}: {error}");
        assert_eq!(fs::read(folder.path("out")).unwrap(), b"old", "{writer}");
        assert_eq!(folder.names(), ["g.tc", "in.npz", "out"], "{writer}");
    }
}

/// A plot is written when there is one, and a file of that name is not emptied before.
#[test]
fn a_plot_takes_the_place_of_another_only_when_it_is_there() {
    let folder = Folder::new("plot");
    fs::write(folder.path("out"), "old").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tracecast"))
        .args(["train", "--epochs", "100000", "--plot", "out", "--json"])
        .current_dir(&folder.0)
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(child.try_wait().unwrap().is_none(), "it trains");
    assert_eq!(fs::read(folder.path("out")).unwrap(), b"old");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read(folder.path("out")).unwrap(), b"old");
    assert_eq!(folder.names(), ["g.tc", "in.npz", "out"]);
}

/// Links stay, long names are names, modes are kept.
#[test]
fn outputs_go_where_a_path_leads() {
    let folder = Folder::new("leads");
    let long = "n".repeat(254);
    for writer in WRITERS {
        symlink("new", folder.path("out")).unwrap();
        symlink(&long, folder.path("new")).unwrap();
        for mode in [0o640, 0o444] {
            let ran = folder.tool(writer, None);
            assert!(ran.status.success(), "{writer}: {}", String::from_utf8_lossy(&ran.stderr));
            let file = folder.path(&long);
            assert!(fs::metadata(&file).unwrap().len() > 50, "{writer}");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        assert!(folder.tool(writer, None).status.success(), "{writer}");
        let mode = fs::metadata(folder.path(&long)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o444, "{writer}");
        for link in ["out", "new"] {
            assert!(fs::symlink_metadata(folder.path(link)).unwrap().is_symlink(), "{writer}");
            fs::remove_file(folder.path(link)).unwrap();
        }
        fs::remove_file(folder.path(&long)).unwrap();
        assert_eq!(folder.names(), ["g.tc", "in.npz"], "{writer}");
    }
}

/// The archive of these arrays with a byte of the last one's elements changed: it can be listed and
/// not unpacked.
fn damaged(path: &Path, arrays: &[(&str, &Tensor)]) {
    npz::write(path, arrays.iter().copied()).unwrap();
    let mut bytes = fs::read(path).unwrap();
    let (_, last) = arrays.last().unwrap();
    let at = bytes.windows(last.bytes().len()).rposition(|window| window == last.bytes()).unwrap();
    bytes[at] ^= 0x40;
    fs::write(path, bytes).unwrap();
}

/// What is wrong with names and types is told before anything is unpacked.
#[test]
fn arrays_are_looked_at_before_they_are_unpacked() {
    let folder = Folder::new("look");
    let error = |name: &str| {
        let ran = folder.tool(&format!("run g.tc --inputs {name} --outputs out"), None);
        assert_eq!(ran.status.code(), Some(1));
        String::from_utf8(ran.stderr).unwrap()
    };
    let (good, other) = (Tensor::rand([2000], 1).unwrap(), Tensor::rand([3000], 2).unwrap());
    damaged(&folder.path("z.npz"), &[("x", &good), ("z", &other)]);
    assert!(error("z.npz").contains("no port is called `z`"));
    damaged(&folder.path("x.npz"), &[("x", &other)]);
    assert!(error("x.npz").contains("expected f32[2000], found f32[3000]"));
    damaged(&folder.path("d.npz"), &[("x", &good)]);
    assert!(error("d.npz").to_lowercase().contains("checksum"), "{}", error("d.npz"));
}

/// What `train --json` tells that does not depend on time.
fn told(out: &[u8]) -> Vec<String> {
    let lines = String::from_utf8(out.to_vec()).unwrap();
    let parsed = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    parsed
        .map(|v| ["mode", "accuracy", "final_scale", "losses"].map(|k| v[k].to_string()).join(" "))
        .collect()
}

#[test]
fn training_goes_on_from_what_was_saved() {
    let folder = Folder::new("resume");
    let train = |arguments: &str| {
        let ran = folder.tool(&format!("train --json {arguments}"), None);
        assert!(ran.status.success(), "{arguments}: {}", String::from_utf8_lossy(&ran.stderr));
        ran
    };
    let whole = train("--epochs 3 --save whole");
    train("--epochs 2 --save part");
    // One precision is behind the others, and one was never begun.
    fs::remove_file(folder.path("part/f16.safetensors")).unwrap();
    let resumed = train("--epochs 3 --load part --save part");
    assert!(String::from_utf8_lossy(&resumed.stderr).contains("f16.safetensors: f16 begins anew"));
    assert_eq!(told(&resumed.stdout), told(&whole.stdout));
    for mode in ["f32", "bf16", "f16"] {
        let bytes =
            |from: &str| fs::read(folder.path(&format!("{from}/{mode}.safetensors"))).unwrap();
        assert!(bytes("part") == bytes("whole"), "{mode}");
    }
    // What is done is done.
    assert_eq!(told(&train("--epochs 3 --load whole").stdout), told(&whole.stdout));
    let bad = |arguments: &str, says: &str| {
        let ran = folder.tool(&format!("train {arguments}"), None);
        let error = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.code() == Some(1) && error.contains(says), "{arguments}: {error}");
    };
    bad("--epochs 3 --seed 1 --load whole", "with --seed 0, found 1");
    bad("--save g.tc", "g.tc");
    fs::copy(folder.path("whole/f16.safetensors"), folder.path("whole/f32.safetensors")).unwrap();
    bad("--load whole", "unexpected: amp.backoffs, amp.growth_tracker, amp.scale");
}
