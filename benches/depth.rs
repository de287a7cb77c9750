//! How compiling grows with depth: the training step of a character transformer with 1 to 16
//! layers, and that of the smallest GPT-2, from the trace to loaded code, on two threads.
//!
//! ```sh
//! cargo bench --bench depth
//! cargo bench --bench depth -- 16 gpt2     # these alone
//! ```
//!
//! `place` and `fuse` are among the `passes`, each with the verifier behind it; `a layer` is what a
//! layer adds to the row before; `code` is the number of kernels that code was made for: equal ones
//! share it.

#![allow(clippy::print_stdout, reason = "this is a program of its own")]

#[path = "support/programs.rs"]
mod programs;
#[path = "support/transformer.rs"]
mod transformer;

use std::time::{Duration, Instant};
use tracecast::prelude::*;
use tracecast::runtime::MadeFrom;
use tracecast::{CompileReport, compile_reported};
use transformer::Shapes;

const LAYERS: [usize; 5] = [1, 2, 4, 8, 16];

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = |name: &str| asked.is_empty() || asked.iter().any(|a| a == name);
    let options = programs::written(Options::new().threads(2));
    println!("ms, the least of some runs, nothing kept from one to the next");
    println!(
        "{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}",
        "layers",
        "nodes",
        "kernels",
        "trace",
        "place",
        "fuse",
        "passes",
        "plan",
        "load",
        "whole",
        "a layer",
        "code"
    );
    let mut before: Option<(usize, f64)> = None;
    for layers in LAYERS.into_iter().filter(|n| wanted(&n.to_string())) {
        let whole = row(&layers.to_string(), Shapes::characters(layers), &options, before);
        before = Some((layers, whole));
    }
    if wanted("gpt2") {
        row("gpt2", Shapes::gpt2(), &options, None);
    }
}

/// What one step took.
struct Took {
    trace: Duration,
    whole: Duration,
    report: CompileReport,
}

/// Measures a step, prints its row, and returns how long the whole took in ms. `before` is a step
/// with fewer layers.
fn row(name: &str, shapes: Shapes, options: &Options, before: Option<(usize, f64)>) -> f64 {
    let step = shapes.step(options.clone());
    let (x, y) = (shapes.tokens(), shapes.tokens());
    let mut store = Store::new();
    if name != "gpt2" {
        step.init(&mut store, 0).expect("parameters of these sizes");
    }
    let mut nodes = 0;
    let mut once = || {
        let start = Instant::now();
        let graph = step.jit().graph(&store, &[("x", &x), ("y", &y)]).expect("a traced step");
        let trace = start.elapsed();
        nodes = graph.len();
        let (program, report) = compile_reported(graph, options).expect("code for every kernel");
        let whole = start.elapsed();
        drop(program);
        Took { trace, whole, report }
    };
    let runs = if programs::folder().is_some() { 1 } else { 8 };
    let best = (0..runs).map(|_| once()).min_by_key(|took| took.whole).expect("a run");
    let Took { trace, whole, report } = best;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let passes = |only: &str| {
        let all = report.passes.iter().filter(|(pass, _)| only.is_empty() || pass == only);
        ms(all.map(|(_, time)| *time).sum())
    };
    let a_layer = before.map_or_else(String::new, |(layers, least)| {
        format!("{:.2}", (ms(whole) - least) / (shapes.layers - layers) as f64)
    });
    println!(
        "{name:>8}{nodes:>8}{:>8}{:>8.1}{:>8.1}{:>8.1}{:>8.1}{:>8.1}{:>8.1}{:>8.1}{a_layer:>8}{:>8}",
        report.kernels,
        ms(trace),
        passes("place"),
        passes("fuse"),
        passes(""),
        ms(report.plan),
        ms(report.load),
        ms(whole),
        report.made_from(MadeFrom::Compiler)
    );
    ms(whole)
}
