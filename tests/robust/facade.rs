//! The interface that users see: whatever is given to a training step, it is refused with a reason
//! and leaves the store as it was.

use crate::outcome::caught;
use crate::runs::contents;
use crate::support::dice::Dice;
use tracecast::nn::{
    Context, Conv2d, ConvTranspose2d, Dropout, Embedding, Linear, Relu, Sequential,
};
use tracecast::prelude::*;

/// A small classifier of tokens, in bf16, with everything that keeps state.
fn step() -> TrainStep {
    let model = Sequential::new()
        .then(Embedding::new(7, 6))
        .then(Linear::new(6, 5))
        .then(Relu)
        .then(Dropout::new(0.25))
        .then(Linear::new(5, 4));
    TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
        .optimizer(AdamW::new("rate"))
        .autocast("cpu", DType::BF16)
        .scaler(ScalerOptions::default())
        .options(Options::new().programs(4))
        .build()
        .unwrap()
}

fn any_tensor(dice: &mut Dice) -> Tensor {
    let sizes: Vec<usize> = (0..dice.below(4)).map(|_| dice.pick(&[0, 1, 3, 4, 5])).collect();
    let ty = TensorType::new(dice.pick(&DType::COMPUTABLE), &sizes[..]);
    let numbers: Vec<f64> = (0..ty.numel().get())
        .map(|_| dice.pick(&[0.0, 1.0, 3.0, -1.0, 4.0, 7.0, 1e30, f64::NAN]))
        .collect();
    Tensor::from_f64s(ty, &numbers).unwrap()
}

#[test]
fn a_training_step_takes_nothing_for_granted() {
    let step = step();
    let (x, y) =
        (Tensor::new([4], &[0i64, 6, 3, 3]).unwrap(), Tensor::new([4], &[0i64, 1, 2, 3]).unwrap());
    let rate = Tensor::scalar(1e-2f32);
    let mut store = Store::new();
    step.init(&mut store, 5).unwrap();
    let names: Vec<String> = store.names().map(str::to_owned).collect();
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..150 {
        let dice = &mut Dice::new(seed);
        let mut given = vec![("x", x.clone()), ("y", y.clone()), ("rate", rate.clone())];
        let good = contents(&store);
        let mut own = Store::new();
        good.iter().for_each(|(name, value)| own.insert(name, value.clone()));
        match dice.below(5) {
            0 => drop(given.remove(dice.below(3))),
            1 | 2 => given[dice.below(3)].1 = any_tensor(dice),
            3 => given.push((dice.pick(&["x", "z", "0.weight", ""]), any_tensor(dice))),
            _ => {
                let name = &names[dice.below(names.len())];
                own.remove(name).unwrap();
                if dice.chance(50) {
                    own.insert(name, any_tensor(dice));
                }
            }
        }
        let before = contents(&own);
        let inputs: Vec<(&str, &Tensor)> =
            given.iter().map(|(name, value)| (*name, value)).collect();
        let result = caught(|| step.run(&mut own, &inputs))
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{given:?}"));
        match result {
            Ok(_) => taken += 1,
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.contains('`') || error.contains(file!()),
                    "seed {seed} says nothing of its place: {error}"
                );
                assert!(contents(&own) == before, "seed {seed} changed the store: {error}");
                refused += 1;
            }
        }
        // A good step on the good store, in between.
        step.run(&mut store, &[("x", &x), ("y", &y), ("rate", &rate)]).unwrap();
    }
    assert!(refused > 80 && taken > 2, "{refused} refused, {taken} taken");
}

#[test]
fn closures_that_panic_do_not_break_a_program() {
    let program = std::sync::Arc::new(jit(Options::new(), |t| {
        let x = t.input("x");
        assert!(x.rank() == 1, "this closure takes vectors");
        t.output("y", x + 1.0);
    }));
    let vector = Tensor::new([2], &[1f32, 2.0]).unwrap();
    let error =
        caught(|| program.run(&mut Store::new(), &[("x", &Tensor::scalar(1f32))]).map(|_| ()))
            .unwrap_err();
    assert!(error.contains("takes vectors"), "{error}");
    let found = program.run(&mut Store::new(), &[("x", &vector)]).unwrap();
    assert_eq!(found["y"].to_f64s(), [2.0, 3.0]);
}

#[test]
fn sizes_that_overflow_are_refused_where_they_are_asked_for() {
    let vast = |sizes: &[usize]| TensorType::new(DType::F32, sizes);
    type Body = fn(&Trace, Var<'_>);
    let cases: [(&str, Body); 5] = [
        ("expand", |t, x| t.output("y", x.expand([1i64 << 40, 1 << 40, 2]))),
        ("pad", |t, x| t.output("y", x.pad([i64::MAX], [i64::MAX], 0.0))),
        ("reshape", |t, x| t.output("y", x.reshape([-1, i64::MAX, 3]))),
        ("matmul", |t, x| {
            t.output(
                "y",
                x.reshape([2, 1])
                    .expand([2, 1 << 30])
                    .t()
                    .matmul(x.reshape([2, 1]).expand([2, 1 << 30])),
            )
        }),
        ("cat", |t, x| {
            t.output(
                "y",
                tracecast_ir::ops::view::cat(
                    &[x.expand([1i64 << 55, 2]), x.expand([1i64 << 55, 2])],
                    0,
                ),
            )
        }),
    ];
    for (op, body) in cases {
        let error =
            trace("vast", |t| body(t, t.input_of("x", vast(&[2])))).unwrap_err().to_string();
        let places = error.contains(file!()) && (error.contains(op) || error.contains("expand"));
        assert!(places, "{op}: {error}");
    }
    for sizes in [&[usize::MAX, 2][..], &[usize::MAX, 0], &[1 << 60]] {
        let error =
            trace("vast", |t| t.output("y", t.input_of("x", vast(sizes)))).unwrap_err().to_string();
        assert!(error.contains("too many elements") && error.contains(file!()), "{error}");
    }
}

#[test]
fn layers_of_any_size_are_recorded_or_refused_with_their_line() {
    let sizes = [0, 1, 2, 3, 1 << 31, usize::MAX / 2, usize::MAX];
    let pairs = sizes.iter().flat_map(|a| sizes.iter().map(move |b| (*a, *b)));
    let (mut refused, mut recorded) = (0, 0);
    for (a, b) in pairs {
        let layers: [&dyn Module; 5] = [
            &Conv2d::new(1, 1, [a, b]),
            &Conv2d::new(a, b, [3, 3]).groups(a),
            &ConvTranspose2d::new(1, b, [a, 2]),
            &Linear::new(a, b),
            &Embedding::new(a, b),
        ];
        for (i, layer) in layers.into_iter().enumerate() {
            let traced = caught(|| {
                trace("layer", |t| {
                    let images = TensorType::new(DType::F32, [1, 1, 4, 4]);
                    let x = t.input_of("x", images);
                    t.output("y", layer.forward(&Context::training(t), x));
                })
            });
            let traced = traced.unwrap_or_else(|why| panic!("layer {i} of {a}, {b}: {why}"));
            match traced {
                Ok(_) => recorded += 1,
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains(file!()), "layer {i} of {a}, {b}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100 && recorded > 2, "{refused} refused, {recorded} recorded");
}
