//! What a person meets every day: looking for an inf or a NaN, warnings and progress on standard
//! error, and the figures of the README, which are the tool's.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tracecast_runtime::{Tensor, npz};

/// Runs the tool: the exit code, standard output and standard error.
fn tool(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tracecast")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A folder with a program and its arrays that is removed at the end of a test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, program: &str, arrays: &[(&str, Tensor)]) -> Self {
        let name = format!("tracecast-everyday-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("f.tc"), program).unwrap();
        npz::write(folder.join("in.npz"), arrays.iter().map(|(n, t)| (*n, t))).unwrap();
        Scratch(folder)
    }

    /// Runs `tracecast run` on the program with its arrays.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let [program, arrays] = [self.path("f.tc"), self.path("in.npz")];
        tool(&[&["run", &program, "--inputs", &arrays], arguments].concat())
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

const OVERFLOW: &str = "graph @f(%x: f16[2, 2]) {
  %scaled = mul %x, none {scalar = 2.0} : f16[2, 2]
  %e = exp %scaled : f16[2, 2]
  %d = sub %e, %e : f16[2, 2]
  %s = softmax %x {dim = 1} : f16[2, 2]
  return d = %d, s = %s
}
";

fn overflow(name: &str, numbers: [f32; 4]) -> Scratch {
    let x = Tensor::new([2, 2], &numbers).unwrap().cast(tracecast::DType::F16).unwrap();
    Scratch::new(name, OVERFLOW, &[("x", x)])
}

#[test]
fn check_finite_names_the_op_its_line_and_its_operands() {
    let scratch = overflow("finite", [1.0, 2.0, 6.0, -3.0]);
    let (code, out, err) = scratch.run(&["--check-finite"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.starts_with("error: ") && err.ends_with("2 ops make an inf or a NaN\n"), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "inf at [1, 0] of f16[2, 2], 1 of 4 numbers are inf or NaN");
    assert!(lines[1].starts_with("  %e exp, at ") && lines[1].ends_with("f.tc:3"), "{out}");
    assert_eq!(lines[2], "  of %scaled mul: f16[2, 2], -6 to 12, 12 there");
    assert_eq!(lines[3], "NaN at [1, 0] of f16[2, 2], 1 of 4 numbers are inf or NaN");
    assert!(lines[4].starts_with("  %d sub, at ") && lines[4].ends_with("f.tc:4"), "{out}");
    // Without overflow there is nothing to say, and results can be computed by the way.
    let scratch = overflow("finite-good", [1.0, 2.0, 3.0, -3.0]);
    let results = scratch.path("out.npz");
    let (code, out, err) = scratch.run(&["--check-finite", "--outputs", &results]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("no op of @f makes an inf or a NaN\nd = f16[2, 2]"), "{out}");
    assert_eq!(npz::read(&results).unwrap().len(), 2);
}

#[test]
fn check_finite_and_stats_as_json() {
    let scratch = overflow("json", [1.0, 2.0, 6.0, 0.0]);
    let (code, out, _) = scratch.run(&["--check-finite", "--stats", "--json"]);
    assert_eq!(code, Some(1), "{out}");
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(told["program"], "f");
    let first = &told["not_finite"][0];
    assert_eq!((&first["first"], &first["place"]["op"]), (&"inf".into(), &"exp".into()));
    assert_eq!(first["position"], serde_json::json!([1, 0]));
    assert_eq!(first["operands"][0]["numbers"]["largest"], 12.0);
    assert_eq!(told["values"][0]["place"]["op"], "input");
    assert_eq!(told["values"][0]["numbers"]["zeros"], 1);
    assert_eq!(told["dtypes"]["f16"]["not_finite"], 2);
    // The parts of the softmax are f32 inside.
    assert!(told["dtypes"]["f32"]["count"].as_u64().unwrap() > 0);
    let (code, out, err) = scratch.run(&["--json"]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    let (code, _, err) = scratch.run(&["--json", "--outputs", &scratch.path("out.npz")]);
    assert!(code == Some(2) && err.contains("--json goes with"), "{err}");
}

#[test]
fn stats_count_subnormals_and_what_is_close_to_overflow() {
    let scratch = overflow("stats", [6e-6, 40000.0, 0.0, -1.0]);
    let (code, out, err) = scratch.run(&["--stats"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let row = |name: &str| {
        let line =
            out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{out}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // numbers, least, largest, smallest above 0, zeros, subnormal, near overflow, inf or NaN
    let input = row("%x input: f16[2, 2]").split_off(4);
    assert_eq!(input[..3], ["4", "-1", "40000"]);
    assert_eq!(input[4..10], ["25.00", "%", "25.00", "%", "25.00", "%"]);
    assert_eq!(input[10], "0");
    assert!(out.contains("\ndtype ") && row("f16")[1] == "20", "{out}");
}

#[test]
fn u10_warnings_are_shown_by_the_tool() {
    let program = "graph @crossed(%p: f32[4, 1] grad, %t: f32[4]) {
  %0 = mse_loss %p, %t : f32[]
  %1 = grad %0, [%p] : f32[4, 1]
  return loss = %0, dp = %1
}
";
    let zeros = |shape: &[usize]| Tensor::new(shape, &[0f32; 4]).unwrap();
    let scratch = Scratch::new("warned", program, &[("p", zeros(&[4, 1])), ("t", zeros(&[4]))]);
    let (code, _, err) = scratch.run(&["--outputs", &scratch.path("out.npz")]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        err.starts_with("warning: @crossed: %0 mse_loss (") && err.contains("f.tc:2)"),
        "{err}"
    );
    assert!(err.contains("shapes [4, 1] and [4] are broadcast to [4, 4]"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn u6_figures_of_the_readme_are_those_of_the_tool() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let (code, out, err) = tool(&["train"]);
    assert_eq!(code, Some(0), "{err}");
    // Times are those of a machine.
    let figures = |text: &str, mode: &str| {
        let row = text.lines().find(|line| line.split_whitespace().next() == Some(mode));
        let row = row.unwrap_or_else(|| panic!("no row of {mode} in\n{text}"));
        let mut cells: Vec<String> = row.split_whitespace().map(str::to_owned).collect();
        cells.drain(2..4);
        cells
    };
    for mode in ["f32", "bf16", "f16"] {
        let [read, found] = [figures(&readme, mode), figures(&out, mode)];
        assert_eq!(
            read, found,
            "mode, accuracy, kernels, casts, saved bytes, skipped steps, scale"
        );
    }
    let heading = |text: &str| text.lines().find(|l| l.starts_with("mode ")).map(squeezed);
    assert_eq!(heading(&readme), heading(&out));
}

/// The words of a line.
fn squeezed(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// What a release ships beside the tool.
#[test]
fn completions_and_manual_pages_know_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (code, script, _) = tool(&["completions", shell]);
        assert!(code == Some(0) && script.contains("serve-bench"), "{shell}: {script}");
    }
    let (code, page, _) = tool(&["man"]);
    assert!(code == Some(0) && page.contains("tracecast\\-serve\\-bench"), "{page}");
    let (code, page, _) = tool(&["man", "train"]);
    assert!(code == Some(0) && page.contains("\\-\\-data"), "{page}");
    let (code, _, error) = tool(&["man", "trian"]);
    assert!(code == Some(2) && error.contains("`train`"), "{error}");
}
