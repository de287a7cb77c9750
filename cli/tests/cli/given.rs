//! What the tool is given: programs with named sizes, files that are no archives, choices of
//! training.

use super::{Scratch, array, bad, example, good, piped};
use std::fs;
use std::process::Command;
use tracecast_runtime::Tensor;

/// A program whose sizes are names.
const NAMED: &str = "size rows = 3 in 1..=8
graph @fw(%w: f32[4, 2], %x: f32[rows, 2]) {
  %0 = linear %x, %w, none : f32[rows, 4]
  %1 = permute %0 {dims = [1, 0]} : f32[4, rows]
  %2 = matmul %1, %x : f32[4, 2]
  return y = %0, z = %2
}
";

#[test]
fn programs_with_named_sizes_run_at_the_sizes_of_their_arrays() {
    let scratch = Scratch::new("named");
    let program = scratch.text("named.tc", NAMED);
    let json = good(&["explain", &program, "--json"]);
    assert!(json.contains(r#""type":"f32[rows, 4]","bytes":48"#), "{json}");
    let arrays = |rows: usize| {
        let w = Tensor::new([4, 2], &[1f32; 8]).unwrap();
        [("w", w), ("x", Tensor::new([rows, 2], &vec![0.5f32; rows * 2]).unwrap())]
    };
    for rows in [1, 5, 8] {
        let inputs = scratch.npz("in.npz", &arrays(rows));
        let outputs = scratch.path("out.npz");
        good(&["run", &program, "--inputs", &inputs, "--outputs", &outputs]);
        assert_eq!(array(&outputs, "y").to_f64s(), vec![1.0; rows * 4]);
        let told = good(&["run", &program, "--inputs", &inputs, "--check-finite", "--stats"]);
        assert!(told.contains("makes an inf or a NaN"), "{told}");
        assert!(
            good(&["profile", &program, "--inputs", &inputs, "--runs", "2"]).contains("GFLOP/s")
        );
    }
    let inputs = scratch.npz("many.npz", &arrays(9));
    bad(
        1,
        &["run", &program, "--inputs", &inputs],
        "",
        &["many.npz", "`rows` is 9, expected 1..=8"],
    );
    assert!(good(&["profile", &program, "--runs", "2", "--sizes", "rows=7"]).contains("GFLOP/s"));
    assert!(good(&["profile", &program, "--runs", "2"]).contains("GFLOP/s"));
    bad(2, &["profile", &program, "--sizes", "row=7"], "", &["--sizes row"]);
    bad(2, &["profile", &program, "--sizes", "rows"], "", &["NAME=SIZE"]);
}

#[test]
fn results_are_printed_without_a_file() {
    let scratch = Scratch::new("printed");
    let program = scratch.text(
        "g.tc",
        "graph @g(%x: f32[2]) { %0 = mul %x {scalar = 1e-20} : f32[2] return y = %0 }",
    );
    let inputs = scratch.npz("in.npz", &[("x", Tensor::new([2], &[1f32, 3e30]).unwrap())]);
    assert_eq!(good(&["run", &program, "--inputs", &inputs]), "y = f32[2] 1e-20, 29999999000\n");
}

#[test]
fn what_is_no_archive_is_named() {
    let scratch = Scratch::new("no-archive");
    let program =
        scratch.text("g.tc", "graph @g(%x: f32[2]) { %0 = neg %x : f32[2] return y = %0 }");
    let array = scratch.path("x.npy");
    fs::write(&array, b"\x93NUMPY\x01\0").unwrap();
    let run = |file: &str, says: &str| bad(1, &["run", &program, "--inputs", file], "", &[says]);
    run(&array, "is a single array (.npy)");
    run(&program, "is no archive of numpy");
    run(scratch.0.to_str().unwrap(), "is not a file");
    bad(1, &["train", "--data", &array], "", &["is a single array (.npy)"]);
}

#[test]
fn choices_of_training_are_checked_first() {
    let scratch = Scratch::new("choices");
    let folder = scratch.path("states");
    bad(2, &["train", "--plot", &scratch.path("x.png")], "", &["`.svg`", "`.png`"]);
    bad(1, &["train", "--load", &folder], "", &["states"]);
    let file = scratch.text("file", "");
    bad(1, &["train", "--load", &file], "", &["is not a folder"]);
    bad(2, &["dump", &example("mlp.tc"), "--autocast", "cpu:i64"], "", &["i64 is none"]);
    good(&["train", "--epochs", "1", "--save", &folder, "--json"]);
    let ran = piped(&["train", "--epochs", "1", "--load", &folder, "--json"], "");
    assert_eq!(ran.code, Some(0));
    assert!(ran.err.contains("has 1 epochs already, and --epochs is 1"), "{}", ran.err);
    #[cfg(unix)]
    {
        let pipe = scratch.path("states/f32.safetensors");
        fs::remove_file(&pipe).unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        bad(1, &["train", "--save", &folder], "", &["f32.safetensors", "is not a file"]);
        bad(1, &["train", "--load", &folder], "", &["f32.safetensors", "is not a file"]);
    }
}

#[test]
fn links_of_ops_are_plain() {
    let page = good(&["ops", "batch_norm"]);
    assert!(!page.contains("]("), "{page}");
    assert!(!good(&["ops"]).contains("]("));
}
