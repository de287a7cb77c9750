//! PyTorch's answers to calls of its operators, against ours: results, gradients and refusals, on every path.
//!
//! `tests/data/opinfo` has the calls, and beside each file of calls a text that says what came of it: which answers are PyTorch's, which
//! differ and in what, and which operators are not here at all. `TRACECAST_BLESS=1` writes it. No difference is taken without a row of
//! `docs/parity.md`; `known` says which differences a row speaks of.

#![allow(clippy::unwrap_used, reason = "recorded data that cannot be read is a failed test")]

mod calls;
mod cases;
mod compare;
mod known;
mod report;
mod run;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;

/// NaN, infinities, signed zeros, subnormal and largest numbers, ends of integers, ties: binary operators get all pairs.
#[test]
fn special_numbers_are_answered_as_pytorch_does_or_the_difference_is_named() {
    compare("special");
}

/// Compares the calls of a file, and what came of them with the text beside it.
fn compare(name: &str) {
    let cpus = run::cpus();
    let mut report = report::Report::default();
    for case in cases::read(&format!("{name}.jsonl.gz")) {
        report.note(&case, run::run(&case, &cpus));
    }
    assert!(report.unnamed.is_empty(), "no row of docs/parity.md:\n{}", report.unnamed.join("\n"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/opinfo");
    let path = folder.join(format!("{name}.txt"));
    let (found, known) = (report.to_string(), std::fs::read_to_string(&path).unwrap_or_default());
    if std::env::var_os("TRACECAST_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    } else if let Some((a, b)) = first_difference(&found, &known) {
        panic!("{} is not what came out:\n  now {a}\n  was {b}", path.display());
    }
    report.every_row_is_needed();
}

fn first_difference<'a>(found: &'a str, known: &'a str) -> Option<(&'a str, &'a str)> {
    let (mut found, mut known) = (found.lines(), known.lines());
    loop {
        match (found.next(), known.next()) {
            (None, None) => return None,
            (a, b) if a != b => return Some((a.unwrap_or("(end)"), b.unwrap_or("(end)"))),
            _ => {}
        }
    }
}

#[test]
fn every_named_difference_is_a_row_of_the_page() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/parity.md"));
    let page = page.unwrap();
    for known in known::ALL {
        let row = format!("\n| {} | ", known.row);
        assert!(page.contains(&row), "docs/parity.md has no row {row:?}");
    }
}
