//! Large inputs and outputs are not copied: kernels work on the memory of the tensors. What a user
//! sees stays the same: a tensor that was given or received never changes, whatever runs
//! afterwards.
#![cfg(feature = "cpu")]

#[cfg(target_os = "linux")]
#[path = "support/guard.rs"]
#[allow(dead_code, unreachable_pub, reason = "its allocator is what these tests need")]
mod guard;

use std::sync::Arc;
use tracecast::ir::eval::Bytes;
use tracecast::prelude::*;
use tracecast::{Executable, Jit, Tensor, jit};

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

/// Memory of somebody else, from a byte on.
struct Foreign(Arc<Bytes>, usize);

impl AsRef<[u8]> for Foreign {
    fn as_ref(&self) -> &[u8] {
        &self.0[self.1..]
    }
}

/// A tensor of f32 in borrowed memory that begins `at` bytes behind a cache line, and its owner.
fn borrowed(x: &Tensor, at: usize) -> (Arc<Bytes>, Tensor) {
    let mut bytes = vec![0; at];
    bytes.extend_from_slice(x.bytes());
    let owner = Arc::new(Bytes::from(bytes));
    let tensor = Tensor::borrowed(x.ty().clone(), Foreign(owner.clone(), at)).expect("it fits");
    (owner, tensor)
}

fn compiled(body: impl FnOnce(&Trace)) -> Executable {
    let graph = tracecast::trace("step", body).expect("a program");
    compile(graph, &Options::new().threads(2)).expect("a device")
}

#[test]
fn borrowed_inputs_are_read_in_place_and_let_go() {
    for n in [5, 1000, N, 600_000] {
        let ty = TensorType::new(DType::F32, [n]);
        let double = compiled(|t| t.output("y", t.input_of("x", ty.clone()) * 2.0));
        for at in [0, 4, 20] {
            let x = Tensor::rand([n], at as u64).unwrap();
            let (owner, tensor) = borrowed(&x, at);
            assert_eq!(tensor.bytes().as_ptr(), owner[at..].as_ptr());
            let y = double.run(&mut Store::new(), &[("x", &tensor)]).unwrap();
            assert_eq!(y["y"].to_vec::<f32>().unwrap(), scaled(&x, 2.0, 0.0));
            drop(tensor);
            assert_eq!((Arc::strong_count(&owner), &owner[at..]), (1, x.bytes()));
        }
    }
}

#[test]
fn state_in_borrowed_memory_is_copied_before_it_is_written() {
    let ty = TensorType::new(DType::F32, [N]);
    let count = compiled(|t| {
        let total = t.state_of("total", ty.clone());
        t.update(total, total + 1.0);
    });
    let x = numbers(2);
    let (owner, tensor) = borrowed(&x, 0);
    let mut store = Store::new();
    store.insert("total", tensor);
    for _ in 0..2 {
        count.run(&mut store, &[]).unwrap();
    }
    assert_eq!(
        store.get("total").unwrap().to_vec::<f32>().unwrap()[7],
        x.to_vec::<f32>().unwrap()[7] + 1.0 + 1.0
    );
    assert_eq!(&owner[..], x.bytes());
}

#[test]
fn results_lie_in_the_memory_that_is_given() {
    for n in [3, N, 600_000] {
        let ty = TensorType::new(DType::F32, [n]);
        let program = compiled(|t| {
            let x = t.input_of("x", ty.clone());
            let y = x * 3.0;
            t.output("same", x);
            t.output("y", y);
            t.output("again", y);
            t.output("sum", y.sum(()));
        });
        let mut store = Store::new();
        for seed in 0..4 {
            let (x, sum) = (Tensor::rand([n], seed).unwrap(), TensorType::scalar(DType::F32));
            let types = [&ty, &ty, &ty, &sum];
            let room = |ty: &&TensorType| {
                let bytes = Bytes::to_write(ty.bytes().get()).unwrap();
                Tensor::lent((*ty).clone(), Room(bytes)).unwrap()
            };
            let given: Vec<Tensor> = types.iter().map(room).collect();
            let places: Vec<*const u8> = given.iter().map(|t| t.bytes().as_ptr()).collect();
            let out = program.run_into(&mut store, &[("x", &x)], given).unwrap();
            let found: Vec<*const u8> = out.iter().map(|(_, t)| t.bytes().as_ptr()).collect();
            assert_eq!(found, places);
            assert_eq!(out["y"].to_vec::<f32>().unwrap(), scaled(&x, 3.0, 0.0));
            assert!(out["same"] == x && out["again"] == out["y"]);
            // A run without memory for its results has its own, before and after.
            let own = program.run(&mut store, &[("x", &x)]).unwrap();
            assert!(own == out && own.iter().all(|(_, t)| !places.contains(&t.bytes().as_ptr())));
        }
    }
}

/// Bytes that are lent to be written.
struct Room(Bytes);

impl AsRef<[u8]> for Room {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Room {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[test]
fn memory_for_results_has_to_be_free_and_of_the_right_type() {
    let ty = TensorType::new(DType::F32, [N]);
    let double = compiled(|t| t.output("y", t.input_of("x", ty.clone()) * 2.0));
    let x = numbers(1);
    let run = |results| double.run_into(&mut Store::new(), &[("x", &x)], results);
    let none = run(Vec::new()).unwrap_err().to_string();
    assert!(none.contains("memory for 1 results") && none.contains("found 0"), "{none}");
    let other = run(vec![Tensor::scalar(1.0f32)]).unwrap_err().to_string();
    assert!(other.contains("`y`") && other.contains("f32[40003]"), "{other}");
    let held = numbers(2);
    assert!(run(vec![held.clone()]).unwrap_err().to_string().contains("held"));
    assert_eq!(run(vec![held]).unwrap()["y"].to_vec::<f32>().unwrap(), scaled(&x, 2.0, 0.0));
}
