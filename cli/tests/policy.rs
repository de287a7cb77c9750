//! `tracecast policy`, run as a program.

use std::fs;
use std::process::{Command, Output};

fn policy(arguments: &[&str]) -> Output {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_tracecast"));
    tool.arg("policy").args(arguments).output().expect("the tool runs")
}

fn stdout(arguments: &[&str]) -> String {
    let output = policy(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the tool writes UTF-8")
}

/// What the tool says when it fails with this code.
fn refusal(arguments: &[&str], code: i32) -> String {
    let output = policy(arguments);
    assert_eq!(output.status.code(), Some(code));
    String::from_utf8(output.stderr).expect("the tool writes UTF-8")
}

fn file(name: &str, text: &str) -> String {
    let path = std::env::temp_dir().join(format!("tracecast-policy-{}-{name}", std::process::id()));
    fs::write(&path, text).expect("the folder for temporary files can be written");
    path.to_str().expect("the path is UTF-8").to_owned()
}

#[test]
fn show_writes_tables_and_files_that_read_back() {
    let cpu = stdout(&["show", "cpu"]);
    assert!(
        cpu.starts_with("torch-cpu 2.15.0 for cpu, low dtype bf16 by default: 126 ops\n"),
        "{cpu}"
    );
    assert!(
        cpu.contains("\nlower_precision_fp, 24 ops\n") && cpu.contains("\n  conv1d.padding\n"),
        "{cpu}"
    );
    assert!(stdout(&["show", "torchax"]).contains("f64 is cast too"));
    assert!(stdout(&["show", "torchscript"]).contains("\nwidest, 15 ops\n"));
    let text = stdout(&["show", "cuda", "--toml"]);
    let path = file("cuda.toml", &text);
    assert_eq!(stdout(&["diff", "cuda", &path]), "no difference\n");
    assert!(stdout(&["check", &path]).ends_with("table torch-cuda 2.15.0 for cuda, 120 ops\n"));
    assert!(refusal(&["show", "tpu"], 2).contains("cpu, cuda"));
}

#[test]
fn diff_writes_one_line_a_change() {
    let lines = stdout(&["diff", "cpu", "cuda"]);
    assert!(lines.contains("\nbinary_cross_entropy: fp32 -> banned\n"), "{lines}");
    assert!(lines.contains("\nexp: not listed -> fp32\n"), "{lines}");
    let set = file("set.toml", "[[rule]]\nop = \"gelu\"\ndevice = \"cuda\"\npolicy = \"fp32\"\n");
    assert_eq!(stdout(&["diff", "standard", &set]), "+ op gelu on cuda: fp32\n");
    assert!(refusal(&["diff", "cpu", &set], 2).contains("cannot be compared"));
}

#[test]
fn check_names_the_line_and_warns_of_unknown_ops() {
    let bad = file("bad.toml", "[[rule]]\nop = \"gelu\"\npolicy = \"fp23\"\n");
    assert!(refusal(&["check", &bad], 1).contains("line 3, column 10: unknown policy `fp23`"));
    let custom = file("custom.toml", "[[rule]]\nop = \"gelo\"\npolicy = \"fp32\"\n");
    let output = policy(&["check", &custom]);
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = format!(
        "warning: {custom}: line 2, column 6: no op has the name `gelo`: did you mean `gelu`"
    );
    assert!(said.starts_with(&expected), "{said}");
}

#[test]
fn check_warns_of_rules_without_effect() {
    let rule = |lines: &str| format!("[[rule]]\n{lines}\n");
    let text = rule("op = \"mm\"\npolicy = \"fp32\"")
        + &rule("op = \"mm\"\npolicy = \"fp32\"")
        + &rule("op = \"mm\"\ndevice = \"cpu\"\npolicy = \"promote\"");
    let path = file("twice.toml", &text);
    let output = policy(&["check", &path]);
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("line 2, column 6: `op mm: fp32` is said again on line 5"), "{said}");
    let good = file("good.toml", &rule("op = \"gelu\"\npolicy = \"fp32\""));
    let output = policy(&["check", &good]);
    assert!(output.status.success() && output.stderr.is_empty());
}
