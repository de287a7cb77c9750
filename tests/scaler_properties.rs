//! Properties of loss scaling: what no scale, no place of an overflow and no order of overflows may
//! change; and defects that others have had.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "scaler_properties/defects.rs"]
mod defects;
#[path = "scaler_properties/policies.rs"]
mod policies;
#[path = "scaler_properties/refusals.rs"]
mod refusals;
#[path = "scaler_properties/syncs.rs"]
mod syncs;

use std::collections::BTreeMap;
use tracecast::Vectors;
use tracecast::amp::{EagerScaler, ScalerOptions};
use tracecast::eager::{Eager, EagerOptimizer, Parameter};
use tracecast::nn::{Linear, Module, Relu, Sequential};
use tracecast::optim::Optimizer;
use tracecast::prelude::*;

/// Pseudorandom numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }
}

fn contents(store: &Store) -> BTreeMap<String, Vec<u8>> {
    store.names().map(|name| (name.to_owned(), store.get(name).unwrap().bytes().to_vec())).collect()
}

fn number(store: &Store, name: &str) -> f64 {
    store.get(name).unwrap().to_f64s()[0]
}

fn mlp(inputs: usize, hidden: usize) -> Sequential {
    Sequential::new().then(Linear::new(inputs, hidden)).then(Relu).then(Linear::new(hidden, 2))
}

/// P10. Every power of two that neither overflows nor underflows gives the same bits, in f32 and
/// under autocast.
#[test]
fn results_do_not_depend_on_the_scale() {
    // Coarse numbers, so that sums in f16 have no tiny rest that one scale would keep and another
    // would not.
    let mut random = Random::new(7);
    let mut coarse = |count: usize| -> Vec<f32> {
        (0..count).map(|_| random.below(17) as f32 / 8.0 - 1.0).collect()
    };
    let batches: Vec<(Tensor, Tensor)> = (0..4)
        .map(|_| {
            let (x, y) = (coarse(8 * 6), coarse(8 * 2));
            (Tensor::new([8, 6], &x).unwrap(), Tensor::new([8, 2], &y).unwrap())
        })
        .collect();
    let train = |dtype: Option<DType>, scale: Option<f64>| {
        let step = TrainStep::new(mlp(6, 16), |t, model| {
            model.forward(t.input("x")).cast(DType::F32).mean_squared_error(t.input("y"))
        });
        let step = step.optimizer(AdamW::new(1e-2));
        let step = match dtype {
            Some(dtype) => step.autocast("cpu", dtype),
            None => step,
        };
        let step = match scale {
            Some(init_scale) => step.scaler(ScalerOptions { init_scale, ..Default::default() }),
            None => step,
        };
        let step = step.build().unwrap();
        let mut store = Store::new();
        step.init(&mut store, 3).unwrap();
        for (x, y) in &batches {
            assert!(!step.run(&mut store, &[("x", x), ("y", y)]).unwrap().skipped);
        }
        let mut contents = contents(&store);
        contents.retain(|name, _| !name.starts_with("amp."));
        contents
    };
    for (dtype, exponents) in
        [(None, -40..=40), (Some(DType::BF16), -40..=40), (Some(DType::F16), 7..=12)]
    {
        let expected = train(dtype, Some(f64::from(*exponents.start()).exp2()));
        for exponent in exponents.step_by(if dtype == Some(DType::F16) { 1 } else { 16 }) {
            let found = train(dtype, Some(f64::from(exponent).exp2()));
            assert!(found == expected, "{dtype:?}: 2^{exponent}");
        }
        // Without a scaler too, where nothing underflows.
        assert!(
            dtype == Some(DType::F16) || train(dtype, None) == expected,
            "{dtype:?}: no scaler"
        );
    }
}

/// A step whose gradients have the inputs `poison.NAME` added to them.
fn poisoned(rule: impl Optimizer + 'static, options: Options, module: Sequential) -> Jit {
    jit(options, move |t| {
        let model = tracecast::nn::Model::new(&module, tracecast::nn::Context::training(t));
        let loss = autocast(t, "cpu", DType::BF16, || {
            model.forward(t.input("x")).cast(DType::F32).mean(())
        });
        let mut optimizer = Recorded::new(t, &rule, &t.params());
        let mut scaler = GradScaler::recorded(t, "amp", ScalerOptions::default());
        optimizer.backward(scaler.scale(loss));
        for i in 0..optimizer.params().len() {
            let name = t.name_of(optimizer.params()[i]).unwrap();
            let grad = optimizer.grads()[i] + t.input(&format!("poison.{name}"));
            optimizer.grads_mut()[i] = grad;
        }
        scaler.step(&mut optimizer);
        scaler.update();
        t.output("skipped", scaler.found().unwrap());
    })
}

/// Runs a poisoned step with one element of one gradient replaced; returns whether it was skipped.
fn poison(step: &Jit, store: &mut Store, at: Option<(&str, usize, f32)>) -> bool {
    let x = Tensor::rand([4, 5], 1).unwrap();
    let params: Vec<String> = store
        .names()
        .filter(|name| name.ends_with("weight") || name.ends_with("bias"))
        .map(str::to_owned)
        .collect();
    let mut inputs = vec![("x".to_owned(), x)];
    for name in params {
        let ty = store.ty(&name).unwrap().clone();
        let mut zeros = vec![0.0; ty.numel().get()];
        if let Some((_, element, bad)) = at.filter(|(of, ..)| *of == name) {
            zeros[element] = f64::from(bad);
        }
        inputs.push((format!("poison.{name}"), Tensor::from_f64s(ty, &zeros).unwrap()));
    }
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, x)| (n.as_str(), x)).collect();
    step.run(store, &inputs).unwrap()["skipped"].item::<f32>().unwrap() != 0.0
}

/// P11. Infinity or NaN at any element of any gradient leaves all state as it was, but for the
/// scale and the growth tracker.
#[test]
fn one_bad_element_anywhere_changes_nothing_but_the_scale() {
    let options = [
        Options::new(),
        Options::new().fold(false),
        Options::new().threads(1).vectors(Vectors::Portable),
        Options::new().device("reference"),
    ];
    for options in options {
        let step = poisoned(AdamW::new(1e-2), options, mlp(5, 7));
        let mut store = Store::new();
        mlp(5, 7).init(&mut store, 1).unwrap();
        let elements: Vec<(String, usize)> = store
            .names()
            .flat_map(|name| {
                (0..store.ty(name).unwrap().numel().get()).map(|element| (name.to_owned(), element))
            })
            .collect();
        assert!(!poison(&step, &mut store, None));
        let before = contents(&store);
        let (mut scale, bad) = (65536.0, [f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        for (number_of, (name, element)) in elements.iter().enumerate() {
            let bad = bad[number_of % 3];
            assert!(poison(&step, &mut store, Some((name, *element, bad))), "{bad} in {name}");
            scale /= 2.0;
            assert_eq!(
                (number(&store, "amp.scale"), number(&store, "amp.growth_tracker")),
                (scale, 0.0)
            );
            for (name, bytes) in contents(&store) {
                if !name.starts_with("amp.") {
                    assert_eq!(bytes, before[&name], "{name} changed by {bad} at {element}");
                }
            }
            store.set("amp.scale", &Tensor::scalar(65536f32)).unwrap();
            scale = 65536.0;
        }
        assert!(!poison(&step, &mut store, None), "good steps go on");
        assert_ne!(contents(&store)["0.weight"], before["0.weight"]);
    }
}

/// P11 where vectors have tails and several threads share a gradient.
#[test]
fn one_bad_element_of_a_large_gradient_is_found() {
    let step = poisoned(Sgd::new(0.1).momentum(0.9), Options::new(), mlp(5, 40_001));
    let mut store = Store::new();
    mlp(5, 40_001).init(&mut store, 1).unwrap();
    assert!(!poison(&step, &mut store, None));
    let before = contents(&store);
    let mut random = Random::new(3);
    let last = 5 * 40_001 - 1;
    for element in [0, last, last - 1, random.below(last), random.below(last)] {
        assert!(poison(&step, &mut store, Some(("0.weight", element, f32::NAN))), "{element}");
        let after = contents(&store);
        assert!(after.iter().all(|(n, bytes)| n.starts_with("amp.") || *bytes == before[n]));
    }
}

/// `_amp_update_scale_` of PyTorch, on plain numbers.
struct Machine {
    scale: f32,
    tracker: i32,
    growth: f64,
    backoff: f64,
    interval: i64,
}

impl Machine {
    fn update(&mut self, found: bool) {
        if found {
            (self.scale, self.tracker) = ((f64::from(self.scale) * self.backoff) as f32, 0);
        } else if i64::from(self.tracker) + 1 == self.interval {
            let grown = (f64::from(self.scale) * self.growth) as f32;
            (self.scale, self.tracker) = (if grown.is_finite() { grown } else { self.scale }, 0);
        } else {
            self.tracker += 1;
        }
    }
}

/// A step of one parameter whose gradient is the input `g` times the scale.
fn one_parameter(options: ScalerOptions) -> Jit {
    jit(Options::new().threads(1), move |t| {
        let (w, sgd) = (t.param("w"), Sgd::new(1.0));
        let mut scaler = GradScaler::recorded(t, "amp", options.clone());
        let mut optimizer = Recorded::new(t, &sgd, &[w]);
        optimizer.set_grads(vec![scaler.scale(t.input("g"))]);
        scaler.unscale_(&mut optimizer);
        t.output("unscaled", optimizer.grads()[0]);
        scaler.step(&mut optimizer);
        scaler.update();
        t.output("scale", scaler.get_scale().unwrap());
    })
}

/// P12. Both forms follow PyTorch's state machine over 10,000 random steps: scale and tracker are
/// compared after each.
#[test]
fn both_forms_follow_the_state_machine() {
    let options = ScalerOptions {
        init_scale: 1024.0,
        growth_factor: 4.0,
        backoff_factor: 0.25,
        growth_interval: 5,
        enabled: true,
    };
    let eager = Eager::new(Options::new().threads(1)).unwrap();
    let weight = eager.parameter(Tensor::new([1], &[0f32]).unwrap());
    let mut sgd = EagerOptimizer::new(Sgd::new(1.0), std::slice::from_ref(&weight));
    let mut scaler = EagerScaler::new(options.clone()).unwrap();
    scaler.scale(&eager.tensor(Tensor::scalar(1f32))).unwrap();
    let step = one_parameter(options);
    let mut store = Store::new().with("w", Tensor::new([1], &[0f32]).unwrap());
    let mut machine =
        Machine { scale: 1024.0, tracker: 0, growth: 4.0, backoff: 0.25, interval: 5 };
    let (mut random, mut taken) = (Random::new(11), 0.0);
    for number_of in 0..10_000 {
        // Many overflows for a while, then few: the scale goes down and up, to where it cannot grow
        // any more.
        let found = random.below(if number_of % 400 < 150 { 4 } else { 20 }) == 0;
        let g = if found { [f32::INFINITY, f32::NAN][random.below(2)] } else { 1.0 };
        let before = f64::from(machine.scale);
        machine.update(found);
        taken += f64::from(u8::from(!found));
        let gradient = Tensor::new([1], &[g * before as f32]).unwrap();
        weight.set_grad(eager.tensor(gradient)).unwrap();
        assert_eq!(scaler.step(&mut sgd).unwrap(), !found, "step {number_of}");
        scaler.update().unwrap();
        let state = (scaler.get_scale().unwrap(), scaler.get_growth_tracker().unwrap());
        let expected = (f64::from(machine.scale), i64::from(machine.tracker));
        assert_eq!(state, expected, "eager step {number_of}");
        step.run(&mut store, &[("g", &Tensor::new([1], &[g]).unwrap())]).unwrap();
        let state = (number(&store, "amp.scale"), number(&store, "amp.growth_tracker") as i64);
        assert_eq!(state, expected, "recorded step {number_of}");
    }
    assert_eq!(weight.value().to_host().unwrap().to_f64s(), [-taken]);
    assert_eq!(number(&store, "w"), -taken);
}

/// P13, and defect 1 of MPX, which unscales with the next scale: on the step where the scale grows,
/// the unscaled gradient is the gradient, and the step follows it. The same on a step that backs
/// off.
#[test]
fn a_growing_scale_divides_nothing() {
    let options = ScalerOptions { init_scale: 8.0, growth_interval: 2, ..Default::default() };
    let step = one_parameter(options.clone());
    let mut store = Store::new().with("w", Tensor::new([1], &[0f32]).unwrap());
    let eager = Eager::new(Options::new()).unwrap();
    let weight: Parameter = eager.parameter(Tensor::new([1], &[0f32]).unwrap());
    let mut sgd = EagerOptimizer::new(Sgd::new(1.0), std::slice::from_ref(&weight));
    let mut scaler = EagerScaler::new(options).unwrap();
    let mut expected = 0.0;
    for (g, scale) in [(0.375, 8.0), (0.625, 8.0), (0.125, 16.0), (0.75, 16.0), (1.5, 32.0)] {
        let out = step.run(&mut store, &[("g", &Tensor::new([1], &[g]).unwrap())]).unwrap();
        assert_eq!(out["scale"].item::<f32>().unwrap(), scale);
        assert_eq!(out["unscaled"].item::<f32>().unwrap(), g);
        expected -= g;
        assert_eq!(number(&store, "w"), f64::from(expected));
        let scaled = scaler.scale(&eager.tensor(Tensor::new([1], &[g]).unwrap())).unwrap();
        weight.set_grad(scaled).unwrap();
        scaler.unscale_(&sgd).unwrap();
        let unscaled = weight.grad().unwrap().values().to_host().unwrap();
        assert_eq!(unscaled.item::<f32>().unwrap(), g, "eager, at {scale}");
        scaler.step(&mut sgd).unwrap();
        scaler.update().unwrap();
        assert_eq!(weight.value().to_host().unwrap().item::<f32>().unwrap(), expected);
    }
}
