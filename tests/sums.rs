//! Losses that are told as a sum and a count: micro-batches and ranks weigh every target alike, as
//! one batch does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;
use tracecast::nn::{CrossEntropyLoss, Linear, Reduction};
use tracecast::prelude::*;
use tracecast::runtime::collective::threads;
use tracecast::{StepResult, TrainStepBuilder};

const ROWS: usize = 8;

/// Targets of -100 are ignored.
const TARGETS: [[i64; ROWS]; 4] = [
    [0, 1, 2, 0, 1, 2, 0, 1],
    [0, -100, -100, -100, 1, 2, 0, 1],
    // The first half has none at all.
    [-100, -100, -100, -100, 1, 2, 0, -100],
    [1, 2, 0, -100, -100, -100, -100, -100],
];

fn step() -> TrainStepBuilder {
    TrainStep::of_sums(Linear::new(3, 3), |t, model| {
        let (y, targets) = (model.forward(t.input("x")), t.input("y"));
        let loss = CrossEntropyLoss::new().reduction(Reduction::Sum);
        let count = targets.ne(-100.0).cast(DType::I64).sum(());
        (model.context().apply("loss", &loss, (y, targets)), count)
    })
    .optimizer(Sgd::new(1.0))
    .clip(Clip::norm(1e9))
}

fn x() -> Tensor {
    Tensor::rand([ROWS, 3], 5).unwrap()
}

fn y(targets: &[i64]) -> Tensor {
    Tensor::new([targets.len()], targets).unwrap()
}

/// A step from the same start: what it says, and the weight behind it.
fn one(builder: TrainStepBuilder, targets: &[i64]) -> (StepResult, Vec<f32>) {
    let step = builder.build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let done = step.run(&mut store, &[("x", &x()), ("y", &y(targets))]).unwrap();
    (done, store.get("weight").unwrap().to_vec::<f32>().unwrap())
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

#[test]
fn parts_weigh_every_target_alike() {
    for targets in TARGETS {
        let (whole, weight) = one(step(), &targets);
        let mean = TrainStep::new(Linear::new(3, 3), |t, model| {
            model.forward(t.input("x")).cross_entropy(t.input("y"))
        });
        let (mean, of_mean) = one(mean.optimizer(Sgd::new(1.0)), &targets);
        assert!((whole.loss - mean.loss).abs() < 1e-6 && close(&weight, &of_mean));
        for parts in [2, 4, 8] {
            let (divided, of_parts) = one(step().micro_batches(parts, &["x", "y"]), &targets);
            assert!((whole.loss - divided.loss).abs() < 1e-5, "{targets:?} in {parts}");
            assert!(close(&weight, &of_parts), "{targets:?} in {parts}");
            let norms = [whole.grad_norm.unwrap(), divided.grad_norm.unwrap()];
            assert!((norms[0] - norms[1]).abs() < 1e-5, "{norms:?}");
        }
    }
}

#[test]
fn scaled_losses_are_divided_once() {
    let scaled = || step().autocast("cpu", DType::F16).scaler(ScalerOptions::default());
    let (whole, weight) = one(scaled(), &TARGETS[1]);
    let (divided, of_parts) = one(scaled().micro_batches(4, &["x", "y"]), &TARGETS[1]);
    assert!(!whole.skipped && !divided.skipped);
    assert!((whole.loss - divided.loss).abs() < 1e-3);
    assert!(weight.iter().zip(&of_parts).all(|(a, b)| (a - b).abs() < 1e-3));
}

#[test]
fn ranks_weigh_every_target_alike() {
    for scaled in [false, true] {
        let builder = || match scaled {
            true => step().scaler(ScalerOptions::default()),
            false => step(),
        };
        for targets in TARGETS {
            let (whole, weight) = one(builder(), &targets);
            for cut in [4, 3] {
                let part = |rank: usize| if rank == 0 { 0..cut } else { cut..ROWS };
                let found = std::thread::scope(|scope| {
                    let ranks = threads(2, Duration::from_secs(30)).into_iter();
                    let started: Vec<_> = ranks
                        .enumerate()
                        .map(|(number, rank)| {
                            scope.spawn(move || {
                                let step = builder().build().unwrap();
                                let step = step.data_parallel(rank).uneven(true);
                                let mut store = Store::new();
                                step.init(&mut store, 0).unwrap();
                                let rows = part(number);
                                let x = x().slice(0, rows.clone()).unwrap();
                                let y = y(&targets).slice(0, rows).unwrap();
                                let given = [("x", &x), ("y", &y)];
                                let loss = step.run(&mut store, &given).unwrap().loss;
                                let weight = store.get("weight").unwrap();
                                (loss, weight.to_vec::<f32>().unwrap())
                            })
                        })
                        .collect();
                    started.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
                });
                for (loss, of_rank) in found {
                    assert!((whole.loss - loss).abs() < 1e-5, "{targets:?}");
                    assert!(close(&weight, &of_rank), "{targets:?}");
                }
            }
        }
    }
}

#[test]
fn a_loss_that_is_nan_is_told() {
    let none = [-100; ROWS];
    for parts in [1, 2] {
        for scaled in [false, true] {
            let builder = step().micro_batches(parts, &["x", "y"]);
            let builder = if scaled { builder.scaler(ScalerOptions::default()) } else { builder };
            let (done, weight) = one(builder, &none);
            // The gradients of no losses are zeros.
            assert!(!done.skipped && weight.iter().all(|w| w.is_finite()), "{weight:?}");
            assert!(done.loss.is_nan() && done.warning.unwrap().contains("NaN"));
        }
    }
}
