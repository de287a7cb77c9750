//! Names in a `Jit`: given, inferred from two calls, guarded.

use crate::options;
use tracecast::prelude::*;

fn ones(shape: &[usize]) -> Tensor {
    Tensor::full(TensorType::new(DType::F32, shape), 1.0).unwrap()
}

fn reasons(jit: &Jit) -> Vec<String> {
    jit.recompilations().into_iter().map(|r| r.reason).collect()
}

/// The sums of the rows of `x` plus `y`, run for these sizes.
fn sums(jit: &Jit, x: &[usize], y: &[usize]) -> Result<Vec<f64>, String> {
    let (x, y) = (ones(x), ones(y));
    let out = jit.run(&mut Store::new(), &[("x", &x), ("y", &y)]);
    out.map(|out| out["z"].to_f64s()).map_err(|error| error.to_string())
}

fn summing(options: Options) -> Jit {
    jit(options, |t| t.output("z", t.input("x").sum(1) + t.input("y")))
}

#[test]
fn a_second_call_shows_which_sizes_change() {
    let jit = summing(options());
    for rows in [3, 5, 2, 9, 1] {
        assert_eq!(sums(&jit, &[rows, 4], &[rows]), Ok(vec![5.0; rows]));
    }
    let first = reasons(&jit);
    assert_eq!(first, ["first run", "input `x` is f32[5, 4], was f32[3, 4]"]);
    // Another axis changes: it becomes a name too.
    for columns in [6, 7, 1] {
        assert_eq!(sums(&jit, &[4, columns], &[4]), Ok(vec![columns as f64 + 1.0; 4]));
    }
    assert_eq!(reasons(&jit).len(), 3);
    // The sizes of the first program still run it, and names that were one stay one.
    assert_eq!(sums(&jit, &[3, 4], &[3]), Ok(vec![5.0; 3]));
    let apart = sums(&jit, &[4, 2], &[3]).unwrap_err();
    assert!(apart.contains("sizes 4 and 3"), "{apart}");
    assert_eq!(sums(&summing(options().infer_sizes(false)), &[2, 2], &[2]), Ok(vec![3.0; 2]));
}

#[test]
fn without_inference_each_signature_is_a_program() {
    let jit = summing(options().infer_sizes(false));
    for rows in [3, 5, 2] {
        assert_eq!(sums(&jit, &[rows, 4], &[rows]), Ok(vec![5.0; rows]));
    }
    assert_eq!(reasons(&jit).len(), 3);
}

#[test]
fn names_that_are_given_hold_from_the_first_call() {
    let jit = summing(options()).sizes("x: [batch, _], y: [batch]");
    for rows in [3, 5, 1] {
        assert_eq!(sums(&jit, &[rows, 4], &[rows]), Ok(vec![5.0; rows]));
    }
    assert_eq!(reasons(&jit), ["first run"]);
    let apart = sums(&jit, &[3, 4], &[2]).unwrap_err();
    assert!(apart.contains("`batch` is 2 in `y` and 3 in `x`"), "{apart}");
    let wrong = sums(&summing(options()).sizes("x [batch]"), &[3, 4], &[3]).unwrap_err();
    assert!(wrong.starts_with("option `sizes`: expected inputs such as"), "{wrong}");
    let rank = sums(&summing(options()).sizes("y: [a, b]"), &[3, 4], &[3]).unwrap_err();
    assert!(rank.contains("`y` is f32[3], expected 2 axes"), "{rank}");
}

#[test]
fn a_guard_that_fails_traces_anew_and_is_the_reason() {
    let jit = jit(options(), |t| {
        let x = t.input("x");
        let long = t.tracer().holds(x.size(0).at_least(4));
        t.output("y", if long { x.sum(().keep()) } else { x + x });
    });
    let jit = jit.sizes("x: [n]");
    let run = |n: usize| {
        let x = ones(&[n]);
        jit.run(&mut Store::new(), &[("x", &x)]).unwrap()["y"].to_f64s()
    };
    assert_eq!((run(6), run(7), run(2)), (vec![6.0], vec![7.0], vec![2.0; 2]));
    assert_eq!((run(3), run(5)), (vec![2.0; 3], vec![5.0]));
    let reasons = reasons(&jit);
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons[1].starts_with("the program needs n >= 4 of \"holds\" at \"tests/sizes/jit.rs:")
    );
    assert!(reasons[1].ends_with("found n = 2"), "{reasons:?}");
}

#[test]
fn a_loop_of_the_host_pins_its_length_and_code_that_takes_a_number_keeps_its_programs() {
    let steps = jit(options(), |t| {
        let x = t.input("x");
        let n = x.size(0).pin(t);
        let at = |i: usize| x.slice(0, i, i + 1, 1);
        t.output("y", (1..n).fold(at(0), |sum, i| sum * 0.5 + at(i)));
    });
    for n in [2, 3, 4] {
        let x = ones(&[n]);
        let y = steps.run(&mut Store::new(), &[("x", &x)]).unwrap()["y"].to_f64s();
        assert_eq!(y, [2.0 - 0.5f64.powi(n as i32 - 1)]);
    }
    let reasons = reasons(&steps);
    assert!(reasons[2].contains("x.0 == 3 of \"pin\""), "{reasons:?}");
    let counts = jit(options(), |t| {
        let x = t.input("x");
        t.output("y", x / x.size(0).get() as f64);
    });
    for n in [2, 4, 8] {
        let x = ones(&[n]);
        let y = counts.run(&mut Store::new(), &[("x", &x)]).unwrap()["y"].to_f64s();
        assert_eq!(y, vec![1.0 / n as f64; n]);
    }
}

#[test]
fn training_goes_on_over_a_guard_that_fails_and_on_two_threads() {
    let step = jit(options(), |t| {
        let (x, w) = (t.input("x"), t.param("w"));
        let steep = if t.tracer().holds(x.size(0).at_least(3)) { 0.5 } else { 0.25 };
        t.update(w, w + x.sum(0) * steep);
    });
    let step = step.sizes("x: [n]");
    let start = || Store::new().with("w", Tensor::new::<f32>(Shape::scalar(), &[0.0]).unwrap());
    let mut store = start();
    for (n, wanted) in [(4, 2.0), (3, 3.5), (2, 4.0), (8, 8.0), (1, 8.25)] {
        step.run(&mut store, &[("x", &ones(&[n]))]).unwrap();
        assert_eq!(store.get("w").unwrap().item::<f32>().unwrap(), wanted);
    }
    let wrong = step.run(&mut store, &[("x", &ones(&[2, 2]))]);
    assert!(wrong.is_err() && store.get("w").unwrap().item::<f32>().unwrap() == 8.25);
    std::thread::scope(|scope| {
        for n in [3, 5] {
            let (step, mut store) = (&step, start());
            scope.spawn(move || {
                for _ in 0..8 {
                    step.run(&mut store, &[("x", &ones(&[n]))]).unwrap();
                }
                assert_eq!(store.get("w").unwrap().item::<f32>().unwrap(), n as f32 * 4.0);
            });
        }
    });
}

#[test]
fn integers_take_a_size() {
    for device in ["cpu", "reference"] {
        let shifted = jit(options().device(device), |t| {
            let x = t.input("x");
            t.output("sum", x + x.size(0));
            t.output("rest", x - x.size(0) * 2);
            t.output("below", x.lt(x.size(0)));
            t.output("is", x.eq(x.size(0)));
            t.output("least", x.lt(x.size(0)).choose(x, x.size(0)));
            t.output("masked", x.masked_fill(x.ge(x.size(0)), x.size(0) - 1));
            t.output("modulo", x % x.size(0));
        });
        let shifted = shifted.sizes("x: [length]");
        for n in [3usize, 5, 1] {
            for dtype in [DType::I64, DType::I32] {
                let x: Vec<i64> = (0..n as i64).map(|i| i * 3).collect();
                let x = Tensor::new([n], &x).unwrap().cast(dtype).unwrap();
                let out = shifted.run(&mut Store::new(), &[("x", &x)]).unwrap();
                let expected = |f: fn(i64, i64) -> i64| -> Vec<f64> {
                    (0..n as i64).map(|i| f(i * 3, n as i64) as f64).collect()
                };
                assert_eq!(out["sum"].dtype(), dtype);
                assert_eq!(out["sum"].to_f64s(), expected(|x, n| x + n));
                assert_eq!(out["rest"].to_f64s(), expected(|x, n| x - 2 * n));
                assert_eq!(out["below"].to_f64s(), expected(|x, n| i64::from(x < n)));
                assert_eq!(out["is"].to_f64s(), expected(|x, n| i64::from(x == n)));
                assert_eq!(out["least"].to_f64s(), expected(|x, n| x.min(n)));
                assert_eq!(out["masked"].to_f64s(), expected(|x, n| x.min(n - 1)));
                assert_eq!(out["modulo"].to_f64s(), expected(|x, n| x % n));
            }
        }
    }
}

#[test]
fn programs_with_names_are_looked_into() {
    let graph = tracecast::trace("logs", |t| {
        let rows = t.size_in("rows", 1..=8);
        let x = t.input_of("x", TensorType::new(DType::F32, sizes![rows, 2]));
        t.output("y", x.log());
    })
    .unwrap();
    let x = Tensor::from([[1f32, 0.0], [2.0, 3.0], [4.0, 5.0]]);
    let (inputs, store) = ([("x", &x)], Store::new());
    let found = tracecast::numerics::check_finite(&graph, &options(), &store, &inputs).unwrap();
    assert_eq!((found.len(), &found[0].position[..]), (1, &[0, 1][..]));
    let stats = tracecast::numerics::stats(&graph, &options(), &store, &inputs).unwrap();
    assert_eq!(stats.values.last().unwrap().ty.to_string(), "f32[3, 2]");
    let many = Tensor::full(TensorType::new(DType::F32, [9, 2]), 1.0).unwrap();
    let error =
        tracecast::numerics::stats(&graph, &options(), &store, &[("x", &many)]).unwrap_err();
    assert!(error.to_string().contains("`rows` is 9, expected 1..=8"), "{error}");
}
