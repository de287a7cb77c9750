//! [`Recorded`]: an optimizer within a trace.

use crate::optim::{Optimizer, moment_entry, step_entry};
use crate::trace::Trace;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::{DType, Var};

/// An optimizer, the parameters it updates, and their gradients in this step.
///
/// Moments and the count of steps are entries of the store named after the optimizer and the parameter, such as
/// `optim.0.weight.exp_avg` and `optim.step`; a run puts them there, as zeros, if they are missing.
pub struct Recorded<'t, 'o> {
    trace: &'t Trace,
    rule: &'o dyn Optimizer,
    name: String,
    params: Vec<Var<'t>>,
    grads: Vec<Var<'t>>,
    stepped: bool,
}

impl<'t, 'o> Recorded<'t, 'o> {
    /// An optimizer called `optim` for these parameters.
    #[track_caller]
    pub fn new(trace: &'t Trace, rule: &'o dyn Optimizer, params: &[Var<'t>]) -> Self {
        Recorded::named(trace, "optim", rule, params)
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
        Recorded {
            trace,
            rule,
            name: name.to_owned(),
            params: distinct,
            grads: Vec::new(),
            stepped: false,
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

    /// Records the gradients of a loss; those of an earlier loss are added to, as in eager training.
    #[track_caller]
    pub fn backward(&mut self, loss: Var<'t>) {
        let fresh = self.trace.grad(loss, &self.params);
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

    /// The gradients, in the order of the parameters; empty before [`backward`](Recorded::backward).
    pub fn grads(&self) -> &[Var<'t>] {
        &self.grads
    }

    /// The gradients, to be clipped or replaced.
    pub fn grads_mut(&mut self) -> &mut [Var<'t>] {
        &mut self.grads
    }

    /// Records the next value of every parameter.
    #[track_caller]
    pub fn step(&mut self) {
        self.record(None);
    }

    /// Records the next value of every parameter, moment and count, unless `found`, an f32 without axes, is not zero: then all
    /// keep their values.
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
        let skip = found.map(|found| found.ne(None, Some(0.0)));
        let tracer = self.trace.tracer();
        tracer.at_caller(|| tracer.scope(&self.name, || self.record_all(skip)));
    }

    fn record_all(&self, skip: Option<Var<'t>>) {
        let t = self.trace;
        let count = self.rule.counts_steps().then(|| t.state_from(step_entry(&self.name)));
        let next_count = count.map(|count| count + 1.0);
        let shared = self.rule.prepare(t, next_count.map(|next| next.cast(DType::F64)));
        if t.error().is_some() {
            return;
        }
        for (&param, &grad) in self.params.iter().zip(&self.grads) {
            let Some(name) = t.name_of(param) else {
                t.fail("optimizer", "takes parameters of the program, found a computed value");
                return;
            };
            let moments: Vec<Var<'t>> = self
                .rule
                .moments()
                .iter()
                .map(|moment| t.state_from(moment_entry(&self.name, &name, moment, param.ty())))
                .collect();
            let wide = |x: Var<'t>| if x.dtype().is_low() { x.cast(DType::F32) } else { x };
            let wide_moments: Vec<Var<'t>> = moments.iter().map(|m| wide(*m)).collect();
            let next = self.rule.advance(&shared, wide(param), wide(grad), &wide_moments);
            keep_or_update(t, skip, param, next.param);
            for (old, new) in moments.into_iter().zip(next.moments) {
                keep_or_update(t, skip, old, new);
            }
        }
        if let (Some(count), Some(next)) = (count, next_count) {
            keep_or_update(t, skip, count, next);
        }
    }
}

/// Gives a state its next value, in its own dtype, or the old one if the step is skipped.
fn keep_or_update<'t>(t: &'t Trace, skip: Option<Var<'t>>, old: Var<'t>, new: Var<'t>) {
    let new = if new.dtype() == old.dtype() { new } else { new.cast(old.dtype()) };
    t.update(old, skip.map_or(new, |skip| skip.choose(old, new)));
}
