//! [`Recorded`]: an optimizer within a trace.

use crate::cast_to::CastTo;
use crate::optim::{
    Clip, Clipped, Clock, Optimizer, RUN, STEP, Shared, count_entry, moment_entries, seed_entry,
    stochastic_round,
};
use crate::setters::setters;
use crate::trace::Trace;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::random::Random;
use tracecast_ir::text::did_you_mean;
use tracecast_ir::{DType, Var};

/// An optimizer, the parameters it updates, and their gradients in this step.
///
/// Moments and the count of steps are entries of the store named after the optimizer and the
/// parameter, such as `optim.0.weight.exp_avg` and `optim.step`; a run puts them there, with what
/// they start with, if they are missing.
pub struct Recorded<'t, 'o> {
    trace: &'t Trace,
    rule: &'o dyn Optimizer,
    name: String,
    params: Vec<Var<'t>>,
    grads: Vec<Var<'t>>,
    /// f32: if one of them is not zero, the step is skipped.
    refused: Vec<Var<'t>>,
    stepped: bool,
    fused: bool,
}

impl<'t, 'o> Recorded<'t, 'o> {
    /// An optimizer called `optim` for these parameters.
    #[track_caller]
    pub fn new(trace: &'t Trace, rule: &'o dyn Optimizer, params: &[Var<'t>]) -> Self {
        Recorded::named(trace, "optim", rule, params)
    }

    setters! {
        /// Says how 16-bit parameters are updated: in f32, each new value rounded once, as
        /// PyTorch's optimizers do with `fused=True` (the default here); or by ops of their own
        /// dtype, as PyTorch does without.
        fused(fused: bool) => fused = fused;
    }

    /// An optimizer of another name, for a program with several.
    #[track_caller]
    pub fn named(
        trace: &'t Trace,
        name: &str,
        rule: &'o dyn Optimizer,
        params: &[Var<'t>],
    ) -> Self {
        let mut distinct: Vec<Var<'t>> = Vec::new();
        for param in params {
            if !distinct.iter().any(|known| known.id() == param.id()) {
                distinct.push(*param);
            }
        }
        if distinct.is_empty() {
            trace.fail("optimizer", format!("`{name}` has no parameters"));
        }
        if let Some(problem) = rule.problem() {
            trace.fail("optimizer", format!("`{name}`: {problem}"));
        }
        let names: Vec<String> =
            distinct.iter().filter_map(|param| trace.name_of(*param)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for pattern in rule.idle_patterns(&names) {
            let near = did_you_mean(&pattern, names.iter().copied());
            trace.warn(format!("`{name}`: the group `{pattern}` has no parameter{near}"));
        }
        Recorded {
            trace,
            rule,
            name: name.to_owned(),
            params: distinct,
            grads: Vec::new(),
            refused: Vec::new(),
            stepped: false,
            fused: true,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parameters, each once.
    pub fn params(&self) -> &[Var<'t>] {
        &self.params
    }

    /// Records the gradients of a loss; those of an earlier loss are added to, as in eager
    /// training.
    #[track_caller]
    pub fn backward(&mut self, loss: Var<'t>) {
        let fresh = self.trace.grad(loss, &self.params);
        self.accumulate(fresh);
    }

    /// The same times `weight`, which multiplies the gradients and not the loss: what is between
    /// them keeps its range.
    #[track_caller]
    pub(crate) fn backward_times(&mut self, loss: Var<'t>, weight: Var<'t>) {
        let fresh = self.trace.grad(loss, &self.params);
        self.accumulate(fresh.into_iter().map(|grad| grad * weight.to(grad.dtype())).collect());
    }

    #[track_caller]
    fn accumulate(&mut self, fresh: Vec<Var<'t>>) {
        self.grads = match self.grads.is_empty() {
            true => fresh,
            false => self.grads.iter().zip(fresh).map(|(sum, grad)| *sum + grad).collect(),
        };
    }

    /// Takes gradients computed elsewhere, one for each parameter.
    #[track_caller]
    pub fn set_grads(&mut self, grads: Vec<Var<'t>>) {
        if grads.len() != self.params.len() {
            let message = format!(
                "`{}` has {} parameters, found {} gradients",
                self.name,
                self.params.len(),
                grads.len()
            );
            self.trace.fail("optimizer", message);
            return;
        }
        self.grads = grads;
    }

    /// The gradients, in the order of the parameters; empty before
    /// [`backward`](Recorded::backward).
    pub fn grads(&self) -> &[Var<'t>] {
        &self.grads
    }

    /// The gradients, to be clipped or replaced.
    pub fn grads_mut(&mut self) -> &mut [Var<'t>] {
        &mut self.grads
    }

    /// Records clipped gradients in the place of the others. A clip that skips steps has the
    /// optimizer skip them.
    #[track_caller]
    pub fn clip(&mut self, clip: &Clip) -> Clipped<'t> {
        let clipped = clip.record(self.trace, &mut self.grads);
        self.refused.extend(clipped.nonfinite);
        clipped
    }

    /// The next value of every parameter.
    #[track_caller]
    pub fn step(&mut self) {
        self.record(None);
    }

    /// Records the next value of every parameter, moment and count, unless `found`, an f32 without
    /// axes, is not zero: then all keep their values.
    #[track_caller]
    pub fn step_unless(&mut self, found: Var<'t>) {
        self.record(Some(found));
    }

    #[track_caller]
    fn record(&mut self, found: Option<Var<'t>>) {
        if self.trace.error().is_some() {
            return;
        }
        if self.grads.is_empty() || self.stepped {
            let why = if self.stepped {
                "has already stepped in this trace"
            } else {
                "has no gradients: call backward() before step()"
            };
            self.trace.fail("optimizer", format!("`{}` {why}", self.name));
            return;
        }
        self.stepped = true;
        let flags = found.into_iter().chain(self.refused.iter().copied());
        let skip = flags.reduce(|a, b| a.maximum(b)).map(|found| found.ne(0.0));
        let tracer = self.trace.tracer();
        tracer.at_caller(|| tracer.scope(&self.name, || self.record_all(skip)));
    }

    fn record_all(&self, skip: Option<Var<'t>>) {
        let t = self.trace;
        let mut names = Vec::new();
        for param in &self.params {
            let Some(name) = t.name_of(*param) else {
                t.fail("optimizer", "takes parameters of the program, found a computed value");
                return;
            };
            names.push(name);
        }
        let rules: Vec<&dyn Optimizer> =
            names.iter().map(|name| self.rule.rule_for(name).unwrap_or(self.rule)).collect();
        let clock = self.count(&rules, skip);
        let rng = self.generator(&rules, skip);
        let mut prepared: Vec<(&dyn Optimizer, Shared<'t>)> = Vec::new();
        for (i, &rule) in rules.iter().enumerate() {
            let known = prepared.iter().position(|(known, _)| same(*known, rule));
            let at = known.unwrap_or_else(|| {
                prepared.push((rule, rule.prepare(t, clock)));
                prepared.len() - 1
            });
            if t.error().is_some() {
                return;
            }
            self.record_one(i, &names[i], rule, &prepared[at].1, rng, skip);
        }
    }

    /// The next value of one parameter and of its moments.
    fn record_one(
        &self,
        i: usize,
        name: &str,
        rule: &dyn Optimizer,
        shared: &Shared<'t>,
        rng: Option<Var<'t>>,
        skip: Option<Var<'t>>,
    ) {
        let t = self.trace;
        let (param, grad) = (self.params[i], self.grads[i]);
        let entries = moment_entries(rule, &self.name, name, &param.ty());
        let moments: Vec<Var<'t>> = entries.into_iter().map(|entry| t.state_from(entry)).collect();
        // Moments that are rounded at random are rounded once.
        let own = param.dtype();
        let inside = self.fused || rule.moment_dtype().is_some();
        let dtype = if inside { own.compute() } else { own };
        let used = |x: Var<'t>| x.to_dtype(dtype);
        let used_moments: Vec<Var<'t>> = moments.iter().map(|m| used(*m)).collect();
        let next = rule.advance(shared, used(param), used(grad), &used_moments);
        keep_or_update(t, skip, param, next.param);
        for (old, new) in moments.into_iter().zip(next.moments) {
            let drawn = rng.filter(|_| rule.moment_dtype().is_some());
            let new = drawn.map_or(new, |rng| {
                let unit = new.uniform(rng, 0.0, 1.0, i64::from(t.tracer().next_stream()));
                stochastic_round(new, unit, old.dtype())
            });
            keep_or_update(t, skip, old, new);
        }
    }

    /// The counts that a rule asks for, each with its next value.
    fn count(&self, rules: &[&dyn Optimizer], skip: Option<Var<'t>>) -> Clock<'t> {
        let t = self.trace;
        let next = |name: &str, skip: Option<Var<'t>>| {
            let count = t.state_from(count_entry(&self.name, name));
            let next = count + 1.0;
            keep_or_update(t, skip, count, next);
            next.cast(DType::F64)
        };
        let step = rules.iter().any(|rule| rule.counts_steps()).then(|| next(STEP, skip));
        let run = rules.iter().any(|rule| rule.counts_runs()).then(|| next(RUN, None));
        Clock { step, run }
    }

    /// The state that random numbers are drawn from, if a rule asks for it; its step grows.
    fn generator(&self, rules: &[&dyn Optimizer], skip: Option<Var<'t>>) -> Option<Var<'t>> {
        let t = self.trace;
        rules.iter().any(|rule| rule.moment_dtype().is_some()).then(|| {
            let rng = t.state_from(seed_entry(&self.name));
            let one_step = t.constant(DType::I64, &[2], &[0.0, 1.0]);
            keep_or_update(t, skip, rng, rng + one_step);
            rng
        })
    }
}

/// True if both are one object; those without a size all lie in one place.
fn same(a: &dyn Optimizer, b: &dyn Optimizer) -> bool {
    std::ptr::addr_eq(a, b) && size_of_val(a) > 0
}

/// Gives a state its next value, in its own dtype, or the old one if the step is skipped.
fn keep_or_update<'t>(t: &'t Trace, skip: Option<Var<'t>>, old: Var<'t>, new: Var<'t>) {
    let new = if new.dtype() == old.dtype() { new } else { new.cast(old.dtype()) };
    t.update(old, skip.map_or(new, |skip| skip.choose(old, new)));
}
