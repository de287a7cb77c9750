//! A training that was interrupted and goes on is one that was never interrupted, bit for bit.

use crate::{Folder, contents};
use tracecast::amp::ScalerSettings;
use tracecast::checkpoint::Load;
use tracecast::nn::{Dropout, Frozen, LayerNorm, Linear, Relu, Sequential};
use tracecast::optim::{
    Adagrad, Adam, AdamW, Clip, Groups, Lion, LowMoments, Optimizer, RmsProp, Schedule, Sgd,
};
use tracecast::prelude::*;
use tracecast::{Options, TrainStepBuilder, Vectors};

/// The steps that are compared, and the one before which training is interrupted.
const STEPS: u64 = 8;
const INTERRUPTED: u64 = 3;

/// Two dropouts and a frozen layer.
fn builder() -> TrainStepBuilder {
    let model = Sequential::new()
        .named("in", Linear::new(6, 16))
        .named("drop", Dropout::new(0.25))
        .named("norm", LayerNorm::new(16))
        .named("fixed", Frozen(Linear::new(16, 16)))
        .named("relu", Relu)
        .named("again", Dropout::new(0.5))
        .named("out", Linear::new(16, 3));
    TrainStep::new(model, |t, model| {
        model.forward(t.input("x")).cross_entropy(t.input("y")) * t.input("poison")
    })
}

/// One step; the fifth batch has no finite gradient.
fn run(step: &TrainStep, store: &mut Store, number: u64) -> (u32, bool) {
    let x = Tensor::randn([12, 6], number).unwrap();
    let y = Tensor::new([12], &[0i64, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]).unwrap();
    let poison = Tensor::scalar(if number == 5 { f32::INFINITY } else { 1.0 });
    let done = step.run(store, &[("x", &x), ("y", &y), ("poison", &poison)]).unwrap();
    (done.loss.to_bits(), done.skipped)
}

/// Trains with and without an interruption, each with steps of its own, and compares every loss and
/// every byte of state.
fn check(what: &str, step: impl Fn() -> TrainStep) {
    let folder = Folder::new();
    let path = folder.path("run.safetensors");
    let (whole, mut store) = (step(), Store::new());
    whole.init(&mut store, 7).unwrap();
    let mut losses = Vec::new();
    for number in 0..STEPS {
        if number == INTERRUPTED {
            whole.save(&store, &path).unwrap();
        }
        losses.push(run(&whole, &mut store, number));
    }
    // Saving and loading again is nothing, wherever the state lives.
    let (resumed, mut other) = (step(), Store::new());
    let loaded = resumed.load(&mut other, &path, &Load::strict()).unwrap();
    assert_eq!(loaded.count, other.len(), "{what}");
    resumed.save(&other, folder.path("again.safetensors")).unwrap();
    let bytes = |name: &str| std::fs::read(folder.path(name)).unwrap();
    assert!(bytes("run.safetensors") == bytes("again.safetensors"), "{what}");
    let rest = (INTERRUPTED..STEPS).map(|number| run(&resumed, &mut other, number));
    assert_eq!(losses[INTERRUPTED as usize..], rest.collect::<Vec<_>>(), "{what}");
    assert!(contents(&other) == contents(&store), "{what}");
    // Into a store that is in use, after other steps: nothing of these is left.
    resumed.load(&mut store, &path, &Load::strict()).unwrap();
    let rest = (INTERRUPTED..STEPS).map(|number| run(&whole, &mut store, number));
    assert_eq!(losses[INTERRUPTED as usize..], rest.collect::<Vec<_>>(), "{what}");
    assert!(contents(&other) == contents(&store), "{what}");
}

/// Makes an optimizer.
type Make = fn() -> Box<dyn Optimizer>;

#[test]
fn with_every_optimizer_a_scaler_and_dropout() {
    let rules: [(&str, Make); 9] = [
        ("SGD", || Box::new(Sgd::new(0.05))),
        ("SGD with momentum", || Box::new(Sgd::new(0.05).momentum(0.9).nesterov())),
        ("Adam", || Box::new(Adam::new(0.01).amsgrad())),
        ("AdamW", || Box::new(AdamW::new(0.01))),
        ("Adagrad", || Box::new(Adagrad::new(0.1).initial_sum(0.5))),
        ("RMSprop", || Box::new(RmsProp::new(0.01).centered().momentum(0.5))),
        ("Lion", || Box::new(Lion::new(0.01))),
        ("moments in bf16", || Box::new(LowMoments::new(AdamW::new(0.01)))),
        ("groups and a schedule", || {
            let rest = AdamW::new(Schedule::cosine(0.01, 10, 1e-4).warm_up(4, 0.1));
            Box::new(Groups::new(rest).of(&["in.bias", "out.bias"], Sgd::new(0.1).momentum(0.5)))
        }),
    ];
    for (what, rule) in rules {
        check(what, || {
            let step = builder().optimizer(rule()).autocast("cpu", DType::F16);
            step.scaler(ScalerOptions { growth_interval: 3, ..ScalerOptions::default() })
                .build()
                .unwrap()
        });
    }
}

#[test]
fn with_everything_that_a_step_can_keep() {
    for (what, dtype) in [("f32", None), ("bf16", Some(DType::BF16)), ("f16", Some(DType::F16))] {
        check(what, || {
            let settings = ScalerSettings::from(ScalerOptions::default()).report_after(2);
            let step = builder().optimizer(AdamW::new("rate")).scaler(settings);
            let step = match dtype {
                Some(dtype) => step.autocast("cpu", dtype),
                None => step,
            };
            step.schedule("rate", |_, step| (step * -0.1).exp() * 0.01)
                .clip(Clip::norm(1.0))
                .ema(0.9)
                .micro_batches(2, &["x", "y"])
                .report_gradients(true)
                .build()
                .unwrap()
        });
    }
}

#[test]
fn on_every_device() {
    let all = [
        ("reference", Options::new().device("reference")),
        ("portable", Options::new().vectors(Vectors::Portable)),
        ("two threads", Options::new().threads(2)),
    ];
    for (what, options) in all {
        check(what, || {
            builder().optimizer(AdamW::new(0.01)).options(options.clone()).build().unwrap()
        });
    }
}

#[test]
fn what_else_the_store_holds_comes_along() {
    let folder = Folder::new();
    let path = folder.path("run.safetensors");
    let step = || {
        TrainStep::new(Linear::new(6, 3), |t, model| {
            // State of the loss itself: how often it was asked for.
            let asked = t.state("asked");
            t.update(asked, asked + 1.0);
            model.forward(t.input("x")).cross_entropy(t.input("y")) * t.input("poison")
        })
        .optimizer(Sgd::new(0.1))
        .build()
        .unwrap()
    };
    let (first, mut store) = (step(), Store::new().with("asked", Tensor::scalar(0f64)));
    first.init(&mut store, 1).unwrap();
    store.insert("epoch", Tensor::scalar(4i64));
    run(&first, &mut store, 0);
    first.save(&store, &path).unwrap();
    let mut other = Store::new();
    step().load(&mut other, &path, &Load::strict()).unwrap();
    assert!(contents(&other) == contents(&store));
    run(&step(), &mut other, 1);
    assert_eq!(other.get("asked").unwrap().item::<f64>().unwrap(), 2.0);
    // A store that has something of its own asks for it too.
    let mut expecting = Store::new().with("order", Tensor::scalar(1i64));
    let error = step().load(&mut expecting, &path, &Load::strict()).unwrap_err().to_string();
    assert!(error.contains("missing: state.order"), "{error}");
    assert_eq!(expecting.len(), 1, "nothing is loaded then");
}
