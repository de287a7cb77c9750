//! How attention compares with PyTorch's: a batch of four, eight heads of 64 numbers, several
//! lengths, on two threads.
//!
//! `cargo bench --bench attention [-- PART [ROUNDS]]` takes the rows whose name contains `PART`,
//! such as `causal`: forward, and forward with the gradients of queries, keys and values, in f32
//! and in bf16. Given are the least times in milliseconds, and what each run takes in memory beside
//! its operands.
//!
//! `python benches/peers/attention.py > FILE` times PyTorch on the same rows; with `PEER=FILE` the
//! ratios to it are given as well, with their geometric means. Kernels are timed in the program's
//! own time, without copies of inputs. `VECTORS=avx2` or `VECTORS=portable` takes other
//! instructions than the machine's best.

#[path = "support/attention.rs"]
mod attention;
#[path = "support/peer.rs"]
mod peer;
#[path = "support/programs.rs"]
mod programs;
#[path = "support/vectors.rs"]
mod vectors;

use attention::{DTYPES, Row};
use std::collections::BTreeMap;
use tracecast::prelude::*;
use tracecast::{Executable, compile};

/// Rounds unless the command line says otherwise.
const ROUNDS: usize = 5;

/// Attention in one dtype, with or without its gradients.
struct Work {
    program: Executable,
    store: Store,
}

impl Work {
    fn new(row: Row, dtype: DType) -> Self {
        let graph = attention::graph(row, dtype);
        let mut store = Store::new();
        for (seed, port) in graph.ports().iter().enumerate() {
            let numbers = Tensor::randn(port.ty.shape.clone(), seed as u64);
            let numbers = numbers.and_then(|x| x.cast(dtype)).expect("a size that fits");
            store.insert(&port.name, numbers);
        }
        let options = programs::written(Options::new().threads(2).vectors(vectors::named()));
        Work { program: compile(graph, &options).expect("code"), store }
    }

    /// The bytes that a run takes beside operands and results, those of threads included.
    fn memory(&self) -> usize {
        self.program.peak_bytes() + self.program.scratch_bytes()
    }

    /// Seconds in the kernels.
    fn run(&mut self) -> f64 {
        let (_, times) = self.program.run_timed(&mut self.store, &[]).expect("a run");
        times.iter().map(|timing| timing.time.as_secs_f64()).sum()
    }
}

#[allow(clippy::print_stdout, reason = "the table is what a bench is for")]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let part = words.first().cloned().unwrap_or_default();
    let rounds = words.get(1).and_then(|n| n.parse().ok()).unwrap_or(ROUNDS);
    let (peer, mut logarithms) = (peer::times(), BTreeMap::<String, Vec<f64>>::new());
    println!("attention | milliseconds (ratio to PyTorch)");
    for row in attention::rows() {
        for dtype in DTYPES {
            let name = attention::name(row, dtype);
            let direction = if row.2 { "backward" } else { "forward" };
            if !name.contains(&part) {
                continue;
            }
            let mut work = Work::new(row, dtype);
            work.run();
            let best = (0..rounds).map(|_| work.run()).fold(f64::INFINITY, f64::min);
            let ratio = peer.get(&name).map(|other| {
                let all = logarithms.entry(format!("{direction} {dtype}")).or_default();
                all.push((best / other).ln());
                format!(" ({:.2})", best / other)
            });
            let memory = work.memory() as f64 / f64::from(1 << 20);
            let ratio = ratio.unwrap_or_default();
            println!("{name:32} | {:8.3}{ratio} {memory:6.1} MiB", best * 1e3);
        }
    }
    for (what, all) in &logarithms {
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        println!("geometric mean of {what}: {:.3} of {}", mean.exp(), all.len());
    }
}
