//! Defects of other scalers that are tests here: state that does not survive, and a domain slip.

use super::{contents, mlp, number};
use tracecast::amp::{EagerScaler, LogMax, ScalerSettings};
use tracecast::eager::{Eager, EagerOptimizer};
use tracecast::prelude::*;
use tracecast::runtime::npz;

fn step() -> TrainStep {
    let options = ScalerOptions { init_scale: 4096.0, growth_interval: 3, ..Default::default() };
    let settings = ScalerSettings::from(options).min_scale(1024.0).report_after(3);
    let loss = TrainStep::new(mlp(5, 7), |t, model| {
        let y = model.forward(t.input("x")).cast(DType::F32);
        y.mean_squared_error(t.input("y")) * t.input("poison")
    });
    let step = loss.optimizer(AdamW::new(1e-2)).autocast("cpu", DType::F16).scaler(settings);
    step.ema(0.9).build().unwrap()
}

fn run(step: &TrainStep, store: &mut Store, number: u64) -> f32 {
    let (x, y) =
        (Tensor::rand([4, 5], number).unwrap(), Tensor::rand([4, 2], 90 + number).unwrap());
    let bad = number % 4 == 3 || (8..12).contains(&number);
    let poison = Tensor::scalar(if bad { f32::INFINITY } else { 1.0 });
    step.run(store, &[("x", &x), ("y", &y), ("poison", &poison)]).unwrap().loss
}

/// Defect 2 of JMP, whose state loses its floor at the boundary of a compiled function: everything
/// a scaler is survives other programs, a file, and a step that is built anew.
#[test]
fn state_survives_a_checkpoint() {
    let whole = step();
    let mut expected = Store::new();
    whole.init(&mut expected, 5).unwrap();
    let path = std::env::temp_dir().join(format!("tracecast-scaler-{}.npz", std::process::id()));
    let mut store = Store::new();
    step().init(&mut store, 5).unwrap();
    let mut reached = false;
    for number_of in 0..16 {
        let loss = run(&whole, &mut expected, number_of);
        // A new step in a new store each time, with nothing but the file in between.
        let entries: Vec<(String, Tensor)> =
            store.iter().map(|entry| entry.map(|(n, x)| (n.to_owned(), x)).unwrap()).collect();
        npz::write(&path, entries.iter().map(|(name, x)| (name.as_str(), x))).unwrap();
        store = Store::new();
        for (name, tensor) in npz::read(&path).unwrap() {
            store.insert(&name, tensor);
        }
        assert_eq!(run(&step(), &mut store, number_of).to_bits(), loss.to_bits());
        assert!(contents(&store) == contents(&expected), "step {number_of}");
        assert!(number(&store, "amp.scale") >= 1024.0, "the floor");
        reached |= number(&store, "amp.scale") == 1024.0;
    }
    std::fs::remove_file(path).unwrap();
    assert!(reached, "the floor was reached");
}

/// The same for the eager form, whose state goes on in a new scaler or in a recorded step, and
/// comes back.
#[test]
fn eager_state_goes_on_elsewhere() {
    let eager = Eager::new(Options::new()).unwrap();
    let options = ScalerOptions {
        init_scale: 3.0e38,
        growth_factor: 1.1,
        backoff_factor: 0.7,
        growth_interval: 3,
        enabled: true,
    };
    let weight = eager.parameter(Tensor::new([1], &[0f32]).unwrap());
    let mut sgd = EagerOptimizer::new(Sgd::new(1.0), std::slice::from_ref(&weight));
    let mut step = |scaler: &mut EagerScaler, number_of: usize| {
        scaler.scale(&eager.tensor(Tensor::scalar(1f32))).unwrap();
        let grad = if number_of % 5 == 4 { f32::NAN } else { 1.0 };
        weight.set_grad(eager.tensor(Tensor::new([1], &[grad]).unwrap())).unwrap();
        scaler.step(&mut sgd).unwrap();
        scaler.update().unwrap();
    };
    let mut scaler = EagerScaler::new(options.clone()).unwrap();
    let mut moved = EagerScaler::new(options.clone()).unwrap();
    for number_of in 0..40 {
        step(&mut scaler, number_of);
        let mut fresh = EagerScaler::new(ScalerOptions::default()).unwrap();
        fresh.load_state_dict(&moved.state_dict().unwrap()).unwrap();
        step(&mut fresh, number_of);
        let mut store = Store::new();
        fresh.save(&mut store, "amp").unwrap();
        moved = EagerScaler::new(options.clone()).unwrap();
        moved.load(&store, "amp").unwrap();
        assert_eq!(moved.state_dict().unwrap(), scaler.state_dict().unwrap(), "step {number_of}");
    }
}

/// Defect 12: OpenSeq2Seq's LogMax averages logarithms, but after an overflow feeds them 2^16
/// instead of a logarithm, and the scale falls to its least value for hundreds of steps.
#[test]
fn one_overflow_does_not_ruin_the_average() {
    let step = super::policies::stream(ScalerSettings::default().policy(LogMax::default()));
    let mut store = Store::new().with("w", Tensor::new([4], &[0f32; 4]).unwrap());
    let mut scale_after = |g: f32| {
        let g = Tensor::new([4], &[g, 0.5 * g, -g, 0.0]).unwrap();
        step.run(&mut store, &[("g", &g)]).unwrap();
        number(&store, "amp.scale")
    };
    let mut before = 0.0;
    for number_of in 0..200 {
        before = scale_after(if number_of % 2 == 0 { 0.5 } else { 0.25 });
    }
    let after = scale_after(f32::INFINITY);
    assert!(after >= before / 4.0 && after < before, "{before} to {after}");
    let later = (0..10).map(|_| scale_after(0.5)).last().unwrap();
    assert!(later >= before / 2.0, "{before} to {later}");
}
