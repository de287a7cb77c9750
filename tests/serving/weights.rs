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
        t.update(b, b + w.sum(0) * 0.0 + 1.0);
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

/// Packed columns are in whole panels, so other sizes may lie in as many.
#[test]
fn packed_weights_are_those_of_the_columns_that_a_size_takes() {
    let graph = trace("columns", |t| {
        let n = t.size_at("n", 64..=128, 95);
        let x = t.input_of("x", ty(&[4, 64]));
        let bias = t.input_of("bias", TensorType::new(DType::F32, sizes![n]));
        let w = t.param_of("w", ty(&[64, 128]));
        t.output("y", x.matmul(w.slice(1, 0, n, 1)) + bias);
    });
    let program = compile_sized(graph.unwrap(), &options()).unwrap();
    let mut store = Store::new().with("w", Tensor::rand([64, 128], 1).unwrap());
    let weights = store.snapshot();
    let (x, bias) = (Tensor::rand([4, 64], 2).unwrap(), Tensor::rand([128], 3).unwrap());
    let mut session = Session::new();
    for n in [90, 95, 91, 96] {
        let bias = bias.slice(0, ..n).unwrap();
        let number = trace("number", |t| {
            let w = t.param_of("w", ty(&[64, 128])).slice(1, 0, n, 1);
            t.output("y", t.input_of("x", ty(&[4, 64])).matmul(w) + t.input_of("bias", ty(&[n])));
        });
        let number = compile(number.unwrap(), &options()).unwrap();
        let inputs = [("x", &x), ("bias", &bias)];
        let expected = number.run(&mut store, &inputs).unwrap();
        for run in 0..12 {
            let found = program.run_on(&weights, &mut session, &inputs).unwrap();
            assert_eq!(found["y"], expected["y"], "{n} columns, run {run}");
        }
    }
}

#[test]
fn a_session_keeps_nothing_of_programs_that_are_gone() {
    let weights = store(1.0).snapshot();
    let mut sessions = [Session::new(), Session::new()];
    let run = |session: &mut Session, program: &Jit, rows: usize| {
        let x = Tensor::full(ty(&[rows, 64]), 1.0).unwrap();
        program.run_on(&weights, session, &[("x", &x)]).unwrap();
    };
    for rows in 1..20 {
        let program = head();
        for session in &mut sessions {
            run(session, &program, rows);
            assert!(session.programs() <= 1, "{session:?} after {rows}");
        }
    }
}

#[test]
fn two_models_take_turns_in_one_session() {
    let (program, other) = (head(), head());
    let [mut session, mut alone] = [Session::new(), Session::new()];
    let (first, second) = (store(1.0).snapshot(), store(2.0).snapshot());
    let x = Tensor::full(ty(&[2, 64]), 1.0).unwrap();
    for _ in 0..8 {
        for (program, weights, version) in [(&program, &first, 1.0), (&other, &second, 2.0)] {
            for session in [&mut session, &mut alone] {
                let out = program.run_on(weights, session, &[("x", &x)]).unwrap();
                assert_eq!(out["y"].to_f64s(), vec![65.0 * version; 2 * 96]);
            }
        }
    }
    assert_eq!(session.programs(), 2);
}
