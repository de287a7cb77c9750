//! One set of weights for many threads: shared memory, whole versions, and stores that go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tracecast::prelude::*;
use tracecast::{Outputs, Published, Session, Weights};

fn options() -> Options {
    Options::new().threads(1).infer_sizes(false)
}

fn head() -> Jit {
    jit(options(), |t| {
        let h = autocast(t, "cpu", DType::BF16, || t.input("x").matmul(t.param("w")));
        t.output("y", h.to(DType::F32) + t.param("b"));
    })
}

fn ty(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// Weights of which every element of every answer tells the version.
fn store(version: f64) -> Store {
    Store::new()
        .with("w", Tensor::full(ty(&[64, 96]), version).expect("small"))
        .with("b", Tensor::full(ty(&[96]), version).expect("small"))
}

#[test]
fn threads_on_weights_compute_what_a_store_computes() {
    let mut own = Store::new()
        .with("w", Tensor::rand([64, 96], 1).unwrap())
        .with("b", Tensor::rand([96], 2).unwrap());
    let program = head();
    let xs: Vec<Tensor> = (0..4).map(|i| Tensor::rand([3 + i, 64], i as u64).unwrap()).collect();
    let expected: Vec<Outputs> =
        xs.iter().map(|x| program.run(&mut own, &[("x", x)]).unwrap()).collect();
    let weights = own.snapshot();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut session = Session::new();
                for round in 0..40 {
                    let i = round % xs.len();
                    let out = program.run_on(&weights, &mut session, &[("x", &xs[i])]).unwrap();
                    assert_eq!(out["y"], expected[i]["y"]);
                }
                assert_eq!(session.programs(), xs.len());
            });
        }
    });
}

#[test]
fn a_step_replaces_only_what_it_writes() {
    let step = jit(options(), |t| {
        let (w, b) = (t.param("w"), t.param("b"));
        t.update(b, b + w.sum(&[0], false, None) * 0.0 + 1.0);
    });
    for device in ["cpu", "reference"] {
        let step = if device == "cpu" {
            &step
        } else {
            &jit(options().device(device), |t| t.update(t.param("b"), t.param("b") + 1.0))
        };
        let mut own = store(1.0);
        let first = own.snapshot();
        step.run(&mut own, &[]).unwrap();
        let second = own.snapshot();
        step.run(&mut own, &[]).unwrap();
        let number = |of: &Weights| of.get("b").unwrap().to_vec::<f32>().unwrap()[95];
        assert_eq!((number(&first), number(&second)), (1.0, 2.0), "{device}");
        assert_eq!(own.get("b").unwrap().to_vec::<f32>().unwrap()[0], 3.0);
        assert!(second.version() > first.version());
        assert_eq!(second.get("w").unwrap(), first.get("w").unwrap());
        // A store of a version goes on from there, and the version stays.
        let mut again = first.to_store();
        step.run(&mut again, &[]).unwrap();
        assert_eq!(again.get("b").unwrap(), second.get("b").unwrap());
        assert_eq!(number(&first), 1.0);
    }
}

#[test]
fn programs_that_replace_state_are_refused_on_weights() {
    let step = jit(options(), |t| t.update(t.param("b"), t.param("b") + 1.0));
    let weights = store(1.0).snapshot();
    let error = step.run_on(&weights, &mut Session::new(), &[]).unwrap_err().to_string();
    let expected =
        "state `b`: is replaced by the program, and weights are only read: run it on a store";
    assert_eq!(error, expected);
    let missing = jit(options(), |t| t.output("y", t.param_of("v", ty(&[2])) * 2.0));
    let error = missing.run_on(&weights, &mut Session::new(), &[]).unwrap_err().to_string();
    assert!(error.starts_with("state `v`: is not in the store"), "{error}");
}

#[test]
fn versions_are_seen_whole() {
    let (program, served) = (head(), Published::new(store(1.0).snapshot()));
    let x = Tensor::full(ty(&[2, 64]), 1.0).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (mut session, mut last) = (Session::new(), 0.0);
                while !done.load(Ordering::Relaxed) {
                    let out = program.run_on(&served.current(), &mut session, &[("x", &x)]);
                    let y = out.unwrap()["y"].to_vec::<f32>().unwrap();
                    let version = y[0] / 65.0;
                    assert!(y.iter().all(|v| *v == y[0]) && version >= last, "{version} {last}");
                    last = version;
                }
            });
        }
        for version in 2..60 {
            served.publish(store(f64::from(version)).snapshot());
            thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
}
