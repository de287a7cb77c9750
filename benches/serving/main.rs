//! How programs serve: what a run waits for, what threads get from one set of weights, and whether
//! hours change anything.
//!
//! ```sh
//! cargo bench --bench serving -- waits           # runs of a known program while another thread compiles
//! cargo bench --bench serving -- threads         # throughput of two threads against one
//! cargo bench --bench serving -- memory          # eight threads against one, over 33.5 MB of weights
//! cargo bench --bench serving -- wide            # many numbers, operands, ports and rules
//! cargo bench --bench serving -- soak 600        # mixed sizes and threads, new weights once a second; 7200 for two hours
//! ```
//!
//! Without a name all of them run, the last one for ten seconds. Each says what it wants and
//! whether that is so; the exit code is 1 if it is not. The figures are those of a machine that
//! does nothing else meanwhile.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program of its own")]

mod memory;
mod soak;
mod threads;
mod waits;
mod wide;

use std::process::ExitCode;
use std::time::Duration;
use tracecast::prelude::*;

/// What went wrong, in words.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// True if what was measured is as it is to be.
type Verdict = Result<bool, Failure>;

const USAGE: &str =
    "usage: cargo bench --bench serving -- [waits | threads | memory | wide | soak SECONDS]";

fn main() -> ExitCode {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let is_bench = all.iter().any(|arg| arg == "--bench");
    let asked: Vec<&str> =
        all.iter().map(String::as_str).filter(|a| !a.starts_with("--")).collect();
    match run(&asked, is_bench) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(asked: &[&str], is_bench: bool) -> Verdict {
    // A test of the bench does with a few runs, and no clock decides.
    let few = !is_bench;
    match asked {
        [] => {
            let own = [waits::run(few)?, threads::run(few)?, memory::run(few)?, wide::run(few)?];
            let soaked = soak::run(Duration::from_secs(if few { 1 } else { 10 }), few)?;
            Ok(few || (own.into_iter().all(|well| well) && soaked))
        }
        ["waits"] => waits::run(few),
        ["threads"] => threads::run(few),
        ["memory"] => memory::run(few),
        [memory::CHILD, threads] => memory::child(threads.parse()?),
        ["wide"] => wide::run(few),
        ["soak", seconds] => soak::run(Duration::from_secs(seconds.parse()?), few),
        _ => Err(USAGE.into()),
    }
}

/// Tells whether a figure is as it is to be.
fn tell(well: bool, wanted: &str) -> bool {
    println!("{}: {wanted}", if well { "as wanted" } else { "NOT as wanted" });
    well
}

/// A network of two layers on the input `x`.
fn layers(t: &Trace) {
    let hidden = t.input("x").matmul(t.param("w1")).relu();
    t.output("y", hidden.matmul(t.param("w2")).softmax(-1));
}

/// The weights of [`layers`].
fn weights(wide: usize, hidden: usize) -> tracecast::Result<Store> {
    let w1 = Tensor::rand([wide, hidden], 1)?;
    Ok(Store::new().with("w1", w1).with("w2", Tensor::rand([hidden, wide], 2)?))
}

/// The bytes of memory that the process has, where the system tells.
fn resident() -> Result<usize, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number
        .ok_or("the system does not tell how much memory the process has")?
        .parse::<usize>()?
        * 1024)
}
