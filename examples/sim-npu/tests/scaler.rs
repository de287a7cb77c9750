//! Loss scaling on chips that hold numbers alone: what they record for it themselves, and where
//! scale and count are kept.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod network;

use network::{batch, chips, f32s, given, on, settings};
use sim_npu::{CountsInF32, Driver, Memories, Settings, amp};
use std::sync::Arc;
use tracecast::amp::{EagerScaler, Histogram, ScalerSettings};
use tracecast::eager::{Eager, EagerOptimizer};
use tracecast::prelude::*;
use tracecast::runtime::{
    AmpSupport, Backend, Device, DeviceId, Registry, Result, ScaleUpdate, ScalerRecorder,
};
use tracecast_ir::text::{ParseOptions, parse_with};

fn strict() -> Settings {
    Settings { memories: Memories::Numbers, ..settings() }
}

fn scaler() -> ScalerOptions {
    ScalerOptions { growth_interval: 3, init_scale: 8.0, ..ScalerOptions::default() }
}

/// `w` goes towards `x`; with poison, its gradient is not finite.
fn descent(options: &Options) -> Jit {
    descent_by(options, scaler().into())
}

fn descent_by(options: &Options, settings: ScalerSettings) -> Jit {
    jit(options.clone(), move |t| {
        let (x, poison) = (t.input("x"), t.input("poison"));
        let w = t.param_of("w", f32s(&[4]));
        let away = (w - x) * poison;
        let sgd = Sgd::new(0.25);
        let mut optimizer = Recorded::new(t, &sgd, &[w]);
        let mut scaler = GradScaler::recorded(t, "amp", settings.clone());
        optimizer.backward(scaler.scale((away * away).mean(())));
        scaler.step(&mut optimizer);
        scaler.update();
    })
}

fn start() -> Store {
    Store::new().with("w", Tensor::new([4], &[1.0f32, -2.0, 0.5, 8.0]).unwrap())
}

fn poison(step: usize) -> Tensor {
    Tensor::scalar(if step % 7 == 4 { f32::INFINITY } else { 1.0f32 })
}

fn target() -> Tensor {
    Tensor::new([4], &[0.5f32, 0.25, -1.0, 2.0]).unwrap()
}

/// The parameter, the scale and the count behind each of some steps.
fn run(options: &Options) -> Vec<(Vec<f64>, f64, f64)> {
    let step = descent(options);
    let mut store = start();
    let x = target();
    let number = |store: &Store, name: &str| store.get(name).unwrap().to_f64s()[0];
    (0..20)
        .map(|i| {
            step.run(&mut store, &[("x", &x), ("poison", &poison(i))]).unwrap();
            let w = store.get("w").unwrap().to_f64s();
            (w, number(&store, "amp.scale"), number(&store, "amp.growth_tracker"))
        })
        .collect()
}

#[test]
fn what_a_chip_records_itself_moves_the_scale_as_everywhere() {
    // A recorded step keeps the mask by which it skips in memory, so the chips are some that hold
    // masks.
    let mine = run(&recording(settings(), CountsInF32));
    let (others, _) = chips(&settings());
    assert_eq!(mine, run(&on(&others, "npu:1")));
    assert_eq!(mine, run(&Options::new().device("reference")));
    let scales: Vec<f64> = mine.iter().map(|(_, scale, _)| *scale).collect();
    assert!(scales.contains(&16.0) && scales.windows(2).any(|pair| pair[1] < pair[0]));
}

#[test]
fn policies_of_the_scale_and_whole_steps_count_as_the_chip_does() {
    let options = recording(settings(), CountsInF32);
    let step = descent_by(&options, ScalerSettings::from(scaler()).policy(Histogram::default()));
    let x = target();
    let mut store = start();
    for i in 0..3 {
        step.run(&mut store, &[("x", &x), ("poison", &poison(i))]).unwrap();
    }
    let scale = store.get("amp.scale").unwrap().to_f64s()[0];
    let count = store.get("amp.growth_tracker").unwrap();
    assert_eq!((scale, count.dtype(), count.to_f64s()), (16.0, DType::F32, vec![0.0]));

    let step = network::step(options);
    let mut store = Store::new();
    step.init(&mut store, 3).unwrap();
    let batch = batch(0, 1.0);
    step.run(&mut store, &given(&batch)).unwrap();
    let count = store.get("amp.growth_tracker").unwrap();
    assert_eq!((count.dtype(), count.to_f64s()), (DType::F32, vec![1.0]));
}

#[test]
fn texts_have_what_was_recorded() {
    let options = recording(settings(), CountsInF32);
    let x = target();
    let graph = descent(&options).graph(&start(), &[("x", &x), ("poison", &poison(0))]).unwrap();
    let text = graph.to_string();
    assert!(!text.contains("update_scale") && text.contains("%amp.growth_tracker: f32[] state"));
    let read = ParseOptions { policies: options.policies(), ..ParseOptions::default() };
    let program = tracecast::compile(parse_with(&text, &read).unwrap(), &options).unwrap();
    let mut store = start()
        .with("amp.scale", Tensor::scalar(8f32))
        .with("amp.growth_tracker", Tensor::scalar(0f32));
    program.run(&mut store, &[("x", &x), ("poison", &poison(0))]).unwrap();
    let count = store.get("amp.growth_tracker").unwrap();
    assert_eq!((count.dtype(), count.to_f64s()), (DType::F32, vec![1.0]));
}

/// The scale and the count of an eager loop behind each step, and what the parameter is in the end.
fn eager(options: Options) -> (Vec<(f64, i64)>, Vec<f64>) {
    let eager = Eager::new(options).unwrap();
    let w = eager.parameter(start().get("w").unwrap());
    let mut sgd = EagerOptimizer::new(Sgd::new(0.25), std::slice::from_ref(&w));
    let mut scaler = EagerScaler::new(scaler()).unwrap();
    let loss = eager.tensor(Tensor::scalar(1.0f32));
    let states = (0..20)
        .map(|i| {
            let scale = scaler.scale(&loss).unwrap().to_host().unwrap().to_f64s()[0] as f32;
            let factor = poison(i).item::<f32>().unwrap() * scale;
            let grad: Vec<f32> = (0..4).map(|at| (at as f32 + 1.0) * factor).collect();
            w.set_grad(eager.tensor(Tensor::new([4], &grad).unwrap())).unwrap();
            scaler.step(&mut sgd).unwrap();
            scaler.update().unwrap();
            (scaler.get_scale().unwrap(), scaler.get_growth_tracker().unwrap())
        })
        .collect();
    let mut store = Store::new();
    scaler.save(&mut store, "amp").unwrap();
    scaler.load(&store, "amp").unwrap();
    let state = scaler.state_dict().unwrap();
    scaler.load_state_dict(&state).unwrap();
    assert_eq!(scaler.state_dict().unwrap(), state);
    (states, w.value().to_host().unwrap().to_f64s())
}

#[test]
fn eager_scalers_ask_the_same_recorder() {
    let (registry, _) = chips(&strict());
    assert_eq!(eager(on(&registry, "npu:1")), eager(Options::new().device("reference")));
}

/// Chips that have loss scaling recorded otherwise.
#[derive(Debug)]
struct Recording(Driver, AmpSupport);

impl Backend for Recording {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>> {
        self.0.open(id)
    }

    fn amp(&self) -> Option<AmpSupport> {
        Some(self.1.clone())
    }
}

/// Options for the second of such chips.
fn recording(settings: Settings, recorder: impl ScalerRecorder + 'static) -> Options {
    let registry = Arc::new(Registry::new());
    let driver = Recording(Driver { settings }, amp().recorder(recorder));
    registry.register("npu", Arc::new(driver)).unwrap();
    on(&registry, "npu:1")
}

/// A gradient is finite if it does not change the sum of its elements times zero.
#[derive(Debug)]
struct Sums;

impl ScalerRecorder for Sums {
    fn unscale_and_check<'t>(&self, grad: Var<'t>, inverse: Var<'t>) -> Option<[Var<'t>; 2]> {
        // NaN if one of them is not finite, which is not zero.
        Some([grad * inverse, (grad * 0.0).sum(())])
    }

    fn update_scale<'t>(&self, _now: ScaleUpdate<'t>) -> Option<[Var<'t>; 2]> {
        panic!("the host moves the scale")
    }

    fn tracker(&self) -> Option<DType> {
        None
    }
}

#[test]
fn what_keeps_no_scale_leaves_it_to_the_host() {
    let options = recording(strict(), Sums);
    assert_eq!(eager(options.clone()), eager(Options::new().device("reference")));
    let x = target();
    let refused = descent(&options).run(&mut start(), &[("x", &x), ("poison", &poison(0))]);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("`npu` keeps no scale") && refused.contains(file!()), "{refused}");
}
