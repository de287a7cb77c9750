//! Runs that end early: what they leave is what there was.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;
use tracecast::nn::{Linear, Sequential};
use tracecast::prelude::*;
use tracecast::{Cancel, Error};

fn step(options: Options) -> TrainStep {
    let model = Sequential::new().then(Linear::new(8, 64)).then(nn::Tanh).then(Linear::new(64, 8));
    TrainStep::new(model, |t, model| model.forward(t.input("x")).mean_squared_error(t.input("x")))
        .optimizer(AdamW::new(0.01))
        .options(options)
        .build()
        .unwrap()
}

fn bits(store: &Store) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = store
        .names()
        .map(|name| (name.to_owned(), store.get(name).unwrap().bytes().to_vec()))
        .collect();
    all.sort();
    all
}

#[test]
fn a_run_that_is_cancelled_leaves_state_as_it_was() {
    for device in ["cpu", "reference"] {
        let step = step(Options::new().device(device));
        let x = Tensor::rand([16, 8], 0).unwrap();
        let mut store = Store::new();
        step.init(&mut store, 0).unwrap();
        let before = bits(&store);
        for cancel in [Cancel::new(), Cancel::after(Duration::ZERO)] {
            if !cancel.is_cancelled() {
                assert!(Cancel::after(Duration::from_secs(600)).scope(|| !cancel.is_cancelled()));
                cancel.clone().cancel();
            }
            let error = cancel.scope(|| step.run(&mut store, &[("x", &x)])).unwrap_err();
            assert!(matches!(&error, Error::Cancelled(_)), "{error}");
            assert_eq!(bits(&store), before);
        }
        // Outside of the scope, and inside of one that lasts, runs go on.
        step.run(&mut store, &[("x", &x)]).unwrap();
        assert_ne!(bits(&store), before);
        let lasting = Cancel::after(Duration::from_secs(600));
        lasting.scope(|| step.run(&mut store, &[("x", &x)])).unwrap();
    }
}

#[test]
fn another_thread_ends_a_loop_of_runs() {
    let step = step(Options::new().threads(1));
    let x = Tensor::rand([16, 8], 0).unwrap();
    let start = |store: &mut Store| step.init(store, 0).unwrap();
    let mut store = Store::new();
    start(&mut store);
    let cancel = Cancel::new();
    let handle = cancel.clone();
    let other = std::thread::spawn(move || handle.cancel());
    let mut taken = 0;
    let ended = cancel.scope(|| {
        loop {
            match step.run(&mut store, &[("x", &x)]) {
                Ok(_) => taken += 1,
                Err(error) => return error,
            }
        }
    });
    other.join().unwrap();
    assert!(matches!(ended, Error::Cancelled(_)), "{ended}");
    // As many whole steps as were taken, and nothing of another.
    let mut whole = Store::new();
    start(&mut whole);
    for _ in 0..taken {
        step.run(&mut whole, &[("x", &x)]).unwrap();
    }
    assert_eq!(bits(&store), bits(&whole));
}
