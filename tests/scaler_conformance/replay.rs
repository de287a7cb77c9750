//! Replaying a scenario call by call, and comparing the whole state after each.

use crate::cases::{described, number, numbers, outcome, read, same, tensor};
use serde_json::Value;
use tracecast::amp::{
    EagerScaler, Nested, NewScale, ScalerOptions, Stage, raw::reciprocal_scale, unscale_grads,
};
use tracecast::eager::{Eager, EagerOptimizer, Gradient, Parameter, clip_grad_norm};
use tracecast::optim::{Adagrad, Adam, AdamW, Optimizer, Sgd};

/// What a scenario works on.
pub(crate) struct World {
    eager: Eager,
    pub(crate) scaler: EagerScaler,
    pub(crate) optimizers: Vec<EagerOptimizer>,
    kinds: Vec<String>,
    pub(crate) params: Vec<Parameter>,
    close: Closeness,
}

/// How close numbers have to come: equal, unless a root, a power or a sum of several products is in
/// them, whose last bit PyTorch itself gives differently in its several implementations.
pub(crate) struct Closeness {
    exact: bool,
}

impl Closeness {
    pub(crate) fn of(case: &Value) -> Self {
        let list = |name: &str| case[name].as_array().cloned().unwrap_or_default();
        let plain = |optimizer: &Value| optimizer["kind"].as_str().is_none_or(|kind| kind == "SGD");
        let clips = list("ops").iter().any(|op| op["op"] == "clip");
        Closeness { exact: !clips && list("optimizers").iter().all(plain) }
    }

    pub(crate) fn compare(&self, what: &str, found: &[f64], expected: &[f64]) -> Checked {
        if self.exact || found.len() != expected.len() {
            return same(what, found, expected);
        }
        let close = |(found, expected): (&f64, &f64)| {
            found == expected
                || (found.is_nan() && expected.is_nan())
                || (found - expected).abs() <= 1e-6 * expected.abs()
        };
        if found.iter().zip(expected).all(close) { Ok(()) } else { same(what, found, expected) }
    }
}

type Checked = Result<(), String>;

pub(crate) fn scenario(eager: &Eager, case: &Value) -> Checked {
    let Some(mut world) = World::of(eager, case)? else { return Ok(()) };
    world.compare(&case["initial"]).map_err(|e| format!("at first: {e}"))?;
    for (i, op) in case["ops"].as_array().into_iter().flatten().enumerate() {
        let place = |e: String| format!("op {i} {}: {e}", op["op"]);
        world.call(op).map_err(place)?;
        world.compare(&op["after"]).map_err(place)?;
    }
    Ok(())
}

pub(crate) fn options(config: &Value) -> ScalerOptions {
    let default = ScalerOptions::default();
    let or = |name: &str, default: f64| config.get(name).map_or(default, number);
    ScalerOptions {
        init_scale: or("init_scale", default.init_scale),
        growth_factor: or("growth_factor", default.growth_factor),
        backoff_factor: or("backoff_factor", default.backoff_factor),
        growth_interval: config["growth_interval"].as_i64().unwrap_or(default.growth_interval),
        enabled: config["enabled"].as_bool().unwrap_or(true),
    }
}

/// The optimizer that a case describes.
pub(crate) fn optimizer(case: &Value, params: &[Parameter]) -> Result<EagerOptimizer, String> {
    let fused = case["kwargs"]["fused"].as_bool().unwrap_or(false);
    Ok(EagerOptimizer::of(rule(case)?, params).fused(fused))
}

/// The rule of the optimizer that a case describes.
pub(crate) fn rule(case: &Value) -> Result<Box<dyn Optimizer>, String> {
    let kwargs = &case["kwargs"];
    let or = |name: &str, default: f64| kwargs.get(name).map_or(default, number);
    let (lr, decay) = (or("lr", 1.0), or("weight_decay", 0.0));
    let flag = |name: &str| kwargs[name].as_bool().unwrap_or(false);
    let mut given = kwargs.as_object().into_iter().flatten();
    if let Some((name, _)) = given.find(|(name, _)| !KNOWN.contains(&name.as_str())) {
        return Err(format!("optimizer argument `{name}` is not covered"));
    }
    macro_rules! adam {
        ($rule:expr) => {{
            let betas = kwargs.get("betas").map_or(vec![0.9, 0.999], numbers);
            let rule = $rule.eps(or("eps", 1e-8)).betas(betas[0], betas[1]);
            let rule = if flag("amsgrad") { rule.amsgrad() } else { rule };
            if flag("maximize") { Box::new(rule.maximize()) } else { Box::new(rule) }
        }};
    }
    Ok(match case["kind"].as_str().unwrap_or("SGD") {
        "SGD" => {
            let sgd = Sgd::new(lr).weight_decay(decay).momentum(or("momentum", 0.0));
            let sgd = sgd.dampening(or("dampening", 0.0));
            let sgd = if flag("nesterov") { sgd.nesterov() } else { sgd };
            if flag("maximize") { Box::new(sgd.maximize()) } else { Box::new(sgd) }
        }
        "Adam" => adam!(Adam::new(lr).weight_decay(decay)),
        "AdamW" => adam!(AdamW::new(lr).weight_decay(or("weight_decay", 0.01))),
        "Adagrad" => {
            let rule = Adagrad::new(lr).weight_decay(decay).eps(or("eps", 1e-10));
            let rule = rule.rate_decay(or("lr_decay", 0.0));
            let rule = rule.initial_sum(or("initial_accumulator_value", 0.0));
            if flag("maximize") { Box::new(rule.maximize()) } else { Box::new(rule) }
        }
        kind => return Err(format!("optimizer {kind} with {kwargs} is not covered")),
    })
}

/// The arguments of optimizers; the last ones choose among PyTorch's implementations.
const KNOWN: [&str; 13] = [
    "lr",
    "weight_decay",
    "momentum",
    "dampening",
    "nesterov",
    "betas",
    "eps",
    "amsgrad",
    "maximize",
    "lr_decay",
    "initial_accumulator_value",
    "fused",
    "foreach",
];

impl World {
    /// What a scenario begins with; `None` if there is no such scaler.
    pub(crate) fn of(eager: &Eager, case: &Value) -> Result<Option<World>, String> {
        let scaler = EagerScaler::new(options(&case["config"]));
        let Some(scaler) = outcome(scaler, case.get("construct_error"))? else { return Ok(None) };
        let mut world = World {
            eager: eager.clone(),
            scaler: scaler.parity(true),
            optimizers: Vec::new(),
            kinds: Vec::new(),
            params: Vec::new(),
            close: Closeness::of(case),
        };
        for described in case["optimizers"].as_array().into_iter().flatten() {
            world.add(described)?;
        }
        Ok(Some(world))
    }

    fn add(&mut self, case: &Value) -> Checked {
        let mut own = Vec::new();
        for param in case["params"].as_array().into_iter().flatten() {
            if let Some(shared) = param["shared"].as_u64() {
                own.push(self.params[shared as usize].clone());
                continue;
            }
            let dtype = param["dtype"].as_str().unwrap_or("f32");
            let start = tensor(&self.eager, dtype, param.get("shape"), &numbers(&param["value"]))?;
            own.push(Parameter::new(start));
            self.params.extend(own.last().cloned());
        }
        self.kinds.push(case["kind"].as_str().unwrap_or("SGD").to_owned());
        self.optimizers.push(optimizer(case, &own)?);
        Ok(())
    }

    pub(crate) fn call(&mut self, op: &Value) -> Checked {
        let (error, expected) = (op.get("error"), &op["result"]);
        let at = |key: &str| op[key].as_u64().unwrap_or(0) as usize;
        match op["op"].as_str().unwrap_or_default() {
            "scale" => self.scale(op),
            "set_grad" if op["value"].is_null() => {
                self.params[at("param")].zero_grad();
                Ok(())
            }
            "set_grad" => {
                let grad = self.gradient(op)?;
                outcome(self.params[at("param")].set_grad(grad), error).map(|_| ())
            }
            "add_grad" => {
                let grad = self.gradient(op)?;
                outcome(self.params[at("param")].add_grad(grad), error).map(|_| ())
            }
            "unscale" => {
                outcome(self.scaler.unscale_(&self.optimizers[at("opt")]), error).map(|_| ())
            }
            "raw_unscale" => self.raw_unscale(op),
            "step" => self.step(op),
            "update" => self.update(op),
            "clip" => {
                let params = self.optimizers[at("opt")].params();
                let norm = outcome(clip_grad_norm(params, number(&op["max_norm"])), error)?;
                let expected = expected.get("total_norm").map(number);
                norm.zip(expected).map_or(Ok(()), |(norm, expected)| {
                    self.close.compare("total_norm", &[norm], &[expected])
                })
            }
            "get_scale" => {
                let scale = outcome(self.scaler.get_scale(), error)?;
                scale.map_or(Ok(()), |scale| same("scale", &[scale], &[number(expected)]))
            }
            "get" => {
                let value = match op["name"].as_str() {
                    Some("growth_factor") => self.scaler.get_growth_factor(),
                    Some("backoff_factor") => self.scaler.get_backoff_factor(),
                    Some("growth_interval") => self.scaler.get_growth_interval().map(|i| i as f64),
                    Some("growth_tracker" | "_growth_tracker") => {
                        self.scaler.get_growth_tracker().map(|i| i as f64)
                    }
                    _ => return Err(format!("no getter {}", op["name"])),
                };
                let value = outcome(value, error)?;
                value.map_or(Ok(()), |value| same("value", &[value], &[number(expected)]))
            }
            "set" => {
                let value = &op["value"];
                match op["name"].as_str() {
                    Some("growth_factor") => self.scaler.set_growth_factor(number(value)),
                    Some("backoff_factor") => self.scaler.set_backoff_factor(number(value)),
                    Some("growth_interval") => {
                        self.scaler.set_growth_interval(value.as_i64().expect("an integer"));
                    }
                    _ => return Err(format!("no setter {}", op["name"])),
                }
                Ok(())
            }
            "state_dict" => {
                let state = outcome(self.scaler.state_dict(), error)?.unwrap_or_default();
                let expected = expected.as_object().expect("a state");
                let names: Vec<&String> = expected.keys().collect();
                if !names.iter().all(|name| state.contains_key(*name)) || names.len() != state.len()
                {
                    return Err(format!("expected {names:?}, found {state:?}"));
                }
                names.iter().try_for_each(|n| same(n, &[state[*n]], &[number(&expected[*n])]))
            }
            "load_state_dict" => {
                let state = op["value"].as_object().expect("a state").iter();
                let state = state.map(|(name, value)| (name.clone(), number(value))).collect();
                outcome(self.scaler.load_state_dict(&state), error).map(|_| ())
            }
            "pickle" => {
                if let Some(copy) = outcome(self.scaler.copied(), error)? {
                    self.scaler = copy;
                }
                Ok(())
            }
            other => Err(format!("`{other}` is not covered")),
        }
    }

    fn nested(&self, value: &Value) -> Result<Nested, String> {
        Ok(match value {
            Value::Array(list) => {
                Nested::List(list.iter().map(|v| self.nested(v)).collect::<Result<_, _>>()?)
            }
            Value::Object(_) => Nested::Tensor(described(&self.eager, value)?),
            Value::Null => Nested::Number(f64::NAN),
            _ => Nested::Number(number(value)),
        })
    }

    fn scale(&mut self, op: &Value) -> Checked {
        let outputs = self.nested(&op["value"])?;
        match outcome(self.scaler.scale(&outputs), op.get("error"))? {
            Some(scaled) if op.get("result").is_some() => same_nest(&scaled, &op["result"]),
            _ => Ok(()),
        }
    }

    fn gradient(&self, op: &Value) -> Result<Gradient, String> {
        let param = &self.params[op["param"].as_u64().unwrap_or(0) as usize];
        let dtype = op["dtype"].as_str().unwrap_or(param.value().dtype().name());
        let values = numbers(&op["value"]);
        if op["sparse"].as_bool() == Some(true) {
            let axis = |axis: &Value| numbers(axis).into_iter().map(|i| i as usize).collect();
            let indices: Vec<Vec<usize>> =
                op["indices"].as_array().into_iter().flatten().map(axis).collect();
            let values = tensor(&self.eager, dtype, None, &values)?;
            let shape = &param.value().ty().shape.numbers();
            return Gradient::sparse(values, &indices, shape).map_err(|e| e.to_string());
        }
        let sizes: Vec<Value> =
            param.value().ty().shape.numbers().iter().map(|size| (*size).into()).collect();
        tensor(&self.eager, dtype, Some(&Value::Array(sizes)), &values).map(Gradient::from)
    }

    fn raw_unscale(&mut self, op: &Value) -> Checked {
        let optimizer = &self.optimizers[op["opt"].as_u64().unwrap_or(0) as usize];
        let inverse = match op.get("inv_scale") {
            Some(inverse) => tensor(&self.eager, "f32", None, &[number(inverse)])?,
            None => {
                let scale = self.scaler.get_scale().map_err(|e| e.to_string())?;
                let scale = tensor(&self.eager, "f32", None, &[scale])?;
                reciprocal_scale(&scale).map_err(|e| e.to_string())?
            }
        };
        let flags = outcome(unscale_grads(optimizer, &inverse, true), op.get("error"))?;
        match (flags, op["result"].get("found_inf")) {
            (Some(flags), Some(expected)) => {
                let flags: Vec<f64> = flags.iter().flat_map(read).collect();
                same("found_inf", &flags, &numbers(expected))
            }
            _ => Ok(()),
        }
    }

    fn step(&mut self, op: &Value) -> Checked {
        let at = op["opt"].as_u64().unwrap_or(0) as usize;
        let (optimizer, before) = (&mut self.optimizers[at], values(&self.params));
        let result = if op.get("closure_kwarg").is_some() {
            let loss = self.eager.tensor(tracecast::Tensor::scalar(1.0f32));
            self.scaler.step_with_closure(optimizer, || Ok(loss)).map(|_| true)
        } else {
            // There are no positional arguments that could go unnoticed: a closure passed as one is
            // called by the optimizer and changes nothing here.
            self.scaler.step(optimizer)
        };
        let Some(called) = outcome(result, op.get("error"))? else { return Ok(()) };
        let expected = &op["result"];
        let flag = |name: &str, found: bool| match expected[name].as_bool() {
            Some(recorded) if recorded != found => Err(format!("{name}: expected {recorded}")),
            _ => Ok(()),
        };
        flag("inner_step_called", called)?;
        flag("params_changed", before != values(&self.params))?;
        if let Some(counters) = expected.get("step_counters") {
            // PyTorch's Adagrad has its counters from the start, the others from the first step.
            let steps = self.optimizers[at].steps().map_err(|e| e.to_string())?;
            let steps: Vec<f64> = match self.kinds[at].as_str() {
                "Adagrad" => steps.into_iter().map(|steps| steps.unwrap_or(0.0)).collect(),
                _ => steps.into_iter().flatten().collect(),
            };
            same("step counters", &steps, &numbers(counters))?;
        }
        Ok(())
    }

    fn update(&mut self, op: &Value) -> Checked {
        let result = match op.get("new_scale") {
            None => self.scaler.update(),
            Some(Value::Number(n)) => match n.as_i64() {
                Some(integer) => self.scaler.update_to(integer),
                None => self.scaler.update_to(number(&op["new_scale"])),
            },
            Some(Value::String(_)) => self.scaler.update_to(number(&op["new_scale"])),
            Some(value) => {
                let tensor = described(&self.eager, value)?;
                match value["requires_grad"].as_bool() {
                    Some(true) => self.scaler.update_to(NewScale::Trained(Parameter::new(tensor))),
                    _ => self.scaler.update_to(&tensor),
                }
            }
        };
        outcome(result, op.get("error")).map(|_| ())
    }

    /// Fails unless the state is the recorded one.
    fn compare(&self, after: &Value) -> Checked {
        if after.is_null() {
            return Err("no state is recorded".to_owned());
        }
        let failed = |e: tracecast::Error| e.to_string();
        same("scale", &[self.scaler.get_scale().map_err(failed)?], &[number(&after["scale"])])?;
        if let Some(tracker) = after.get("growth_tracker").filter(|tracker| !tracker.is_null()) {
            let found = self.scaler.get_growth_tracker().map_err(failed)? as f64;
            same("tracker", &[found], &[number(tracker)])?;
        }
        for (optimizer, expected) in
            self.optimizers.iter().zip(after["optimizers"].as_array().into_iter().flatten())
        {
            let stage = match self.scaler.stage(optimizer) {
                Stage::Ready => "READY",
                Stage::Unscaled => "UNSCALED",
                Stage::Stepped => "STEPPED",
            };
            if expected["stage"] != stage {
                return Err(format!("stage: expected {}, found {stage}", expected["stage"]));
            }
            let found = self.scaler.found_inf(optimizer).map_err(failed)?;
            same("found_inf", &found, &numbers(&expected["found_inf"]))?;
        }
        let grads = after["grads"].as_array().into_iter().flatten();
        let params = after["params"].as_array().into_iter().flatten();
        for ((param, value), grad) in self.params.iter().zip(params).zip(grads) {
            self.close.compare("parameter", &read(param.value()), &numbers(value))?;
            match (param.grad(), grad) {
                (None, Value::Null) => {}
                (Some(found), expected) if !expected.is_null() => {
                    self.close.compare(
                        "gradient",
                        &read(&found.to_dense().map_err(failed)?),
                        &numbers(expected),
                    )?;
                }
                (found, expected) => {
                    return Err(format!("gradient: expected {expected}, found {found:?}"));
                }
            }
        }
        Ok(())
    }
}

fn values(params: &[Parameter]) -> Vec<Vec<u64>> {
    params.iter().map(|p| read(p.value()).into_iter().map(f64::to_bits).collect()).collect()
}

fn same_nest(found: &Nested, expected: &Value) -> Checked {
    match (found, expected) {
        (Nested::List(found), Value::Array(expected)) if found.len() == expected.len() => {
            found.iter().zip(expected).try_for_each(|(found, expected)| same_nest(found, expected))
        }
        (Nested::Tensor(found), Value::Object(_)) => {
            let shape: Vec<f64> =
                found.ty().shape.numbers().iter().map(|size| *size as f64).collect();
            same("shape", &shape, &numbers(&expected["shape"]))?;
            if expected["dtype"] != found.dtype().name() {
                return Err(format!(
                    "dtype: expected {}, found {}",
                    expected["dtype"],
                    found.dtype()
                ));
            }
            same("scaled", &read(found), &numbers(&expected["v"]))
        }
        (Nested::Number(found), Value::Number(_)) => same("scaled", &[*found], &[number(expected)]),
        _ => Err(format!("expected {expected}, found {found:?}")),
    }
}
