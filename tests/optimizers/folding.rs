//! Where gradients are unscaled and checked changes no bit of a training, whatever the optimizer,
//! the clipping and the precision.

use crate::{noise, rules};
use std::collections::BTreeMap;
use tracecast::nn::{Linear, Relu, Sequential};
use tracecast::optim::{Clip, NormKind};
use tracecast::prelude::*;

/// Everything in the store after some steps, one of which has an infinite loss, and what each step
/// told.
type Trained = (BTreeMap<String, Vec<u8>>, Vec<(u32, bool, f32)>);

/// The weight of the first layer is large enough to be checked row by row.
const SIZES: [usize; 3] = [256, 256, 3];

fn train(rule: rules::Chosen, clip: Option<Clip>, dtype: DType, fold: bool) -> Trained {
    let [inputs, hidden, classes] = SIZES;
    let model = Sequential::new()
        .then(Linear::new(inputs, hidden))
        .then(Relu)
        .then(Linear::new(hidden, classes));
    let step =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")));
    let step = step
        .optimizer(rule)
        .scaler(ScalerOptions {
            init_scale: 1024.0,
            growth_interval: 2,
            ..ScalerOptions::default()
        })
        .options(Options::new().threads(1).fold(fold));
    let step = if dtype == DType::F32 { step } else { step.autocast("cpu", dtype) };
    let step = match clip {
        Some(clip) => step.clip(clip),
        None => step,
    };
    let step = step.build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 5).unwrap();
    let y = Tensor::new([4], &[0i64, 2, 1, 0]).unwrap();
    let mut told = Vec::new();
    for number in 0..4u64 {
        let mut x = noise(number + 50, 4 * inputs);
        if number == 2 {
            x[7] = f32::INFINITY;
        }
        let x = Tensor::new([4, inputs], &x).unwrap();
        let done = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
        let loss = if done.loss.is_nan() { f32::NAN.to_bits() } else { done.loss.to_bits() };
        told.push((loss, done.skipped, done.scale));
    }
    assert!(told[2].1 && !told[1].1, "the third step is skipped");
    let bytes = |name: &str| store.get(name).unwrap().bytes().to_vec();
    (store.names().map(|name| (name.to_owned(), bytes(name))).collect(), told)
}

#[test]
fn folding_changes_no_bit() {
    let clips = [
        None,
        Some(Clip::norm(0.1)),
        Some(Clip::norm_of(NormKind::Largest, 1e-3)),
        Some(Clip::value(1e-3)),
    ];
    for (number, (name, rule)) in rules::all().into_iter().enumerate() {
        for (at, clip) in clips.iter().enumerate() {
            // Each optimizer meets every precision, each precision every clip.
            let dtype = [DType::F16, DType::BF16, DType::F32][(number + at) % 3];
            let trained = |fold| train(rules::Chosen(rule()), clip.clone(), dtype, fold);
            let (folded, swept) = (trained(true), trained(false));
            assert!(folded.1 == swept.1, "{name} {clip:?} {dtype}: {:?} {:?}", folded.1, swept.1);
            for (entry, bytes) in &folded.0 {
                assert!(*bytes == swept.0[entry], "{name} {clip:?} {dtype}: {entry}");
            }
        }
    }
}
