//! The workloads that other frameworks run as well, see `workloads.py`: one line of JSON for a run,
//! or a table of ratios.
//!
//! ```sh
//! cargo bench --bench peers -- --workload softmax --dtype bf16 --threads 2 --json
//! cargo bench --bench peers -- --python venv/bin/python --threads 2
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program of its own")]

#[path = "../support/data.rs"]
mod data;
mod measure;
#[path = "../support/memory.rs"]
mod memory;
mod operators;
#[path = "../support/programs.rs"]
mod programs;
mod table;
#[path = "../support/transformer.rs"]
#[allow(dead_code, reason = "of the steps that others measure, the model alone is needed")]
mod transformer;
mod workloads;

use std::process::ExitCode;
use std::time::Duration;
use tracecast::Precision;
use tracecast::prelude::*;
use workloads::{Case, WORKLOADS};

/// The command line.
struct Asked {
    /// Empty for all.
    workloads: Vec<String>,
    /// Empty for all that the workload is defined in.
    dtypes: Vec<DType>,
    threads: usize,
    precision: Precision,
    budget: Duration,
    json: bool,
    python: Option<String>,
}

const USAGE: &str = "usage: cargo bench --bench peers -- [--workload NAME]... [--dtype f32|bf16|f16]... \
    [--threads N] [--precision exact|optimised] [--budget SECONDS] [--json | --python PATH] [--list]";

fn main() -> ExitCode {
    match asked(std::env::args().skip(1)).and_then(|asked| asked.map_or(Ok(()), run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// What the arguments ask for; nothing if they ask for a list, which is printed.
fn asked(mut args: impl Iterator<Item = String>) -> Result<Option<Asked>, String> {
    let mut asked = Asked {
        workloads: Vec::new(),
        dtypes: Vec::new(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        precision: Precision::Exact,
        budget: Duration::from_secs(12),
        json: false,
        python: None,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("`{arg}` needs a value\n{USAGE}"));
        match arg.as_str() {
            "--workload" => {
                let name = value()?;
                if !WORKLOADS.contains(&name.as_str()) {
                    let known = WORKLOADS.join(", ");
                    return Err(format!("no workload `{name}`: expected one of {known}"));
                }
                asked.workloads.push(name);
            }
            "--dtype" => asked.dtypes.push(match value()?.as_str() {
                "f32" => DType::F32,
                "bf16" => DType::BF16,
                "f16" => DType::F16,
                other => return Err(format!("expected f32, bf16 or f16, found `{other}`")),
            }),
            "--threads" => asked.threads = number(&arg, &value()?)?,
            "--precision" => asked.precision = value()?.parse()?,
            "--budget" => asked.budget = Duration::from_secs_f64(number(&arg, &value()?)?),
            "--json" => asked.json = true,
            "--python" => asked.python = Some(value()?),
            "--list" => {
                println!("{}", WORKLOADS.join("\n"));
                return Ok(None);
            }
            // Cargo adds it.
            "--bench" => {}
            other => return Err(format!("unknown argument `{other}`\n{USAGE}")),
        }
    }
    Ok(Some(asked))
}

fn number<T: std::str::FromStr>(arg: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{arg}` takes a number, found `{value}`"))
}

impl Asked {
    fn cases(&self) -> Vec<Case> {
        let all = WORKLOADS.map(str::to_owned);
        let workloads = if self.workloads.is_empty() { &all[..] } else { &self.workloads };
        let every = [DType::F32, DType::BF16, DType::F16];
        let mut cases = Vec::new();
        for workload in workloads {
            let defined = if workloads::only_f32(workload) { &every[..1] } else { &every[..] };
            let dtypes = if self.dtypes.is_empty() { defined } else { &self.dtypes };
            cases.extend(dtypes.iter().map(|dtype| Case {
                workload: workload.clone(),
                dtype: *dtype,
                threads: self.threads,
                precision: self.precision,
            }));
        }
        cases
    }
}

fn run(asked: Asked) -> Result<(), String> {
    let cases = asked.cases();
    if programs::folder().is_some() {
        return cases.iter().try_for_each(|case| workloads::workload(case).map(|mut w| w.step()));
    }
    match (&asked.python, cases.as_slice()) {
        (None, [case]) => {
            let line = one(case, asked.budget)?;
            if asked.json {
                println!("{line}");
            } else {
                println!("{}", table::sentence(&line));
            }
            Ok(())
        }
        _ => table::print(&cases, asked.budget, asked.python.as_deref(), asked.json),
    }
}

/// Measures a case in this process, which must not have measured any other: memory counts from
/// here.
fn one(case: &Case, budget: Duration) -> Result<serde_json::Value, String> {
    let start = jit(Options::new().threads(case.threads), |t| t.output("y", t.input("x") * 2.0));
    let x = Tensor::scalar(1f32);
    start.run(&mut Store::new(), &[("x", &x)]).map_err(|error| error.to_string())?;
    let base_kb = memory::reset_peak();
    Ok(measure::measure(case, workloads::workload(case)?, budget, base_kb))
}
