//! The state machine of the scale over 100,000 updates against its formulae, and what the scaler does better without `parity`.

use crate::cases::{class, eagers, read, same};
use std::collections::BTreeMap;
use tracecast::Tensor;
use tracecast::amp::raw::amp_update_scale;
use tracecast::amp::{EagerScaler, ScalerOptions, Stage};
use tracecast::eager::{Eager, EagerOptimizer, Parameter};
use tracecast::optim::{AdamW, Sgd};

const UPDATES: usize = 100_000;

#[test]
fn updates_follow_the_formulae() {
    let [cpu, _] = eagers();
    let settings = [(2.0, 0.5, 7), (1.1, 0.7, 3), (16.0, 0.25, 1)];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for (growth, backoff, interval) in settings {
        let (scale, tracker) =
            (cpu.tensor(Tensor::scalar(65536f32)), cpu.tensor(Tensor::scalar(0i32)));
        let flags = [0f32, 1.0, 2.0, 0.5, f32::NAN].map(|flag| cpu.tensor(Tensor::scalar(flag)));
        let (mut model_scale, mut model_tracker) = (65536f32, 0i32);
        for update in 0..UPDATES / settings.len() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let pick = if random.is_multiple_of(20) { 1 + (random >> 8) as usize % 4 } else { 0 };
            amp_update_scale(&scale, &tracker, &flags[pick], growth, backoff, interval)
                .expect("runs");
            if pick != 0 {
                (model_scale, model_tracker) = ((f64::from(model_scale) * backoff) as f32, 0);
            } else if i64::from(model_tracker) + 1 == interval {
                let grown = (f64::from(model_scale) * growth) as f32;
                (model_scale, model_tracker) =
                    (if grown.is_finite() { grown } else { model_scale }, 0);
            } else {
                model_tracker += 1;
            }
            // Reading back every time would be most of the work.
            if update % 64 == 0 {
                let found = [read(&scale)[0], read(&tracker)[0]];
                let expected = [f64::from(model_scale), f64::from(model_tracker)];
                same(&format!("update {update} of {interval}"), &found, &expected).expect("equal");
            }
        }
        let found = [read(&scale)[0], read(&tracker)[0]];
        same("end", &found, &[f64::from(model_scale), f64::from(model_tracker)]).expect("equal");
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

/// PyTorch adds the flags of two devices to 2, and a fused kernel that tests for 1 updates with infinite gradients.
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
