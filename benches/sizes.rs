//! What sizes as names cost: a transformer of characters (2 layers of width 64, 4 heads, 28
//! characters), traced once, run at every length of 1 to 60 and every batch of 1 to 16 in random
//! order. The table says what a size costs beyond its run when it is new and when it has been met.

#![allow(clippy::print_stdout, reason = "the table is what the bench is for")]

use std::time::{Duration, Instant};
use tracecast::ir::Values;
use tracecast::prelude::*;

const WIDTH: usize = 64;
const HEADS: usize = 4;
const CHARACTERS: usize = 28;
const LAYERS: usize = 2;
const LENGTHS: i64 = 60;
const BATCHES: i64 = 16;

fn norm(x: Var<'_>) -> Var<'_> {
    x.layer_norm(None, None, [WIDTH], 1e-5).results()[0]
}

/// The next character after each.
fn model(t: &Trace) {
    let (batch, length) = (t.size_in("batch", 1..=BATCHES), t.size_in("length", 1..=LENGTHS));
    let tokens = t.input_of("tokens", TensorType::new(DType::I64, sizes![batch, length]));
    let param = |name: &str, shape: &[usize]| t.param_of(name, TensorType::new(DType::F32, shape));
    let positions = param("positions", &[LENGTHS as usize, WIDTH]).slice(0, 0, length, 1);
    let mut x = param("characters", &[CHARACTERS, WIDTH]).embedding(tokens) + positions;
    let row = t.tracer().iota(DType::I64, Shape::from(sizes![length, 1]), 0);
    let column = t.tracer().iota(DType::I64, Shape::from(sizes![1, length]), 1);
    let never = t.full(TensorType::scalar(DType::F32), f64::NEG_INFINITY);
    for layer in 0..LAYERS {
        let weight = |name: &str, shape: [usize; 2]| param(&format!("{layer}.{name}"), &shape);
        let y = norm(x);
        let [q, k, v] = ["q", "k", "v"].map(|name| {
            let y = y.linear(weight(name, [WIDTH, WIDTH]), None);
            y.reshape(sizes![batch, length, HEADS, WIDTH / HEADS]).permute([0, 2, 1, 3])
        });
        let scores = q.matmul(k.t()) * (1.0 / ((WIDTH / HEADS) as f64).sqrt());
        let scores = column.le(row).choose(scores, never).softmax(-1);
        let mixed = scores.matmul(v).permute([0, 2, 1, 3]).reshape(sizes![batch, length, WIDTH]);
        x = x + mixed.linear(weight("mix", [WIDTH, WIDTH]), None);
        let y = norm(x).linear(weight("up", [4 * WIDTH, WIDTH]), None).gelu(None);
        x = x + y.linear(weight("down", [WIDTH, 4 * WIDTH]), None);
    }
    t.output("next", norm(x).linear(param("characters", &[CHARACTERS, WIDTH]), None));
}

/// Times, the largest last.
struct Times(Vec<Duration>);

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Times(times)
    }

    fn line(&self, what: &str) {
        let us = |part: f64| {
            let at = ((self.0.len() - 1) as f64 * part) as usize;
            self.0[at].as_secs_f64() * 1e6
        };
        println!("{what:<44} {:>9.1} {:>9.1} {:>9.1}", us(0.5), us(0.9), us(1.0));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::new().sizes((LENGTHS * BATCHES) as usize);
    let start = Instant::now();
    let graph = trace("characters", model)?;
    let program = compile_sized(graph, &options)?;
    let once = start.elapsed();
    let mut store = Store::new();
    for port in program.graph().ports().iter().filter(|port| port.name != "tokens") {
        store.insert(&port.name, Tensor::rand(port.ty.shape.numbers().as_slice(), 3)?);
    }
    let mut sizes: Vec<(i64, i64)> =
        (1..=BATCHES).flat_map(|batch| (1..=LENGTHS).map(move |length| (batch, length))).collect();
    let mut random = 88_172_645_463_325_252u64;
    for i in (1..sizes.len()).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        sizes.swap(i, (random % (i as u64 + 1)) as usize);
    }
    // A test of the bench does with a few.
    if !std::env::args().any(|arg| arg == "--bench") {
        sizes.truncate(12);
    }
    let tokens = |(batch, length): (i64, i64)| {
        let tokens: Vec<i64> = (0..batch * length).map(|i| i * 7 % CHARACTERS as i64).collect();
        Tensor::new([batch as usize, length as usize], &tokens)
    };
    let names: Vec<&'static str> = program.graph().sizes().names().iter().map(|n| n.name).collect();
    let (mut new, mut seen) = (Vec::new(), Vec::new());
    for &size in &sizes {
        let tokens = tokens(size)?;
        let inputs = [("tokens", &tokens)];
        let timed = |store: &mut Store| -> Result<Duration, tracecast::Error> {
            let start = Instant::now();
            program.run(store, &inputs)?;
            Ok(start.elapsed())
        };
        let first = timed(&mut store)?;
        let again = (0..3).map(|_| timed(&mut store)).collect::<Result<Vec<_>, _>>()?;
        let again = again.into_iter().min().unwrap_or_default();
        new.push(first.saturating_sub(again));
    }
    for &size in &sizes {
        let tokens = tokens(size)?;
        let inputs = [("tokens", &tokens)];
        let values = Values::from_iter([(names[0], size.0), (names[1], size.1)]);
        let executable = program.at(&values)?;
        // Both bound to the arena as it is now.
        program.run(&mut store, &inputs)?;
        let best = |run: &mut dyn FnMut() -> Result<(), tracecast::Error>| {
            let once = |_| {
                let start = Instant::now();
                run()?;
                Ok(start.elapsed())
            };
            let times = (0..5).map(once).collect::<Result<Vec<Duration>, tracecast::Error>>();
            times.map(|times| times.into_iter().min().unwrap_or_default())
        };
        let whole = best(&mut || program.run(&mut store, &inputs).map(drop))?;
        let run = best(&mut || executable.run(&mut store, &inputs).map(drop))?;
        seen.push(whole.saturating_sub(run));
    }
    let (served, all) = program.served();
    println!("traced, passed and loaded once in {:.1} ms", once.as_secs_f64() * 1e3);
    println!("{served} of {all} kernels are compiled once for all {} sizes", sizes.len());
    println!("{:<44} {:>9} {:>9} {:>9}", "µs beyond the run", "median", "90 %", "most");
    Times::of(new).line("a new size");
    Times::of(seen).line("a size that has been met");
    Ok(())
}
