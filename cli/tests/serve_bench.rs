//! `tracecast serve-bench`: figures for people and for scripts, and what the command line may be.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// Runs the command on a program: the exit code, standard output and standard error.
fn bench(name: &str, program: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-bench-{name}.tc"));
    fs::write(&file, program).unwrap();
    let mut tool = Command::new(env!("CARGO_BIN_EXE_tracecast"));
    let output = tool.arg("serve-bench").arg(&file).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const HEAD: &str = "graph @head(%x: f32[4, 8], %w: f32[8, 3] param) {
  %0 = matmul %x, %w : f32[4, 3]
  return y = %0
}
";

#[test]
fn figures_are_those_of_all_threads() {
    let (code, out, err) = bench("head", HEAD, &["--threads", "2", "--seconds", "0.2", "--json"]);
    assert_eq!(code, Some(0), "{err}");
    let figures: Value = serde_json::from_str(&out).unwrap();
    let number = |name: &str| figures[name].as_f64().unwrap();
    let latency = |name: &str| figures["latency_seconds"][name].as_f64().unwrap();
    assert_eq!((number("threads"), number("weights_bytes")), (2.0, 96.0));
    assert!(number("runs") > 0.0 && number("seconds") >= 0.2, "{out}");
    assert!(latency("p50") <= latency("p99") && latency("p99") <= latency("p99.9"), "{out}");
    assert!(latency("p99.9") <= latency("longest") && latency("p50") > 0.0, "{out}");
    let (code, out, _) = bench("text", HEAD, &["--seconds", "0.05"]);
    assert!(
        code == Some(0) && out.starts_with("1 thread, 0.") && out.contains("\nlatency: p50 "),
        "{out}"
    );
}

#[test]
fn names_of_sizes_get_values_and_state_is_each_threads_own() {
    let sized = "size batch = 4 in 1..=64
graph @sized(%x: f32[batch, 8], %n: f32[] state) {
  %0 = sum %x {dim = [0, 1], keepdim = false} : f32[]
  %1 = add %n, %0 : f32[]
  update %n = %1
  return n = %1
}
";
    let run =
        |arguments: &[&str]| bench("sized", sized, &[&["--seconds", "0.05"], arguments].concat());
    let (code, _, err) = run(&["--threads", "2", "--sizes", "batch=3", "--sizes", "batch=17"]);
    assert_eq!(code, Some(0), "{err}");
    for (arguments, expected) in [
        (&[][..], "the names are batch"),
        (&["--sizes", "batch=65"], "expected 1..=64"),
        (&["--sizes", "length=3"], "a name is missing"),
        (&["--sizes", "batch=three"], "expected a whole number"),
        (&["--sizes", "batch=1,batch=1"], "a name stands there twice"),
        (&["--threads", "0"], "--threads"),
    ] {
        let (code, _, err) = run(arguments);
        assert!(code != Some(0) && err.contains(expected), "{arguments:?}: {err}");
    }
    let (code, _, err) = bench("zero", HEAD, &["--seconds=-1"]);
    assert!(code == Some(2) && err.contains("--seconds: expected a number up to 1000000"), "{err}");
}
