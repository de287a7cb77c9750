//! PyTorch's answers to calls of its operators and layers, against ours: values, dtypes, shapes,
//! gradients, refusals and casts under autocast, interpreted and compiled.
//!
//! `tests/data/opinfo` has the calls, a file for each family, and beside it a text that says what
//! came of them: how many answers are PyTorch's, which differ and in what, and what is refused or
//! not here at all. `TRACECAST_BLESS=1` writes it. No difference is taken without a row of
//! `docs/parity.md`; `known` says which differences a row speaks of.
//!
//! `TRACECAST_OPINFO=DIR` takes the files of another folder, `TRACECAST_OPINFO_OPS=a,b` some
//! operators: then the table is printed (`--nocapture` shows it) and compared with no text.

#![allow(clippy::unwrap_used, reason = "recorded data that cannot be read is a failed test")]
#![allow(clippy::print_stdout, reason = "the table is for who runs the test")]

/// A list of names.
macro_rules! names {
    ($($name:literal)*) => { &[$($name),*] };
}

mod arguments;
mod aten;
mod calls;
mod cases;
mod compare;
mod ends;
mod functions;
mod known;
mod layers;
mod report;
mod run;
#[path = "../support/mod.rs"]
mod support;
mod ties;

use cases::Case;
use report::Report;
use run::{Ran, Runner};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The folder of the recorded calls.
const OURS: &str = "tests/data/opinfo";

#[test]
fn recorded_calls_are_answered_as_pytorch_does_or_the_difference_is_named() {
    let other = std::env::var_os("TRACECAST_OPINFO").map(PathBuf::from);
    let some = std::env::var("TRACECAST_OPINFO_OPS").ok();
    let some: Option<Vec<&str>> = some.as_deref().map(|ops| ops.split(',').collect());
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join(OURS);
    let reports = run_all(other.as_deref().unwrap_or(&ours), some.as_deref());
    let unnamed: Vec<String> = reports.iter().flat_map(|report| report.unnamed.clone()).collect();
    print(&reports);
    if other.is_none() && some.is_none() {
        reports.iter().for_each(|report| compare_text(&ours, report));
        let rows: BTreeSet<&str> = reports.iter().flat_map(Report::rows).collect();
        let idle = known::rows().find(|row| !rows.contains(row));
        assert_eq!(idle, None, "nothing differs by that row of docs/parity.md");
    }
    assert!(
        unnamed.is_empty(),
        "{} differences have no row of docs/parity.md:\n{}",
        unnamed.len(),
        unnamed.join("\n")
    );
}

/// Runs the calls of a folder, those of one operator one after the other, on as many threads as
/// there are cores.
fn run_all(folder: &Path, some: Option<&[&str]>) -> Vec<Report> {
    let mut work: Vec<(usize, Vec<(usize, Case)>)> = Vec::new();
    let mut families = Vec::new();
    for (family, name) in names(folder).into_iter().enumerate() {
        let mut by_op: BTreeMap<String, Vec<(usize, Case)>> = BTreeMap::new();
        let cases = cases::read(&folder.join(format!("{name}.jsonl.gz")));
        let is_wanted = |case: &Case| some.is_none_or(|some| some.contains(&case.op.as_str()));
        for (i, case) in cases.into_iter().enumerate().filter(|(_, case)| is_wanted(case)) {
            by_op.entry(case.op.clone()).or_default().push((i, case));
        }
        work.extend(by_op.into_values().map(|cases| (family, cases)));
        families.push(Report::new(name));
    }
    let work = Mutex::new(work.into_iter());
    let done = Mutex::new(Vec::new());
    let next = || work.lock().unwrap().next();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((family, cases)) = next() {
                    let mut runner = Runner::new();
                    let ran = cases.into_iter().map(|(i, case)| {
                        let ran = runner.run(&case);
                        (i, case, ran)
                    });
                    let ran: Vec<(usize, Case, Ran)> = ran.collect();
                    done.lock().unwrap().push((family, ran, runner.programs()));
                }
            });
        }
    });
    let mut all: Vec<Vec<(usize, Case, Ran)>> = families.iter().map(|_| Vec::new()).collect();
    for (family, ran, programs) in done.into_inner().unwrap() {
        families[family].programs += programs;
        all[family].extend(ran);
    }
    for (report, mut ran) in families.iter_mut().zip(all) {
        ran.sort_by_key(|(i, ..)| *i);
        ran.into_iter().for_each(|(_, case, ran)| report.note(&case, ran));
    }
    families
}

/// The families of a folder, in order of the alphabet.
fn names(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let name = |file: std::io::Result<std::fs::DirEntry>| {
        let name = file.unwrap().file_name().into_string().unwrap();
        name.strip_suffix(".jsonl.gz").map(str::to_owned)
    };
    let mut names: Vec<String> = files.filter_map(name).collect();
    names.sort();
    assert!(!names.is_empty(), "{} has no recorded calls", folder.display());
    names
}

/// The tables of all families, and their sum.
fn print(reports: &[Report]) {
    let mut total = report::Counts::default();
    for report in reports {
        println!("{report}");
        total += report.total();
    }
    println!("\n{}", report::HEAD);
    reports.iter().for_each(|report| println!("| {} | {} |", report.name, report.total()));
    println!("| all | {total} |");
    let programs: usize = reports.iter().map(|report| report.programs).sum();
    println!("{programs} programs were compiled.");
}

/// Compares what came of a family with the text beside its calls.
fn compare_text(folder: &Path, report: &Report) {
    let path = folder.join(format!("{}.txt", report.name));
    let (found, known) = (report.to_string(), std::fs::read_to_string(&path).unwrap_or_default());
    if std::env::var_os("TRACECAST_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    } else if let Some((a, b)) = first_difference(&found, &known) {
        panic!("{} is not what came out:\n  now {a}\n  was {b}", path.display());
    }
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
    for row in known::rows() {
        let row = format!("\n| {row} | ");
        assert!(page.contains(&row), "docs/parity.md has no row {row:?}");
    }
}
