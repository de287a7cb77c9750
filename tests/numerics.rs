//! Looking for the op that makes an inf or a NaN, and for how values use the range of their dtypes.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use tracecast::nn::{Context, Dropout, Linear, Relu, Sequential};
use tracecast::numerics::{NonFinite, Stats, check_finite, check_gradients, stats};
use tracecast::prelude::*;

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn found(body: impl FnOnce(&Trace), inputs: &[(&str, &Tensor)]) -> Vec<NonFinite> {
    let graph = trace("f", body).unwrap();
    check_finite(&graph, &Options::new(), &Store::new(), inputs).unwrap()
}

#[test]
fn the_op_that_makes_it_is_named_with_its_line() {
    let x = Tensor::new([2, 2], &[1f32, 2.0, 100.0, 3.0]).unwrap();
    let found = found(
        |t| {
            let x = t.input_of("x", f32s(&[2, 2]));
            let y = t.scope("head", || x.mul(2.0).exp()); // this line
            t.output("y", y.mul(0.5).sub(y));
        },
        &[("x", &x)],
    );
    let line = line!() - 5;
    // Inf minus inf is a NaN that follows from the inf, and is made by another op of operands
    // without one.
    let [first, second] = &found[..] else { panic!("{found:?}") };
    assert_eq!((first.place.op, first.place.scope.as_str()), ("exp", "head"));
    assert!(first.place.source.contains(&format!("numerics.rs:{line}:")), "{}", first.place.source);
    assert_eq!((first.first, &first.position[..]), (f64::INFINITY, &[1, 0][..]));
    assert_eq!((first.numbers.nonfinite, first.numbers.count), (1, 4));
    let operand = &first.operands[0];
    assert_eq!((operand.place.op, operand.numbers.range), ("mul", Some((2.0, 200.0))));
    assert_eq!(operand.there, Some(200.0));
    assert!(second.place.op == "sub" && second.first.is_nan(), "{second}");
    let text = first.to_string();
    assert!(
        text.starts_with("inf at [1, 0] of f32[2, 2], 1 of 4 numbers are inf or NaN\n"),
        "{text}"
    );
    assert!(text.ends_with(": f32[2, 2], 2 to 200, 200 there"), "{text}");
}

#[test]
fn what_is_meant_is_no_finding() {
    // A mask of minus infinity, as attention has it.
    let x = Tensor::new([2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
    let keep = Tensor::new([2, 2], &[true, false, true, true]).unwrap();
    let masked = |t: &Trace| {
        let (x, keep) = (
            t.input_of("x", f32s(&[2, 2])),
            t.input_of("keep", TensorType::new(DType::Bool, [2, 2])),
        );
        let never = t.full(f32s(&[]), f64::NEG_INFINITY);
        t.output("y", keep.choose(x, never).softmax(1));
    };
    assert_eq!(found(masked, &[("x", &x), ("keep", &keep)]), []);
    // A row that is masked as a whole is a NaN that somebody has to hear of.
    let none = Tensor::new([2, 2], &[true, true, false, false]).unwrap();
    let found = found(masked, &[("x", &x), ("keep", &none)]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].first.is_nan() && found[0].position == [1, 0], "{}", found[0]);
    assert_eq!(found[0].place.part_of, Some("softmax"));
}

#[test]
fn inputs_and_state_are_looked_at() {
    let graph = trace("f", |t| {
        let (x, w) = (t.input_of("x", f32s(&[2])), t.param_of("w", f32s(&[2])));
        t.output("y", x * w);
    })
    .unwrap();
    let numbers = |numbers: [f32; 2]| Tensor::new([2], &numbers).unwrap();
    let store = Store::new().with("w", numbers([1.0, f32::NAN]));
    let x = numbers([1.0, 2.0]);
    let found = check_finite(&graph, &Options::new(), &store, &[("x", &x)]).unwrap();
    assert_eq!(found.len(), 1, "the product only passes it on: {found:?}");
    assert_eq!((found[0].place.op, found[0].place.value.as_str()), ("param", "%w"));
    let missing = check_finite(&graph, &Options::new(), &store, &[]).unwrap_err().to_string();
    assert!(missing.contains("`x`: is missing: expected f32[2]"), "{missing}");
    let wide = Tensor::new([2], &[1f64, 2.0]).unwrap();
    let wrong = check_finite(&graph, &Options::new(), &store, &[("x", &wide)]).unwrap_err();
    assert!(wrong.to_string().contains("expected f32[2], found f64[2]"), "{wrong}");
}

/// A step in f16 with a scaler whose scale is so large that gradients overflow.
fn overflowing() -> (tracecast::Graph, Store, Tensor, Tensor) {
    let model = Sequential::new().then(Linear::new(4, 8)).then(Relu).then(Linear::new(8, 3));
    let step = TrainStep::new(model, |t, m| m.forward(t.input("x")).cross_entropy(t.input("y")))
        .optimizer(AdamW::new(0.01))
        .autocast("cpu", DType::F16)
        .scaler(ScalerOptions { init_scale: 1e9, ..ScalerOptions::default() })
        .build()
        .unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let x = Tensor::rand([4, 4], 1).unwrap();
    let y = Tensor::new([4], &[0i64, 1, 2, 0]).unwrap();
    let graph = step.jit().graph(&store, &[("x", &x), ("y", &y)]).unwrap();
    let skipped = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap().skipped;
    assert!(skipped, "the compiled step overflows as well");
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    (graph, store, x, y)
}

#[test]
fn a_gradient_that_overflows_is_found_where_it_does() {
    let (graph, store, x, y) = overflowing();
    let found = check_finite(&graph, &Options::new(), &store, &[("x", &x), ("y", &y)]).unwrap();
    let first = &found[0];
    assert!(first.place.backward && first.ty.dtype == DType::F16, "{first}");
    assert!(first.place.source.contains("numerics.rs:"), "{first}");
    assert!(first.operands.iter().all(|operand| operand.numbers.nonfinite == 0), "{first}");
}

#[test]
fn statistics_cover_every_value_and_dtype() {
    let (graph, store, x, y) = overflowing();
    let all: Stats = stats(&graph, &Options::new(), &store, &[("x", &x), ("y", &y)]).unwrap();
    let input = &all.values[0];
    assert_eq!((input.place.value.as_str(), input.place.op), ("%x", "input"));
    let (least, most) = input.numbers.range.unwrap();
    let numbers = x.to_vec::<f32>().unwrap();
    assert_eq!(f64::from(numbers.iter().copied().fold(f32::INFINITY, f32::min)), least);
    assert_eq!(f64::from(numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max)), most);
    let relu = all.values.iter().find(|v| v.place.op == "relu" && !v.place.backward).unwrap();
    assert!(relu.numbers.zeros > 0 && relu.numbers.range.unwrap().0 == 0.0, "{relu:?}");
    let dtypes = all.dtypes();
    assert!(dtypes[&DType::F16].nonfinite > 0);
    let count: usize = all.values.iter().map(|value| value.numbers.count).sum();
    assert_eq!(dtypes.values().map(|numbers| numbers.count).sum::<usize>(), count);
    let text = all.to_string();
    assert!(text.contains("near overflow") && text.contains("\nf16 "), "{text}");
}

#[test]
fn the_numbers_are_those_of_compiled_code() {
    let graph = trace("f", |t| {
        let x = t.input_of("x", TensorType::new(DType::BF16, [64]));
        t.output("y", x.exp().sin().mul(x));
    })
    .unwrap();
    let x = Tensor::rand([64], 3).unwrap().cast(DType::BF16).unwrap();
    let all = stats(&graph, &Options::new(), &Store::new(), &[("x", &x)]).unwrap();
    let program = compile(graph, &Options::new()).unwrap();
    let y = program.run(&mut Store::new(), &[("x", &x)]).unwrap();
    let last = all.values.last().unwrap();
    assert_eq!(last.numbers, tracecast::numerics::Numbers::of(&y["y"]));
}

#[test]
fn wrong_gradients_are_found_where_they_are() {
    let x = Tensor::from([[0.5, -1.0], [2.0, 0.1]]);
    let labels = Tensor::from([1i64, 0]);
    let inputs = [("x", &x), ("y", &labels), ("z", &x)];
    // Right: a loss of one number, with indices beside it, and a result of another shape.
    let right = check_gradients(&Options::new(), &inputs, |t| {
        t.input("x").cross_entropy(t.input("y")) + t.input("z").sum(1)
    });
    assert_eq!(right.unwrap(), []);
    // Wrong at one element of one input only.
    let wrong = check_gradients(&Options::new(), &inputs, |t| {
        let (x, z) = (t.input("x"), t.input("z"));
        custom_grad(
            t,
            [x, z],
            |[x, z]| (x * z, [x, z]),
            |[x, z], dy| {
                let off = t.constant(DType::F64, &[2, 2], &[0.0, 0.0, 0.5, 0.0]);
                [Some(dy * z), Some(dy * x + off)]
            },
        )
    })
    .unwrap();
    let [only] = &wrong[..] else { panic!("{wrong:?}") };
    assert_eq!((only.input.as_str(), &only.position[..]), ("z", &[1, 0][..]));
    assert!((only.gradient - only.difference - 0.5).abs() < 1e-6, "{only}");
    assert!(only.to_string().starts_with("z[1, 0]: the gradient is "), "{only}");
    // Gradients at the wrong places, which a plain sum would not show; and a NaN is wrong.
    let swapped = check_gradients(&Options::new(), &[("x", &x)], |t| {
        custom_grad(t, [t.input("x")], |[x]| (x * 3.0, ()), |(), dy| [Some(dy.t() * 3.0)])
    });
    let places: Vec<_> = swapped.unwrap().into_iter().map(|wrong| wrong.position).collect();
    assert_eq!(places, [[0, 1], [1, 0]]);
    let below = Tensor::from([-1.0]);
    let nan = check_gradients(&Options::new(), &[("x", &below)], |t| t.input("x").sqrt());
    assert_eq!(nan.unwrap().len(), 1);
}

#[test]
fn gradients_are_checked_in_f64() {
    let check = |inputs: &[(&str, &Tensor)]| {
        check_gradients(&Options::new(), inputs, |t| t.input("x").exp()).unwrap_err().to_string()
    };
    let narrow = check(&[("x", &Tensor::from([1.0f32]))]);
    assert!(narrow.contains("`x`: is f32[1]: differences are taken in f64"), "{narrow}");
    assert!(check(&[("x", &Tensor::from([1i64]))]).contains("none is given"));
    let lost = check_gradients(&Options::new(), &[("x", &Tensor::from([1.0]))], |t| t.input("X"));
    assert!(lost.unwrap_err().to_string().contains("`X`"));
    // State starts anew with each of the runs, so that dropout leaves out the same elements.
    let dropped = check_gradients(&Options::new(), &[("x", &Tensor::from([[1.0; 8]; 4]))], |t| {
        Dropout::new(0.5).forward(&Context::training(t), t.input("x"))
    });
    assert_eq!(dropped.unwrap(), []);
}
