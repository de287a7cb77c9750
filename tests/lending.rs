//! Large inputs and outputs are not copied: kernels work on the memory of the tensors. What a user sees stays the same: a tensor
//! that was given or received never changes, whatever runs afterwards.
#![cfg(feature = "cpu")]

use tracecast::prelude::*;
use tracecast::{Jit, Tensor, jit};

/// Elements of a tensor that is large enough to be lent, and no multiple of anything.
const N: usize = 40_003;

fn numbers(seed: u64) -> Tensor {
    Tensor::rand([N], seed).expect("a size that fits")
}

fn program(threads: usize, body: impl Fn(&Trace) + Send + Sync + 'static) -> Jit {
    jit(Options::new().threads(threads), body)
}

fn scaled(x: &Tensor, by: f32, plus: f32) -> Vec<f32> {
    x.to_vec::<f32>().expect("floats").iter().map(|x| x * by + plus).collect()
}

#[test]
fn outputs_that_are_held_never_change() {
    let double = program(2, |t| {
        t.output("y", t.input("x") * 2.0);
    });
    let mut store = Store::new();
    let mut held = Vec::new();
    for seed in 0..7 {
        let x = numbers(seed);
        let y = double.run(&mut store, &[("x", &x)]).unwrap()["y"].clone();
        assert_eq!(y.to_vec::<f32>().unwrap(), scaled(&x, 2.0, 0.0));
        if seed % 3 != 1 {
            held.push((x, y));
        }
    }
    for (x, y) in held {
        assert_eq!(y.to_vec::<f32>().unwrap(), scaled(&x, 2.0, 0.0));
    }
}

#[test]
fn an_input_is_never_written_and_may_be_an_output() {
    let steps = program(1, |t| {
        let x = t.input("x");
        let y = x * 3.0;
        t.output("same", x);
        t.output("y", y);
        t.output("again", y);
        t.output("relu", y.relu());
    });
    let (mut store, x) = (Store::new(), numbers(3));
    let before = x.bytes().to_vec();
    let out = steps.run(&mut store, &[("x", &x)]).unwrap();
    assert_eq!((x.bytes(), &out["same"]), (&before[..], &x));
    assert_eq!(out["y"].to_vec::<f32>().unwrap(), scaled(&x, 3.0, 0.0));
    assert!(out["again"] == out["y"] && out["relu"] == out["y"]);
    let next = steps.run(&mut store, &[("x", &out["y"])]).unwrap();
    assert_eq!(next["y"].to_vec::<f32>().unwrap(), scaled(&out["y"], 3.0, 0.0));
    assert_eq!(out["y"].to_vec::<f32>().unwrap(), scaled(&x, 3.0, 0.0));
}

#[test]
fn one_tensor_may_be_two_inputs() {
    let sum = program(2, |t| {
        t.output("z", t.input("x") + t.input("y"));
    });
    let x = numbers(1);
    let z = sum.run(&mut Store::new(), &[("x", &x), ("y", &x)]).unwrap();
    assert_eq!(z["z"].to_vec::<f32>().unwrap(), scaled(&x, 2.0, 0.0));
}

#[test]
fn state_that_becomes_an_output_is_a_copy() {
    let count = program(1, |t| {
        let state = t.input("start").mul(1.0);
        let total = t.state_of("total", TensorType::new(DType::F32, [N]));
        let next = total + state;
        t.update(total, next);
        t.output("before", total);
        t.output("after", next);
    });
    let (mut store, x) = (Store::new(), numbers(5));
    store.insert("total", Tensor::zeros(x.ty().clone()).unwrap());
    let first = count.run(&mut store, &[("start", &x)]).unwrap();
    let second = count.run(&mut store, &[("start", &x)]).unwrap();
    assert_eq!((&first["after"], &second["before"]), (&x, &x));
    assert_eq!(second["after"].to_vec::<f32>().unwrap(), scaled(&x, 2.0, 0.0));
    assert_eq!(store.get("total").unwrap(), second["after"]);
}

#[test]
fn a_failed_run_gives_back_what_it_was_lent() {
    let rows = program(2, |t| {
        let table = t.input("table");
        t.output("rows", table.embedding(t.input("at")));
    });
    let table = Tensor::rand([100, 700], 1).unwrap();
    let (good, bad) = (vec![7i64; 60], vec![100i64; 60]);
    let at = |index: &[i64]| Tensor::new([60], index).unwrap();
    let mut store = Store::new();
    let run = |store: &mut Store, index: &[i64]| {
        rows.run(store, &[("table", &table), ("at", &at(index))])
    };
    let first = run(&mut store, &good).unwrap();
    assert!(run(&mut store, &bad).is_err());
    let second = run(&mut store, &good).unwrap();
    assert_eq!(first["rows"], second["rows"]);
    assert_eq!(second["rows"].bytes()[..2800], table.bytes()[7 * 2800..8 * 2800]);
}

#[test]
fn threads_that_share_a_program_do_not_share_loans() {
    let double = program(1, |t| {
        t.output("y", t.input("x") * 2.0 + 1.0);
    });
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let double = &double;
            scope.spawn(move || {
                let (mut store, x) = (Store::new(), numbers(seed));
                for _ in 0..20 {
                    let y = double.run(&mut store, &[("x", &x)]).unwrap();
                    assert_eq!(y["y"].to_vec::<f32>().unwrap(), scaled(&x, 2.0, 1.0));
                }
            });
        }
    });
}
