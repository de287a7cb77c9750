//! The commands of the README, the guide and the other pages run, and print what the page shows.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tracecast_ir::{DType, TensorType};
use tracecast_runtime::{Tensor, npz};

/// The program `step.tc` of the pages, whose `exp` overflows on the input of [`Scratch`].
const STEP: &str = "graph @step(%x: f16[2, 2]) {
  %0 = mul %x, none {scalar = 2.0} : f16[2, 2]
  %1 = exp %0 : f16[2, 2]
  return y = %1
}
";

/// A policy set with one rule of its own.
const POLICY: &str =
    "tables = [\"torch-cpu\"]\n\n[[rule]]\nop = \"softmax\"\npolicy = \"lower_precision_fp\"\n";

/// What stands on a page for a thing of the reader's, and what it is here.
const PLACES: [(&str, &str); 15] = [
    ("FILE", "examples/mlp.tc"),
    ("FILE.npz", "labelled.npz"),
    ("FILE.svg", "loss.svg"),
    ("FILE.tc", "examples/mlp.tc"),
    ("FILE.toml", "mine.toml"),
    ("FOLDER", "saved"),
    ("IN.npz", "mlp.npz"),
    ("MODEL.pt2", "model.pt2"),
    ("NAME", "gelu"),
    ("OP", "gelu"),
    ("PASS", "fuse"),
    ("x.npz", "labelled.npz"),
    // The tool alone has no such device, and no test needs ten seconds.
    ("npu", "cpu"),
    ("npu:0", "cpu"),
    ("10", "0.1"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A folder with the files that the pages name.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("tracecast-pages-{}", std::process::id()));
        fs::create_dir_all(folder.join("examples")).unwrap();
        let write = |name: &str, arrays: &[(&str, &Tensor)]| {
            npz::write(folder.join(name), arrays.iter().copied()).unwrap();
        };
        let x = Tensor::new([2, 2], &[-3f32, 0.0, 6.0, 6e-6]).unwrap().cast(DType::F16).unwrap();
        let words = |rows: usize| {
            let words = TensorType::new(DType::I64, [rows, 12]);
            Tensor::from_fn(words, |i| (i % 5) as f64).unwrap()
        };
        write("in.npz", &[("x", &x)]);
        write("model.npz", &[("args_0", &words(2))]);
        let labels = Tensor::new([8], &[0i64, 1, 0, 1, 0, 1, 0, 1]).unwrap();
        write("labelled.npz", &[("x", &words(8)), ("y", &labels)]);
        let [x, hidden, bias, out, out_bias] =
            [&[8, 64][..], &[128, 64], &[128], &[10, 128], &[10]]
                .map(|shape| Tensor::zeros(TensorType::new(DType::F32, shape)).unwrap());
        let hidden = [("x", &x), ("label", &labels), ("hidden.weight", &hidden)];
        let out = [("hidden.bias", &bias), ("out.weight", &out), ("out.bias", &out_bias)];
        write("mlp.npz", &[hidden, out].concat());
        fs::write(folder.join("step.tc"), STEP).unwrap();
        fs::write(folder.join("mine.toml"), POLICY).unwrap();
        let copy = |from: &str, to: &str| fs::copy(root().join(from), folder.join(to)).unwrap();
        copy("examples/mlp.tc", "examples/mlp.tc");
        copy("tests/data/pt2/net_gru.pt2", "model.pt2");
        Scratch(folder)
    }

    /// Runs a command: its exit code, and what it prints.
    fn run(&self, arguments: &[String]) -> (Option<i32>, String) {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_tracecast"));
        let ran = tool.current_dir(&self.0).args(arguments).output().unwrap();
        let printed = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (ran.status.code(), printed.concat())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The arguments of a command as a shell divides them, in the files of [`Scratch`].
fn arguments(command: &str) -> Vec<String> {
    let command = command.split(" # ").next().unwrap();
    let words = command.split_whitespace().skip(1).map(|word| word.trim_matches('\''));
    words
        .map(|word| PLACES.iter().find(|(place, _)| *place == word).map_or(word, |(_, is)| is))
        .map(str::to_owned)
        .collect()
}

/// A command of a page, and the lines that the page shows behind it.
struct Shown {
    place: String,
    command: String,
    lines: Vec<String>,
}

/// The commands of a page: those of its blocks, and those within its sentences.
fn commands(page: &str) -> Vec<Shown> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let mut all: Vec<Shown> = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{page}:{}", number + 1);
        if line.starts_with("```") {
            fenced = !fenced;
            // Lines behind the block belong to no command.
            all.push(Shown { place, command: String::new(), lines: Vec::new() });
        } else if !fenced {
            let codes = line.split('`').skip(1).step_by(2);
            let codes =
                codes.filter(|code| code.starts_with("tracecast ") && !code.contains(['|', '=']));
            all.extend(codes.map(|code| Shown {
                place: place.clone(),
                command: code.to_owned(),
                lines: Vec::new(),
            }));
        } else if let Some(command) = line.strip_prefix("$ ") {
            all.push(Shown { place, command: command.to_owned(), lines: Vec::new() });
        } else if let Some(last) = all.last_mut() {
            last.lines.push(line.to_owned());
        }
    }
    all.retain(|shown| shown.command.starts_with("tracecast "));
    all
}

/// The words of a line; numbers are left out where they are times.
fn words(line: &str, timed: bool) -> Vec<&str> {
    let words = line.split_whitespace();
    words.filter(|word| !timed || word.parse::<f64>().is_err()).collect()
}

/// What is wrong with a command's exit code, or with what it prints.
fn fault(lines: &[String], timed: bool, code: Option<i32>, printed: &str) -> Option<String> {
    let fails = lines.iter().any(|line| line.starts_with("error: "));
    if code != Some(i32::from(fails)) {
        return Some(format!("ends with {code:?}"));
    }
    let mut rest = printed.lines();
    let mut is_printed = |line: &str| rest.any(|found| words(found, timed) == words(line, timed));
    let missing = lines.iter().find(|line| *line != "…" && !is_printed(line));
    missing.map(|line| format!("does not print\n{line}\n"))
}

#[test]
fn commands_of_the_pages_run_and_print_what_is_shown() {
    let scratch = Scratch::new();
    let guide = fs::read_dir(root().join("docs/guide")).unwrap();
    let mut pages: Vec<String> = guide
        .map(|entry| format!("docs/guide/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    let others = ["autocast", "codegen", "contractions", "devices", "pytorch"];
    pages.extend(others.map(|page| format!("docs/{page}.md")));
    pages.push("README.md".to_owned());
    pages.sort();
    let (mut done, mut with_lines, mut faults) = (BTreeSet::new(), 0, String::new());
    for Shown { place, command, lines } in pages.iter().flat_map(|page| commands(page)) {
        let mut arguments = arguments(&command);
        // A command that is only named: its help knows it.
        if arguments.len() == 1 && lines.is_empty() {
            arguments.push("--help".to_owned());
        }
        if !done.insert(arguments.clone()) && lines.is_empty() {
            continue;
        }
        with_lines += usize::from(!lines.is_empty());
        let (code, printed) = scratch.run(&arguments);
        if let Some(fault) = fault(&lines, arguments[0] == "profile", code, &printed) {
            writeln!(faults, "{place}: `{command}` {fault}, it printed\n{printed}").unwrap();
        }
    }
    assert!(faults.is_empty(), "{faults}");
    assert!(done.len() >= 30 && with_lines >= 6, "{} commands, {with_lines} shown", done.len());
}
