//! Scenarios as recorded steps: the calls between two updates inside one trace, which must end in
//! the same bits, or be refused where PyTorch refuses them.

use crate::cases::{number, numbers, same, tensor};
use crate::plan::{Call, End, Iteration, Plan, plan};
use crate::replay::{Closeness, rule};
use serde_json::Value;
use std::sync::Arc;
use tracecast::amp::{GradScaler, ScalerOptions, ScalerSettings};
use tracecast::eager::Eager;
use tracecast::ir::{DType, TensorType, Var};
use tracecast::optim::{Clip, Optimizer, Recorded};
use tracecast::{Jit, Options, Store, Tensor, Trace, jit};

type Checked = Result<(), String>;

/// What a scenario needs as recorded steps.
pub(crate) struct Scene {
    pub(crate) plan: Plan,
    pub(crate) rules: Arc<Vec<Box<dyn Optimizer>>>,
    pub(crate) store: Store,
}

impl Scene {
    /// `None` if a recorded step cannot say the scenario.
    pub(crate) fn of(eager: &Eager, case: &Value) -> Result<Option<Scene>, String> {
        let Some(plan) = plan(case) else { return Ok(None) };
        let described = case["optimizers"].as_array().expect("a plan has optimizers");
        let rules = described.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
        let disabled = case["config"]["enabled"] == false;
        if plan.leaves_out_gradients && (disabled || rules.iter().any(|rule| rule.counts_steps())) {
            // One count serves all parameters of a recorded optimizer, and one without gradients
            // does not step by itself.
            return Ok(None);
        }
        let mut store = Store::new();
        for (i, (_, param)) in plan.params.iter().enumerate() {
            let dtype = param["dtype"].as_str().unwrap_or("f32");
            let start = tensor(eager, dtype, param.get("shape"), &numbers(&param["value"]))?;
            store.insert(&format!("p{i}"), start.to_host().map_err(|e| e.to_string())?);
        }
        Ok(Some(Scene { plan, rules: Arc::new(rules), store }))
    }
}

/// Replays a scenario; false if a recorded step cannot say it.
pub(crate) fn scenario(eager: &Eager, case: &Value) -> Result<bool, String> {
    let Some(Scene { plan, rules, mut store }) = Scene::of(eager, case)? else { return Ok(false) };
    let close = Closeness::of(case);
    for (at, iteration) in plan.iterations.iter().enumerate() {
        let place = |e: String| format!("iteration {at}: {e}");
        if let Some(state) = &iteration.loaded {
            load(&mut store, state).map_err(place)?;
        }
        let options = Options::new().on(eager.device().clone());
        let step = record(options, &plan, rules.clone(), iteration.clone());
        let inputs = inputs(&plan, iteration).map_err(place)?;
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, g)| (n.as_str(), g)).collect();
        let ran = step.run(&mut store, &inputs).map_err(|e| e.to_string());
        match (ran, iteration.refused) {
            (Ok(_), true) => return Err(place("went through, expected a refusal".to_owned())),
            (Err(_), true) => return Ok(true),
            (ran, false) => {
                let outputs = ran.map_err(place)?;
                for (name, value) in outputs.iter() {
                    let Some(i) = name.strip_prefix("grad") else { continue };
                    let i: usize = i.parse().expect("the number of a parameter");
                    let expected = numbers(&iteration.after["grads"][i]);
                    close.compare("gradient", &value.to_f64s(), &expected).map_err(place)?;
                }
                compare(&store, iteration, &close).map_err(place)?;
            }
        }
    }
    Ok(true)
}

/// What `load_state_dict` does between two steps.
pub(crate) fn load(store: &mut Store, state: &Value) -> Checked {
    store.insert("amp.scale", Tensor::scalar(number(&state["scale"]) as f32));
    let tracker = state["_growth_tracker"].as_i64().ok_or("a growth tracker")?;
    store.insert("amp.growth_tracker", Tensor::scalar(tracker as i32));
    Ok(())
}

/// The calls of an iteration as a program. Its outputs are `gradI` for the gradient of each
/// parameter, unless an optimizer takes the scale itself, and `foundI` for the flag of each
/// optimizer.
pub(crate) fn record(
    options: Options,
    plan: &Plan,
    rules: Arc<Vec<Box<dyn Optimizer>>>,
    iteration: Iteration,
) -> Jit {
    let owners: Vec<usize> = plan.params.iter().map(|(owner, _)| *owner).collect();
    jit(options, move |t| {
        let settings = ScalerSettings::from(iteration.options.clone()).parity(true);
        let mut scaler = GradScaler::recorded(t, "amp", settings);
        let mut optimizers: Vec<Recorded<'_, '_>> = Vec::new();
        let mut own: Vec<Vec<usize>> = Vec::new();
        for (opt, rule) in rules.iter().enumerate() {
            let all: Vec<usize> = (0..owners.len()).filter(|i| owners[*i] == opt).collect();
            let with_grads: Vec<usize> =
                all.iter().copied().filter(|i| !iteration.grads[*i].is_empty()).collect();
            // Without any gradient it keeps its parameters, so that the scaler can refuse it.
            let of = if with_grads.is_empty() { &all } else { &with_grads };
            let params: Vec<_> = of.iter().map(|i| t.param(&format!("p{i}"))).collect();
            let grads: Vec<_> = with_grads.iter().map(|i| gradient(t, &iteration, *i)).collect();
            let mut optimizer = Recorded::named(t, &format!("opt{opt}"), rule.as_ref(), &params)
                .fused(iteration.fused);
            if !grads.is_empty() {
                optimizer.set_grads(grads);
            }
            optimizers.push(optimizer);
            own.push(with_grads);
        }
        for call in &iteration.calls {
            let optimizer = &mut optimizers[call.optimizer(&owners)];
            match call {
                Call::Unscale(_) => scaler.unscale_(optimizer),
                Call::Step(_) => scaler.step(optimizer),
                Call::Clip(_, max_norm) => {
                    Clip::norm(*max_norm).record(t, optimizer.grads_mut());
                }
                Call::Replace(param, number) => {
                    let at = own[owners[*param]].iter().position(|i| i == param);
                    let at = at.expect("a parameter with a gradient");
                    optimizer.grads_mut()[at] = t.input(&format!("r{number}"));
                }
            }
        }
        for (optimizer, own) in optimizers.iter().zip(&own) {
            for (i, grad) in own.iter().zip(optimizer.grads()) {
                if !iteration.fused {
                    t.output(&format!("grad{i}"), *grad);
                }
            }
        }
        for (opt, optimizer) in optimizers.iter().enumerate() {
            if let Some(found) = scaler.found_inf(optimizer) {
                t.output(&format!("found{opt}"), found);
            }
        }
        match iteration.end {
            End::Update => scaler.update(),
            End::NewScale(scale) => {
                scaler.update_to(t.full(TensorType::scalar(DType::F32), scale));
            }
            End::Open => {}
        }
    })
}

/// The sum of what was set and added.
fn gradient<'t>(t: &'t Trace, iteration: &Iteration, i: usize) -> Var<'t> {
    let parts = (0..iteration.grads[i].len()).map(|part| t.input(&format!("g{i}.{part}")));
    parts.reduce(|a, b| a + b).expect("a gradient has a part")
}

pub(crate) fn inputs(plan: &Plan, iteration: &Iteration) -> Result<Vec<(String, Tensor)>, String> {
    let ty = |i: usize| -> Result<TensorType, String> {
        let (_, param) = &plan.params[i];
        let dtype: DType = param["dtype"].as_str().unwrap_or("f32").parse().map_err(|_| "dtype")?;
        let shape = param.get("shape").and_then(Value::as_array);
        let shape = match shape {
            Some(sizes) => sizes.iter().map(|n| n.as_u64().unwrap_or(0) as usize).collect(),
            None => vec![numbers(&param["value"]).len()],
        };
        Ok(TensorType::new(dtype, &shape[..]))
    };
    let mut inputs = Vec::new();
    for (i, parts) in iteration.grads.iter().enumerate() {
        for (part, values) in parts.iter().enumerate() {
            let value = Tensor::from_f64s(ty(i)?, values).map_err(|e| e.to_string())?;
            inputs.push((format!("g{i}.{part}"), value));
        }
    }
    for (number, (i, values)) in iteration.replaced.iter().enumerate() {
        let value = Tensor::from_f64s(ty(*i)?, values).map_err(|e| e.to_string())?;
        inputs.push((format!("r{number}"), value));
    }
    Ok(inputs)
}

fn compare(store: &Store, iteration: &Iteration, close: &Closeness) -> Checked {
    let after = &iteration.after;
    let entry = |name: &str| -> Result<Vec<f64>, String> {
        Ok(store.get(name).map_err(|e| e.to_string())?.to_f64s())
    };
    let ScalerOptions { enabled, .. } = iteration.options;
    if enabled && !after["growth_tracker"].is_null() {
        same("scale", &entry("amp.scale")?, &[number(&after["scale"])])?;
        same("tracker", &entry("amp.growth_tracker")?, &[number(&after["growth_tracker"])])?;
    }
    let params = after["params"].as_array().into_iter().flatten().enumerate();
    params.into_iter().try_for_each(|(i, expected)| {
        close.compare("parameter", &entry(&format!("p{i}"))?, &numbers(expected))
    })
}
