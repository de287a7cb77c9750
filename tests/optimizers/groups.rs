//! Parameter groups: each parameter is updated as by its own rule alone.

use crate::noise;
use tracecast::nn::{Linear, Sequential};
use tracecast::optim::{AdamW, Groups, Lion, Optimizer, Schedule, Sgd};
use tracecast::prelude::*;

/// `a.weight`, `a.bias` and `b.weight` after some steps by given gradients.
fn trained(rule: impl Optimizer + 'static) -> Vec<(String, Vec<f32>)> {
    const NAMES: [&str; 3] = ["a.weight", "a.bias", "b.weight"];
    let step = jit(Options::new().threads(1), move |t| {
        let params = NAMES.map(|name| t.param(name));
        let mut optimizer = Recorded::new(t, &rule, &params);
        optimizer.set_grads(vec![t.input("g0"), t.input("g1"), t.input("g2")]);
        optimizer.step();
    });
    let tensor = |seed| Tensor::new([9], &noise(seed, 9)).unwrap();
    let mut store = Store::new();
    for (i, name) in NAMES.iter().enumerate() {
        store.insert(name, tensor(i as u64));
    }
    for seed in 0..6 {
        let grads = [tensor(seed + 10), tensor(seed + 20), tensor(seed + 30)];
        step.run(&mut store, &[("g0", &grads[0]), ("g1", &grads[1]), ("g2", &grads[2])]).unwrap();
    }
    let value = |name: &&str| (name.to_string(), store.get(name).unwrap().to_vec::<f32>().unwrap());
    NAMES.iter().map(value).collect()
}

#[test]
fn each_group_is_as_if_alone() {
    let decayed = || AdamW::new(Schedule::cosine(0.1, 5, 0.0)).weight_decay(0.3);
    let plain = || AdamW::new(0.05).weight_decay(0.0);
    let lion = || Lion::new(0.01);
    let rule = Groups::new(decayed()).of(&["**.bias"], plain()).of(&["b.*", "a.bias"], lion());
    let together = trained(rule);
    assert_eq!(together[0], trained(decayed())[0]);
    assert_eq!(together[1], trained(plain())[1], "the first group that fits");
    assert_eq!(together[2], trained(lion())[2]);
    assert_ne!(together[2], trained(decayed())[2]);
}

#[test]
fn a_training_step_takes_groups() {
    let model = Sequential::new().then(Linear::new(8, 3));
    let rule = Groups::new(Sgd::new(0.1).momentum(0.9)).of(&["*.bias"], Sgd::new(0.0));
    let step =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")));
    let step = step.optimizer(rule).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let names: Vec<String> = store.names().map(str::to_owned).collect();
    assert_eq!(names, ["0.bias", "0.weight", "optim.0.weight.momentum_buffer"]);
    let before = (store.get("0.bias").unwrap(), store.get("0.weight").unwrap());
    let x = Tensor::new([2, 8], &noise(5, 16)).unwrap();
    let y = Tensor::new([2], &[0i64, 2]).unwrap();
    step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
    assert_eq!(before.0.bytes(), store.get("0.bias").unwrap().bytes());
    assert_ne!(before.1.bytes(), store.get("0.weight").unwrap().bytes());
    assert_eq!(store.len(), 3, "a run needs nothing else");
}

#[test]
fn a_group_without_parameters_is_a_warning() {
    let model = Sequential::new().named("norm", Linear::new(8, 3));
    let rule = Groups::new(Sgd::new(0.1)).of(&["*.bias", "norms.*"], Sgd::new(0.0));
    let rule = Groups::new(rule).of(&["norm.wieght"], Sgd::new(0.0));
    let step =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")));
    let step = step.optimizer(rule).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let (x, y) = (Tensor::rand([4, 8], 0).unwrap(), Tensor::new([4], &[0i64; 4]).unwrap());
    step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
    let warnings = step.jit().report().unwrap().warnings;
    let told: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    let told = told.join("\n");
    assert!(told.contains("`norm.wieght` has no parameter: did you mean `norm.weight`?"), "{told}");
    assert!(told.contains("`norms.*` has no parameter") && !told.contains("`*.bias`"), "{told}");
}
