//! How long a step takes: the training step on digits in three precisions side by side, what of it
//! each kernel takes, and a step of very small kernels, where launching is all there is.

#[path = "support/digits.rs"]
mod digits;
#[path = "support/programs.rs"]
mod programs;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use digits::{Digits, MODES};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};
use tracecast::prelude::*;
use tracecast::{Executable, Vectors, compile};

/// Batches enough that no row comes twice in a short time, and all lie in the cache.
const BATCHES: usize = 512;

impl Digits {
    /// Takes the step number `i`.
    fn take(&mut self, i: usize) {
        let (x, y) = &self.batches[i % self.batches.len()];
        let done = self.step.run(&mut self.store, &[("x", x), ("y", y)]);
        assert!(done.expect("a step").loss.is_finite());
    }
}

/// The whole call: the batch goes in, the parameters change, the loss comes out.
fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    let settings = [
        ("1 thread", Options::new().threads(1)),
        ("2 threads", Options::new().threads(2)),
        ("portable", Options::new().threads(1).vectors(Vectors::Portable)),
    ];
    for (setting, options) in settings {
        for mode in MODES {
            let mut digits = Digits::new(mode, BATCHES, programs::written(options.clone()));
            let mut i = 0;
            group.bench_function(BenchmarkId::new(setting, mode), |b| {
                b.iter(|| {
                    digits.take(i);
                    i += 1;
                });
            });
        }
    }
    group.finish();
}

/// The same on one thread with a clock at every kernel, and a table of them.
fn by_kernel(c: &mut Criterion) {
    let options = programs::written(Options::new().threads(1));
    let mut group = c.benchmark_group("step with clocks");
    for mode in MODES {
        let Digits { step, mut store, batches } = Digits::new(mode, BATCHES, options.clone());
        let inputs = |i: usize| {
            let (x, y) = &batches[i % batches.len()];
            [("x", x), ("y", y)]
        };
        let graph = step.jit().graph(&store, &inputs(0)).expect("a traced step");
        let program = compile(graph, &options).expect("a program");
        let names: Vec<String> = program.program().steps().map(|(name, _)| name.into()).collect();
        let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
        group.bench_function(mode.to_string(), |b| {
            b.iter_custom(|rounds| {
                let start = Instant::now();
                for i in 0..rounds {
                    let done = program.run_timed(&mut store, &inputs(i as usize));
                    for (kernel, timing) in names.iter().zip(done.expect("a step").1) {
                        times.entry(kernel).or_default().push(timing.time);
                    }
                }
                start.elapsed()
            });
        });
        table(times);
    }
    group.finish();
}

/// Prints the median time of each kernel, the longest first; nothing if the bench was not asked
/// for.
fn table(times: BTreeMap<&str, Vec<Duration>>) {
    let median = |mut all: Vec<Duration>| {
        all.sort_unstable();
        all[all.len() / 2]
    };
    let mut rows: Vec<(Duration, &str)> =
        times.into_iter().map(|(kernel, all)| (median(all), kernel)).collect();
    rows.sort_unstable();
    let sum: Duration = rows.iter().map(|(time, _)| *time).sum();
    let mut out = std::io::stdout().lock();
    for (time, kernel) in rows.iter().rev() {
        let (share, time) =
            (100.0 * time.as_secs_f64() / sum.as_secs_f64(), time.as_secs_f64() * 1e6);
        writeln!(out, "{time:9.2} µs {share:5.1} %  {kernel}").expect("standard output is open");
    }
}

/// Sums of rows and of columns in turn over 16 elements: no two of them fit into one kernel.
fn small_kernels(threads: usize) -> (Executable, Store) {
    let graph = trace("balance", |t| {
        let x = t.state_of("x", TensorType::new(DType::F32, [4, 4]));
        let y = (0..49).fold(x, |x, _| {
            let x = x / x.sum([1].keep());
            x / x.sum([0].keep())
        });
        t.update(x, y);
    });
    let options = programs::written(Options::new().threads(threads));
    let program = compile(graph.expect("sums"), &options).expect("a program");
    let x = Tensor::rand([4, 4], 0).expect("16 elements");
    (program, Store::new().with("x", x))
}

fn launches(c: &mut Criterion) {
    let mut group = c.benchmark_group("launches");
    for threads in [1, 2] {
        let (program, mut store) = small_kernels(threads);
        let name = format!("{} kernels on 16 elements, {threads} threads", program.kernels());
        group.bench_function(name, |b| {
            b.iter(|| program.run(&mut store, &[]).expect("a run"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000));
    targets = steps, by_kernel, launches
}
criterion_main!(benches);
