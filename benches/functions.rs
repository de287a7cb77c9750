//! What each scalar function takes, and how that compares with PyTorch's.
//!
//! `cargo bench --bench functions [-- PART [ROUNDS]]` takes the functions of
//! `benches/support/functions.txt` whose name contains `PART` over 64 × 1024 numbers, on one
//! thread, in f32 and f64: nanoseconds per element, of the quickest round, whole runs with their
//! launches.
//!
//! `python benches/peers/functions.py > FILE` times eager PyTorch on the same list; with
//! `PEER=FILE` the ratios to it are given as well.

#[path = "support/peer.rs"]
mod peer;
#[path = "support/programs.rs"]
mod programs;

use std::time::Instant;
use tracecast::ir::text;
use tracecast::prelude::*;
use tracecast::{Executable, compile};

const LIST: &str = include_str!("support/functions.txt");
const SHAPE: [usize; 2] = [64, 1024];

/// Rounds unless the command line says otherwise.
const ROUNDS: usize = 40;

/// Runs of a round.
const RUNS: usize = 10;

/// A function over numbers in one dtype.
struct Work {
    program: Executable,
    store: Store,
}

impl Work {
    fn new(line: &str, dtype: DType) -> Self {
        let words: Vec<&str> = line.split_whitespace().collect();
        let attributes = match words[1] {
            "-" => String::new(),
            some => format!(" {{{}}}", some.replace('=', " = ")),
        };
        let ty = format!("{dtype}[{}, {}]", SHAPE[0], SHAPE[1]);
        let op = words[0];
        let body = format!("  %0 = {op} %x{attributes} : {ty}\n  return y = %0\n");
        let graph = text::parse(&format!("graph @function(%x: {ty} param) {{\n{body}}}\n"));
        let options = programs::written(Options::new().threads(1));
        let program = compile(graph.expect("a function of the list"), &options).expect("code");
        let [low, high] = [3, 4].map(|i| words[i].parse::<f64>().expect("a number"));
        let count = SHAPE[0] * SHAPE[1];
        let step = (high - low) / count as f64;
        // In no order, so that no branch is foreseen: 40503 has no divisor in common with the
        // count.
        let numbers = (0..count).map(|i| (low + step * (i * 40_503 % count) as f64) as f32);
        let x = Tensor::new(SHAPE, &numbers.collect::<Vec<f32>>()).and_then(|x| x.cast(dtype));
        let mut store = Store::new();
        store.insert("x", x.expect("a size that fits"));
        Work { program, store }
    }

    /// Seconds of a run, on average.
    fn round(&mut self) -> f64 {
        let start = Instant::now();
        for _ in 0..RUNS {
            self.program.run(&mut self.store, &[]).expect("a run");
        }
        start.elapsed().as_secs_f64() / RUNS as f64
    }
}

#[allow(clippy::print_stdout, reason = "the table is what a bench is for")]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let part = words.first().cloned().unwrap_or_default();
    let rounds = words.get(1).and_then(|n| n.parse().ok()).unwrap_or(ROUNDS);
    let peer = peer::times();
    println!("function | nanoseconds per element (of PyTorch's): f32 | f64");
    for line in LIST.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split_whitespace().next().unwrap_or_default();
        if !name.contains(&part) {
            continue;
        }
        let mut row = String::new();
        for dtype in [DType::F32, DType::F64] {
            let mut work = Work::new(line, dtype);
            work.round();
            let best = (0..rounds).map(|_| work.round()).fold(f64::INFINITY, f64::min);
            let each = best * 1e9 / (SHAPE[0] * SHAPE[1]) as f64;
            let ratio = peer.get(&format!("{name}\t{dtype}")).map(|other| best / other);
            row += &format!(" | {each:6.2}");
            row += &ratio.map(|ratio| format!(" ({ratio:.2})")).unwrap_or_default();
        }
        println!("{name:18}{row}");
    }
}
