//! Optimizers, schedules, clipping and groups against plain models written from PyTorch's formulae.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clip;
mod folding;
mod groups;
mod low;
mod model;
mod rules;
mod schedules;
mod settings;

use tracecast::optim::Optimizer;
use tracecast::prelude::*;

/// Numbers from -1 to 1 that are the same in every run.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A program that updates `w` by the gradient `g`, unless `found` is not zero.
fn update_by_input(options: Options, rule: impl Optimizer + 'static) -> Jit {
    jit(options, move |t| {
        let w = t.param("w");
        let mut optimizer = Recorded::new(t, &rule, &[w]);
        optimizer.set_grads(vec![t.input("g")]);
        optimizer.step_unless(t.input("found"));
    })
}

fn take(step: &Jit, store: &mut Store, grad: &[f32], found: f32) {
    let g = Tensor::new([grad.len()], grad).unwrap();
    step.run(store, &[("g", &g), ("found", &Tensor::scalar(found))]).unwrap();
}

fn floats(store: &Store, name: &str) -> Vec<f32> {
    store.get(name).unwrap().to_vec::<f32>().unwrap()
}
