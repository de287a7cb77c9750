//! Random well-typed programs: compiled code agrees with the interpreter bit by bit, on any number
//! of threads and without wide vectors; it agrees with an eager run op by op as well; and text
//! round-trips.
//!
//! `TRACECAST_RANDOM_PROGRAMS` sets how many, `TRACECAST_RANDOM_SEED` the first seed.

mod support;

use support::eager_tape::{self, Sharing};
use support::layers;
use support::random::program;
use tracecast_ir::text;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = setting("TRACECAST_RANDOM_SEED", 0);
    first..first + setting("TRACECAST_RANDOM_PROGRAMS", count)
}

#[test]
fn compiled_programs_agree_with_the_interpreter() {
    let cpus = support::cpus();
    let (mut compared, mut failures) = (0, Vec::new());
    for seed in seeds(2000) {
        let graph = program(seed, 12);
        let inputs = support::inputs(&graph, seed);
        let (reference, fused) =
            support::lowered(graph).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let wanted =
            support::expected(&reference, &inputs).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for (cpu, device) in &cpus {
            match support::computed(&fused, device.clone(), &inputs) {
                Ok(found) => {
                    failures.extend(
                        support::difference(&found, &wanted)
                            .map(|d| format!("seed {seed} on {cpu}: {d}")),
                    );
                }
                Err(e) => failures.push(format!("seed {seed} on {cpu}: {e}")),
            }
            compared += 1;
        }
        if failures.len() > 30 {
            break;
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {compared} differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// P1: neither a pass nor the planner changes a bit of what eager mode computes, gradients of every
/// leaf included.
#[test]
fn compiled_programs_agree_with_an_eager_tape() {
    let cpus = [1, 2].map(|threads| (threads, support::cpu(threads)));
    let (mut compared, mut failures) = (0, Vec::new());
    for seed in seeds(1000) {
        for graph in [program(seed, 14), layers::program(seed, 8)] {
            let inputs = support::inputs(&graph, seed);
            let wanted = eager_tape::run(&graph, &inputs, Sharing::Weights)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
            let what = format!("seed {seed}, {},", graph.name());
            let (_, fused) = support::lowered(graph).unwrap_or_else(|e| panic!("{what} {e}"));
            for (threads, cpu) in &cpus {
                let difference = match support::computed(&fused, cpu.clone(), &inputs) {
                    Ok(found) => support::difference(&found, &wanted),
                    Err(e) => Some(e),
                };
                failures.extend(difference.map(|d| format!("{what} on {threads} threads: {d}")));
                compared += 1;
            }
        }
        if failures.len() > 30 {
            break;
        }
    }
    let all = failures.join("\n");
    assert!(failures.is_empty(), "{} of {compared} differ:\n{all}", failures.len());
}

/// The programs above are such that it matters which casts autocast shares: gradients are summed on
/// their narrow side.
#[test]
fn the_casts_that_are_shared_show_in_gradients() {
    for sharing in [Sharing::Never, Sharing::Always] {
        let differs = |seed: &u64| {
            let graph = layers::program(*seed, 8);
            let inputs = support::inputs(&graph, *seed);
            let run = |sharing| eager_tape::run(&graph, &inputs, sharing).expect("runs");
            support::difference(&run(sharing), &run(Sharing::Weights)).is_some()
        };
        let count = (0..200).filter(differs).count();
        assert!(count >= 25, "{count} programs of 200 show casts shared {sharing:?}");
    }
}

#[test]
fn text_round_trips() {
    for seed in seeds(2000) {
        let printed = program(seed, 12).to_string();
        let again = text::parse(&printed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{printed}"));
        assert_eq!(again.to_string(), printed, "seed {seed}");
    }
}

/// The bytes of an operand, and those from the first of them to the one that a child of the test
/// below writes.
#[cfg(target_os = "linux")]
const OVERRUN: &str = "TRACECAST_OVERRUN";

#[cfg(target_os = "linux")]
#[test]
fn guard_mode_ends_a_process_that_writes_beyond_a_buffer() {
    use std::os::unix::process::ExitStatusExt as _;
    if let Some(offset) = std::env::var_os(OVERRUN) {
        let (len, offset) = offset.to_str().and_then(|n| n.split_once(':')).expect("two numbers");
        let len = len.parse().expect("a number of bytes");
        return support::guard::write_at(len, offset.parse().expect("a number of bytes"));
    }
    for (len, offset, signal) in [
        (100, 0, None),
        (100, 99, None),
        (100, 128, Some(11)),
        (100, 4200, Some(11)),
        (100, -4096, Some(11)),
        (128, 128, Some(11)),
        (3 << 20, (3 << 20) - 1, None),
        (3 << 20, 3 << 20, Some(11)),
        (3 << 20, -1, Some(11)),
    ] {
        let mut child = std::process::Command::new(std::env::current_exe().expect("a path"));
        child.args(["--exact", "guard_mode_ends_a_process_that_writes_beyond_a_buffer"]);
        child.env("TRACECAST_GUARD", "1").env(OVERRUN, format!("{len}:{offset}"));
        let status = child.output().expect("a child").status;
        assert_eq!(
            (status.signal(), status.success()),
            (signal, signal.is_none()),
            "{len} {offset}"
        );
    }
}
