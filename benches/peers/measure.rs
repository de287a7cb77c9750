//! The time and the memory of a workload, by the rules of `workloads.py`.

use crate::memory::peak_above;
use crate::workloads::{Case, Workload, checks_three};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Fewer runs are never timed, and not more.
const RUNS: [usize; 2] = [7, 200];

/// Runs a workload: once for the first call, twice more, then until the budget is spent. The line
/// that a peer prints, too; `base_kb` is the memory of the process before it had any data.
pub(crate) fn measure(
    case: &Case,
    mut workload: Workload,
    budget: Duration,
    base_kb: Option<u64>,
) -> Value {
    let start = Instant::now();
    workload.step();
    let first = start.elapsed();
    let mut check = vec![workload.check()];
    for _ in 0..2 {
        workload.step();
        if checks_three(&case.workload) {
            check.push(workload.check());
        }
    }
    let mut times: Vec<Duration> = Vec::new();
    let end = Instant::now() + budget;
    while times.len() < RUNS[0] || (Instant::now() < end && times.len() < RUNS[1]) {
        let start = Instant::now();
        workload.step();
        times.push(start.elapsed());
        if times.len() >= 3 && Instant::now() > end + budget {
            break;
        }
    }
    times.sort();
    let ms = |time: Duration| (time.as_secs_f64() * 1e7).round() / 1e4;
    let peak = base_kb.and_then(peak_above);
    json!({
        "peer": "tracecast",
        "workload": case.workload,
        "dtype": case.dtype.name(),
        "threads": case.threads,
        "precision": case.precision.name(),
        "first_call_s": (first.as_secs_f64() * 1e4).round() / 1e4,
        "median_ms": ms(times[times.len() / 2]),
        "min_ms": ms(times[0]),
        "runs": times.len(),
        "peak_mb": peak.map(|kb| (kb as f64 / 102.4).round() / 10.0),
        "check": check.iter().map(|c| (c * 1e6).round() / 1e6).collect::<Vec<_>>(),
    })
}
