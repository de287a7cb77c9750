//! Sizes as names: a program with names means the program traced with the numbers, op by op and for
//! whole training steps; what it depends on is said when it fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "sizes/jit.rs"]
mod jit;
#[path = "sizes/op_table.rs"]
mod op_table;
#[path = "sizes/programs.rs"]
mod programs;
#[path = "sizes/random.rs"]
mod random;
mod support;

use tracecast::prelude::*;
use tracecast::runtime::ReferenceDevice;

/// On the device that interprets kernels.
fn options() -> Options {
    Options::new().on(std::sync::Arc::new(ReferenceDevice))
}

fn f32s(shape: &[Size]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// The message of what a closure fails with.
fn refusal(body: impl FnOnce(&Trace)) -> String {
    trace("bad", body).unwrap_err().to_string()
}

#[test]
fn names_that_must_be_equal_leave_a_guard_with_op_and_line() {
    let graph = trace("sum", |t| {
        let [length, width] = ["length", "width"].map(|name| t.size(name));
        let (x, y) = (t.input_of("x", f32s(&[length])), t.input_of("y", f32s(&[width])));
        t.output("z", x + y);
    })
    .unwrap();
    let guard = graph.sizes().guards()[0].to_string();
    assert!(guard.starts_with("length == width of \"add\" at \"tests/sizes.rs:"), "{guard}");
    let program = compile_sized(graph, &options()).unwrap();
    let run = |x: usize, y: usize| {
        let (x, y) = (Tensor::rand([x], 1).unwrap(), Tensor::rand([y], 2).unwrap());
        program.run(&mut Store::new(), &[("x", &x), ("y", &y)])
    };
    assert_eq!(run(5, 5).unwrap()["z"].shape()[..], [5]);
    let wrong = run(5, 6).unwrap_err().to_string();
    assert!(wrong.starts_with("size: the program needs length == width of \"add\" at "), "{wrong}");
    assert!(wrong.ends_with("found length = 5, width = 6"), "{wrong}");
}

#[test]
fn a_name_has_one_value_and_stays_within_its_bounds() {
    let graph = trace("both", |t| {
        let batch = t.size_in("batch", 1..=64);
        let x = t.input_of("x", f32s(&[batch, 3.into()]));
        let y = t.input_of("y", f32s(&[batch * 2 + 1]));
        t.output("x", x.sum(0));
        t.output("y", y.sum(()));
    })
    .unwrap();
    let program = compile_sized(graph, &options()).unwrap();
    let run = |x: usize, y: usize| {
        let (x, y) = (Tensor::rand([x, 3], 1).unwrap(), Tensor::rand([y], 2).unwrap());
        let ran = program.run(&mut Store::new(), &[("x", &x), ("y", &y)]);
        ran.map(|_| ()).map_err(|error| error.to_string())
    };
    run(4, 9).unwrap();
    assert_eq!(
        run(4, 10).unwrap_err(),
        "input `y`: expected f32[2*batch + 1] with batch = 4, found f32[10]"
    );
    let line = program.graph().sizes().line("batch").unwrap().to_owned();
    assert!(line.contains("tests/sizes.rs:"), "{line}");
    for (batch, rows) in [(65, 131), (0, 1)] {
        let expected = format!("input `x`: `batch` is {batch}, expected 1..=64, set at {line}");
        assert_eq!(run(batch, rows).unwrap_err(), expected);
    }
    // The number of axes is what is wrong, whatever their sizes are.
    let (x, y) = (Tensor::rand([65], 1).unwrap(), Tensor::rand([9], 2).unwrap());
    let refused = program.run(&mut Store::new(), &[("x", &x), ("y", &y)]).unwrap_err();
    assert_eq!(refused.to_string(), "input `x`: expected f32[batch, 3], found f32[65]");
    assert_eq!(program.kept().len(), 1);
}

#[test]
fn a_size_that_no_input_has_alone_is_given_by_itself() {
    let graph = trace("prefix", |t| {
        let (filled, room) = (t.size_in("filled", 1..), t.size_in("room", 1..));
        let x = t.input_of("x", f32s(&[room]));
        t.output("y", x.slice(0, 0, filled, 1));
    })
    .unwrap();
    let program = compile_sized(graph, &options()).unwrap();
    let x = Tensor::new([4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let run = |sizes: &[(&str, i64)]| program.run_at(&mut Store::new(), &[("x", &x)], sizes);
    assert_eq!(run(&[("filled", 3)]).unwrap()["y"].to_f64s(), [1.0, 2.0, 3.0]);
    let missing = run(&[]).unwrap_err().to_string();
    assert!(missing.contains("`filled` has no value"), "{missing}");
    let beyond = run(&[("filled", 5)]).unwrap_err().to_string();
    assert!(beyond.contains("room >= filled of \"slice\""), "{beyond}");
    let unknown = run(&[("fill", 5)]).unwrap_err().to_string();
    assert_eq!(unknown, "size: no size is called `fill`");
}

#[test]
fn what_a_program_cannot_express_is_an_error_with_its_line() {
    let negative = refusal(|t| {
        let x = t.input_of("x", f32s(&[t.size_in("n", 0..=8)]));
        t.output("y", x.slice(0, 9, x.size(0), 1));
    });
    assert!(negative.starts_with("slice: start 9, end n, step 1 do not fit axis 0 of f32[n]"));
    assert!(negative.contains("tests/sizes.rs:"), "{negative}");
    let large = refusal(|t| {
        let n = t.size("n");
        let x = t.input_of("x", f32s(&[n]));
        t.output("y", x.expand(sizes![n * Size::MAX * 4, n]));
    });
    assert!(large.contains("too many elements") && large.contains("tests/sizes.rs:"), "{large}");
    let state = refusal(|t| {
        let w = t.param_of("w", f32s(&[t.size("n")]));
        t.output("w", w);
    });
    assert!(state.contains("only inputs may"), "{state}");
    let graph = trace("shrink", |t| {
        let n = t.size("n");
        let x = t.input_of("x", f32s(&[n]));
        t.output("y", x.slice(0, 2, n - 2, 1));
    })
    .unwrap();
    let short = compile_sized(graph, &options()).unwrap();
    let x = Tensor::rand([3], 1).unwrap();
    let short = short.run(&mut Store::new(), &[("x", &x)]).unwrap_err().to_string();
    assert!(
        short.contains("n - 2 >= 2 of \"slice\" at") && short.ends_with("found n = 3"),
        "{short}"
    );
    let fixed = trace("fixed", |t| t.output("x", t.input_of("x", f32s(&[t.size("n")])))).unwrap();
    let refused = compile(fixed, &options()).unwrap_err().to_string();
    assert!(refused.contains("the sizes n are names"), "{refused}");
}

#[test]
fn the_first_error_is_told_whatever_is_done_with_the_shape_of_a_failed_op() {
    let uses: [fn(&Trace, Var<'_>); 9] = [
        |t, x| t.output("y", x.reshape(sizes![x.shape()[1], x.size(7) * 2 + 1])),
        |t, x| t.output("y", x.reshape(&x.shape()[1..])),
        |t, x| t.output("y", t.full(TensorType::new(DType::F32, sizes![x.size(0), 3]), 1.0)),
        |t, x| {
            let w = t.input_of("w", TensorType::new(DType::F32, sizes![x.shape()[1], 4]));
            t.output("y", x.matmul(w));
        },
        |t, x| {
            for step in 0..x.size(1).pin(t) {
                t.output(&step.to_string(), x.slice(1, step, step + 1, 1));
            }
        },
        |t, x| assert!(!t.tracer().holds(x.size(0).at_least(3))),
        |t, x| t.output("y", t.number(x.ty().numel(), DType::F32) * x),
        |t, x| {
            let [rows, columns] = x.shape()[..] else { panic!("a matrix") };
            t.output("y", x.reshape(sizes![rows * columns]));
        },
        |_, x| assert_eq!(x.ty().numel().get(), 3),
    ];
    for (number, body) in uses.into_iter().enumerate() {
        let program = tracecast::jit(options(), move |t| body(t, t.input("nope")));
        let x = Tensor::rand([2, 3], 1).unwrap();
        let error = program.run(&mut Store::new(), &[("x", &x)]).unwrap_err().to_string();
        assert!(error.starts_with("input: `nope` was not given to this run"), "{number}: {error}");
        assert!(error.contains("tests/sizes.rs:"), "{number}: {error}");
    }
    let step = TrainStep::new(tracecast::nn::Linear::new(3, 1), |t, model| {
        let x = t.input("featurs");
        let rows = x.shape()[0];
        model.forward(x).reshape(sizes![rows]).mean(())
    });
    let step = step.options(options()).optimizer(Sgd::new(0.1)).build().unwrap();
    let x = Tensor::rand([2, 3], 1).unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let error = step.run(&mut store, &[("features", &x)]).unwrap_err().to_string();
    assert!(error.contains("`featurs` was not given to this run"), "{error}");
}

/// The window, the stride, the groups and the dtype decide the order of `k`, not whether the width
/// is a number.
#[test]
fn a_named_width_keeps_the_bits_of_a_depthwise_weight_gradient() {
    let gradient = |is_named: bool, number: i64| {
        let graph = trace("gradient", |t| {
            let width = if is_named { t.size("width") } else { number.into() };
            let x = t.input_of("x", f32s(&[2.into(), 4.into(), 6.into(), width]));
            let w = t.input_of("w", TensorType::new(DType::F32, [4, 1, 3, 3]));
            let y = x.conv2d(w, None, [1], [1], [], Some(4), false);
            t.output("dw", t.grad((y * y).sum(()), &[w])[0]);
        });
        let (x, w) = (Tensor::rand([2, 4, 6, number], 1), Tensor::rand([4, 1, 3, 3], 2));
        let (graph, x, w) = (graph.unwrap(), x.unwrap(), w.unwrap());
        let inputs = [("x", &x), ("w", &w)];
        let ran = match is_named {
            true => compile_sized(graph, &options()).unwrap().run(&mut Store::new(), &inputs),
            false => compile(graph, &options()).unwrap().run(&mut Store::new(), &inputs),
        };
        ran.unwrap()["dw"].to_vec::<f32>().unwrap()
    };
    for number in [1, 7, 20] {
        assert_eq!(gradient(false, number), gradient(true, number), "width {number}");
    }
}
