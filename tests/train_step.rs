//! What a training step does besides forward, backward and the optimizer: micro-batches, clipping,
//! schedules, averages, reports; and that a skipped step leaves all of it as it was.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use tracecast::amp::ScalerSettings;
use tracecast::nn::{Context, Dropout, Embedding, Frozen, Linear, Module, Relu, Sequential};
use tracecast::optim::{Clip, Schedule};
use tracecast::prelude::*;
use tracecast::{StepResult, TrainStepBuilder, Vectors};

fn mlp() -> Sequential {
    Sequential::new().then(Linear::new(6, 16)).then(Relu).then(Linear::new(16, 3))
}

fn batch(seed: u64, rows: usize) -> (Tensor, Tensor) {
    let y: Vec<i64> = (0..rows as i64).map(|row| row % 3).collect();
    (Tensor::randn([rows, 6], seed).unwrap(), Tensor::new([rows], &y).unwrap())
}

/// A step whose loss is multiplied by the input `poison`.
fn builder(model: impl Module + 'static) -> TrainStepBuilder {
    TrainStep::new(model, |t, model| {
        model.forward(t.input("x")).cross_entropy(t.input("y")) * t.input("poison")
    })
}

fn try_run(
    step: &TrainStep,
    store: &mut Store,
    seed: u64,
    poison: f32,
) -> tracecast::Result<StepResult> {
    let ((x, y), poison) = (batch(seed, 12), Tensor::scalar(poison));
    step.run(store, &[("x", &x), ("y", &y), ("poison", &poison)])
}

fn run(step: &TrainStep, store: &mut Store, seed: u64, poison: f32) -> StepResult {
    try_run(step, store, seed, poison).unwrap()
}

fn contents(store: &Store) -> BTreeMap<String, Vec<u8>> {
    store.names().map(|name| (name.to_owned(), store.get(name).unwrap().bytes().to_vec())).collect()
}

fn numbers(store: &Store, name: &str) -> Vec<f64> {
    store.get(name).unwrap().to_f64s()
}

#[test]
fn micro_batches_add_up_to_the_batch() {
    let train = |parts: usize| {
        let step = builder(mlp()).optimizer(Sgd::new(0.5)).scaler(ScalerOptions::default());
        let step = step.micro_batches(parts, &["x", "y"]).build().unwrap();
        let mut store = Store::new();
        step.init(&mut store, 1).unwrap();
        let losses: Vec<f32> = (0..4).map(|seed| run(&step, &mut store, seed, 1.0).loss).collect();
        assert_eq!(step.jit().recompilations().len(), 1, "one program");
        (losses, numbers(&store, "0.weight"))
    };
    let (losses, weight) = train(1);
    for parts in [2, 3, 4] {
        let (others, other) = train(parts);
        for (a, b) in losses.iter().zip(&others) {
            assert!((a - b).abs() < 1e-5, "{parts} parts: {losses:?} and {others:?}");
        }
        assert!(weight.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-5), "{parts} parts");
    }
}

#[test]
fn every_part_draws_its_own_random_numbers() {
    let model = Sequential::new().then(Dropout::new(0.5)).then(Linear::new(6, 3).without_bias());
    let step = TrainStep::new(model, |t, model| {
        let dropped = model.forward(t.input("x"));
        t.output("dropped", dropped);
        dropped.cross_entropy(t.input("y"))
    });
    let step = step.optimizer(Sgd::new(0.0)).micro_batches(2, &["x", "y"]).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 1).unwrap();
    let x = Tensor::full(TensorType::new(DType::F32, [4, 6]), 1.0).unwrap();
    let y = Tensor::new([4], &[0i64, 1, 2, 0]).unwrap();
    let done = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
    assert_ne!(done.outputs["dropped.0"].to_f64s(), done.outputs["dropped.1"].to_f64s());
    assert_eq!(numbers(&store, "rng"), [1.0, 1.0], "one step of the generator");
}

/// Clips, schedules, averages and reports, in f16.
fn full(options: Options) -> TrainStep {
    builder(mlp())
        .options(options)
        .optimizer(AdamW::new("rate"))
        .autocast("cpu", DType::F16)
        .scaler(ScalerOptions { growth_interval: 3, ..ScalerOptions::default() })
        .micro_batches(2, &["x", "y"])
        .schedule("rate", |_, step| (step + 1.0) * 0.001)
        .change_gradients(|_, grads| grads.iter_mut().for_each(|grad| *grad = *grad * 2.0))
        .clip(Clip::norm(0.05))
        .ema(0.75)
        .report_gradients(true)
        .build()
        .unwrap()
}

#[test]
fn a_skipped_step_leaves_everything_but_the_scale() {
    let step = full(Options::new());
    let mut store = Store::new();
    step.init(&mut store, 1).unwrap();
    for seed in 0..3 {
        assert!(!run(&step, &mut store, seed, 1.0).skipped);
    }
    assert_eq!(numbers(&store, "amp.scale"), [131_072.0]);
    let before = contents(&store);
    for (number, bad) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
        let done = run(&step, &mut store, 9, bad);
        assert!(done.skipped && done.gradients.iter().all(|gradient| gradient.found_inf));
        assert!(done.gradients.iter().all(|gradient| !gradient.amax.is_finite()));
        assert_eq!(done.backoffs as usize, number + 1);
        for (name, bytes) in contents(&store) {
            if !name.starts_with("amp.") {
                assert_eq!(bytes, before[&name], "{name} changed");
            }
        }
    }
    assert_eq!(numbers(&store, "amp.scale"), [16_384.0]);
    assert_eq!(numbers(&store, "train.steps"), [3.0]);
    let done = run(&step, &mut store, 4, 1.0);
    assert_eq!((done.skipped, done.backoffs, done.scale), (false, 0, 16_384.0));
    assert!((done.outputs["rate"].item::<f32>().unwrap() - 0.004).abs() < 1e-9, "the fourth step");
    let after = contents(&store);
    for name in ["0.weight", "ema.0.weight", "optim.0.weight.exp_avg", "optim.step", "train.steps"]
    {
        assert_ne!(after[name], before[name], "{name} goes on");
    }
}

/// Where and how the step runs changes no bit of what it leaves and tells.
#[test]
fn a_full_step_is_the_same_everywhere() {
    let train = |options: Options| {
        let step = full(options);
        let mut store = Store::new();
        step.init(&mut store, 1).unwrap();
        let told: Vec<_> = [1.0, 1.0, f32::NAN, 1.0]
            .into_iter()
            .zip(0..)
            .map(|(poison, seed)| {
                let done = run(&step, &mut store, seed, poison);
                let amax: Vec<u32> = done
                    .gradients
                    .iter()
                    .map(|g| if g.amax.is_nan() { 0 } else { g.amax.to_bits() })
                    .collect();
                (done.skipped, done.scale, done.grad_norm.map(f32::is_nan), amax)
            })
            .collect();
        (contents(&store), told)
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

#[test]
fn the_average_follows_the_weights() {
    let step = builder(mlp()).optimizer(Sgd::new(0.5)).ema(0.75).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 1).unwrap();
    assert_eq!(numbers(&store, "ema.2.weight"), numbers(&store, "2.weight"), "at first");
    let mut expected: Vec<f32> = Vec::new();
    for seed in 0..5 {
        run(&step, &mut store, seed, 1.0);
        let weight = store.get("2.weight").unwrap().to_vec::<f32>().unwrap();
        match seed {
            0 => expected = weight,
            _ => {
                for (average, weight) in expected.iter_mut().zip(weight) {
                    *average += (weight - *average) * 0.25;
                }
            }
        }
        let found = store.get("ema.2.weight").unwrap().to_vec::<f32>().unwrap();
        assert_eq!(found, expected, "step {seed}");
    }
    let outputs = |program: Jit, store: &mut Store| {
        program.run(store, &[("x", &batch(7, 5).0)]).unwrap()["y"].to_vec::<f32>().unwrap()
    };
    let averaged = step.averaged_evaluation(|t, model| t.output("y", model.forward(t.input("x"))));
    let plain = step.evaluation(|t, model| t.output("y", model.forward(t.input("x"))));
    let found = outputs(averaged, &mut store);
    assert_ne!(found, outputs(plain, &mut store));
    for name in ["0.weight", "0.bias", "2.weight", "2.bias"] {
        let average = store.get(&format!("ema.{name}")).unwrap();
        store.set(name, &average).unwrap();
    }
    let plain = step.evaluation(|t, model| t.output("y", model.forward(t.input("x"))));
    assert_eq!(found, outputs(plain, &mut store), "the model with the averages as weights");
}

#[test]
fn reports_are_of_the_unscaled_gradients() {
    let gradients = |scaled: bool| {
        let step = builder(mlp()).optimizer(Sgd::new(0.5)).report_gradients(true);
        let step = if scaled { step.scaler(ScalerOptions::default()) } else { step };
        let step = step.build().unwrap();
        let mut store = Store::new();
        step.init(&mut store, 1).unwrap();
        let gradients = run(&step, &mut store, 0, 1.0).gradients;
        let names: Vec<&str> = gradients.iter().map(|gradient| gradient.name.as_str()).collect();
        assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
        assert_eq!(names, step.parameters());
        gradients
    };
    // The scale is a power of two, so it changes no bit.
    assert_eq!(gradients(true), gradients(false));
}

#[test]
fn many_skipped_steps_are_reported() {
    let settings = ScalerSettings::default().report_after(4).min_scale(8192.0);
    let step = builder(mlp()).optimizer(Sgd::new(0.5)).scaler(settings).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 1).unwrap();
    for number in 1..=9 {
        let done = run(&step, &mut store, 0, f32::NAN);
        assert_eq!((done.backoffs, done.warning.is_some()), (number, number % 4 == 0));
        if let Some(warning) = done.warning {
            assert!(warning.contains(&format!("{number} steps in a row")), "{warning}");
        }
    }
    assert_eq!(numbers(&store, "amp.scale"), [8192.0], "the floor");
    assert_eq!(run(&step, &mut store, 0, 1.0).backoffs, 0);
}

#[test]
fn errors_point_at_the_lines_that_made_the_step() {
    let message = |builder: TrainStepBuilder| {
        let step = builder.build().unwrap();
        let mut store = Store::new();
        step.init(&mut store, 1).unwrap();
        try_run(&step, &mut store, 0, 1.0).unwrap_err().to_string()
    };
    let vector = TrainStep::new(mlp(), |t, model| model.forward(t.input("x")));
    let bad = ScalerOptions { growth_factor: 0.5, ..ScalerOptions::default() };
    let messages = [
        message(vector.optimizer(Sgd::new(0.1))),
        message(builder(mlp()).optimizer(Sgd::new(0.1).nesterov())),
        message(builder(mlp()).optimizer(Sgd::new(0.1)).scaler(bad)),
        message(builder(mlp()).optimizer(Sgd::new(0.1)).micro_batches(5, &["x", "y"])),
        message(builder(mlp()).optimizer(Sgd::new(0.1)).autocast("toaster", None)),
        message(builder(Relu).optimizer(Sgd::new(0.1))),
    ];
    for message in messages {
        assert!(message.contains("tests/train_step.rs"), "{message}");
    }
    let unknown = builder(mlp()).optimizer(Sgd::new(0.1)).micro_batches(4, &["x", "labels"]);
    let unknown = message(unknown);
    let expected = "micro_batches: `labels` is no input of the step, which has `poison`, `x`, `y`";
    assert!(unknown.contains(expected), "{unknown}");
}

#[test]
fn settings_without_meaning_are_refused() {
    let refused = |builder: TrainStepBuilder| {
        builder.optimizer(Sgd::new(0.1)).build().err().map(|error| error.to_string()).unwrap()
    };
    assert!(refused(builder(mlp()).micro_batches(0, &["x"])).contains("at least one part"));
    assert!(refused(builder(mlp()).micro_batches(2, &[])).contains("one input"));
    assert!(refused(builder(mlp()).ema(1.5)).contains("1.5"));
    assert!(refused(builder(mlp()).ema(f64::NAN)).contains("NaN"));
}

#[test]
fn an_empty_batch_is_refused() {
    let step = builder(mlp()).optimizer(Sgd::new(0.5)).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 1).unwrap();
    let before = contents(&store);
    let ((x, y), poison) = (batch(0, 0), Tensor::scalar(1f32));
    let error = step.run(&mut store, &[("x", &x), ("y", &y), ("poison", &poison)]).unwrap_err();
    assert!(
        error.to_string().contains("`x`") && error.to_string().contains("f32[0, 6]"),
        "{error}"
    );
    assert_eq!(contents(&store), before);
}

/// A norm that overflows although no gradient does: the clip has the step skipped, and nothing
/// moves.
#[test]
fn a_clip_can_skip_the_step_too() {
    let step = builder(mlp()).optimizer(AdamW::new(1e-2)).scaler(ScalerOptions::default());
    let step =
        step.change_gradients(|_, grads| grads.iter_mut().for_each(|grad| *grad = *grad * 1e25));
    let step = step.clip(Clip::norm(1.0).skip_if_nonfinite()).ema(0.5).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 1).unwrap();
    let before = contents(&store);
    let done = run(&step, &mut store, 0, 1.0);
    assert!(done.skipped && done.grad_norm.unwrap().is_infinite());
    for (name, bytes) in contents(&store) {
        assert!(name.starts_with("amp.") || bytes == before[&name], "{name} changed");
    }
    assert_eq!((numbers(&store, "amp.scale"), done.backoffs), (vec![65536.0], 0), "no overflow");
}

#[test]
fn norms_are_of_the_unscaled_gradients() {
    let norm = |scaled: bool| {
        let step = builder(mlp()).optimizer(Sgd::new(0.1)).clip(Clip::norm(0.5));
        let step = if scaled { step.scaler(ScalerOptions::default()) } else { step };
        let step = step.build().unwrap();
        let mut store = Store::new();
        step.init(&mut store, 1).unwrap();
        let norm = run(&step, &mut store, 0, 1.0).grad_norm.unwrap();
        (norm.to_bits(), contents(&store)["0.weight"].clone())
    };
    assert_eq!(norm(true), norm(false));
}

/// Schedules of the optimizer wait for skipped steps, unless they are asked to count them.
#[test]
fn schedules_of_the_optimizer_are_part_of_the_step() {
    for (skipped, expected) in [(false, 2.0), (true, 3.0)] {
        let rate = Schedule::exponential(0.1, 0.5);
        let rate = if skipped { rate.count_skipped() } else { rate };
        let step = builder(mlp()).optimizer(Sgd::new(rate)).scaler(ScalerOptions::default());
        let step = step.build().unwrap();
        let mut store = Store::new();
        step.init(&mut store, 1).unwrap();
        for poison in [1.0, f32::NAN, 1.0] {
            run(&step, &mut store, 0, poison);
        }
        let name = if skipped { "optim.run" } else { "optim.step" };
        assert_eq!(numbers(&store, name), [expected], "{name}");
    }
}

/// The words of a table, and logits by the same table.
#[test]
fn a_layer_can_be_tied_to_a_frozen_one_and_not_to_none() {
    let model = |tied: &str| {
        Sequential::new()
            .named("words", Frozen(Embedding::new(6, 4)))
            .named("mix", Linear::new(4, 4))
            .named("head", Linear::new(4, 6).without_bias().tied_to(tied))
    };
    let build = |tied: &str| {
        TrainStep::new(model(tied), |t, model| {
            model.forward(t.input("x")).cross_entropy(t.input("y"))
        })
        .optimizer(Sgd::new(0.5))
        .build()
    };
    let (step, mut store) = (build("words.weight").unwrap(), Store::new());
    step.init(&mut store, 1).unwrap();
    let before = contents(&store);
    let x = Tensor::new([3], &[0i64, 2, 5]).unwrap();
    step.run(&mut store, &[("x", &x), ("y", &x)]).unwrap();
    let after = contents(&store);
    assert_eq!(after["words.weight"], before["words.weight"]);
    assert_ne!(after["mix.weight"], before["mix.weight"]);
    let error = build("wrods.weight").unwrap_err().to_string();
    assert!(error.contains("`wrods.weight`") && error.contains("words.weight"), "{error}");
}

/// Two layers, both called `fc`.
struct Twins(Linear, Linear);

impl Module for Twins {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.call("fc", &self.1, cx.call("fc", &self.0, x))
    }
}

#[test]
fn two_parameters_of_one_name_are_refused() {
    let twins = Twins(Linear::new(3, 3), Linear::new(3, 3));
    let step =
        TrainStep::new(twins, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")));
    let error = step.optimizer(Sgd::new(0.5)).build().unwrap_err().to_string();
    assert!(error.contains("two parameters are called `fc.weight`"), "{error}");
}

/// A step over a table of 64 rows and four matrices of 1 MiB, whose loss looks up a label in each
/// row; in the planned or the recorded order.
fn large(plan: bool) -> (TrainStep, Store) {
    let layers = (0..4).fold(Sequential::new(), |layers, _| layers.then(Linear::new(512, 512)));
    let model = Sequential::new().then(Embedding::new(64, 512)).then(layers);
    let step =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")));
    let step = step.optimizer(AdamW::new(1e-3)).options(Options::new().plan_memory(plan));
    let (step, mut store) = (step.build().unwrap(), Store::new());
    step.init(&mut store, 3).unwrap();
    (step, store)
}

#[test]
fn planned_memory_holds_one_gradient_at_a_time_with_the_same_bits() {
    let x = Tensor::new([8], &[0i64, 5, 63, 5, 7, 1, 2, 3]).unwrap();
    let train = |plan: bool| {
        let ((step, mut store), inputs) = (large(plan), [("x", &x), ("y", &x)]);
        let peak = step.jit().prepare(&store, &inputs).unwrap().peak_bytes;
        let losses: Vec<f32> =
            (0..3).map(|_| step.run(&mut store, &inputs).unwrap().loss).collect();
        (peak, losses, contents(&store))
    };
    let ((planned, losses, after), (recorded, expected, expected_after)) =
        (train(true), train(false));
    println!("peak: {planned} bytes planned, {recorded} in the order of recording");
    assert!(recorded > 4 << 20, "four gradients lie together in the order of recording");
    assert!(planned < 3 << 20, "one gradient, and the activations of 8 rows: {planned}");
    assert!(losses == expected && after == expected_after, "no bit changes");
}

#[test]
fn a_wrong_index_ends_a_planned_step_before_any_update() {
    let (step, mut store) = large(true);
    let before = contents(&store);
    let good = Tensor::new([8], &[0i64, 5, 63, 5, 7, 1, 2, 3]).unwrap();
    let beyond = |last: i64| Tensor::new([8], &[0i64, 5, 63, 5, 7, 1, 2, last]).unwrap();
    for (x, y, expected) in [
        (&beyond(64), &good, "expected 0..64, found 64"),
        (&good, &beyond(512), "expected 0..512, found 512"),
    ] {
        let error = step.run(&mut store, &[("x", x), ("y", y)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(contents(&store) == before, "a failed step leaves every byte of state");
    }
}
