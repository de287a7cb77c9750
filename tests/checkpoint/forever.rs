//! Files that were written when the format was new are read for ever: they stay as they are in
//! `tests/data/checkpoints`, and what these tests expect of them does not change.

use crate::kept;
use tracecast::checkpoint::{Load, load_model};
use tracecast::nn::{Dropout, LayerNorm, Linear, Relu, Sequential};
use tracecast::prelude::*;

fn model() -> Sequential {
    Sequential::new()
        .named("in", Linear::new(3, 4))
        .named("drop", Dropout::new(0.5))
        .named("norm", LayerNorm::new(4))
        .named("relu", Relu)
        .named("out", Linear::new(4, 2).dtype(DType::BF16))
}

fn step() -> TrainStep {
    TrainStep::new(model(), |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
        .optimizer(AdamW::new("rate"))
        .autocast("cpu", DType::F16)
        .scaler(ScalerOptions::default())
        .schedule("rate", |_, step| (step * -0.1).exp() * 0.01)
        .ema(0.5)
        .build()
        .unwrap()
}

fn batch() -> (Tensor, Tensor) {
    let x: Vec<f32> = (0..12).map(|i| i as f32 / 8.0 - 0.5).collect();
    (Tensor::new([4, 3], &x).unwrap(), Tensor::new([4], &[0i64, 1, 1, 0]).unwrap())
}

/// The state that the file holds: every element of it is one that a formula gives, so that nothing
/// else has to be believed.
fn state() -> Store {
    let mut store = Store::new();
    step().init(&mut store, 5).unwrap();
    for (number, name) in
        store.names().map(str::to_owned).collect::<Vec<_>>().into_iter().enumerate()
    {
        let ty = store.ty(&name).unwrap().clone();
        let value = Tensor::from_fn(ty, |i| (i + number) as f64 / 4.0).unwrap();
        store.insert(&name, value);
    }
    store.insert("done", Tensor::new([2], &[i64::MAX, -1]).unwrap());
    store.insert("mask", Tensor::new([3], &[true, false, true]).unwrap());
    store.insert("image", Tensor::new([2], &[0u8, 255]).unwrap());
    store.insert("exact", Tensor::scalar(0.1f64));
    store.insert("count", Tensor::scalar(i32::MIN));
    store
}

#[test]
fn a_training_state_of_version_1_is_what_it_was() {
    let path = kept("training-1.safetensors");
    if std::env::var_os("TRACECAST_BLESS").is_some() && !path.exists() {
        // Only when there is none: this file is never written again.
        step().save(&state(), &path).unwrap();
    }
    let mut store = Store::new();
    let loaded = step().load(&mut store, &path, &Load::strict()).unwrap();
    assert_eq!((loaded.count, store.len()), (35, 35));
    let expected = state();
    for name in expected.names() {
        assert_eq!(store.get(name).unwrap(), expected.get(name).unwrap(), "{name}");
    }
    let (x, y) = batch();
    store.set("amp.scale", &Tensor::scalar(1024f32)).unwrap();
    assert!(step().run(&mut store, &[("x", &x), ("y", &y)]).unwrap().loss.is_finite());
}

#[test]
fn a_model_of_version_1_is_what_it_was() {
    let path = kept("model-1.safetensors");
    if std::env::var_os("TRACECAST_BLESS").is_some() && !path.exists() {
        step().save_model(&state(), &path).unwrap();
    }
    let mut store = Store::new();
    assert_eq!(load_model(&model(), &mut store, &path, &Load::strict()).unwrap().count, 6);
    for name in ["in.weight", "in.bias", "norm.weight", "norm.bias", "out.weight", "out.bias"] {
        assert_eq!(store.get(name).unwrap(), state().get(name).unwrap(), "{name}");
    }
}
