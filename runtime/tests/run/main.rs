//! Running planned programs: results, state, errors, threads.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod guest;
mod in_flight;
mod queued;
mod random;
mod shared;
mod sizes;
mod support;
mod versions;

use support::{Map, add, double, fused, launch, limit, load, vector};
use tracecast_ir::kernel::ScalarOp;
use tracecast_ir::{DType, Stage, TensorType, verify};
use tracecast_runtime::{Error, Executable, Outputs, Program, Store, Tensor};

fn tensor(v: &[f32]) -> Tensor {
    Tensor::new([v.len()], v).unwrap()
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

fn store(entries: &[(&str, &[f32])]) -> Store {
    entries.iter().map(|(name, v)| (*name, tensor(v))).collect()
}

fn state(store: &Store, name: &str) -> Vec<f32> {
    floats(&store.get(name).unwrap())
}

#[test]
fn an_accumulator_in_place() {
    let g = fused(|t| {
        let (x, s) = (t.input("x", vector(2)), t.state("s", vector(2)));
        let sum = launch(t, add(2, Some(0)), &[s, x])[0];
        t.update(s, sum);
        t.output("twice", launch(t, double(2, None), &[sum])[0]);
    });
    for infallible in [true, false] {
        let program = load(&g, infallible);
        assert_eq!((program.kernels(), program.program().copies()), (2, 0));
        let mut store = store(&[("s", &[1.0, 2.0])]);
        for step in 1..4 {
            let out = program.run(&mut store, &[("x", &tensor(&[1.0, 10.0]))]).unwrap();
            let now = [1.0 + step as f32, 2.0 + 10.0 * step as f32];
            assert_eq!(state(&store, "s"), now);
            assert_eq!(floats(&out["twice"]), [2.0 * now[0], 2.0 * now[1]]);
        }
        store.set("s", &tensor(&[0.0, 0.0])).unwrap();
        program.run(&mut store, &[("x", &tensor(&[1.0, 10.0]))]).unwrap();
        assert_eq!(state(&store, "s"), [1.0, 10.0]);
    }
}

/// State that becomes another port's value, and outputs of old state.
#[test]
fn swaps_passed_inputs_and_old_values() {
    let g = fused(|t| {
        let x = t.input("x", vector(1));
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|n| t.state(n, vector(1)));
        t.update(a, b);
        t.update(b, a);
        t.update(c, x);
        let next = launch(t, double(1, None), &[d])[0];
        t.update(d, next);
        t.output("old a", a);
        t.output("old d", d);
        t.output("x", x);
        t.output("next", next);
    });
    for infallible in [true, false] {
        let program = load(&g, infallible);
        let mut store = store(&[("a", &[1.0]), ("b", &[2.0]), ("c", &[3.0]), ("d", &[4.0])]);
        let out = program.run(&mut store, &[("x", &tensor(&[9.0]))]).unwrap();
        let now: Vec<f32> = ["a", "b", "c", "d"].iter().flat_map(|n| state(&store, n)).collect();
        assert_eq!(now, [2.0, 1.0, 9.0, 8.0]);
        let given: Vec<f32> = out.iter().flat_map(|(_, t)| floats(t)).collect();
        assert_eq!(given, [1.0, 4.0, 9.0, 8.0]);
    }
}

#[test]
fn one_value_for_two_states() {
    let g = fused(|t| {
        let (a, b) = (t.state("a", vector(1)), t.state("b", vector(1)));
        let sum = launch(t, add(1, Some(0)), &[a, b])[0];
        t.update(a, sum);
        t.update(b, sum);
    });
    for infallible in [true, false] {
        let mut store = store(&[("a", &[1.0]), ("b", &[2.0])]);
        let program = load(&g, infallible);
        program.run(&mut store, &[]).unwrap();
        program.run(&mut store, &[]).unwrap();
        assert_eq!((state(&store, "a"), state(&store, "b")), (vec![6.0], vec![6.0]));
    }
}

/// The check comes after the update in the graph: it has to run before, or the update has to wait.
#[test]
fn a_data_error_leaves_state_as_it_was() {
    let late = |depends: bool| {
        fused(move |t| {
            let (x, s) = (t.input("x", vector(1)), t.state("s", vector(1)));
            let sum = launch(t, add(1, Some(0)), &[s, x])[0];
            t.update(s, sum);
            t.output("y", launch(t, limit(1), &[if depends { sum } else { x }])[0]);
        })
    };
    for (infallible, depends) in [(true, false), (true, true), (false, false), (false, true)] {
        let program = load(&late(depends), infallible);
        assert_eq!(program.program().copies(), usize::from(infallible && depends));
        let mut store = store(&[("s", &[1.0])]);
        program.run(&mut store, &[("x", &tensor(&[5.0]))]).unwrap();
        let error = program.run(&mut store, &[("x", &tensor(&[2000.0]))]).unwrap_err();
        let Error::Data { op, source_line, kernel, .. } = &error else { panic!("{error}") };
        assert_eq!(
            (op.as_str(), source_line.as_str(), kernel.as_str()),
            ("limit", "model.rs:7:3", "limit")
        );
        assert_eq!(state(&store, "s"), [6.0]);
        program.run(&mut store, &[("x", &tensor(&[1.0]))]).unwrap();
        assert_eq!(state(&store, "s"), [7.0]);
    }
}

/// A kernel that is skipped leaves its output alone, wherever that lies.
#[test]
fn predicated_updates() {
    let add_when = || {
        Map::new("add", 1, 2)
            .output(Some(0), |b, v| b.binary(ScalarOp::Add, v[0], v[1]))
            .when()
            .build()
    };
    for late_reader in [false, true] {
        let g = fused(|t| {
            let (x, s) = (t.input("x", vector(1)), t.state("s", vector(1)));
            let skip = t.input("skip", TensorType::scalar(DType::F32));
            let next = launch(t, add_when(), &[s, x, skip])[0];
            t.update(s, next);
            if late_reader {
                t.output("sum", launch(t, add(1, None), &[s, next])[0]);
            }
        });
        for infallible in [true, false] {
            let program = load(&g, infallible);
            let mut store = store(&[("s", &[1.0])]);
            let mut run = |x: f32, skip: f32| {
                program
                    .run(&mut store, &[("x", &tensor(&[x])), ("skip", &Tensor::scalar(skip))])
                    .unwrap();
                state(&store, "s")[0]
            };
            assert_eq!(
                [run(2.0, 0.0), run(5.0, 1.0), run(1.0, f32::NAN), run(1.0, 0.0)],
                [3.0, 3.0, 3.0, 4.0]
            );
        }
    }
}

#[test]
fn equal_kernels_are_compiled_once() {
    let g = fused(|t| {
        let x = t.input("x", vector(3));
        let y = (0..10).fold(x, |y, _| launch(t, double(3, None), &[y])[0]);
        t.output("y", launch(t, limit(3), &[y])[0]);
    });
    let program = load(&g, true);
    assert_eq!((program.kernels(), program.code().count()), (11, 2));
    // Two buffers take turns.
    assert_eq!(program.peak_bytes(), 128);
    let out = program.run(&mut Store::new(), &[("x", &tensor(&[0.0, 0.5, -0.25]))]).unwrap();
    assert_eq!(floats(&out["y"]), [0.0, 512.0, -256.0]);
    assert!(program.run(&mut Store::new(), &[("x", &tensor(&[1.0, 0.0, 0.0]))]).is_err());
}

#[test]
fn empty_tensors_and_empty_programs() {
    let g = fused(|t| {
        let (x, s) = (t.input("x", vector(0)), t.state("s", vector(0)));
        t.update(s, launch(t, add(0, Some(0)), &[s, x])[0]);
        t.output("y", launch(t, double(0, None), &[x])[0]);
    });
    for infallible in [true, false] {
        let program = load(&g, infallible);
        let out = program.run(&mut store(&[("s", &[])]), &[("x", &tensor(&[]))]).unwrap();
        assert_eq!(out["y"].ty(), &vector(0));
        let nothing = load(&fused(|_| ()), infallible);
        assert!(nothing.run(&mut Store::new(), &[]).unwrap().is_empty());
    }
}

#[test]
fn what_is_wrong_is_named() {
    let g = fused(|t| {
        let (x, s) = (t.input("x", vector(1)), t.state("s", vector(1)));
        t.output("y", launch(t, add(1, None), &[s, x])[0]);
    });
    let program = load(&g, true);
    let x = tensor(&[1.0]);
    let fails = |store: &mut Store, inputs: &[(&str, &Tensor)]| {
        program.run(store, inputs).unwrap_err().to_string()
    };
    let good = || store(&[("s", &[1.0])]);
    assert_eq!(fails(&mut good(), &[]), "input `x`: is missing: expected f32[1], found none");
    assert_eq!(fails(&mut good(), &[("x", &x), ("x", &x)]), "input `x`: is given twice");
    let missing = fails(&mut good(), &[("z", &x)]);
    assert_eq!(missing, "input `x`: is missing: expected f32[1], found `z`");
    assert!(fails(&mut good(), &[("x", &x), ("s", &x)]).contains("belongs into the store"));
    assert_eq!(
        fails(&mut good(), &[("x", &tensor(&[1.0, 2.0]))]),
        "input `x`: expected f32[1], found f32[2]"
    );
    assert_eq!(
        fails(&mut Store::new(), &[("x", &x)]),
        "state `s`: is not in the store, which has nothing"
    );
    assert_eq!(
        fails(&mut store(&[("s", &[])]), &[("x", &x)]),
        "state `s`: expected f32[1], found f32[0]"
    );
    let out = program.run(&mut good(), &[("x", &x), ("z", &x)]).unwrap();
    let strict = load(&g, true).strict(true);
    let unknown = strict.run(&mut good(), &[("x", &x), ("z", &x)]).unwrap_err().to_string();
    assert!(unknown.starts_with("input `z`: is unknown: the inputs are `x`"), "{unknown}");
    assert!(out.get("z").unwrap_err().to_string().contains("expected one of y"));
    let traced = verify(support::graph(|t| _ = t.input("x", vector(1))), Stage::Core).unwrap();
    assert!(Program::plan(&traced).unwrap_err().to_string().contains("Fused"));
}

#[test]
fn stores_and_devices_can_be_exchanged() {
    let g = fused(|t| {
        let (x, s) = (t.input("x", vector(1)), t.state("s", vector(1)));
        t.update(s, launch(t, add(1, Some(0)), &[s, x])[0]);
    });
    let programs = [load(&g, true), load(&g, false)];
    let mut stores = [store(&[("s", &[0.0])]), store(&[("s", &[100.0])])];
    let one = tensor(&[1.0]);
    for turn in 0..12 {
        programs[turn / 2 % 2].run(&mut stores[turn % 2], &[("x", &one)]).unwrap();
    }
    assert_eq!((state(&stores[0], "s"), state(&stores[1], "s")), (vec![6.0], vec![106.0]));
}

#[test]
fn threads_run_one_program_with_stores_of_their_own() {
    fn shared<T: Send + Sync>() {}
    shared::<Executable>();
    shared::<Outputs>();
    let g = fused(|t| {
        let (x, s) = (t.input("x", vector(64)), t.state("s", vector(64)));
        let y = launch(t, double(64, None), &[x])[0];
        let sum = launch(t, add(64, Some(0)), &[s, y])[0];
        t.update(s, sum);
        t.output("sum", launch(t, limit(64), &[sum])[0]);
    });
    for infallible in [true, false] {
        let program = load(&g, infallible);
        std::thread::scope(|scope| {
            for number in 1..9u8 {
                let program = &program;
                scope.spawn(move || {
                    let mut store = store(&[("s", &[0.0; 64])]);
                    let x = tensor(&[f32::from(number); 64]);
                    for step in 1..20u8 {
                        let out = program.run(&mut store, &[("x", &x)]).unwrap();
                        let want = 2.0 * f32::from(number) * f32::from(step);
                        assert_eq!(floats(&out["sum"]), [want; 64]);
                    }
                });
            }
        });
    }
}
