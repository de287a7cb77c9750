//! How near convolutions come to what a core can do, and how they compare with PyTorch's.
//!
//! `cargo bench --bench convolutions [-- PART [ROUNDS [THREADS]]]` takes the convolutions of
//! `benches/support/convolutions.txt` whose name contains `PART`, such as `resnet18`, for batches
//! of 1 and 16, on one thread or more: forward, the gradient of the operand and that of the weight,
//! in f32 and in bf16. Each kernel has its rounds by itself, as PyTorch's have, and fused
//! multiply-adds in registers are timed after it; given are per cent of that peak, from the least
//! times.
//!
//! `python benches/peers/convolutions.py > FILE` times PyTorch on the same list, in the faster of
//! its two memory formats; with `PEER=FILE` the ratios to it are given as well, with their
//! geometric means. Operands are inputs, so that nothing of them stays packed from run to run, and
//! results outputs, which are not copied. Kernels are timed in the program's own time, without
//! copies of inputs. `VECTORS=avx2` or `VECTORS=portable` takes other instructions than the
//! machine's best.

#[path = "support/convolution.rs"]
mod convolution;
#[path = "support/operands.rs"]
mod operands;
#[path = "support/peer.rs"]
mod peer;
#[path = "support/programs.rs"]
mod programs;
#[path = "support/vectors.rs"]
mod vectors;

use convolution::{DIRECTIONS, DTYPES, Shape};
use std::collections::BTreeMap;
use tracecast::prelude::*;
use tracecast::{Executable, compile, measure_flops};

/// Rounds unless the command line says otherwise.
const ROUNDS: usize = 5;

/// Runs before the first round: weights that stay are packed in the fourth.
const BEFORE: usize = 5;

/// Floating-point operations of a round, at least, unless these are more runs than that.
const ROUND: f64 = 1e8;
const MOST: usize = 1000;

/// Floating-point operations of a convolution.
fn operations(shape: &Shape, batch: usize) -> f64 {
    let Shape { channels: [from, to], size, kernel, stride, padding, groups, .. } = shape;
    let result = (size + 2 * padding - kernel) / stride + 1;
    let sums = batch * to * result * result;
    2.0 * (sums * from / groups * kernel * kernel) as f64
}

/// One convolution, or one of its gradients, in one dtype.
struct Work {
    program: Executable,
    store: Store,
    inputs: Vec<(String, Tensor)>,
}

impl Work {
    fn new(shape: Shape, batch: usize, direction: &str, dtype: DType, threads: usize) -> Self {
        let graph = shape.graph(batch, direction, dtype);
        let (store, inputs) = operands::random(&graph, dtype);
        let options = programs::written(Options::new().threads(threads).vectors(vectors::named()));
        let program = compile(graph, &options).expect("code");
        Work { program, store, inputs }
    }

    /// Seconds in the kernels, on average over a number of runs.
    fn run(&mut self, times: usize) -> f64 {
        let inputs: Vec<(&str, &Tensor)> =
            self.inputs.iter().map(|(n, x)| (n.as_str(), x)).collect();
        let mut one = || {
            let (_, times) = self.program.run_timed(&mut self.store, &inputs).expect("a run");
            times.iter().map(|timing| timing.time.as_secs_f64()).sum::<f64>()
        };
        (0..times).map(|_| one()).sum::<f64>() / times as f64
    }
}

#[allow(clippy::print_stdout, reason = "the table is what a bench is for")]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let part = words.first().cloned().unwrap_or_default();
    let rounds = words.get(1).and_then(|n| n.parse().ok()).unwrap_or(ROUNDS);
    let threads = words.get(2).and_then(|n| n.parse().ok()).unwrap_or(1);
    let (peer, mut logarithms) = (peer::times(), BTreeMap::<String, Vec<f64>>::new());
    println!("convolution | per cent of peak (ratio to PyTorch): f32, bf16 of {DIRECTIONS:?}");
    for (shape, batch) in convolution::all() {
        let (name, operations) = (shape.name(batch), operations(&shape, batch));
        if !name.contains(&part) {
            continue;
        }
        let times = MOST.min((ROUND / operations).ceil() as usize);
        let mut row = String::new();
        for direction in DIRECTIONS {
            let mut works = DTYPES.map(|dtype| Work::new(shape, batch, direction, dtype, threads));
            let mut best = [f64::INFINITY; 3];
            let [peak, times_of @ ..] = &mut best;
            // Each kernel runs by itself, as the peer's do: what another one leaves in the caches
            // is no part of it.
            for (work, best) in works.iter_mut().zip(times_of) {
                work.run(BEFORE);
                for _ in 0..rounds {
                    *best = best.min(work.run(times));
                }
                let all_threads = measure_flops(vectors::named()) * threads as f64;
                *peak = peak.min(operations / all_threads);
            }
            for (dtype, seconds) in DTYPES.iter().zip(&best[1..]) {
                row += &format!(" {:5.1}", 100.0 * best[0] / seconds);
                if let Some(other) = peer.get(&format!("{name}\t{direction}\t{dtype}")) {
                    row += &format!(" ({:.2})", seconds / other);
                    let all = logarithms.entry(format!("{direction} {dtype}")).or_default();
                    all.push((seconds / other).ln());
                }
            }
            row += " |";
        }
        println!("{name:60} |{row}");
    }
    for (what, all) in &logarithms {
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        println!("geometric mean of {what}: {:.3} of {}", mean.exp(), all.len());
    }
}
