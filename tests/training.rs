//! End to end: models learn in every precision, and a step does exactly what its parts say.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use tracecast::nn::{Dropout, Embedding, Frozen, Gelu, LayerNorm, Linear, Relu, Sequential};
use tracecast::optim::Optimizer;
use tracecast::prelude::*;
use tracecast::{Entry, StepResult, Vectors};

/// Numbers from -1 to 1 that are the same in every run.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Three classes of points in eight dimensions.
fn points(seed: u64, rows: usize) -> (Tensor, Tensor) {
    let centers = noise(99, 24);
    let around = noise(seed, rows * 8);
    let x: Vec<f32> =
        (0..rows * 8).map(|i| 2.0 * centers[i / 8 % 3 * 8 + i % 8] + 0.3 * around[i]).collect();
    let y: Vec<i64> = (0..rows as i64).map(|row| row % 3).collect();
    (Tensor::new([rows, 8], &x).unwrap(), Tensor::new([rows], &y).unwrap())
}

fn mlp() -> Sequential {
    Sequential::new().then(Linear::new(8, 32)).then(Relu).then(Linear::new(32, 3))
}

fn step_of(
    model: impl Module + 'static,
    optimizer: impl Optimizer + 'static,
    dtype: Option<DType>,
) -> TrainStep {
    let builder =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")));
    let builder = builder.optimizer(optimizer);
    let builder = match dtype {
        Some(dtype) => builder.autocast("cpu", dtype),
        None => builder,
    };
    let builder =
        if dtype == Some(DType::F16) { builder.scaler(ScalerOptions::default()) } else { builder };
    builder.build().unwrap()
}

fn run(step: &TrainStep, store: &mut Store, (x, y): &(Tensor, Tensor)) -> StepResult {
    step.run(store, &[("x", x), ("y", y)]).unwrap()
}

fn contents(store: &Store) -> BTreeMap<String, Vec<u8>> {
    store.names().map(|name| (name.to_owned(), store.get(name).unwrap().bytes().to_vec())).collect()
}

#[test]
fn an_mlp_learns_in_every_precision() {
    for dtype in [None, Some(DType::BF16), Some(DType::F16)] {
        let step = step_of(mlp(), AdamW::new(1e-2), dtype);
        let mut store = Store::new();
        step.init(&mut store, 7).unwrap();
        let first = run(&step, &mut store, &points(1, 30)).loss;
        for seed in 2..40 {
            let done = run(&step, &mut store, &points(seed, 30));
            assert!(
                !done.skipped
                    && done.scale == if dtype == Some(DType::F16) { 65536.0 } else { 1.0 }
            );
        }
        let last = run(&step, &mut store, &points(40, 30)).loss;
        assert!(last < 0.1 * first, "{dtype:?}: {first} to {last}");

        let evaluate =
            step.evaluation(|t, model| t.output("class", model.forward(t.input("x")).argmax(1)));
        let (x, y) = points(77, 90);
        let class =
            evaluate.run(&mut store, &[("x", &x)]).unwrap()["class"].to_vec::<i64>().unwrap();
        let right = class.iter().zip(y.to_vec::<i64>().unwrap()).filter(|(a, b)| **a == *b).count();
        assert!(right >= 85, "{dtype:?}: {right} of 90");
    }
}

#[test]
fn precisions_differ_little() {
    let loss = |dtype| {
        let step = step_of(mlp(), Sgd::new(0.1), dtype);
        let mut store = Store::new();
        step.init(&mut store, 3).unwrap();
        (0..5).map(|seed| run(&step, &mut store, &points(seed, 30)).loss).collect::<Vec<_>>()
    };
    let exact = loss(None);
    for (dtype, tolerance) in [(DType::BF16, 0.05), (DType::F16, 0.01)] {
        for (a, b) in loss(Some(dtype)).iter().zip(&exact) {
            assert!((a - b).abs() < tolerance * b.abs().max(1.0), "{dtype}: {a} and {b}");
        }
    }
}

/// A step whose first gradient has the input `poison` added to it.
fn poisoned(optimizer: impl Optimizer + 'static) -> Jit {
    let module = mlp();
    jit(Options::new(), move |t| {
        let model = tracecast::nn::Model::new(&module, tracecast::nn::Context::training(t));
        let loss = autocast(t, "cpu", DType::F16, || {
            model.forward(t.input("x")).cross_entropy(t.input("y"))
        });
        let mut optimizer = Recorded::new(t, &optimizer, &t.params());
        let mut scaler = GradScaler::recorded(
            t,
            "amp",
            ScalerOptions { growth_interval: 3, ..ScalerOptions::default() },
        );
        optimizer.backward(scaler.scale(loss));
        let first = optimizer.grads()[0];
        optimizer.grads_mut()[0] = first + t.input("poison");
        scaler.step(&mut optimizer);
        scaler.update();
        t.output("skipped", scaler.found().unwrap());
    })
}

#[test]
fn a_gradient_that_is_not_finite_skips_the_step_and_halves_the_scale() {
    for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let step = poisoned(AdamW::new(1e-2));
        let mut store = Store::new();
        mlp().init(&mut store, 1).unwrap();
        let (x, y) = points(5, 12);
        let take = |store: &mut Store, poison: f32| {
            let poison = Tensor::scalar(poison);
            let out = step.run(store, &[("x", &x), ("y", &y), ("poison", &poison)]).unwrap();
            out["skipped"].item::<f32>().unwrap()
        };
        assert_eq!(take(&mut store, 0.0), 0.0);
        let before = contents(&store);
        assert!(before.contains_key("optim.0.weight.exp_avg") && before.contains_key("optim.step"));
        assert_eq!(take(&mut store, bad), 1.0);
        for (name, bytes) in contents(&store) {
            match name.as_str() {
                "amp.scale" => {
                    assert_eq!(store.get(&name).unwrap().item::<f32>().unwrap(), 32768.0)
                }
                "amp.growth_tracker" => {
                    assert_eq!(store.get(&name).unwrap().item::<i32>().unwrap(), 0)
                }
                _ => assert_eq!(bytes, before[&name], "{name} changed"),
            }
        }
        assert_eq!(take(&mut store, 0.0), 0.0);
        assert_ne!(contents(&store)["0.weight"], before["0.weight"], "good steps go on");
        assert_eq!(store.get("optim.step").unwrap().item::<f32>().unwrap(), 2.0);
        take(&mut store, 0.0);
        take(&mut store, 0.0);
        assert_eq!(
            store.get("amp.scale").unwrap().item::<f32>().unwrap(),
            65536.0,
            "three good steps in a row"
        );
    }
}

/// `torch.optim.AdamW` for one parameter, in its order of operations.
fn adamw(param: &mut [f32], grad: &[f32], moments: &mut [Vec<f32>; 2], step: i32) {
    let (rate, decay, first, second) = (1e-2f64, 0.1f64, 0.9f64, 0.999f64);
    let step_size = (-(rate / (1.0 - first.powi(step)))) as f32;
    let root = (1.0 - second.powi(step)).sqrt() as f32;
    for i in 0..param.len() {
        param[i] *= (1.0 - rate * decay) as f32;
        moments[0][i] += (grad[i] - moments[0][i]) * (1.0 - first) as f32;
        moments[1][i] = moments[1][i] * second as f32 + grad[i] * (1.0 - second) as f32 * grad[i];
        param[i] += moments[0][i] * step_size / (moments[1][i].sqrt() / root + 1e-8);
    }
}

/// A program that updates `w` by the gradient it is given.
fn update_by_input(rule: impl Optimizer + 'static) -> Jit {
    jit(Options::new(), move |t| {
        let w = t.param("w");
        let mut optimizer = Recorded::new(t, &rule, &[w]);
        optimizer.set_grads(vec![t.input("g")]);
        optimizer.step();
    })
}

#[test]
fn adamw_is_that_of_pytorch() {
    let step = update_by_input(AdamW::new(1e-2).weight_decay(0.1));
    let mut expected = noise(1, 50);
    let mut moments = [vec![0.0; 50], vec![0.0; 50]];
    let mut store = Store::new().with("w", Tensor::new([50], &expected).unwrap());
    for number in 1..=20 {
        let grad = noise(number + 100, 50);
        step.run(&mut store, &[("g", &Tensor::new([50], &grad).unwrap())]).unwrap();
        adamw(&mut expected, &grad, &mut moments, number as i32);
        let found = store.get("w").unwrap().to_vec::<f32>().unwrap();
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() <= 4e-7 * b.abs().max(0.1), "step {number}: {a} and {b}");
        }
    }
    assert_eq!(store.get("optim.step").unwrap().item::<f32>().unwrap(), 20.0);
}

#[test]
fn sgd_has_momentum_and_the_rate_may_be_an_input() {
    let rule = Sgd::new("rate").momentum(0.9).nesterov().weight_decay(0.1);
    let step = update_by_input(rule);
    let mut store = Store::new().with("w", Tensor::new([1], &[1.0f32]).unwrap());
    let (mut w, mut buffer) = (1.0f32, 0.0f32);
    for (number, rate) in [0.1f32, 0.05, 0.0].into_iter().enumerate() {
        let grad = 0.5 + number as f32;
        let inputs = [("g", &Tensor::new([1], &[grad]).unwrap()), ("rate", &Tensor::scalar(rate))];
        step.run(&mut store, &inputs).unwrap();
        let decayed = grad + 0.1 * w;
        buffer = 0.9 * buffer + decayed;
        w -= rate * (decayed + 0.9 * buffer);
        let found = store.get("w").unwrap().item::<f32>().unwrap();
        assert!((found - w).abs() < 1e-6, "{found} and {w}");
    }
    assert_eq!(step.recompilations().len(), 1, "a new rate is no new program");
}

#[test]
fn sixteen_bit_parameters_are_updated_in_f32_and_rounded_once() {
    let step = update_by_input(Sgd::new(0.25));
    let w = Tensor::new([2], &[1.0f32, -3.0]).unwrap().cast(DType::BF16).unwrap();
    let g = Tensor::new([2], &[0.125f32, 4.0]).unwrap().cast(DType::BF16).unwrap();
    let mut store = Store::new().with("w", w);
    step.run(&mut store, &[("g", &g)]).unwrap();
    let found = store.get("w").unwrap();
    assert_eq!(found.dtype(), DType::BF16);
    assert_eq!(found.to_f64s(), [0.96875, -4.0]);
}

#[test]
fn frozen_parameters_stay_and_tied_ones_are_one() {
    let model = Sequential::new()
        .then(Frozen(Linear::new(8, 8)))
        .named("a", Linear::new(8, 8).without_bias())
        .named("b", Linear::new(8, 8).without_bias().tied_to("a.weight"))
        .named("head", Linear::new(8, 3));
    let names: Vec<String> =
        model.entries().unwrap().into_iter().map(|Entry { name, .. }| name).collect();
    assert_eq!(names, ["0.weight", "0.bias", "a.weight", "head.weight", "head.bias"]);
    let step = step_of(model, AdamW::new(1e-2), Some(DType::BF16));
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    assert!(!store.contains("optim.0.weight.exp_avg") && store.contains("optim.a.weight.exp_avg"));
    let before = contents(&store);
    for seed in 0..3 {
        run(&step, &mut store, &points(seed, 9));
    }
    let after = contents(&store);
    assert_eq!(before["0.weight"], after["0.weight"]);
    assert_eq!(before["0.bias"], after["0.bias"]);
    assert_ne!(before["a.weight"], after["a.weight"]);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
}

#[test]
fn dropout_is_reproducible_and_off_in_evaluation() {
    let losses = |seed| {
        let model = Sequential::new()
            .then(Linear::new(8, 64))
            .then(Dropout::new(0.5))
            .then(Relu)
            .then(Linear::new(64, 3));
        let step = step_of(model, Sgd::new(0.0), None);
        let mut store = Store::new();
        step.init(&mut store, 0).unwrap();
        store.insert("rng", Tensor::new([2], &[seed, 0i64]).unwrap());
        let batch = points(1, 9);
        let losses: Vec<f32> = (0..4).map(|_| run(&step, &mut store, &batch).loss).collect();
        assert_eq!(store.get("rng").unwrap().to_vec::<i64>().unwrap(), [seed, 4]);
        let evaluate = step.evaluation(|t, model| {
            t.output("loss", model.forward(t.input("x")).cross_entropy(t.input("y")));
        });
        let mut value = || {
            evaluate.run(&mut store, &[("x", &batch.0), ("y", &batch.1)]).unwrap()["loss"]
                .item::<f32>()
                .unwrap()
        };
        assert_eq!(value(), value());
        losses
    };
    let first = losses(5);
    assert_eq!(first, losses(5));
    assert_ne!(first, losses(6));
    assert!(
        first.windows(2).any(|pair| pair[0] != pair[1]),
        "each step drops other elements: {first:?}"
    );
}

/// The mean of the embeddings of a row of indices.
struct Bag(Embedding);

impl Module for Bag {
    fn forward<'t>(&self, cx: &tracecast::nn::Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.call("table", &self.0, x).mean(1)
    }
}

#[test]
fn a_model_with_embedding_and_layer_norm_trains() {
    for dtype in [None, Some(DType::BF16), Some(DType::F16)] {
        let model = Sequential::new()
            .named("bag", Bag(Embedding::new(12, 16)))
            .named("norm", LayerNorm::new(16))
            .then(Gelu)
            .named("head", Linear::new(16, 3));
        let step = step_of(model, AdamW::new(2e-2), dtype);
        let mut store = Store::new();
        step.init(&mut store, 0).unwrap();
        let x: Vec<i64> = (0..60).map(|i| (i / 4 % 3) * 4 + i * 7 % 4).collect();
        let y: Vec<i64> = (0..15).map(|row| row % 3).collect();
        let batch = (Tensor::new([15, 4], &x).unwrap(), Tensor::new([15], &y).unwrap());
        let first = run(&step, &mut store, &batch).loss;
        let last = (0..40).map(|_| run(&step, &mut store, &batch).loss).last().unwrap();
        assert!(last < 0.2 * first, "{dtype:?}: {first} to {last}");
        assert!(store.contains("bag.table.weight") && store.contains("optim.norm.bias.exp_avg_sq"));
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let module = Sequential::new()
        .then(Linear::new(3, 5).dtype(DType::F64))
        .then(LayerNorm::new(5).dtype(DType::F64))
        .then(Gelu)
        .then(Linear::new(5, 2).dtype(DType::F64));
    let mut store = Store::new();
    module.init(&mut store, 4).unwrap();
    let program = jit(Options::new(), move |t| {
        let model = tracecast::nn::Model::new(&module, tracecast::nn::Context::training(t));
        let loss = model.forward(t.input("x")).cross_entropy(t.input("y"));
        let params = t.params();
        for (param, grad) in params.iter().zip(t.grad(loss, &params)) {
            t.output(&t.name_of(*param).unwrap(), grad);
        }
        t.output("loss", loss);
    });
    let x: Vec<f64> = noise(8, 12).iter().map(|v| f64::from(*v)).collect();
    let (x, y) = (Tensor::new([4, 3], &x).unwrap(), Tensor::new([4], &[0i64, 1, 1, 0]).unwrap());
    let inputs = [("x", &x), ("y", &y)];
    let grads = program.run(&mut store, &inputs).unwrap();
    let names: Vec<String> = store.names().map(str::to_owned).collect();
    for name in names {
        let value = store.get(&name).unwrap();
        let numbers = value.to_vec::<f64>().unwrap();
        for at in [0, numbers.len() - 1] {
            let mut loss = |by: f64| {
                let mut moved = numbers.clone();
                moved[at] += by;
                store.set(&name, &Tensor::from_f64s(value.ty().clone(), &moved).unwrap()).unwrap();
                program.run(&mut store, &inputs).unwrap()["loss"].item::<f64>().unwrap()
            };
            let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
            loss(0.0);
            let found = grads[&name].to_vec::<f64>().unwrap()[at];
            assert!(
                (found - slope).abs() < 1e-7 + 1e-5 * slope.abs(),
                "{name}[{at}]: {found} and {slope}"
            );
        }
    }
}

#[test]
fn threads_instructions_and_devices_give_the_same_training() {
    let train = |options: Options| {
        let builder = TrainStep::new(mlp(), |t, model| {
            model.forward(t.input("x")).cross_entropy(t.input("y"))
        });
        let builder = builder
            .optimizer(AdamW::new(1e-2))
            .autocast("cpu", DType::F16)
            .scaler(ScalerOptions::default());
        let step = builder.options(options).build().unwrap();
        let mut store = Store::new();
        step.init(&mut store, 2).unwrap();
        for seed in 0..5 {
            run(&step, &mut store, &points(seed, 30));
        }
        contents(&store)
    };
    let one = train(Options::new().threads(1));
    assert!(one == train(Options::new().threads(2)), "two threads");
    assert!(
        one == train(Options::new().threads(1).vectors(Vectors::Portable)),
        "portable instructions"
    );
    assert!(one == train(Options::new().device("reference")), "the reference device");
    assert!(one == train(Options::new().threads(1).fold(false)), "gradients swept apart");
}
