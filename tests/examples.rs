//! The examples do what they say: each is run as a user runs it, as a process of its own, and what
//! it prints is looked at.
//!
//! `cargo test` builds them before it runs any test. Where this test is run alone, it builds those
//! that are older than the sources.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use std::env::{self, consts::EXE_SUFFIX};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// One at a time looks for an example that is to be built.
static BUILDS: Mutex<()> = Mutex::new(());

/// The executable of an example, which lies beside the folder of this test's.
fn built(name: &str) -> PathBuf {
    let here = env::current_exe().unwrap();
    let profile = here.parent().and_then(Path::parent).unwrap();
    let path = profile.join("examples").join(format!("{name}{EXE_SUFFIX}"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = [
        "examples",
        "src",
        "ir/src",
        "aten/src",
        "pt2/src",
        "passes/src",
        "runtime/src",
        "codegen/src",
    ];
    let newest = sources.iter().map(|folder| changed(&root.join(folder))).max().unwrap();
    let _guard = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    if !path.exists() || changed(&path) < newest {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        let optimised = profile.ends_with("release");
        let profile_name = if optimised { "bench" } else { "test" };
        cargo.args(["build", "--example", name, "--profile", profile_name, "--target-dir"]);
        let done = cargo.arg(profile.parent().unwrap()).current_dir(root).status().unwrap();
        assert!(done.success() && path.exists(), "{} is not there", path.display());
    }
    path
}

/// When a file, or what lies in a folder, was last changed.
fn changed(path: &Path) -> SystemTime {
    match fs::read_dir(path) {
        Ok(files) => {
            let inside = files.map(|file| changed(&file.unwrap().path()));
            inside.max().unwrap_or(SystemTime::UNIX_EPOCH)
        }
        Err(_) => fs::metadata(path).unwrap().modified().unwrap(),
    }
}

/// What an example prints; it has to succeed.
fn run(name: &str, arguments: &[&str]) -> String {
    let done = Command::new(built(name)).args(arguments).output().unwrap();
    let (out, err) =
        (String::from_utf8(done.stdout).unwrap(), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{name} {arguments:?}: {}\n{out}{err}", done.status);
    out
}

/// A folder of this name, empty.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The number behind the last space of a line.
fn last_number(line: &str) -> f64 {
    line.trim_end().rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_service_answers_in_batches_while_weights_are_replaced() {
    let out = run("serve", &["--try", "200"]);
    assert!(
        out.starts_with("listening on http://127.0.0.1:") && out.ends_with("\n200 answers\n"),
        "{out}"
    );
}

#[test]
fn regression_tells_prices_of_houses_that_it_has_not_seen() {
    let out = run("regression", &[]);
    assert!(last_number(&out) > 0.95, "{out}");
    // Another table; a cell that is no number is an error and no panic.
    let folder = folder("regression");
    let (line, broken) = (folder.join("line.csv"), folder.join("broken.csv"));
    let rows = (0..100).map(|i| format!("{},{}\n", f64::from(i) / 10.0, 3.0 - f64::from(i) / 5.0));
    fs::write(&line, "x,y\n".to_owned() + &rows.collect::<String>()).unwrap();
    assert!(last_number(&run("regression", &[line.to_str().unwrap()])) > 0.95);
    fs::write(&broken, "x,y\n1,2\n3,four\n").unwrap();
    let done = Command::new(built("regression")).arg(&broken).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && !said.contains("panicked"), "{said}");
}

#[test]
fn characters_learnt_by_one_process_are_written_by_another() {
    let file = folder("characters").join("model.safetensors");
    let file = file.to_str().unwrap();
    let missing = Command::new(built("characters")).args(["generate", file]).output().unwrap();
    let said = String::from_utf8_lossy(&missing.stderr);
    // What a `main` that returns an error prints is for people.
    assert!(!missing.status.success() && said.starts_with(&format!("Error: {file}: ")), "{said}");
    assert!(run("characters", &["train", file]).contains(file));
    let text = run("characters", &["generate", file]);
    assert_eq!(text.trim_end().len(), 216, "{text}");
    let known: Vec<&str> = include_str!("../examples/characters.txt").split_whitespace().collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    let right = words.iter().filter(|word| known.contains(word)).count();
    assert!(right * 2 > words.len(), "{right} of {} words are from the text: {text}", words.len());
    assert_eq!(run("characters", &["generate", file]), text);
}

#[test]
fn custom_op_is_as_wide_as_its_policy_says() {
    let out = run("custom_op", &[]);
    for part in [
        "log_cosh : f32[8, 2]",
        "wide, f32: operands are cast to f32 (op/log_cosh:fp32)",
        "log_cosh : bf16[8, 2]",
        "(rule/op log_cosh:lower_precision_fp)",
    ] {
        assert!(out.contains(part), "{out}");
    }
}

#[test]
fn threads_get_the_bits_of_one() {
    assert_eq!(run("threads", &[]), "64 batches on 8 threads, the bits of one\n");
}

#[test]
fn what_is_saved_is_loaded_by_another_process() {
    let folder = folder("train_and_save");
    let folder = folder.to_str().unwrap();
    assert!(run("train_and_save", &[folder]).contains("step 500  loss 0.0"));
    let expected = "0 xor 0 = 0\n0 xor 1 = 1\n1 xor 0 = 1\n1 xor 1 = 0\n";
    assert_eq!(run("load_and_predict", &[folder]), expected);
}

#[test]
fn spirals_are_told_apart_and_programs_are_shown() {
    assert!(run("spirals", &[]).ends_with("256 of 256 points right\n"));
    let passes = run("inspect", &[]);
    assert!(passes.contains("; after autocast\n") && passes.contains(" 0 casts of their own"));
}

#[test]
fn a_network_from_python_learns_in_both_precisions() {
    let out = run("train_exported", &[]);
    for dtype in ["f32", "bf16"] {
        let steps = out.lines().filter(|line| line.starts_with(dtype));
        let losses: Vec<f64> =
            steps.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert!(losses.len() == 5 && losses[4] < losses[0], "{out}");
    }
}
