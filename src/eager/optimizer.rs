//! [`EagerOptimizer`]: an optimizer outside a trace, over [`Parameter`]s.

use crate::cast_to::CastTo;
use crate::eager::replicas::Replicas;
use crate::eager::{DeviceTensor, Parameter, Programs};
use crate::error::{Error, Result};
use crate::optim::{Clock, Optimizer, moment_entries};
use std::fmt;
use std::sync::Arc;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::{DType, TensorType, Var};
use tracecast_runtime::Tensor;

/// An optimizer, the parameters it updates, and what it remembers of them.
///
/// Every parameter counts its own steps, as in PyTorch: one without a gradient is left out of a
/// step. A learning rate is a number here, since there are no inputs that could have the name of
/// one.
pub struct EagerOptimizer {
    rule: Box<dyn Optimizer>,
    params: Vec<Parameter>,
    memories: Vec<Option<Memory>>,
    takes_scale: bool,
    programs: Programs,
    identity: Arc<()>,
}

/// What is remembered of a parameter.
struct Memory {
    moments: Vec<DeviceTensor>,
    /// The number of steps, f32.
    steps: Option<DeviceTensor>,
}

/// What a step is told by a loss scaler.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scaling<'a> {
    /// What the gradients are divided by, one f32; the quotients become the gradients.
    pub grad_scale: Option<&'a DeviceTensor>,
    /// One f32: the step changes nothing if it is not zero.
    pub found_inf: Option<&'a DeviceTensor>,
    /// If true, only a `found_inf` of exactly one prevents the step, and it is taken off the count
    /// of steps whatever it is, as PyTorch's fused kernels do.
    pub parity: bool,
}

impl EagerOptimizer {
    /// An optimizer of these parameters.
    pub fn new(rule: impl Optimizer + 'static, params: &[Parameter]) -> Self {
        EagerOptimizer::of(Box::new(rule), params)
    }

    /// An optimizer of these parameters, by a rule that was chosen at run time.
    pub fn of(rule: Box<dyn Optimizer>, params: &[Parameter]) -> Self {
        EagerOptimizer {
            rule,
            params: params.to_vec(),
            memories: params.iter().map(|_| None).collect(),
            takes_scale: false,
            programs: Programs::default(),
            identity: Arc::default(),
        }
    }

    /// One whose step takes the scale and the flag itself, as PyTorch's with `fused=True`: a scaler
    /// then never waits for the flag.
    #[must_use]
    pub fn fused(mut self, fused: bool) -> Self {
        self.takes_scale = fused;
        self
    }

    /// True if its step takes the scale and the flag itself.
    pub fn takes_scale(&self) -> bool {
        self.takes_scale
    }

    pub(crate) fn counts_steps(&self) -> bool {
        self.rule.counts_steps()
    }

    /// The parameters.
    pub fn params(&self) -> &[Parameter] {
        &self.params
    }

    /// The rule.
    pub fn rule(&self) -> &dyn Optimizer {
        self.rule.as_ref()
    }

    /// What is remembered of each parameter, in the order of [`Optimizer::moments`]; `None` if it
    /// has not been in a step yet.
    pub fn moments(&self) -> Vec<Option<&[DeviceTensor]>> {
        self.memories.iter().map(|memory| memory.as_ref().map(|m| &m.moments[..])).collect()
    }

    /// The count of steps of each parameter; `None` if it has not been in a step yet or the rule
    /// does not count.
    ///
    /// # Errors
    /// If a device fails.
    pub fn steps(&self) -> Result<Vec<Option<f64>>> {
        let steps = |memory: &Option<Memory>| {
            memory.as_ref().and_then(|m| m.steps.as_ref()).map(DeviceTensor::number).transpose()
        };
        self.memories.iter().map(steps).collect()
    }

    /// Forgets all gradients.
    pub fn zero_grad(&self) {
        self.params.iter().for_each(Parameter::zero_grad);
    }

    /// Updates every parameter that has a gradient.
    ///
    /// # Errors
    /// If the rule cannot be recorded, a gradient is sparse and the rule takes none of those, or a
    /// device fails. Then no parameter has changed unless a device failed.
    pub fn step(&mut self) -> Result<()> {
        self.step_scaled(Scaling::default())
    }

    /// The same for gradients that are still scaled, unless one was found that is not finite.
    ///
    /// # Errors
    /// As [`step`](EagerOptimizer::step).
    pub fn step_scaled(&mut self, scaling: Scaling<'_>) -> Result<()> {
        let sparse = |param: &Parameter| param.grad().is_some_and(|grad| grad.is_sparse());
        let refuses = self.takes_scale || !self.rule.takes_sparse();
        if let Some(i) = self.params.iter().position(sparse).filter(|_| refuses) {
            return Err(Error::SparseGradient(i));
        }
        let mut scale = scaling.grad_scale.map(Replicas::of);
        let mut found = scaling.found_inf.map(Replicas::of);
        for i in 0..self.params.len() {
            self.step_one(i, &mut scale, &mut found, scaling.parity)?;
        }
        Ok(())
    }

    pub(crate) fn identity(&self) -> &Arc<()> {
        &self.identity
    }

    fn step_one(
        &mut self,
        i: usize,
        scale: &mut Option<Replicas<'_>>,
        found: &mut Option<Replicas<'_>>,
        parity: bool,
    ) -> Result<()> {
        let param = self.params[i].clone();
        let Some(grad) = param.grad() else { return Ok(()) };
        let (value, grad_values) = (param.value().clone(), grad.to_dense()?);
        let eager = value.eager().clone();
        if self.memories[i].is_none() {
            self.memories[i] = Some(self.fresh(&value)?);
        }
        let memory = self.memories[i].as_ref().expect("just made");
        let scale = scale.as_mut().map(|scale| scale.on(&eager)).transpose()?;
        let found = found.as_mut().map(|found| found.on(&eager)).transpose()?;
        let mut operands = vec![&value, &grad_values];
        operands.extend(&memory.moments);
        operands.extend(&memory.steps);
        operands.extend(&scale);
        operands.extend(&found);
        let form = Form {
            moments: memory.moments.len(),
            counts: memory.steps.is_some(),
            scale: scale.is_some(),
            found: found.is_some(),
            parity,
            inside: self.takes_scale,
        };
        eager.run_from(&self.programs, &format!("step {form:?}"), &operands, |t, x| {
            form.record(self.rule.as_ref(), t, x);
            Vec::new()
        })?;
        if scale.is_some() && grad.is_sparse() {
            param.set_grad(grad_values)?;
        }
        Ok(())
    }

    fn fresh(&self, value: &DeviceTensor) -> Result<Memory> {
        let entries = moment_entries(self.rule.as_ref(), "", "", value.ty());
        let moments = entries.iter().map(|entry| Ok(value.eager().tensor(entry.tensor(0)?)));
        let moments = moments.collect::<Result<_>>()?;
        let zero = || -> Result<_> {
            Ok(value.eager().tensor(Tensor::zeros(TensorType::scalar(DType::F32))?))
        };
        let steps = self.rule.counts_steps().then(zero);
        Ok(Memory { moments, steps: steps.transpose()? })
    }
}

impl fmt::Debug for EagerOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EagerOptimizer")
            .field("params", &self.params)
            .field("takes_scale", &self.takes_scale)
            .finish_non_exhaustive()
    }
}

/// Which operands the program of a step has behind the parameter and its gradient.
#[derive(Clone, Copy, Debug)]
struct Form {
    moments: usize,
    counts: bool,
    scale: bool,
    found: bool,
    parity: bool,
    /// 16-bit numbers are updated in f32 and rounded in the end, as PyTorch's fused kernels do;
    /// else by ops of their own dtype.
    inside: bool,
}

impl Form {
    fn record<'t>(self, rule: &dyn Optimizer, t: &'t crate::Trace, x: &[Var<'t>]) {
        let (param, grad) = (x[0], x[1]);
        let mut rest = x[2..].iter().copied();
        let moments: Vec<Var<'t>> = rest.by_ref().take(self.moments).collect();
        let steps = if self.counts { rest.next() } else { None };
        let scale = if self.scale { rest.next() } else { None };
        let found = if self.found { rest.next() } else { None };
        let skip = found.map(|found| match self.parity {
            true => found.eq(1.0),
            false => found.ne(0.0),
        });
        let keep_or = |old: Var<'t>, new: Var<'t>| {
            let new = new.to_dtype(old.dtype());
            t.update(old, skip.map_or(new, |skip| skip.choose(old, new)));
        };
        let next_steps = steps.map(|steps| steps + 1.0);
        if let Some(problem) = rule.problem() {
            t.fail("optimizer", problem);
        }
        if rule.rule_for("").is_some() || rule.moment_dtype().is_some() {
            t.fail("optimizer", "groups and moments in 16 bits are for recorded steps: give each group an optimizer of its own");
        }
        let step = next_steps.map(|next| next.cast(DType::F64));
        let shared = rule.prepare(t, Clock { step, run: None });
        if t.error().is_some() {
            return;
        }
        let used = |x: Var<'t>| if self.inside { x.widened() } else { x };
        let unscaled = scale.map(|scale| grad.widened() / scale.to_dtype(grad.widened().dtype()));
        let own_moments: Vec<Var<'t>> = moments.iter().map(|m| used(*m)).collect();
        let own_grad = unscaled.map_or_else(|| used(grad), used);
        let next = rule.advance(&shared, used(param), own_grad, &own_moments);
        keep_or(param, next.param);
        for (old, new) in moments.into_iter().zip(next.moments) {
            keep_or(old, new);
        }
        if let Some(unscaled) = unscaled {
            keep_or(grad, unscaled);
        }
        match (steps, next_steps, found) {
            (Some(steps), Some(next), Some(found)) if self.parity => t.update(steps, next - found),
            (Some(steps), Some(next), _) => keep_or(steps, next),
            _ => {}
        }
    }
}
