//! A disk that is full and a limit on the size of files are errors, and the old checkpoint stays.

use crate::Folder;
use std::path::Path;
use std::process::{Command, Output};
use tracecast::checkpoint::Load;
use tracecast::nn::Linear;
use tracecast::prelude::*;

const CHILD: &str = "TRACECAST_FULL_DISK_CHILD";

fn step() -> TrainStep {
    TrainStep::new(Linear::new(100, 100), |t, model| model.forward(t.input("x")).mean(()))
        .optimizer(AdamW::new(0.01))
        .build()
        .unwrap()
}

/// Not a test by itself: saves 120 KB into a folder, and then tries to save 900 KB in its place.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let path = Path::new(&folder).join("run.safetensors");
    let mut store = Store::new();
    step().init(&mut store, 1).unwrap();
    step().save(&store, &path).unwrap();
    let old = std::fs::read(&path).unwrap();
    assert!(old.len() < 130_000);
    store.insert("large", Tensor::zeros(TensorType::new(DType::F32, [200_000])).unwrap());
    let error = step().save(&store, &path).unwrap_err();
    println!("error: {error}");
    assert!(std::fs::read(&path).unwrap() == old);
    assert_eq!(crate::files_in(Path::new(&folder)).len(), 1, "and nothing else");
    let mut other = Store::new();
    step().load(&mut other, &path, &Load::strict()).unwrap();
    // What fits is written as if nothing had been.
    store.remove("large").unwrap();
    step().save(&store, &path).unwrap();
    assert!(std::fs::read(&path).unwrap() == old);
    println!("the old file stays");
}

/// Runs a shell that ends as the child.
fn shell(line: &str, folder: &Folder, around: &[&str]) -> Output {
    let child = "exec \"$SELF\" --exact disk::child --nocapture --test-threads 1";
    let line = format!("{line} && {child}");
    let words = [around, &["sh", "-c", &line]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("SELF", std::env::current_exe().unwrap());
    command.env(CHILD, &folder.0).output().unwrap()
}

fn holds(ran: &Output, error: &str) {
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{}: {out}{err}", ran.status);
    assert!(out.contains("the old file stays") && out.contains(error), "{out}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_old_file_and_an_error() {
    // A disk of a megabyte that only the child sees, for which it has to be another user's root.
    let apart = ["unshare", "--user", "--map-root-user", "--mount"];
    let mount = "mount -t tmpfs -o size=1000k none \"$TRACECAST_FULL_DISK_CHILD\"";
    let folder = Folder::new();
    let mut can = Command::new(apart[0]);
    can.args(&apart[1..]).args(["sh", "-c", mount]).env(CHILD, &folder.0);
    if !can.status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: this system lets nobody mount a small disk of his own");
        return;
    }
    holds(&shell(mount, &folder, &apart), "No space left");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_size_limit_leaves_the_old_file_and_an_error() {
    // In blocks of 512 bytes or of 1 KiB, as the shell likes.
    holds(&shell("ulimit -f 400", &Folder::new(), &[]), "ulimit -f");
}
