//! [`Plan`]: a scenario as iterations that each can be one recorded step.

use crate::cases::{number, numbers};
use crate::replay::options;
use serde_json::Value;
use tracecast::amp::ScalerOptions;

/// The parameters, each with the number of its optimizer, and the iterations.
pub(crate) struct Plan {
    pub(crate) params: Vec<(usize, Value)>,
    pub(crate) iterations: Vec<Iteration>,
    /// True if a parameter has no gradient in some iteration in which its optimizer steps.
    pub(crate) leaves_out_gradients: bool,
}

/// What happens up to an update, or up to the end or a refused call.
#[derive(Clone)]
pub(crate) struct Iteration {
    /// With which settings it runs, and which state was loaded before.
    pub(crate) options: ScalerOptions,
    pub(crate) loaded: Option<Value>,
    /// The parts of the gradient of each parameter, none if it has no gradient.
    pub(crate) grads: Vec<Vec<Vec<f64>>>,
    pub(crate) calls: Vec<Call>,
    /// For each call its place among those of the scenario, and that of the last one.
    pub(crate) places: Vec<usize>,
    pub(crate) last: usize,
    /// The gradients that replace unscaled ones: of which parameter, and by what.
    pub(crate) replaced: Vec<(usize, Vec<f64>)>,
    pub(crate) end: End,
    /// True if an optimizer takes the scale itself: gradients are left as they were then.
    pub(crate) fused: bool,
    /// True if the last call has no meaning.
    pub(crate) refused: bool,
    pub(crate) after: Value,
}

/// A call inside the step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Unscale(usize),
    Step(usize),
    Clip(usize, f64),
    /// The parameter, and the number of the replacement.
    Replace(usize, usize),
}

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Update,
    NewScale(f64),
    Open,
}

impl Call {
    /// Which optimizer's gradients it is about.
    pub(crate) fn optimizer(&self, owners: &[usize]) -> usize {
        match self {
            Call::Unscale(opt) | Call::Step(opt) | Call::Clip(opt, _) => *opt,
            Call::Replace(param, _) => owners[*param],
        }
    }
}

/// A scenario as recorded steps; `None` if that cannot be said: a parameter of two optimizers, a
/// sparse gradient, the raw op, a call before the first `scale`, a refusal that depends on an
/// earlier one, a fused step that divides by a scale whose reciprocal is not exact.
pub(crate) fn plan(case: &Value) -> Option<Plan> {
    let mut params = Vec::new();
    let mut fused = false;
    for (opt, optimizer) in case["optimizers"].as_array()?.iter().enumerate() {
        fused |= optimizer["kwargs"]["fused"] == true;
        for param in optimizer["params"].as_array()? {
            if param.get("shared").is_some() {
                return None;
            }
            params.push((opt, param.clone()));
        }
    }
    let start = options(&case["config"]);
    let mut plan = Plan { params, iterations: Vec::new(), leaves_out_gradients: false };
    let mut current = plan.fresh(start, fused, &case["initial"]);
    let mut scaled = false;
    for (at, op) in case["ops"].as_array()?.iter().enumerate() {
        scaled |= op["op"] == "scale";
        // A copy has no scale on its device before it scales.
        scaled &= op["op"] != "pickle";
        if op.get("error").is_some() {
            return plan.refuse(current, op, scaled);
        }
        if fused
            && op["op"] == "step"
            && (divides(&current, op) || plan.lacks_gradients(&current, op))
        {
            return None;
        }
        if op["op"] == "update" {
            current.end = match op.get("new_scale") {
                None => End::Update,
                Some(scale) if scale.is_object() => End::NewScale(*numbers(&scale["v"]).first()?),
                Some(scale) => End::NewScale(number(scale)),
            };
        } else {
            current.call(&plan, op)?;
            current.places.resize(current.calls.len(), at);
        }
        current.last = at;
        current.after = op["after"].clone();
        if current.end != End::Open {
            let next = plan.fresh(current.options.clone(), fused, &current.after);
            plan.push(std::mem::replace(&mut current, next));
        }
    }
    if !current.calls.is_empty() {
        plan.push(current);
    }
    let acts = plan.iterations.iter().any(|iteration| !iteration.calls.is_empty());
    acts.then_some(plan)
}

/// True if a fused step divides gradients by the scale, with other bits than a product with the
/// reciprocal.
fn divides(current: &Iteration, op: &Value) -> bool {
    let opt = op["opt"].as_u64().unwrap_or(0) as usize;
    let scale = number(&op["after"]["scale"]);
    let exact = scale.is_normal() && scale.to_bits() << 12 == 0;
    !exact && !current.calls.contains(&Call::Unscale(opt))
}

impl Plan {
    /// An iteration that begins with the gradients that were left.
    fn fresh(&self, options: ScalerOptions, fused: bool, left: &Value) -> Iteration {
        let left = |i: usize| match &left["grads"][i] {
            Value::Null => Vec::new(),
            grad => vec![numbers(grad)],
        };
        Iteration {
            options,
            loaded: None,
            grads: (0..self.params.len()).map(left).collect(),
            calls: Vec::new(),
            places: Vec::new(),
            last: 0,
            replaced: Vec::new(),
            end: End::Open,
            fused,
            refused: false,
            after: Value::Null,
        }
    }

    /// True if an optimizer steps without any gradient, which a recorded step refuses at once and a
    /// fused eager one in `update`.
    fn lacks_gradients(&self, current: &Iteration, op: &Value) -> bool {
        let opt = op["opt"].as_u64().unwrap_or(0) as usize;
        let mut own = (0..self.params.len()).filter(|i| self.params[*i].0 == opt);
        own.all(|i| current.grads[i].is_empty())
    }

    fn push(&mut self, iteration: Iteration) {
        for call in &iteration.calls {
            let Call::Step(opt) = call else { continue };
            let own = (0..self.params.len()).filter(|i| self.params[*i].0 == *opt);
            self.leaves_out_gradients |= own.into_iter().any(|i| iteration.grads[i].is_empty());
        }
        self.iterations.push(iteration);
    }

    /// Ends with a call that has to be refused; nothing after it can be said.
    fn refuse(mut self, mut current: Iteration, op: &Value, scaled: bool) -> Option<Plan> {
        let opt = op["opt"].as_u64().unwrap_or(0) as usize;
        match op["op"].as_str()? {
            "unscale" if scaled => current.calls.push(Call::Unscale(opt)),
            "step" if scaled && op.get("closure_kwarg").is_none() => {
                current.calls.push(Call::Step(opt));
            }
            "update" if scaled && op.get("new_scale").is_none() => current.end = End::Update,
            _ => return None,
        }
        current.refused = true;
        self.push(current);
        Some(self)
    }
}

impl Iteration {
    /// What its first calls alone are.
    pub(crate) fn first(&self, calls: usize) -> Iteration {
        let mut part = self.clone();
        part.calls.truncate(calls);
        part.replaced
            .truncate(part.calls.iter().filter(|call| matches!(call, Call::Replace(..))).count());
        part.end = End::Open;
        part
    }

    /// Notes what happens inside the step, or before it.
    fn call(&mut self, plan: &Plan, op: &Value) -> Option<()> {
        let opt = op["opt"].as_u64().unwrap_or(0) as usize;
        let param = || op["param"].as_u64().map(|param| param as usize);
        let before = self.calls.is_empty();
        match op["op"].as_str()? {
            "scale" | "get_scale" | "get" | "state_dict" => {}
            // Between steps nothing of a recorded scaler is open.
            "pickle" => {}
            "set_grad" if op.get("sparse").is_some() => return None,
            "set_grad" if op["value"].is_null() && before => self.grads[param()?].clear(),
            "set_grad" if before => self.grads[param()?] = vec![numbers(&op["value"])],
            "set_grad" if !op["value"].is_null() && !self.grads[param()?].is_empty() => {
                self.calls.push(Call::Replace(param()?, self.replaced.len()));
                self.replaced.push((param()?, numbers(&op["value"])));
            }
            "add_grad" if before => self.grads[param()?].push(numbers(&op["value"])),
            "unscale" => self.calls.push(Call::Unscale(opt)),
            "step" => self.calls.push(Call::Step(opt)),
            "clip" => self.calls.push(Call::Clip(opt, number(&op["max_norm"]))),
            "set" if before => match op["name"].as_str()? {
                "growth_factor" => self.options.growth_factor = number(&op["value"]),
                "backoff_factor" => self.options.backoff_factor = number(&op["value"]),
                "growth_interval" => self.options.growth_interval = op["value"].as_i64()?,
                _ => return None,
            },
            "load_state_dict" if before => {
                let state = &op["value"];
                for name in ["scale", "_growth_tracker", "growth_factor", "backoff_factor"] {
                    // An empty one does nothing or is refused, without a step.
                    state.get(name)?;
                }
                self.options.growth_factor = number(&state["growth_factor"]);
                self.options.backoff_factor = number(&state["backoff_factor"]);
                self.options.growth_interval = state["growth_interval"].as_i64()?;
                self.loaded = Some(state.clone());
            }
            _ => return None,
        }
        // A program whose only parameters have no gradients has nothing to record.
        plan.params.first().map(|_| ())
    }
}
