//! Scenarios as recorded steps: the same calls inside a trace, one program per iteration, must end in the same bits.

use crate::cases::{number, numbers, read, same, tensor};
use crate::replay::{options, rule};
use serde_json::Value;
use std::sync::Arc;
use tracecast::amp::{GradScaler, ScalerSettings};
use tracecast::eager::Eager;
use tracecast::ir::ops::cast::Cast;
use tracecast::ir::ops::elementwise::Elementwise;
use tracecast::optim::{Optimizer, Recorded};
use tracecast::{Options, Store, Tensor, jit};

/// What happens between two updates.
#[derive(Clone, Default)]
struct Iteration {
    /// The gradient of each parameter.
    grads: Vec<Option<Vec<f64>>>,
    /// `unscale` or `step`, and of which optimizer.
    calls: Vec<(bool, usize)>,
    after: Value,
}

/// Replays a scenario; false if a recorded step cannot say it: a refused call, a change of settings, sparse gradients, a parameter
/// in two optimizers, an iteration without update.
pub(crate) fn scenario(eager: &Eager, case: &Value) -> Result<bool, String> {
    let Some((params, iterations)) = plan(case) else { return Ok(false) };
    let described = case["optimizers"].as_array().expect("a plan has optimizers");
    let rules = described.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
    let rules: Arc<Vec<Box<dyn Optimizer>>> = Arc::new(rules);
    let mut store = Store::new();
    let mut owners = Vec::new();
    for (i, (owner, param)) in params.iter().enumerate() {
        let dtype = param["dtype"].as_str().unwrap_or("f32");
        let start = tensor(eager, dtype, param.get("shape"), &numbers(&param["value"]))?;
        store.insert(&format!("p{i}"), start.to_host().map_err(|e| e.to_string())?);
        owners.push(*owner);
    }
    let settings = ScalerSettings::from(options(&case["config"])).parity(true);
    for (at, iteration) in iterations.iter().enumerate() {
        let (rules, owners, settings) = (rules.clone(), owners.clone(), settings.clone());
        let calls = iteration.calls.clone();
        let step = jit(Options::new().on(eager.device().clone()), move |t| {
            let mut scaler = GradScaler::recorded(t, "amp", settings.clone());
            let mut optimizers: Vec<Recorded<'_, '_>> = Vec::new();
            for (opt, rule) in rules.iter().enumerate() {
                let own: Vec<usize> = (0..owners.len()).filter(|i| owners[*i] == opt).collect();
                let params: Vec<_> = own.iter().map(|i| t.param(&format!("p{i}"))).collect();
                let mut optimizer =
                    Recorded::named(t, &format!("opt{opt}"), rule.as_ref(), &params);
                let grads = own.iter().map(|i| {
                    let grad = t.input(&format!("g{i}"));
                    // A gradient depends on the scale; one that is given is made to.
                    match scaler.get_scale() {
                        Some(scale) => grad + scale.mul(None, Some(0.0)).cast(grad.dtype()),
                        None => grad,
                    }
                });
                optimizer.set_grads(grads.collect());
                optimizers.push(optimizer);
            }
            for (is_step, opt) in &calls {
                match is_step {
                    true => scaler.step(&mut optimizers[*opt]),
                    false => scaler.unscale_(&mut optimizers[*opt]),
                }
            }
            scaler.update();
        });
        let mut inputs: Vec<(String, Tensor)> = Vec::new();
        for (i, grad) in iteration.grads.iter().enumerate() {
            let ty = store.ty(&format!("p{i}")).expect("inserted above").clone();
            let grad = grad.as_ref().expect("a plan has all gradients");
            let grad = Tensor::from_f64s(ty, grad).map_err(|e| e.to_string())?;
            inputs.push((format!("g{i}"), grad));
        }
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, g)| (n.as_str(), g)).collect();
        let place = |e: String| format!("iteration {at}: {e}");
        step.run(&mut store, &inputs).map_err(|e| place(e.to_string()))?;
        compare(eager, &store, &iteration.after).map_err(place)?;
    }
    Ok(true)
}

fn compare(eager: &Eager, store: &Store, after: &Value) -> Result<(), String> {
    let entry = |name: &str| -> Result<Vec<f64>, String> {
        Ok(read(&eager.tensor(store.get(name).map_err(|e| e.to_string())?)))
    };
    if store.contains("amp.scale") {
        same("scale", &entry("amp.scale")?, &[number(&after["scale"])])?;
        same("tracker", &entry("amp.growth_tracker")?, &[number(&after["growth_tracker"])])?;
    }
    let params = after["params"].as_array().into_iter().flatten().enumerate();
    params.into_iter().try_for_each(|(i, expected)| {
        same("parameter", &entry(&format!("p{i}"))?, &numbers(expected))
    })
}

/// The parameters, each with its optimizer, and the iterations of a scenario.
#[expect(clippy::type_complexity, reason = "two lists, named in the line above")]
fn plan(case: &Value) -> Option<(Vec<(usize, Value)>, Vec<Iteration>)> {
    let mut params = Vec::new();
    for (opt, optimizer) in case["optimizers"].as_array()?.iter().enumerate() {
        for param in optimizer["params"].as_array()? {
            if param.get("shared").is_some() || param["dtype"] == "f16" {
                return None;
            }
            params.push((opt, param.clone()));
        }
    }
    let fresh = || Iteration { grads: vec![None; params.len()], ..Iteration::default() };
    let (mut iterations, mut current) = (Vec::new(), fresh());
    for op in case["ops"].as_array()? {
        if op.get("error").is_some() || op["after"].is_null() {
            return None;
        }
        let opt = op["opt"].as_u64().unwrap_or(0) as usize;
        match op["op"].as_str()? {
            "scale" | "get_scale" | "get" | "state_dict" => {}
            "set_grad" if current.calls.is_empty() && op.get("sparse").is_none() => {
                current.grads[op["param"].as_u64()? as usize] = Some(numbers(&op["value"]));
            }
            name @ ("unscale" | "step") => {
                let call = (name == "step", opt);
                if current.calls.contains(&call) || current.grads.iter().any(Option::is_none) {
                    return None;
                }
                current.calls.push(call);
            }
            "update" if op.get("new_scale").is_none() => {
                current.after = op["after"].clone();
                iterations.push(std::mem::replace(&mut current, fresh()));
            }
            _ => return None,
        }
    }
    let done = current.calls.is_empty() && !iterations.is_empty();
    done.then_some((params, iterations))
}
