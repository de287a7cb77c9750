//! Both sides in one sitting: every case in a process of its own, alternating with those of the
//! peers.

use crate::workloads::Case;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// The peers that `workloads.py` knows.
const PEERS: [&str; 3] = ["torch", "torch-compile", "jax"];

/// So often each side of a case runs.
const ROUNDS: usize = 3;

/// Measures cases and prints a line for each: the medians, and their ratio to the best peer.
///
/// # Errors
/// If a process of ours fails. A peer that fails has no column.
pub(crate) fn print(
    cases: &[Case],
    budget: Duration,
    python: Option<&str>,
    json: bool,
) -> Result<(), String> {
    let rounds = if python.is_some() { ROUNDS } else { 1 };
    let share = budget / rounds as u32;
    if !json {
        println!(
            "{:<10} {:<5} {:>11} {:>11} {:>11} {:>11} {:>7} {:>8} {:>8} {:>9}",
            "workload",
            "dtype",
            "tracecast",
            "torch",
            "compiled",
            "jax",
            "ratio",
            "first",
            "peak",
            "check"
        );
    }
    for case in cases {
        let mut ours = Vec::new();
        let mut theirs: Vec<Vec<Value>> = vec![Vec::new(); PEERS.len()];
        for round in 0..rounds {
            ours.push(ourselves(case, share)?);
            for (peer, lines) in PEERS.iter().zip(&mut theirs) {
                let failed = round > 0 && lines.is_empty();
                if let Some(python) = python.filter(|_| !failed) {
                    lines.extend(peer_line(python, peer, case, share));
                }
            }
        }
        if json {
            ours.iter().chain(theirs.iter().flatten()).for_each(|line| println!("{line}"));
        } else {
            println!("{}", row(case, &ours, &theirs));
        }
    }
    Ok(())
}

/// One measurement as a sentence.
pub(crate) fn sentence(line: &Value) -> String {
    format!(
        "{} {} on {} threads: median {} ms, least {} ms of {} runs; first call {} s; {} MB at most; check {}",
        line["workload"].as_str().unwrap_or_default(),
        line["dtype"].as_str().unwrap_or_default(),
        line["threads"],
        line["median_ms"],
        line["min_ms"],
        line["runs"],
        line["first_call_s"],
        line["peak_mb"],
        line["check"],
    )
}

fn row(case: &Case, ours: &[Value], theirs: &[Vec<Value>]) -> String {
    let mine = median(ours, "median_ms");
    let peers: Vec<Option<f64>> = theirs.iter().map(|lines| median(lines, "median_ms")).collect();
    let best = peers.iter().flatten().copied().reduce(f64::min);
    let ms = |time: Option<f64>| time.map_or("–".to_owned(), |time| format!("{time:.3}"));
    let ratio =
        mine.zip(best).map_or("–".to_owned(), |(mine, best)| format!("{:.2}", mine / best));
    let times: Vec<String> = [mine].iter().chain(&peers).map(|time| ms(*time)).collect();
    format!(
        "{:<10} {:<5} {:>11} {:>11} {:>11} {:>11} {:>7} {:>7}s {:>6}MB {:>9}",
        case.workload,
        case.dtype.name(),
        times[0],
        times[1],
        times[2],
        times[3],
        ratio,
        median(ours, "first_call_s").unwrap_or(f64::NAN),
        median(ours, "peak_mb").unwrap_or(f64::NAN),
        agreement(ours, theirs),
    )
}

fn median(lines: &[Value], field: &str) -> Option<f64> {
    let mut values: Vec<f64> = lines.iter().filter_map(|line| line[field].as_f64()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The largest relative difference between a check of ours and one of a peer.
fn agreement(ours: &[Value], theirs: &[Vec<Value>]) -> String {
    let numbers = |line: &Value| -> Vec<f64> {
        line["check"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let mine = numbers(&ours[0]);
    let mut worst: Option<f64> = None;
    for line in theirs.iter().filter_map(|lines| lines.first()) {
        for (a, b) in mine.iter().zip(numbers(line)) {
            let off = (a - b).abs() / b.abs().max(f64::MIN_POSITIVE);
            worst = Some(worst.map_or(off, |worst| worst.max(off)));
        }
    }
    worst.map_or("–".to_owned(), |worst| format!("{worst:.1e}"))
}

fn ourselves(case: &Case, budget: Duration) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["--json", "--precision", case.precision.name()]);
    line(command, case, budget)
}

/// The script beside this file with one of its frameworks.
fn peer_line(python: &str, peer: &str, case: &Case, budget: Duration) -> Option<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/workloads.py");
    let mut command = Command::new(python);
    command.arg(script).args(["--peer", peer]);
    match line(command, case, budget) {
        Ok(line) => Some(line),
        Err(message) => {
            eprintln!("{peer} has no {} in {}: {message}", case.workload, case.dtype.name());
            None
        }
    }
}

fn line(mut command: Command, case: &Case, budget: Duration) -> Result<Value, String> {
    let seconds = budget.as_secs_f64().to_string();
    let threads = case.threads.to_string();
    command.args(["--workload", &case.workload, "--dtype", case.dtype.name()]);
    command.args(["--threads", &threads, "--budget", &seconds]);
    let output = command.output().map_err(|error| error.to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = || errors.lines().last().unwrap_or("no answer").to_owned();
    if !output.status.success() {
        return Err(last());
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    let found = printed.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    found.ok_or_else(last)
}
