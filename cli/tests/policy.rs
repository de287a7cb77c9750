//! `tracecast policy`, run as a program.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

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
    // A table stands for PyTorch's set with it.
    assert_eq!(stdout(&["diff", "cpu", &set]), "+ op gelu on cuda: fp32\n");
    let torchax = stdout(&["diff", "standard", "torchax"]);
    assert!(
        torchax.starts_with("privateuse1: privateuse1 2.15.0 -> torchax b2d44f0d\n"),
        "{torchax}"
    );
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

#[test]
fn the_lists_of_the_torchscript_pass_are_a_table_too() {
    let help = stdout(&["show", "--help"]);
    assert!(help.contains("torchscript") && refusal(&["show", "x"], 2).contains("torchscript"));
    let text = stdout(&["show", "torchscript", "--toml"]);
    let path = file("script.toml", &text.replace("\"mm\",", ""));
    assert_eq!(stdout(&["diff", "torchscript", &path]), "mm: lower_precision -> not listed\n");
    assert!(stdout(&["check", &path]).contains("TorchScript lists torchscript 2.15.0, 90 ops"));
    for other in ["cpu", "standard"] {
        assert!(
            refusal(&["diff", "torchscript", other], 2).contains("in classes, not in policies")
        );
    }
}

#[test]
fn keys_and_not_lines_tell_tables_from_sets() {
    let text = stdout(&["show", "cpu", "--toml"]);
    let table = file("quoted.toml", &text.replace("device = ", "\"device\" = "));
    assert_eq!(stdout(&["diff", "cpu", &table]), "no difference\n");
    let rules = "rule = [\n  { op = \"gelu\",\n    policy = \"fp32\",\n    device = \"cpu\" }\n]\n";
    let set = file("inline.toml", rules);
    assert_eq!(stdout(&["diff", "standard", &set]), "+ op gelu on cpu: fp32\n");
}

#[test]
fn check_reads_standard_input_and_fails_for_warnings_if_asked() {
    let check = |text: &str, more: &[&str]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tracecast"))
            .args(["policy", "check", "-"])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the tool runs");
        let mut stdin = child.stdin.take().expect("it is a pipe");
        stdin.write_all(text.as_bytes()).expect("the tool reads");
        drop(stdin);
        let output = child.wait_with_output().expect("the tool ends");
        let text = |bytes| String::from_utf8(bytes).expect("the tool writes UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (good, odd) =
        ("[[rule]]\nop = \"mm\"\npolicy = \"fp32\"\n", "[[rule]]\nop = \"*\"\npolicy = \"fp32\"\n");
    let (code, out, err) = check(good, &["--deny-warnings"]);
    assert!(
        code == Some(0) && out.starts_with("<stdin>: a policy set of 1 rule\n") && err.is_empty()
    );
    let (code, _, err) = check(odd, &[]);
    assert!(
        code == Some(0)
            && err.starts_with("warning: <stdin>: line 2, column 6: `op` takes no pattern")
    );
    let (code, _, err) = check(odd, &["--deny-warnings"]);
    assert!(
        code == Some(1)
            && err.ends_with("error: <stdin>: 1 warning, and --deny-warnings is given\n"),
        "{err}"
    );
}

#[test]
fn a_program_takes_a_table_in_the_place_of_pytorchs_and_refuses_what_an_op_cannot_follow() {
    let program = file(
        "head.tc",
        "graph @head(%x: f32[4, 4]) {\n  %0 = matmul %x, %x : f32[4, 4]\n  return y = %0\n}\n",
    );
    let explain = |policy: &str| {
        let arguments = ["explain", &program, "--autocast", "cpu:bf16", "--policy", policy];
        Command::new(env!("CARGO_BIN_EXE_tracecast"))
            .args(arguments)
            .output()
            .expect("the tool runs")
    };
    let table = "name = \"mine\"\ndevice = \"cpu\"\nversion = \"1\"\n[ops]\nmatmul = \"fp32\"\n";
    let output = explain(&file("mine.toml", table));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("(mine/matmul:fp32)"), "{said}");
    let output = explain(&file("lists.toml", &stdout(&["show", "torchscript", "--toml"])));
    assert!(String::from_utf8_lossy(&output.stderr).contains("decide about no traced program"));
    for policy in ["fp32_set_opt_dtype", "fp32_append_dtype"] {
        let output =
            explain(&file(policy, &format!("[[rule]]\nop = \"matmul\"\npolicy = \"{policy}\"\n")));
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = format!(
            "error: matmul: rule/op matmul:{policy} gives it the argument `dtype`, which it does not have"
        );
        assert!(output.status.code() == Some(1) && said.starts_with(&expected), "{said}");
        assert!(said.contains("head.tc:2"), "{said}");
    }
}
