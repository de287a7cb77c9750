//! The command-line tool with these chips.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// What the tool writes about a classifier, and whether all went well.
fn tool(arguments: &[&str]) -> (String, bool) {
    tool_on("../mlp.tc", arguments)
}

/// The same about another program.
fn tool_on(program: &str, arguments: &[&str]) -> (String, bool) {
    said(&[arguments, &[program]].concat())
}

fn said(arguments: &[&str]) -> (String, bool) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sim-npu"));
    let done = command.args(arguments).output().unwrap();
    let written = [done.stdout, done.stderr].concat();
    (String::from_utf8(written).unwrap(), done.status.success())
}

#[test]
fn programs_are_explained_and_shown_for_a_chip() {
    let (explained, ok) = tool(&["explain", "--device", "npu:1", "--autocast", "npu:bf16"]);
    assert!(ok && explained.contains("bf16"), "{explained}");
    for op in ["linear", "softmax"] {
        let line = explained.lines().find(|line| line.contains(op));
        assert!(line.is_some_and(|line| line.contains("bf16")), "{op}: {explained}");
    }
    let (shown, ok) = tool(&["dump", "--device", "npu:1", "--emit", "clif"]);
    assert!(ok && shown.contains("on npu:1") && shown.contains("= dot 64 of"), "{shown}");
}

#[test]
fn what_a_chip_has_no_code_for_is_made_of_what_it_has() {
    let on = |device: &str, arguments: [&str; 3]| {
        let (said, ok) =
            tool_on("tests/convolution.tc", &[&arguments[..], &["--device", device]].concat());
        assert!(ok, "{device}: {said}");
        said
    };
    for (device, is_whole) in [("npu:1", false), ("reference", true)] {
        let fused = on(device, ["dump", "--after", "fuse"]);
        assert_eq!(fused.contains("transposed convolution("), is_whole, "{device}: {fused}");
        assert_eq!(fused.contains("contraction("), !is_whole, "{device}: {fused}");
        let explained = on(device, ["explain", "--precision", "exact"]);
        assert_eq!(explained.contains("@convolution_transpose"), is_whole, "{device}: {explained}");
    }
    let code = on("npu:1", ["dump", "--emit", "clif"]);
    assert!(code.contains("= dot"), "{code}");
}

#[test]
fn chips_that_there_are_not_are_named() {
    for wrong in ["npu:2", "npu:", "tpu"] {
        let (error, ok) = tool(&["explain", "--device", wrong]);
        assert!(!ok && error.contains("npu:0, npu:1"), "{error}");
    }
}

/// The digits train on the smallest chips, and a fallback runs what those lack. Autocast regions of
/// the chips take bf16 and switch f16 off.
#[test]
fn digits_train_on_the_smallest_chips() {
    let step = ["train", "--device", "small", "--fallback", "reference"];
    let (written, ok) = said(&[&step[..], &["--epochs", "2", "--json"]].concat());
    assert!(ok && !written.contains("idle"), "{written}");
    assert!(written.contains("bf16"), "{written}");
    let (mut accuracies, mut saved) = (Vec::new(), Vec::new());
    for line in written.lines().filter(|line| line.starts_with('{')) {
        let of = |name: &str| {
            let (_, rest) = line.split_once(&format!("\"{name}\":")).unwrap();
            rest.split([',', '}']).next().unwrap().trim().parse::<f64>().unwrap()
        };
        accuracies.push(of("accuracy"));
        saved.push(of("saved_bytes"));
    }
    assert_eq!(accuracies.len(), 3, "{written}");
    assert!(accuracies.iter().all(|percent| *percent > 80.0), "{accuracies:?}");
    assert!(saved[1] < 0.6 * saved[0] && saved[2] > 0.9 * saved[0], "{saved:?}");
}
