//! How long compiling takes: the training step on digits from the trace to the executable, each
//! part by itself and as a whole; long programs as text; and the passes on long programs.

#[path = "support/digits.rs"]
mod digits;
#[path = "support/programs.rs"]
mod programs;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use digits::Digits;
use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};
use tracecast::ir::{Stage, Verified, parse, verify};
use tracecast::passes::{Pass, PassOptions, Place, Precision, Simplify, find, standard};
use tracecast::prelude::*;
use tracecast::runtime::Program;
use tracecast::{Graph, Vectors, compile};

/// What a program is before each pass, under the name of the pass, and after the last one.
fn stages(graph: Graph) -> (Vec<(&'static str, Verified)>, Verified) {
    let pipeline = standard(&PassOptions::default());
    let names = pipeline.names();
    let mut seen = Vec::new();
    let kernels =
        pipeline.run(graph, |_, graph, _| seen.push(graph.clone())).expect("the program is right");
    (names.into_iter().zip(seen).collect(), kernels)
}

/// Every part of the way, for the step in f16: equal kernels are compiled once as long as one of
/// them lives, so nothing may stay alive from one round to the next.
fn digits_step(c: &mut Criterion) {
    let options = programs::written(Options::new().threads(1));
    let digits = Digits::new(DType::F16, 1, options.clone());
    let (x, y) = &digits.batches[0];
    let trace =
        || digits.step.jit().graph(&digits.store, &[("x", x), ("y", y)]).expect("a traced step");
    let device = options.target().expect("the device");
    let (stages, kernels) = stages(trace());

    let mut group = c.benchmark_group("digits");
    group.bench_function("trace", |b| b.iter(trace));
    for (name, graph) in &stages {
        let pass = find(name, &PassOptions::default()).expect("a standard pass");
        group.bench_function(*name, |b| b.iter(|| pass.run(black_box(graph))));
    }
    // Once before the first pass and once after each: here for the longest of the programs, the one
    // that `simplify` gets.
    let core = stages.iter().find(|(name, _)| *name == Simplify::NAME).map(|(_, graph)| graph);
    let core = core.expect("a standard pass");
    group.bench_function("verify", |b| {
        let fresh = || Graph::clone(core);
        b.iter_batched(fresh, |graph| verify(graph, Stage::Core), BatchSize::SmallInput);
    });
    group.bench_function("plan", |b| b.iter(|| Program::plan(black_box(&kernels))));
    group.bench_function("load", |b| {
        let fresh = || Program::plan(&kernels).expect("a plan");
        b.iter_batched(fresh, |program| program.load(device.clone()), BatchSize::PerIteration);
    });
    let folder = std::env::temp_dir().join(format!("tracecast-bench-{}", std::process::id()));
    let keeps = options.clone().code_cache(&folder).target().expect("a folder of its own");
    drop(Program::plan(&kernels).expect("a plan").load(keeps.clone()).expect("code"));
    group.bench_function("load, from files", |b| {
        let fresh = || Program::plan(&kernels).expect("a plan");
        b.iter_batched(fresh, |program| program.load(keeps.clone()), BatchSize::PerIteration);
    });
    std::fs::remove_dir_all(folder).expect("the folder");
    group.bench_function("load, portable", |b| {
        let device = options.clone().vectors(Vectors::Portable).target().expect("the device");
        let fresh = || Program::plan(&kernels).expect("a plan");
        b.iter_batched(fresh, |program| program.load(device.clone()), BatchSize::PerIteration);
    });
    for mode in digits::MODES {
        let digits = Digits::new(mode, 1, options.clone());
        let (x, y) = &digits.batches[0];
        group.bench_function(BenchmarkId::new("whole", mode), |b| {
            b.iter(|| {
                let graph = digits.step.jit().graph(&digits.store, &[("x", x), ("y", y)]);
                compile(graph.expect("a traced step"), &options)
            });
        });
    }
    group.finish();
}

/// A program of about that many nodes: layers under autocast, a product in each, with or without a
/// path around it.
fn long(nodes: usize, residual: bool) -> Graph {
    let layer = TensorType::new(DType::F32, [16, 16]);
    trace("long", |t| {
        let (x, w) = (t.input_of("x", layer.clone()), t.param_of("w", layer));
        let layers = nodes / if residual { 5 } else { 4 };
        let y = autocast(t, "cpu", DType::BF16, || {
            (0..layers).fold(x, |x, _| {
                let y = (x.matmul(w).relu() * 0.5).tanh();
                if residual { x + y } else { y }
            })
        });
        t.output("y", y);
    })
    .expect("layers of one size")
}

fn text(c: &mut Criterion) {
    let graph = long(5000, true);
    let text = graph.to_string();
    let mut group = c.benchmark_group(format!("text of {} nodes", graph.len()));
    group.bench_function("print", |b| b.iter(|| black_box(&graph).to_string()));
    group.bench_function("parse", |b| b.iter(|| parse(black_box(&text))));
    group.finish();
}

/// Layers under autocast, each with weights of its own and a path around it, and one step of their
/// training: about that many nodes when traced, of them one in six a parameter.
fn training_step(nodes: usize) -> Graph {
    let layer = TensorType::new(DType::F32, [16, 16]);
    let layers = nodes / 12;
    trace("step", |t| {
        let x = t.input_of("x", layer.clone());
        let weights: Vec<_> = (0..layers)
            .map(|i| {
                let bias = TensorType::new(DType::F32, [16]);
                (t.param_of(&format!("w{i}"), layer.clone()), t.param_of(&format!("b{i}"), bias))
            })
            .collect();
        let y = autocast(t, "cpu", DType::BF16, || {
            weights.iter().fold(x, |x, (w, b)| x + (x.linear(*w, Some(*b)).relu() * 0.5).tanh())
        });
        let all: Vec<_> = weights.iter().flat_map(|(w, b)| [*w, *b]).collect();
        for (weight, gradient) in all.iter().zip(t.grad(y.sum(()), &all)) {
            t.update(*weight, *weight - gradient * 0.01);
        }
    })
    .expect("layers of one size")
}

/// One map of that many operations.
fn one_map(nodes: usize) -> Graph {
    trace("map", |t| {
        let x = t.input_of("x", TensorType::new(DType::F32, [1024]));
        let y = (0..nodes / 4).fold(x, |y, _| (y * 0.5).tanh() + x.exp());
        t.output("y", y);
    })
    .expect("one shape")
}

/// What each pass costs per node of the longer of the program that it gets and the one it makes,
/// the verifier not included: in proportion to the program if the columns are level.
fn per_node(_: &mut Criterion) {
    if programs::folder().is_some() {
        return; // nothing here is compiled to code
    }
    const SIZES: [usize; 3] = [1000, 10_000, 50_000];
    let programs = [("training step", true), ("one map", false)];
    let mut out = String::new();
    for (what, trains) in programs {
        let program = if trains { training_step } else { one_map };
        out += &format!("µs per node, {what} of {SIZES:?} nodes\n");
        let runs = SIZES.map(|nodes| costs(program(nodes)));
        for (i, (name, _)) in runs[0].iter().enumerate() {
            let row: String = runs.iter().map(|run| format!("{:8.2}", run[i].1)).collect();
            out += &format!("  {name:<10}{row}\n");
        }
    }
    std::io::stdout().write_all(out.as_bytes()).expect("a place to write to");
}

/// The microseconds per node of each pass, of the verifier on what `simplify` gets, and of `place`
/// in the precision `optimised`.
fn costs(graph: Graph) -> Vec<(&'static str, f64)> {
    let (stages, kernels) = stages(graph);
    let per_node = |nodes: usize, run: &mut dyn FnMut()| {
        let mut best = f64::INFINITY;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(200) || best == f64::INFINITY {
            let start = Instant::now();
            run();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best * 1e6 / nodes as f64
    };
    let mut costs = Vec::new();
    for (i, (name, graph)) in stages.iter().enumerate() {
        let next = stages.get(i + 1).map_or(&kernels, |(_, next)| next);
        let pass = find(name, &PassOptions::default()).expect("a standard pass");
        let run = &mut || drop(black_box(pass.run(graph)));
        costs.push((*name, per_node(graph.len().max(next.len()), run)));
        if *name == Simplify::NAME {
            let run = &mut || drop(black_box(verify(Graph::clone(graph), Stage::Core)));
            costs.push(("verify", per_node(graph.len(), run)));
        }
        if *name == Place::NAME {
            let pass = Place::new(Precision::Optimised);
            let run = &mut || drop(black_box(pass.run(graph)));
            costs.push(("optimised", per_node(graph.len().max(next.len()), run)));
        }
    }
    costs
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000));
    targets = digits_step, text, per_node
}
criterion_main!(benches);
