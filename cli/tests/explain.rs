//! `tracecast explain` as its users meet it: the whole program, one node, JSON, a page.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use std::path::Path;
use std::process::Command;

/// Runs the tool on an example: exit code, standard output, standard error.
fn explain(arguments: &[&str]) -> (Option<i32>, String, String) {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/mlp.tc");
    let output = Command::new(env!("CARGO_BIN_EXE_tracecast"))
        .arg("explain")
        .arg(example)
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn every_op_and_every_cast_has_a_reason_and_a_home() {
    let (code, text, error) = explain(&["--autocast", "cpu:bf16"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    for said in [
        "casts: 13 (13 inside kernels); 0 bytes moved for them",
        "operands are cast to bf16 (torch-cpu/linear:lower_precision_fp), region #1",
        "%hidden.weight f32 -> bf16: pack of @contract_add_cast_relu; moves 0 of 49152 bytes",
    ] {
        assert!(text.contains(said), "expected `{said}` in: {text}");
    }
    let (_, plain, _) = explain(&[]);
    assert!(!plain.contains("lower_precision_fp") && !plain.contains("region #1"), "{plain}");
}

#[test]
fn one_node_is_a_part_of_the_whole() {
    let (_, whole, _) = explain(&["--autocast", "cpu:bf16"]);
    let (code, part, _) = explain(&["2", "--autocast", "cpu:bf16"]);
    assert!(
        code == Some(0) && part.starts_with("%2 (%logits) linear") && part.contains("in memory: "),
        "{part}"
    );
    assert!(part.lines().all(|line| whole.contains(line)), "{part}");
    let (code, out, error) = explain(&["nosuch", "--autocast", "cpu:bf16"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(error.starts_with("error: @mlp has no node `nosuch`"), "{error}");
}

#[test]
fn a_node_may_be_asked_for_by_its_name_in_the_file() {
    let path = std::env::temp_dir().join(format!("tracecast-names-{}.tc", std::process::id()));
    let text = "graph @f(%x: f32[4]) {\n  %hidden = exp %x : f32[4]\n  %y = neg %hidden : f32[4]\n  return y = %y\n}\n";
    std::fs::write(&path, text).unwrap();
    let output = |node| {
        let command = [Path::new("explain"), path.as_path(), Path::new(node)];
        Command::new(env!("CARGO_BIN_EXE_tracecast")).args(command).output().unwrap()
    };
    for node in ["%hidden", "hidden", "%0"] {
        let told = String::from_utf8(output(node).stdout).unwrap();
        assert!(told.starts_with("%0 (%hidden) exp") && !told.contains("neg"), "{node}: {told}");
    }
    let error = String::from_utf8(output("%hiden").stderr).unwrap();
    assert!(error.contains("did you mean `hidden`?"), "{error}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn json_and_the_page_hold_the_same_ops() {
    let page = std::env::temp_dir().join(format!("tracecast-explain-{}.html", std::process::id()));
    let path = page.to_str().unwrap();
    let (code, json, _) = explain(&["--autocast", "cpu:bf16", "--json", "--html", path]);
    assert_eq!(code, Some(0));
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    let ops = found["ops"].as_array().unwrap();
    assert_eq!((ops.len(), &found["standalone_casts"]), (5, &0.into()));
    let html = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") || html.starts_with("<!doctype html>"));
    assert!(!html.contains("http") && !html.contains("<script"), "it needs nothing from outside");
    for op in ops {
        let because = op["because"].as_str().unwrap();
        assert!(html.contains(because), "expected `{because}` in the page");
    }
}

#[test]
fn control_characters_of_a_file_are_shown_and_not_obeyed() {
    let evil = "\\u{1b}[31m\\u{9b}\\u{202e}";
    let program = format!(
        "region #1 = {{cpu: bf16}} cache on scope 1\ngraph @\"g{evil}\"(%\"x{evil}\": f32[2, 2]) {{\n  \
         %0 = matmul %\"x{evil}\", %\"x{evil}\" : bf16[2, 2] @#1 in \"m{evil}\" at \"f{evil}:1:1\"\n  return \"y{evil}\" = %0\n}}\n"
    );
    let bad = program.replace("matmul", "matmull").replace("bf16[2, 2]", "bf16[2]");
    let obeyed = |c: char| c == '\u{202e}' || (c.is_control() && c != '\n');
    for (program, name) in [(program, "good"), (bad, "bad")] {
        let file = format!("tracecast-escapes-{}-{name}.tc", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, &program).unwrap();
        for arguments in
            [&["explain"][..], &["explain", "--json"], &["dump", "--at", "--after-all"]]
        {
            let mut tool = Command::new(env!("CARGO_BIN_EXE_tracecast"));
            let output = tool.args(arguments).arg(&path).output().unwrap();
            let [out, err] = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
            assert!(!out.contains(obeyed) && !err.contains(obeyed), "{arguments:?}: {out}{err}");
            assert_eq!(output.status.success(), name == "good", "{arguments:?}: {err}");
            assert!(name == "bad" || out.contains("[31m"), "{arguments:?}: {out}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
