//! What the gradient scaler costs, as ratios of two programs that take turns.
//!
//! ```sh
//! RUSTFLAGS="-C target-cpu=native" cargo bench --bench scaler
//! cargo bench --bench scaler -- sweep --rounds 21
//! ```

#![allow(clippy::print_stdout, reason = "this is a program of its own")]

#[path = "support/programs.rs"]
mod programs;

use std::time::{Duration, Instant};
use tracecast::ir::ops::amp::LossScaling;
use tracecast::nn::{Linear, Relu, Sequential};
use tracecast::prelude::*;

/// 64 tensors, 33.6 million numbers: far beyond any cache.
const TENSORS: usize = 64;
const SHAPE: [usize; 2] = [512, 1024];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let rounds = args.iter().position(|arg| arg == "--rounds").and_then(|at| args.get(at + 1));
    let rounds = rounds.and_then(|n| n.parse().ok()).unwrap_or(11);
    let asked = |name: &str| {
        let named = args.iter().any(|arg| ["sweep", "adamw", "mlp"].contains(&arg.as_str()));
        !named || args.iter().any(|arg| arg == name)
    };
    if asked("sweep") {
        sweep(rounds);
    }
    if asked("adamw") {
        adamw(rounds);
    }
    if asked("mlp") {
        for threads in [1, 2] {
            mlp(rounds, threads);
        }
    }
}

/// Times of two functions that take turns: the median of each, and the median of their ratios.
fn compare(what: &str, rounds: usize, mut a: impl FnMut(), mut b: impl FnMut()) {
    if programs::folder().is_some() {
        a();
        b();
        return;
    }
    let timed = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    let mut times: Vec<(Duration, Duration)> = Vec::new();
    for round in 0..rounds + 2 {
        let pair = (timed(&mut a), timed(&mut b));
        if round >= 2 {
            times.push(pair);
        }
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let first = median(times.iter().map(|t| ms(t.0)).collect());
    let second = median(times.iter().map(|t| ms(t.1)).collect());
    let ratio = median(times.iter().map(|t| ms(t.0) / ms(t.1)).collect());
    println!("{what}: {first:.2} ms and {second:.2} ms, ratio {ratio:.3}");
}

fn name(kind: &str, i: usize) -> String {
    format!("{kind}.{i}")
}

fn options() -> Options {
    programs::written(Options::new().threads(1))
}

/// A store with gradients.
fn gradients() -> Store {
    let mut store = Store::new();
    for i in 0..TENSORS {
        store.insert(&name("grad", i), Tensor::rand(SHAPE, i as u64).expect("numbers"));
    }
    store
}

fn run(program: &Jit, store: &mut Store, inputs: &[(&str, &Tensor)]) {
    program.run(store, inputs).expect("a run");
}

/// Unscales every gradient in place; with the flag whether one is not finite if `check`.
fn unscale(check: bool) -> Jit {
    jit(options(), move |t| {
        let inverse = t.input("inverse");
        let mut any: Option<Var<'_>> = None;
        for i in 0..TENSORS {
            let grad = t.state_of(&name("grad", i), TensorType::new(DType::F32, SHAPE));
            if !check {
                t.update(grad, grad.unscale(inverse));
                continue;
            }
            let unscaled = grad.unscale_check(inverse);
            t.update(grad, unscaled);
            let found = unscaled.result(1);
            any = Some(any.map_or(found, |any| any.maximum(found)));
        }
        if let Some(any) = any {
            t.output("found", any);
        }
    })
}

/// Unscaling and checking in place against a loop that multiplies.
fn sweep(rounds: usize) {
    let program = unscale(true);
    let mut store = gradients();
    let mut plain: Vec<Vec<f32>> = (0..TENSORS).map(|_| vec![0.75; SHAPE[0] * SHAPE[1]]).collect();
    let factors = [2f32, 0.5];
    let inverses = factors.map(Tensor::scalar);
    let (mut i, mut j) = (0, 0);
    compare(
        "unscale and check of 33.6 M f32 against a plain loop, one thread",
        rounds,
        || {
            run(&program, &mut store, &[("inverse", &inverses[i % 2])]);
            i += 1;
        },
        || {
            let factor = factors[j % 2];
            for tensor in &mut plain {
                tensor.iter_mut().for_each(|x| *x *= factor);
                std::hint::black_box(&tensor);
            }
            j += 1;
        },
    );
}

/// Whether a gradient is not finite, as the state `found`.
fn check() -> Jit {
    jit(options(), |t| {
        let found = t.state_of("found", TensorType::scalar(DType::F32));
        let flags = (0..TENSORS).map(|i| t.state(&name("grad", i)).nonfinite());
        t.update(found, flags.reduce(|a, b| a.maximum(b)).expect("gradients"));
    })
}

/// AdamW of all parameters, unless `found`. With `all`, it also checks and unscales the gradients
/// and writes bf16 parameters.
fn step(all: bool) -> Jit {
    jit(options(), move |t| {
        let params: Vec<Var<'_>> = (0..TENSORS).map(|i| t.param(&name("param", i))).collect();
        let mut grads: Vec<Var<'_>> = (0..TENSORS).map(|i| t.state(&name("grad", i))).collect();
        let rule = AdamW::new(1e-3);
        let mut optimizer = Recorded::new(t, &rule, &params);
        let mut found = t.state_of("found", TensorType::scalar(DType::F32));
        if all {
            let inverse = t.input("inverse");
            let flags = grads.iter().map(|grad| grad.nonfinite());
            found = flags.reduce(|a, b| a.maximum(b)).expect("gradients");
            grads = grads.into_iter().map(|grad| grad.unscale(inverse)).collect();
        }
        optimizer.set_grads(grads);
        optimizer.step_unless(found);
        for (i, param) in params.iter().enumerate().filter(|_| all) {
            let shadow = t.state(&name("shadow", i));
            let next = t.next_of(*param).expect("updated");
            let skip = found.ne(0.0);
            t.update(shadow, skip.choose(shadow, next.cast(DType::BF16)));
        }
    })
}

/// The bf16 parameters.
fn cast() -> Jit {
    jit(options(), |t| {
        for i in 0..TENSORS {
            t.update(t.state(&name("shadow", i)), t.param(&name("param", i)).cast(DType::BF16));
        }
    })
}

/// AdamW with everything in it against five sweeps.
fn adamw(rounds: usize) {
    let mut store = gradients();
    store.insert("found", Tensor::scalar(0f32));
    for i in 0..TENSORS {
        let param = Tensor::rand(SHAPE, 100 + i as u64).expect("numbers");
        store.insert(&name("shadow", i), param.cast(DType::BF16).expect("floats"));
        store.insert(&name("param", i), param);
    }
    let one = Tensor::scalar(1f32);
    let inverse = [("inverse", &one)];
    let (folded, unscale, check, update, cast) =
        (step(true), unscale(false), check(), step(false), cast());
    let store = std::cell::RefCell::new(store);
    compare(
        "AdamW of 33.6 M f32 with scaler and bf16 weights against unscale, check, update and cast, one thread",
        rounds,
        || run(&folded, &mut store.borrow_mut(), &inverse),
        || {
            let store = &mut store.borrow_mut();
            run(&unscale, store, &inverse);
            run(&check, store, &[]);
            run(&update, store, &[]);
            run(&cast, store, &[]);
        },
    );
}

/// The step of the workload `mlp-train` in f16 with and without the scaler.
fn mlp(rounds: usize, threads: usize) {
    let new = |scaler: bool, fold: bool| {
        let sizes = [784, 1024, 1024, 10];
        let layer = |l: usize| Linear::new(sizes[l], sizes[l + 1]);
        let model =
            Sequential::new().then(layer(0)).then(Relu).then(layer(1)).then(Relu).then(layer(2));
        let step = TrainStep::new(model, |t, model| {
            model.forward(t.input("x")).cross_entropy(t.input("y"))
        });
        let step = step
            .optimizer(Sgd::new(0.1).momentum(0.9))
            .autocast("cpu", DType::F16)
            .options(programs::written(Options::new().threads(threads).fold(fold)));
        let step = if scaler {
            step.scaler(ScalerOptions { init_scale: 4096.0, ..ScalerOptions::default() })
        } else {
            step
        };
        let step = step.build().expect("there is an optimizer");
        let mut store = Store::new();
        step.init(&mut store, 0).expect("parameters of these sizes");
        (step, store)
    };
    let x = Tensor::rand([256, 784], 1).expect("numbers");
    let y: Vec<i64> = (0..256).map(|i| i * 7 % 10).collect();
    let y = Tensor::new([256], &y).expect("labels");
    let inputs = [("x", &x), ("y", &y)];
    let take = |(step, store): &mut (TrainStep, Store)| {
        for _ in 0..5 {
            step.jit().run(store, &inputs).expect("a step");
        }
    };
    for (fold, how) in [(true, "folded"), (false, "in sweeps of its own")] {
        let (mut scaled, mut plain) = (new(true, fold), new(false, fold));
        compare(
            &format!(
                "5 steps of mlp-train in f16 with the scaler {how} against none, {threads} threads"
            ),
            rounds,
            || take(&mut scaled),
            || take(&mut plain),
        );
    }
}
