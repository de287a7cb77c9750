//! Checks of the loss scaler: whole steps, and the eager one call by call, on every device of the
//! kind.

use crate::checked::{Checked, failed, numbers, outcome, tensor, told, told_at};
use crate::compare::{Agreement, differs};
use crate::kit::Kit;
use crate::report::Outcome;
use crate::subject::Subject;
use tracecast::amp::EagerScaler;
use tracecast::eager::{Eager, EagerOptimizer, Parameter};
use tracecast::nn::{Context, Linear};
use tracecast::prelude::*;

struct Layers;

impl Module for Layers {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let hidden = cx.call("hidden", &Linear::new(6, 20), x).relu();
        cx.call("out", &Linear::new(20, 3), hidden)
    }
}

fn step(options: Options, region: Option<&str>) -> Result<TrainStep, Outcome> {
    let step = TrainStep::new(Layers, |t, model| {
        let scores = model.forward(t.input("x"));
        let likely = (scores.log_softmax(-1) * t.input("labels")).sum(-1);
        -likely.mean(()) * t.input("poison")
    });
    let scaler = ScalerOptions { growth_interval: 2, ..ScalerOptions::default() };
    let step = step.optimizer(Sgd::new(0.05).momentum(0.9)).scaler(scaler).options(options);
    let step = region.into_iter().fold(step, |step, region| step.autocast(region, None));
    step.build().map_err(|error| failed(error.to_string()))
}

/// Steps whose gradients are not finite.
fn is_poisoned(number: u64) -> bool {
    number % 5 == 3
}

fn batch(number: u64) -> Result<Vec<(&'static str, Tensor)>, Outcome> {
    let labels: Vec<f32> = (0..24).map(|i| f32::from(u8::from(i % 3 == i / 3 % 3))).collect();
    let poison = if is_poisoned(number) { f32::INFINITY } else { 1.0 };
    Ok(vec![
        ("x", tensor(numbers([8, 6]), "x", number)?),
        ("labels", Tensor::new([8, 3], &labels).map_err(told)?),
        ("poison", Tensor::scalar(poison)),
    ])
}

/// On every device of the kind, which errors name.
fn on_each(on: &Subject, check: fn(&Subject) -> Checked) -> Outcome {
    let each = |device: String| {
        let here = Subject { device, ..on.clone() };
        check(&here).map_err(|outcome| match outcome {
            Outcome::Fail { why, .. } => failed(format!("{}: {why}", here.device)),
            other => other,
        })
    };
    outcome(on.siblings().into_iter().try_for_each(each))
}

/// Scale, losses and skipped steps are those of the interpreter.
pub(crate) fn whole_steps(on: &Subject, _: &Kit) -> Outcome {
    on_each(on, steps)
}

fn steps(on: &Subject) -> Checked {
    let kind = on.device_type().to_string();
    let region = on.amp().map(|_| kind.as_str());
    let (mine, theirs) = (step(on.options(), region)?, step(on.interpreted(), region)?);
    let (mut own, mut known) = (Store::new(), Store::new());
    mine.init(&mut own, 7).map_err(told)?;
    theirs.init(&mut known, 7).map_err(told)?;
    for number in 0..8 {
        let batch = batch(number)?;
        let given: Vec<(&str, &Tensor)> = batch.iter().map(|(n, t)| (*n, t)).collect();
        let found = mine.run(&mut own, &given).map_err(|error| told_at(number, error))?;
        let wanted = theirs.run(&mut known, &given).map_err(told)?;
        if (found.skipped, found.scale) != (wanted.skipped, wanted.scale) {
            return Err(failed(format!(
                "step {number}: expected scale {} and skipped {}, found scale {} and skipped {}",
                wanted.scale, wanted.skipped, found.scale, found.skipped
            )));
        }
        let near = (found.loss - wanted.loss).abs() <= 0.02 * wanted.loss.abs() + 0.005;
        if wanted.loss.is_finite() && !near {
            return Err(failed(format!(
                "step {number}: expected a loss of {}, found {}",
                wanted.loss, found.loss
            )));
        }
    }
    Ok(())
}

/// A step whose gradients are not finite leaves weights and optimizer as they were.
pub(crate) fn skipped(on: &Subject, _: &Kit) -> Outcome {
    on_each(on, skips)
}

fn skips(on: &Subject) -> Checked {
    let step = step(on.options(), None)?;
    let mut store = Store::new();
    step.init(&mut store, 3).map_err(told)?;
    for number in 0..5 {
        let before = trained(&store)?;
        let batch = batch(number)?;
        let given: Vec<(&str, &Tensor)> = batch.iter().map(|(n, t)| (*n, t)).collect();
        step.run(&mut store, &given).map_err(|error| told_at(number, error))?;
        let after = trained(&store)?;
        let changed = before.iter().zip(&after).find(|(before, after)| before != after);
        match changed {
            Some(((name, _), _)) if is_poisoned(number) => {
                return Err(failed(format!("the skipped step {number} changes `{name}`")));
            }
            None if !is_poisoned(number) => {
                return Err(failed(format!("step {number} changes no weight")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The bytes of weights and momenta.
fn trained(store: &Store) -> Result<Vec<(String, Vec<u8>)>, Outcome> {
    let mut kept = Vec::new();
    for entry in store.iter() {
        let (name, value) = entry.map_err(told)?;
        if !name.starts_with("amp.") && !name.contains("step") {
            kept.push((name.to_owned(), value.bytes().to_vec()));
        }
    }
    Ok(kept)
}

/// The eager scaler, with a parameter on every device of the kind: the scale reaches all of them,
/// and an overflow on the last one is seen by all.
pub(crate) fn call_by_call(on: &Subject, _: &Kit) -> Outcome {
    outcome(calls(on))
}

fn calls(on: &Subject) -> Checked {
    let device = |device| Eager::new(Subject { device, ..on.clone() }.options()).map_err(told);
    let devices = on.siblings().into_iter().map(device).collect::<Result<Vec<Eager>, _>>()?;
    let vector = |numbers: &[f32]| Tensor::new([numbers.len()], numbers).map_err(told);
    let mut values = vec![1.0f32, 2.0, -0.5];
    let start = vector(&values)?;
    let params: Vec<Parameter> = devices.iter().map(|d| d.parameter(start.clone())).collect();
    let mut optimizer = EagerOptimizer::new(Sgd::new(0.25), &params);
    let settings =
        ScalerOptions { init_scale: 4.0, growth_interval: 2, ..ScalerOptions::default() };
    let mut scaler = EagerScaler::new(settings).map_err(told)?;
    let loss = devices[0].tensor(Tensor::scalar(1.0f32));
    let (mut scale, mut good) = (4.0f32, 0);
    for step in 0..6 {
        let overflows = step % 4 == 1;
        let mut run = || -> tracecast::Result<(Vec<f64>, bool)> {
            scaler.scale(&loss)?;
            for (i, (device, param)) in devices.iter().zip(&params).enumerate() {
                let is_last = i + 1 == devices.len();
                let factor = if overflows && is_last { f32::INFINITY } else { scale };
                let scaled: Vec<f32> = values.iter().map(|value| value * factor).collect();
                param.set_grad(device.tensor(Tensor::new([scaled.len()], &scaled)?))?;
            }
            scaler.unscale_(&optimizer)?;
            let found = scaler.found_inf(&optimizer)?;
            let taken = scaler.step(&mut optimizer)?;
            scaler.update()?;
            optimizer.zero_grad();
            Ok((found, taken))
        };
        let (found, taken) = run().map_err(|error| told_at(step, error))?;
        if found.iter().any(|flag| *flag != 0.0) != overflows || taken == overflows {
            let taken = if taken { "taken" } else { "skipped" };
            return Err(failed(format!(
                "step {step}: gradients {} finite, found {found:?}, and the step was {taken}",
                if overflows { "are not" } else { "are" }
            )));
        }
        (scale, good) = match (overflows, good) {
            (true, _) => (scale * 0.5, 0),
            (false, 1) => (scale * 2.0, 0),
            (false, _) => (scale, good + 1),
        };
        let now = scaler.get_scale().map_err(told)?;
        if now != f64::from(scale) {
            return Err(failed(format!("step {step}: expected a scale of {scale}, found {now}")));
        }
        if !overflows {
            values.iter_mut().for_each(|value| *value -= 0.25 * *value);
        }
        for (param, device) in params.iter().zip(on.siblings()) {
            let found = param.value().to_host().map_err(told)?;
            if let Some(why) = differs(&found, &vector(&values)?, Agreement::Exact) {
                return Err(failed(format!("{device}, step {step}: {why}")));
            }
        }
    }
    Ok(())
}
