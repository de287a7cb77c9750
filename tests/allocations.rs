//! A step allocates nothing once it has run: inputs, results and everything between are written
//! where earlier steps had them.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use tracecast::nn::{Context, LayerNorm, Linear, Lstm, Relu, Sequential};
use tracecast::prelude::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Steps that are counted: more than any cycle of buffers that take turns.
const STEPS: usize = 40;

/// Calls `step` that often after a few calls that may allocate: the allocations of all of them.
fn allocations(mut step: impl FnMut()) -> usize {
    (0..5).for_each(|_| step());
    let region = Region::new(ALLOCATOR);
    (0..STEPS).for_each(|_| step());
    let change = region.change();
    change.allocations + change.reallocations
}

fn one_thread() -> Options {
    Options::new().threads(1)
}

/// A step of training in a dtype, with rows, columns, contractions, multi-tensor kernels and, in
/// f16, a scaled loss.
fn training(dtype: DType) -> usize {
    let model = Sequential::new()
        .named("hidden", Linear::new(24, 40))
        .named("norm", LayerNorm::new(40))
        .named("relu", Relu)
        .named("out", Linear::new(40, 10));
    let step =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
            .optimizer(AdamW::new(1e-3))
            .options(one_thread());
    let step = match dtype {
        DType::F32 => step,
        DType::F16 => step.autocast("cpu", DType::F16).scaler(ScalerOptions::default()),
        low => step.autocast("cpu", low),
    };
    let step = step.build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let x = Tensor::rand([16, 24], 1).unwrap();
    let y = Tensor::new([16], &[3i64; 16]).unwrap();
    allocations(|| {
        let done = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
        assert!(done.loss.is_finite());
    })
}

/// A step of training whose recurrent weights are packed anew in each.
fn recurrent() -> usize {
    let step = TrainStep::new(Recurrent, |t, model| {
        model.forward(t.input("x")).mse_loss(t.input("y"), None)
    });
    let step = step.optimizer(Sgd::new(0.1)).options(one_thread()).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let [x, y] = [24, 40].map(|width| Tensor::rand([40, 12, width], 1).unwrap());
    let count = allocations(|| {
        step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
    });
    assert!(step.jit().report().unwrap().kept_bytes > 0);
    count
}

struct Recurrent;

impl Module for Recurrent {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.apply("lstm", &Lstm::new(24, 40), x).0
    }
}

/// A program whose input and result are lent to it, and one whose new state cannot be written in
/// place.
fn lending() -> usize {
    let step = jit(one_thread(), |t| {
        let (x, w) = (t.input("x"), t.param("w"));
        let y = x + w;
        t.update(w, y * 0.5);
        t.output("y", y);
        t.output("sum", y.sum(0) + w.sum([1].keep()));
    });
    let shape = [160, 160];
    let mut store = Store::new().with("w", Tensor::rand(shape, 1).unwrap());
    let x = Tensor::rand(shape, 2).unwrap();
    let mut held = None;
    allocations(|| {
        // The last result is held while the next is made.
        held = Some(step.run(&mut store, &[("x", &x)]).unwrap());
    })
}

/// A layer whose weight is kept packed, and replaced now and then.
fn inference() -> usize {
    let types = [[8, 60], [90, 60]].map(|shape| TensorType::new(DType::F32, shape));
    let layer = jit(one_thread(), move |t| {
        let (x, w) = (t.input("x"), t.param_of("w", types[1].clone()));
        t.output("y", autocast(t, "cpu", DType::BF16, || x.linear(w, None)));
    });
    let weights = [1, 2].map(|seed| Tensor::rand([90, 60], seed).unwrap());
    let mut store = Store::new().with("w", weights[0].clone());
    let x = Tensor::rand([8, 60], 2).unwrap();
    let mut steps = 0;
    let count = allocations(|| {
        layer.run(&mut store, &[("x", &x)]).unwrap();
        steps += 1;
        if steps % 10 == 0 {
            store.set("w", &weights[steps / 10 % 2]).unwrap();
        }
    });
    assert!(layer.report().unwrap().kept_bytes > 0);
    count
}

/// A product and a map that two threads share: whether one of several thousands of steps allocates
/// nothing.
fn shared() -> bool {
    let step = jit(Options::new().threads(2), |t| {
        let (x, w) = (t.input("x"), t.param("w"));
        t.update(w, x.matmul(w).tanh());
    });
    let shape = [192, 192];
    let mut store = Store::new().with("w", Tensor::rand(shape, 1).unwrap());
    let x = Tensor::rand(shape, 2).unwrap();
    // A thread that has had no part of a kernel yet needs scratch of its own. On a busy machine
    // that may take a while.
    let thousand = |_| {
        let some = |_| allocations(|| drop(step.run(&mut store, &[("x", &x)]).unwrap()));
        (0..1000 / STEPS).map(some).sum::<usize>()
    };
    (0..5).map(thousand).any(|count| count == 0)
}

/// A program whose sizes are names, in three sizes that it has met.
fn sizes() -> usize {
    let program = jit(one_thread(), |t| {
        let (x, w) = (t.input("x"), t.param_of("w", TensorType::new(DType::F32, [6, 5])));
        t.output("y", x.matmul(w).softmax(-1));
    });
    let program = program.sizes("x: [batch, _]");
    let mut store = Store::new().with("w", Tensor::rand([6, 5], 1).unwrap());
    let inputs = [3, 8, 1].map(|rows| Tensor::rand([rows, 6], 2).unwrap());
    let count = allocations(|| {
        for x in &inputs {
            program.run(&mut store, &[("x", x)]).unwrap();
        }
    });
    assert_eq!(program.recompilations().len(), 1);
    count
}

/// Results of this size are lent to kernels.
const RESULT: [usize; 2] = [256, 256];

/// The bytes that runs leave allocated besides one result; the results of `held` runs are there at
/// one time, and a last one alone.
fn left_by_results(options: Options, held: usize) -> isize {
    let double = jit(options, |t| t.output("y", t.input("x") * 2.0));
    let x = Tensor::rand(RESULT, 1).unwrap();
    let mut store = Store::new();
    let mut run = || double.run(&mut store, &[("x", &x)]).unwrap();
    // What a first run allocates is not of results.
    let first = Tensor::clone(&run()["y"]);
    let region = Region::new(ALLOCATOR);
    drop((0..held).map(|_| run()).collect::<Vec<_>>());
    drop(first);
    drop(run());
    let change = region.change();
    change.bytes_allocated as isize - change.bytes_deallocated as isize
}

#[test]
fn a_step_allocates_nothing_after_the_first() {
    let counted = [
        ("sizes as names", sizes()),
        ("training in f32", training(DType::F32)),
        ("training in bf16", training(DType::BF16)),
        ("training in f16", training(DType::F16)),
        ("recurrent training", recurrent()),
        ("lending", lending()),
        ("inference", inference()),
    ];
    assert!(counted.iter().all(|(_, count)| *count == 0), "in {STEPS} steps: {counted:?}");
    assert!(shared(), "on two threads");
    let bytes = (RESULT.iter().product::<usize>() * 4) as isize;
    for held in [0, 1, 2, 5] {
        let kept = left_by_results(one_thread(), held);
        assert!(kept <= bytes / 4, "{kept} bytes more than one result after {held}");
        let kept = left_by_results(one_thread().reuse_outputs(false), held);
        assert!(kept < -bytes / 2, "{kept} bytes more than one result after {held}");
    }
    // The counter does count.
    assert!(allocations(|| drop(std::hint::black_box(vec![0u8; 16]))) >= STEPS);
}
