//! Steps that are given to a chip before the result of the one in front of them is known: their
//! bits, their order, and what a fault leaves.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod network;

use network::{Contents, PATIENCE, chips, contents, on, settings, twin};
use sim_npu::{Injection, Npu, Point, Settings};
use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use tracecast::data::Dataset;
use tracecast::nn::Linear;
use tracecast::prelude::*;
use tracecast::runtime::Error;

/// Steps of an epoch, and rows of each.
const STEPS: usize = 5;
const ROWS: usize = 4;

fn step(options: Options) -> TrainStep {
    let step = TrainStep::new(Linear::new(6, 3), |t, model| {
        let likely = model.forward(t.input("x")).log_softmax(-1) * t.input("labels");
        -likely.sum(-1).mean(())
    });
    let step = step.optimizer(Sgd::new(0.1).momentum(0.9)).autocast("npu", None);
    step.scaler(ScalerOptions::default()).options(options).build().unwrap()
}

fn data() -> Dataset {
    let rows = STEPS * ROWS;
    let labels: Vec<f32> = (0..rows * 3).map(|at| f32::from(at % 3 == at / 3 % 3)).collect();
    let x = Tensor::randn([rows, 6], 3).unwrap();
    Dataset::new([("x", x), ("labels", Tensor::new([rows, 3], &labels).unwrap())]).unwrap()
}

fn batches() -> Vec<Dataset> {
    data().batches(ROWS).unwrap().collect()
}

/// A step on a chip that takes several steps ahead, compiled, and a store for it.
fn ready() -> (TrainStep, Store, Arc<Npu>) {
    let (registry, chips) = chips(&Settings { in_flight: 4, ..settings() });
    let step = step(on(&registry, "npu:0"));
    let mut store = Store::new();
    step.init(&mut store, 7).unwrap();
    step.jit().prepare(&store, &batches()[0].inputs()).unwrap();
    (step, store, chips[0].clone())
}

/// The losses of the interpreter, and what its store has after each number of steps.
fn expected() -> (Vec<f32>, Vec<Contents>) {
    let (step, mut store) = (step(twin()), Store::new());
    step.init(&mut store, 7).unwrap();
    let mut after = vec![contents(&store)];
    let mut losses = Vec::new();
    for batch in batches() {
        losses.push(step.run(&mut store, &batch.inputs()).unwrap().loss);
        after.push(contents(&store));
    }
    (losses, after)
}

#[test]
fn steps_are_given_while_the_chip_waits() {
    let (step, mut store, chip) = ready();
    let (losses, after) = expected();
    // The first run brings the state to the chip.
    assert_eq!(step.run(&mut store, &batches()[0].inputs()).unwrap().loss, losses[0]);
    let before = chip.counts();
    chip.pause();
    let [second, third] = [1, 2].map(|at| step.start(&mut store, &batches()[at].inputs()).unwrap());
    assert_eq!(chip.counts().since(before).launches, 0);
    chip.resume();
    let third = third.finish(&store).unwrap();
    let second = second.finish(&store).unwrap();
    assert_eq!([second.loss, third.loss], losses[1..3]);
    assert_eq!(contents(&store), after[3]);
}

#[test]
fn batches_are_given_ahead_with_the_bits_of_steps_one_by_one() {
    let (step, mut store, _) = ready();
    let (losses, after) = expected();
    let drawn = Cell::new(0);
    let counted = batches().into_iter().inspect(|_| drawn.set(drawn.get() + 1));
    let mut told = Vec::new();
    for done in step.run_batches(&mut store, counted) {
        told.push(done.unwrap().loss);
        assert_eq!(drawn.get(), STEPS.min(told.len() + 1));
    }
    assert_eq!((told, contents(&store)), (losses, after[STEPS].clone()));

    // The interpreter has no queue: it takes a batch when it is asked for the result.
    let (step, mut store) = (self::step(twin()), Store::new());
    step.init(&mut store, 7).unwrap();
    drawn.set(0);
    let counted = batches().into_iter().inspect(|_| drawn.set(drawn.get() + 1));
    let told = step.run_batches(&mut store, counted).take(2).count();
    assert_eq!((told, drawn.get(), contents(&store)), (2, 2, after[2].clone()));
}

#[test]
fn a_fault_ends_the_results_and_is_told_once() {
    let (_, after) = expected();
    let (step, mut store, chip) = ready();
    let before = chip.counts();
    assert!(step.run_batches(&mut store, batches()).all(|done| done.is_ok()));
    let launches = chip.counts().since(before).launches / STEPS as u64;
    for failing in 0..STEPS {
        let (step, mut store, chip) = ready();
        let number = failing as u64 * launches;
        chip.inject(Injection { point: Point::Launch, number });
        let results: Vec<_> = step.run_batches(&mut store, batches()).collect();
        chip.mend();
        assert_eq!(results.len(), failing + 1);
        assert!(results[..failing].iter().all(Result::is_ok));
        let error = results[failing].as_ref().unwrap_err();
        assert!(matches!(error, Error::Fault(_)), "{error:?}");
        store.synchronize().unwrap();
        assert_eq!(contents(&store), after[failing], "step {failing}");
        // Training goes on with the batch that failed.
        let rest = batches().split_off(failing);
        assert!(step.run_batches(&mut store, rest).all(|done| done.is_ok()));
        assert_eq!(contents(&store), after[STEPS], "step {failing}");
    }
}

#[test]
fn an_input_that_is_wrong_comes_behind_the_results_before_it() {
    let (step, mut store, _) = ready();
    let mut given = batches();
    let wrong = Dataset::new([("x", Tensor::rand([ROWS, 6], 1).unwrap())]).unwrap();
    given[2] = wrong;
    let results: Vec<_> = step.run_batches(&mut store, given).collect();
    assert!(results.len() == 3 && results[..2].iter().all(Result::is_ok));
    assert!(results[2].as_ref().unwrap_err().to_string().contains("`labels`"));
    store.synchronize().unwrap();
    assert_eq!(contents(&store), expected().1[2]);
}

#[test]
fn results_that_nobody_asks_for_are_trained() {
    let (step, mut store, chip) = ready();
    let (losses, after) = expected();
    let first = step.run_batches(&mut store, batches()).next().unwrap().unwrap();
    assert_eq!(first.loss, losses[0]);
    store.synchronize().unwrap();
    assert_eq!(contents(&store), after[2]);
    // A store may be read from another thread while a step is in flight.
    chip.pause();
    let started = step.start(&mut store, &batches()[2].inputs()).unwrap();
    let waker = thread::spawn(move || {
        thread::sleep(PATIENCE / 50);
        chip.resume();
    });
    assert_eq!(started.finish(&store).unwrap().loss, losses[2]);
    waker.join().unwrap();
}
