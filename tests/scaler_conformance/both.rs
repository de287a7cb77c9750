//! A scenario in both forms: after each call that a recorded step can say, the eager scaler and the
//! recorded one have equal bits in every parameter, gradient, moment, count and flag, in the scale
//! and in its tracker. Folding the scaler and threads change nothing.

use crate::cases::read;
use crate::plan::{End, Iteration};
use crate::recorded::{Scene, inputs, load, record};
use crate::replay::World;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tracecast::eager::Eager;
use tracecast::{Options, Store, Tensor};

/// By the names that a recorded step has for them.
type State = BTreeMap<String, Vec<f64>>;

type Checked = Result<(), String>;

/// Compares the two; false if a recorded step cannot say the scenario.
pub(crate) fn scenario(eager: &Eager, case: &Value) -> Result<bool, String> {
    if Scene::of(eager, case)?.is_none() {
        return Ok(false);
    }
    let Some(mut world) = World::of(eager, case)? else { return Ok(false) };
    let (mut case, first) = (case.clone(), state(&world)?);
    let mut after = Vec::new();
    for op in case["ops"].as_array_mut().into_iter().flatten() {
        world.call(op)?;
        let now = state(&world)?;
        // The next iteration begins with the gradients that are left here, to the bit.
        op["after"]["grads"] = gradients(&now, world.params.len());
        after.push(now);
    }
    let mut compared = 0;
    for (fold, threads) in [(true, 1), (true, 2), (false, 2)] {
        let place = |e: String| format!("folded {fold}, {threads} threads: {e}");
        let Some(scene) = Scene::of(eager, &case).map_err(place)? else { return Ok(false) };
        let new = || Options::new().on(eager.device().clone()).fold(fold).threads(threads);
        compared += compare_all(scene, &new, &first, &after).map_err(place)?;
    }
    Ok(compared > 0)
}

/// Runs each iteration, and before that each part of it up to a call, and says how many states were
/// compared.
fn compare_all(
    scene: Scene,
    options: &dyn Fn() -> Options,
    first: &State,
    after: &[State],
) -> Result<usize, String> {
    let Scene { plan, rules, mut store } = scene;
    let mut compared = 0;
    for (at, iteration) in plan.iterations.iter().enumerate() {
        let place = |e: String| format!("iteration {at}: {e}");
        if let Some(state) = &iteration.loaded {
            load(&mut store, state).map_err(place)?;
        }
        let mut run = |part: Iteration, store: &mut Store, last: usize| -> Checked {
            let inputs = inputs(&plan, &part)?;
            let inputs: Vec<(&str, &Tensor)> =
                inputs.iter().map(|(n, g)| (n.as_str(), g)).collect();
            let ends = part.end != End::Open;
            let step = record(options(), &plan, rules.clone(), part);
            let outputs = step.run(store, &inputs).map_err(|e| e.to_string())?;
            let mut found: State =
                outputs.iter().map(|(name, value)| (name.to_owned(), value.to_f64s())).collect();
            // An update forgets the flags.
            found.retain(|name, _| !(ends && name.starts_with("found")));
            for entry in store.iter() {
                let (name, value) = entry.map_err(|e| e.to_string())?;
                found.insert(name.to_owned(), value.to_f64s());
            }
            compared += 1;
            same_state(&found, &after[last], first)
        };
        for (calls, at) in iteration.places.iter().enumerate() {
            let part = |e: String| place(format!("up to call {at}: {e}"));
            run(iteration.first(calls + 1), &mut copied(&store)?, *at).map_err(part)?;
        }
        if !iteration.refused {
            run(iteration.clone(), &mut store, iteration.last).map_err(place)?;
            continue;
        }
        // The eager form has refused this call as well: `World::call` fails otherwise.
        let (inputs, step) =
            (inputs(&plan, iteration)?, record(options(), &plan, rules.clone(), iteration.clone()));
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, g)| (n.as_str(), g)).collect();
        if step.run(&mut store, &inputs).is_ok() {
            return Err(place("went through, expected a refusal".to_owned()));
        }
        compared += 1;
    }
    Ok(compared)
}

fn copied(store: &Store) -> Result<Store, String> {
    let mut copy = Store::new();
    for entry in store.iter() {
        let (name, value) = entry.map_err(|e| e.to_string())?;
        copy.insert(name, value);
    }
    Ok(copy)
}

/// Fails unless all that was found is as the eager form has it, and nothing else has changed there
/// since the beginning.
fn same_state(found: &State, eager: &State, first: &State) -> Checked {
    let bits = |values: &[f64]| -> Vec<u64> {
        values.iter().map(|v| if v.is_nan() { f64::NAN } else { *v }.to_bits()).collect()
    };
    let same = |what: &str, recorded: &[f64], eager: &[f64]| {
        if bits(recorded) == bits(eager) {
            return Ok(());
        }
        Err(format!("{what}: recorded {recorded:?}, eager {eager:?}"))
    };
    for (name, recorded) in found {
        let Some(eager) = eager.get(name) else { return Err(format!("`{name}` is not eager")) };
        same(name, recorded, eager)?;
    }
    let absent = first.iter().filter(|(name, _)| !found.contains_key(*name));
    for (name, first) in absent.filter(|(name, _)| !name.starts_with("grad")) {
        same(name, first, &eager[name])?;
    }
    Ok(())
}

/// All that the eager form holds. A moment that is not there yet is what it will start with.
fn state(world: &World) -> Result<State, String> {
    let failed = |e: tracecast::Error| e.to_string();
    let mut state = State::new();
    for (i, param) in world.params.iter().enumerate() {
        state.insert(format!("p{i}"), read(param.value()));
        if let Some(grad) = param.grad() {
            state.insert(format!("grad{i}"), read(&grad.to_dense().map_err(failed)?));
        }
    }
    if world.scaler.is_enabled() {
        state.insert("amp.scale".into(), vec![world.scaler.get_scale().map_err(failed)?]);
        let tracker = world.scaler.get_growth_tracker().map_err(failed)?;
        state.insert("amp.growth_tracker".into(), vec![tracker as f64]);
    }
    for (k, optimizer) in world.optimizers.iter().enumerate() {
        if let [found] = world.scaler.found_inf(optimizer).map_err(failed)?[..] {
            state.insert(format!("found{k}"), vec![found]);
        }
        let (rule, steps) = (optimizer.rule(), optimizer.steps().map_err(failed)?);
        let moments = optimizer.moments();
        for ((param, steps), moments) in optimizer.params().iter().zip(steps).zip(moments) {
            let i = world.params.iter().position(|p| p.value().is(param.value()));
            let i = i.expect("a parameter of the scenario");
            if rule.counts_steps() {
                // One without a gradient has no part in a scenario whose steps are counted.
                state.insert(format!("opt{k}.step"), vec![steps.unwrap_or(0.0)]);
            }
            for (j, name) in rule.moments().iter().enumerate() {
                let start = || vec![rule.moment_start(name); param.value().ty().numel().get()];
                let value = moments.map_or_else(start, |moments| read(&moments[j]));
                state.insert(format!("opt{k}.p{i}.{name}"), value);
            }
        }
    }
    Ok(state)
}

/// The gradients of a state as a recording has them.
fn gradients(state: &State, params: usize) -> Value {
    let json = |value: &f64| match value {
        value if value.is_nan() => json!("nan"),
        value if value.is_infinite() => json!(if *value > 0.0 { "inf" } else { "-inf" }),
        value => json!(value),
    };
    let grad = |i: usize| state.get(&format!("grad{i}"));
    (0..params).map(|i| grad(i).map_or(Value::Null, |all| all.iter().map(json).collect())).collect()
}

/// Scenarios that nobody recorded: every rule over two parameters and six iterations, some clipped,
/// some with gradients that are not finite, with scales that are no powers of two among them.
pub(crate) fn generated() -> Vec<Value> {
    let rules = [
        ("SGD", json!({"lr": 0.3})),
        ("SGD", json!({"lr": 0.1, "momentum": 0.9, "nesterov": true, "weight_decay": 0.01})),
        ("Adam", json!({"lr": 0.01, "weight_decay": 0.1})),
        ("AdamW", json!({"lr": 0.003, "betas": [0.8, 0.95], "amsgrad": true})),
        ("Adagrad", json!({"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01})),
    ];
    let scales = [8.0, 3.0, 1e5];
    let all = rules.iter().flat_map(|rule| scales.map(|scale| (rule, scale)));
    let case = |(i, ((kind, kwargs), scale)): (usize, (&(&str, Value), f64))| {
        let dtypes = [["f32", "f32"], ["f32", "bf16"], ["f64", "f32"]][i % 3];
        let params = [[0.5, -1.25, 3.0].as_slice(), &[1e-3, -7.0, 0.1, 2.0, 0.0]];
        let params: Vec<Value> = params
            .iter()
            .zip(dtypes)
            .map(|(value, dtype)| json!({"value": value, "dtype": dtype}))
            .collect();
        json!({
            "name": format!("{kind} {i} from {scale}"),
            "config": {"init_scale": scale, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 2},
            "optimizers": [{"kind": kind, "kwargs": kwargs, "params": params}],
            "ops": calls(i),
        })
    };
    all.enumerate().map(case).collect()
}

/// The calls of six iterations.
fn calls(seed: usize) -> Vec<Value> {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ seed as u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 40) as f64 / f64::from(1u32 << 20) - 8.0
    };
    let mut calls = Vec::new();
    for iteration in 0..6 {
        calls.push(json!({"op": "scale", "value": {"v": [1.0], "dtype": "f32"}}));
        for (param, size) in [3, 5].into_iter().enumerate() {
            let mut grad: Vec<Value> = (0..size).map(|_| json!(next())).collect();
            if (iteration + seed) % 3 == 2 && param == 1 {
                grad[2] = json!(["inf", "nan"][iteration % 2]);
            }
            let op = if iteration == 4 { "add_grad" } else { "set_grad" };
            calls.push(json!({"op": op, "param": param, "value": grad}));
        }
        if iteration % 2 == 1 {
            calls.push(json!({"op": "unscale", "opt": 0}));
            calls.push(json!({"op": "clip", "opt": 0, "max_norm": 0.7}));
        }
        calls.push(json!({"op": "step", "opt": 0}));
        calls.push(json!({"op": "update"}));
    }
    calls
}
