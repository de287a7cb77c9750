//! How near convolutions come to what a core can do, and how they compare with PyTorch's.
//!
//! `cargo bench --bench convolutions [-- PART [ROUNDS [THREADS]]]` takes the convolutions of `benches/support/convolutions.txt` whose name contains `PART`, such as `resnet18`,
//! for batches of 1 and 16, on one thread or more: forward, the gradient of the operand and that of the weight, in f32 and in bf16. Each kernel has
//! its rounds by itself, as PyTorch's have, and fused multiply-adds in registers are timed after it; given are per cent of that peak, from the least times.
//!
//! `python benches/peers/convolutions.py > FILE` times PyTorch on the same list, in the faster of its two memory formats; with `PEER=FILE` the ratios to it are given as
//! well, with their geometric means. Operands are inputs, so that nothing of them stays packed from run to run, and results outputs, which are not copied. Kernels are timed in the program's own time, without
//! copies of inputs. `VECTORS=avx2` or `VECTORS=portable` takes other instructions than the machine's best.

#[path = "support/peer.rs"]
mod peer;
#[path = "support/programs.rs"]
mod programs;
#[path = "support/vectors.rs"]
mod vectors;

use std::collections::BTreeMap;
use tracecast::prelude::*;
use tracecast::{Executable, compile, ir, measure_flops};

const LIST: &str = include_str!("support/convolutions.txt");
const DTYPES: [DType; 2] = [DType::F32, DType::BF16];
const DIRECTIONS: [&str; 3] = ["forward", "input", "weight"];

/// Rounds unless the command line says otherwise.
const ROUNDS: usize = 5;

/// Runs before the first round: weights that stay are packed in the fourth.
const BEFORE: usize = 5;

/// Floating-point operations of a round, at least, unless these are more runs than that.
const ROUND: f64 = 1e8;
const MOST: usize = 1000;

/// A convolution of the list.
#[derive(Clone, Copy)]
struct Shape {
    network: &'static str,
    channels: [usize; 2],
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    groups: usize,
}

impl Shape {
    fn of(line: &'static str) -> Shape {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words[i].parse().expect("a number");
        Shape {
            network: words[0],
            channels: [number(1), number(3)],
            size: number(2),
            kernel: number(4),
            stride: number(5),
            padding: number(6),
            groups: number(7),
        }
    }

    fn name(&self, batch: usize) -> String {
        let Shape { network, channels: [from, to], size, kernel, stride, groups, .. } = self;
        format!("{network} {batch}x{from}x{size}x{size}->{to} {kernel}x{kernel}/{stride} g{groups}")
    }

    fn result(&self) -> usize {
        (self.size + 2 * self.padding - self.kernel) / self.stride + 1
    }

    fn operations(&self, batch: usize) -> f64 {
        let sums = batch * self.channels[1] * self.result() * self.result();
        2.0 * (sums * self.channels[0] / self.groups * self.kernel * self.kernel) as f64
    }
}

/// One convolution, or one of its gradients, in one dtype.
struct Work {
    program: Executable,
    store: Store,
    inputs: Vec<(String, Tensor)>,
}

impl Work {
    fn new(shape: Shape, batch: usize, direction: &str, dtype: DType, threads: usize) -> Self {
        let Shape { channels: [from, to], size, kernel, stride, padding, groups, .. } = shape;
        let x_shape = [batch, from, size, size];
        let w_shape = [to, from / groups, kernel, kernel];
        let graph = trace("convolution", |t: &Trace| {
            let x = t.input_of("x", TensorType::new(dtype, x_shape));
            let w = t.param_of("w", TensorType::new(dtype, w_shape));
            let (stride, padding) = ([stride as i64], [padding as i64]);
            let y = x.conv2d(w, None, stride, padding, [], Some(groups as i64), false);
            let result = match direction {
                "forward" => y,
                _ => {
                    let dy = t.input_of("dy", y.ty());
                    let of = if direction == "input" { x } else { w };
                    t.grad(y.mul(dy).sum(().dtype(DType::F32)), &[of])[0]
                }
            };
            t.output("result", result);
        })
        .expect("a program");
        let (mut store, mut inputs) = (Store::new(), Vec::new());
        for (seed, port) in graph.ports().iter().enumerate() {
            let numbers = Tensor::randn(port.ty.shape.clone(), seed as u64);
            let numbers = numbers.and_then(|x| x.cast(dtype));
            let numbers = numbers.expect("a size that fits");
            match port.role {
                ir::Role::Input => inputs.push((port.name.clone(), numbers)),
                _ => store.insert(&port.name, numbers),
            }
        }
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
    let lines = LIST.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    for (shape, batch) in lines.map(Shape::of).flat_map(|shape| [(shape, 1), (shape, 16)]) {
        let (name, operations) = (shape.name(batch), shape.operations(batch));
        if !name.contains(&part) {
            continue;
        }
        let times = MOST.min((ROUND / operations).ceil() as usize);
        let mut row = String::new();
        for direction in DIRECTIONS {
            let mut works = DTYPES.map(|dtype| Work::new(shape, batch, direction, dtype, threads));
            let mut best = [f64::INFINITY; 3];
            let [peak, times_of @ ..] = &mut best;
            // Each kernel runs by itself, as the peer's do: what another one leaves in the caches is no part of it.
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
