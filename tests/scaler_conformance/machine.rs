//! The state machine of the scale over 100,000 updates against its formulae, and what the scaler
//! does better without `parity`.

use crate::cases::{class, eagers, read, same};
use std::collections::BTreeMap;
use tracecast::amp::raw::amp_update_scale;
use tracecast::amp::{EagerScaler, GradScaler, ScalerOptions, ScalerSettings, Stage};
use tracecast::eager::{Eager, EagerOptimizer, Parameter};
use tracecast::optim::{AdamW, Recorded, Sgd};
use tracecast::{Options, Store, Tensor, jit};

const UPDATES: usize = 100_000;

/// `_amp_update_scale_` on plain numbers.
struct Model {
    scale: f32,
    tracker: i32,
    settings: (f64, f64, i64),
}

impl Model {
    fn update(&mut self, found: f32) {
        let (growth, backoff, interval) = self.settings;
        if found != 0.0 {
            (self.scale, self.tracker) = ((f64::from(self.scale) * backoff) as f32, 0);
            return;
        }
        self.tracker += 1;
        if i64::from(self.tracker) == interval {
            let grown = (f64::from(self.scale) * growth) as f32;
            (self.scale, self.tracker) = (if grown.is_finite() { grown } else { self.scale }, 0);
        }
    }

    fn state(&self) -> [f64; 2] {
        [f64::from(self.scale), f64::from(self.tracker)]
    }
}

/// Settings, and a model that starts with a scale of 2^16.
fn models() -> [Model; 3] {
    [(2.0, 0.5, 7), (1.1, 0.7, 3), (16.0, 0.25, 1)].map(|settings| Model {
        scale: 65536.0,
        tracker: 0,
        settings,
    })
}

/// Flags, one of twenty not zero, that are the same in every run.
fn flags() -> impl Iterator<Item = usize> {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    std::iter::repeat_with(move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if random.is_multiple_of(20) { 1 + (random >> 8) as usize % 4 } else { 0 }
    })
}

const FLAGS: [f32; 5] = [0.0, 1.0, 2.0, 0.5, f32::NAN];

#[test]
fn updates_follow_the_formulae() {
    let [cpu, _] = eagers();
    let mut picks = flags();
    for mut model in models() {
        let (growth, backoff, interval) = model.settings;
        let (scale, tracker) =
            (cpu.tensor(Tensor::scalar(65536f32)), cpu.tensor(Tensor::scalar(0i32)));
        let flags = FLAGS.map(|flag| cpu.tensor(Tensor::scalar(flag)));
        for update in 0..=UPDATES / 3 {
            let pick = picks.next().expect("there is no end");
            amp_update_scale(&scale, &tracker, &flags[pick], growth, backoff, interval)
                .expect("runs");
            model.update(FLAGS[pick]);
            // Reading back every time would be most of the work.
            if update % 64 == 0 || update == UPDATES / 3 {
                let found = [read(&scale)[0], read(&tracker)[0]];
                same(&format!("update {update} of {interval}"), &found, &model.state())
                    .expect("equal");
            }
        }
    }
}

/// The recorded form, in which a flag comes from a gradient; scale and tracker are compared in
/// every step.
#[test]
fn recorded_updates_follow_the_formulae() {
    let mut picks = flags();
    for mut model in models() {
        let (growth_factor, backoff_factor, growth_interval) = model.settings;
        let options = ScalerOptions {
            growth_factor,
            backoff_factor,
            growth_interval,
            ..ScalerOptions::default()
        };
        let settings = ScalerSettings::from(options).parity(true);
        let step = jit(Options::new().threads(1), move |t| {
            let (w, sgd) = (t.param("w"), Sgd::new(0.0));
            let mut scaler = GradScaler::recorded(t, "amp", settings.clone());
            let mut optimizer = Recorded::new(t, &sgd, &[w]);
            optimizer.set_grads(vec![t.input("g")]);
            scaler.step(&mut optimizer);
            scaler.update();
            t.output("scale", scaler.get_scale().expect("enabled"));
            t.output("tracker", t.state("amp.growth_tracker"));
        });
        let mut store = Store::new()
            .with("w", Tensor::scalar(0f32))
            .with("amp.scale", Tensor::scalar(65536f32))
            .with("amp.growth_tracker", Tensor::scalar(0i32));
        let gradients = [1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
        let gradients = gradients.map(Tensor::scalar);
        for update in 0..=UPDATES / 3 {
            let pick = picks.next().expect("there is no end");
            let out = step.run(&mut store, &[("g", &gradients[pick])]).expect("runs");
            let found = [out["scale"].to_f64s()[0], out["tracker"].to_f64s()[0]];
            same(&format!("update {update} of {growth_interval}"), &found, &model.state())
                .expect("equal");
            model.update(FLAGS[pick]);
        }
    }
}

fn refusal<T>(result: tracecast::Result<T>) -> &'static str {
    result.err().map_or("went through", |error| class(&error))
}

fn parameter(eager: &Eager, grad: Option<f32>) -> Parameter {
    let parameter = eager.parameter(Tensor::new([2], &[1f32, 2.0]).expect("two elements"));
    if let Some(grad) = grad {
        let grad = Tensor::new([2], &[grad, 8.0]).expect("two elements");
        parameter.set_grad(eager.tensor(grad)).expect("the same type");
    }
    parameter
}

fn scaler(parity: bool) -> EagerScaler {
    let options = ScalerOptions { init_scale: 8.0, ..ScalerOptions::default() };
    EagerScaler::new(options).expect("good factors").parity(parity)
}

/// PyTorch adds the flags of two devices to 2, and a fused kernel that tests for 1 updates with
/// infinite gradients.
#[test]
fn flags_of_two_devices_are_joined() {
    let devices = eagers();
    for parity in [true, false] {
        let params = devices.each_ref().map(|eager| parameter(eager, Some(f32::INFINITY)));
        let mut adam = EagerOptimizer::new(AdamW::new(0.1), &params).fused(true);
        let mut scaler = scaler(parity);
        scaler.scale(&devices[0].tensor(Tensor::scalar(1f32))).expect("a tensor");
        assert!(scaler.step(&mut adam).expect("steps"));
        let all: Vec<f64> = params.iter().flat_map(|param| read(param.value())).collect();
        let steps = adam.steps().expect("devices that work");
        if parity {
            assert!(all.iter().any(|v| v.is_nan()), "{all:?}");
            assert_eq!(steps, [Some(-1.0), Some(-1.0)]);
        } else {
            assert_eq!(all, [1.0, 2.0, 1.0, 2.0]);
            assert_eq!(steps, [Some(0.0), Some(0.0)]);
        }
        scaler.update().expect("flags were recorded");
        assert_eq!(scaler.get_scale().expect("a device that works"), 4.0);
    }
}

#[test]
fn the_default_is_stricter_where_pytorch_is_surprising() {
    for eager in eagers() {
        let one = eager.tensor(Tensor::scalar(1f32));
        for parity in [true, false] {
            let mut scaler = scaler(parity);
            let partial = BTreeMap::from([("scale".to_owned(), 2.0)]);
            assert_eq!(refusal(scaler.load_state_dict(&partial)), "KeyError");
            assert_eq!(scaler.get_scale().unwrap(), if parity { 2.0 } else { 8.0 });
            assert_eq!(refusal(scaler.load_state_dict(&BTreeMap::new())), "RuntimeError");

            scaler.scale(&one).unwrap();
            let integer = if parity { "AttributeError" } else { "went through" };
            assert_eq!(refusal(scaler.update_to(4i64)), integer);

            let mut adam =
                EagerOptimizer::new(AdamW::new(0.1), &[parameter(&eager, None)]).fused(true);
            let fused = if parity { "went through" } else { "AssertionError" };
            assert_eq!(refusal(scaler.step(&mut adam)), fused);
        }
    }
}

#[test]
fn stages_are_per_optimizer_and_closures_are_refused() {
    for eager in eagers() {
        let mut scaler = scaler(false);
        let mut good = EagerOptimizer::new(Sgd::new(1.0), &[parameter(&eager, Some(8.0))]);
        let other = EagerOptimizer::new(Sgd::new(1.0), &[parameter(&eager, Some(8.0))]);
        let loss = eager.tensor(Tensor::scalar(1f32));
        scaler.scale(&loss).unwrap();
        assert_eq!(
            refusal(scaler.step_with_closure(&mut good, || Ok(loss.clone()))),
            "RuntimeError"
        );
        assert!(scaler.step(&mut good).unwrap());
        assert_eq!(refusal(scaler.step(&mut good)), "RuntimeError");
        assert_eq!(refusal(scaler.unscale_(&good)), "RuntimeError");
        assert_eq!((scaler.stage(&good), scaler.stage(&other)), (Stage::Stepped, Stage::Ready));
        scaler.unscale_(&other).unwrap();
        assert_eq!(scaler.stage(&other), Stage::Unscaled);
        assert_eq!(refusal(scaler.copied()), "AssertionError");
        scaler.update().unwrap();
        assert_eq!((scaler.stage(&good), scaler.stage(&other)), (Stage::Ready, Stage::Ready));
        assert_eq!(scaler.copied().unwrap().get_growth_tracker().unwrap(), 1);

        let off = ScalerOptions { enabled: false, ..ScalerOptions::default() };
        let mut off = EagerScaler::new(off).unwrap();
        assert!(off.step_with_closure(&mut good, || Ok(loss.clone())).unwrap().is(&loss));
        assert!(off.scale(&loss).unwrap().is(&loss));
    }
}
