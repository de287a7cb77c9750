//! How near contractions come to what a core can do, and how they compare with the `gemm` crate.
//!
//! Everything is measured in one run and in turns: a round times fused multiply-adds in registers,
//! the contraction in each dtype, and, with `--features versus`, the `gemm` crate on the same
//! operands in f32. Given are ratios of the least times over the rounds: other work on the machine
//! only ever adds to a time. Before it is timed, 64 results of each contraction are compared with
//! sums in f64.
//!
//! `cargo bench --bench contractions [--features versus] [-- PART [ROUNDS]]` takes the sizes whose
//! name contains `PART`; the part `large` stands for those that are too large for tests, in all
//! transpositions by turns.

#[path = "support/operands.rs"]
mod operands;
#[path = "support/product.rs"]
mod product;
#[path = "support/programs.rs"]
mod programs;

use product::{DTYPES, SHAPES, Shape, large};
#[cfg(feature = "versus")]
use std::time::Instant;
use tracecast::prelude::*;
use tracecast::{Executable, Vectors, compile, measure_flops};

/// Rounds unless the command line says otherwise.
const ROUNDS: usize = 25;

/// Floating-point operations of a round, at least.
const ROUND: f64 = 1e7;

/// One contraction in one dtype.
struct Work {
    program: Executable,
    store: Store,
}

impl Work {
    fn new(shape: Shape, dtype: DType) -> Self {
        let graph = product::graph(shape, dtype);
        let (store, _) = operands::random(&graph, dtype);
        let options = programs::written(Options::new().threads(1).keep_weights(false));
        let program = compile(graph, &options).expect("code");
        Work { program, store }
    }

    /// Seconds in the kernel, on average over a number of runs.
    fn run(&mut self, times: usize) -> f64 {
        let mut one = || {
            let (_, times) = self.program.run_timed(&mut self.store, &[]).expect("a run");
            times.iter().map(|timing| timing.time.as_secs_f64()).sum::<f64>()
        };
        (0..times).map(|_| one()).sum::<f64>() / times as f64
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        let tensor = self.store.get(name).and_then(|x| x.cast(DType::F32));
        tensor.and_then(|x| x.to_vec()).expect("numbers")
    }

    /// Compares 64 results with sums in f64.
    fn check(&mut self, (m, k, n, [ta, tb]): Shape, epsilon: f64) {
        self.run(1);
        let [a, b, y] = ["a", "b", "y"].map(|name| self.numbers(name));
        for sample in 0..64 {
            let (i, j) = (sample * 7919 % m, sample * 104_729 % n);
            let (mut sum, mut size) = (0.0, 0.0);
            for p in 0..k {
                let x = f64::from(a[if ta { p * m + i } else { i * k + p }]);
                let z = f64::from(b[if tb { j * k + p } else { p * n + j }]);
                sum += x * z;
                size += (x * z).abs();
            }
            let found = f64::from(y[i * n + j]);
            let bound = 2.0 * k as f64 * f64::from(f32::EPSILON) * size + epsilon * sum.abs();
            assert!((found - sum).abs() <= bound, "{m}x{k}x{n} at ({i}, {j}): {sum}, {found}");
        }
    }
}

/// Seconds that the `gemm` crate takes.
#[cfg(feature = "versus")]
fn versus(work: &Work, (m, k, n, transposed): Shape) -> Option<impl FnMut(usize) -> f64 + use<>> {
    let (a, b, mut c) = (work.numbers("a"), work.numbers("b"), vec![0.0; m * n]);
    Some(move |times: usize| {
        let start = Instant::now();
        for _ in 0..times {
            tracecast_codegen::gemm_f32([m, n, k], (&a, &b), transposed, &mut c);
        }
        start.elapsed().as_secs_f64() / times as f64
    })
}

#[cfg(not(feature = "versus"))]
fn versus(
    _: &Work,
    _: (usize, usize, usize, [bool; 2]),
) -> Option<impl FnMut(usize) -> f64 + use<>> {
    None::<fn(usize) -> f64>
}

#[allow(clippy::print_stdout, reason = "the table is what a bench is for")]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let part = words.first().cloned().unwrap_or_default();
    let rounds = words.get(1).and_then(|n| n.parse().ok()).unwrap_or(ROUNDS);
    println!(
        "rows x summed x columns  | per cent of peak: f32 bf16 f16 | bf16/f32 f16/f32 | f32/gemm"
    );
    let mut logarithms = Vec::new();
    let shapes = if part == "large" { large() } else { SHAPES.to_vec() };
    for shape in shapes {
        let (m, k, n, _) = shape;
        let name = product::name(shape);
        if part != "large" && !name.contains(&part) {
            continue;
        }
        let operations = 2.0 * (m * k * n) as f64;
        let times = (ROUND / operations).ceil() as usize;
        let mut works = DTYPES.map(|dtype| Work::new(shape, dtype));
        if programs::folder().is_some() {
            continue;
        }
        for (work, epsilon) in works.iter_mut().zip([0.0, 4e-3, 1e-3]) {
            work.check(shape, epsilon);
        }
        let mut other = versus(&works[0], shape);
        let mut best = [f64::INFINITY; 5];
        for _ in 0..rounds {
            let peak = operations / measure_flops(Vectors::Native);
            let [f32, bf16, f16] = works.each_mut().map(|work| work.run(times));
            let gemm = other.as_mut().map_or(f64::NAN, |gemm| gemm(times));
            for (best, time) in best.iter_mut().zip([peak, f32, bf16, f16, gemm]) {
                *best = best.min(time);
            }
        }
        let ratio = |of: usize, to: usize| best[of] / best[to];
        let [f32, bf16, f16] = [1, 2, 3].map(|dtype| 100.0 * ratio(0, dtype));
        let versus = ratio(1, 4);
        logarithms.push(versus.ln());
        println!(
            "{name:>24} | {f32:20.1} {bf16:5.1} {f16:5.1} | {:8.3} {:7.3} | {versus:.3}",
            ratio(2, 1),
            ratio(3, 1)
        );
    }
    let mean = logarithms.iter().sum::<f64>() / logarithms.len().max(1) as f64;
    println!("geometric mean against gemm: {:.3}", mean.exp());
}
