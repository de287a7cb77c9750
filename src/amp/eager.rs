//! [`EagerScaler`]: the loss scaler of an eager loop: PyTorch's calls, stages and state, over
//! tensors on any device.
//!
//! Its ops are those of a recorded step. The state of each optimizer is forgotten by `update`:
//!
//! | stage | `unscale_` | `step` | `update` |
//! |---|---|---|---|
//! | ready | becomes unscaled | unscales, becomes stepped | needs another optimizer's check |
//! | unscaled | refused | becomes stepped | becomes ready |
//! | stepped | refused | refused | becomes ready |

use crate::amp::raw::{amp_update_scale, check_and_unscale, reciprocal_scale};
use crate::amp::{Scalable, ScalerError, ScalerOptions};
use crate::cast_to::CastTo;
use crate::eager::{DeviceTensor, Eager, EagerOptimizer, Gradient, Parameter, Scaling};
use crate::error::Result;
use crate::setters::setters;
use std::sync::Arc;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::{DType, Shape, TensorType, Var};
use tracecast_runtime::Tensor;

/// Scales a loss so that small gradients survive 16 bits, and skips the step of an optimizer if one
/// did not stay finite.
///
/// ```
/// use tracecast::amp::{EagerScaler, ScalerOptions};
/// use tracecast::eager::{Eager, EagerOptimizer};
/// use tracecast::optim::Sgd;
/// use tracecast::{Options, Tensor};
///
/// let eager = Eager::new(Options::new().device("reference"))?;
/// let weight = eager.parameter(Tensor::new([2], &[1.0f32, 2.0])?);
/// let mut sgd = EagerOptimizer::new(Sgd::new(1.0), &[weight.clone()]);
/// let mut scaler = EagerScaler::new(ScalerOptions { init_scale: 8.0, ..Default::default() })?;
///
/// let loss = scaler.scale(&eager.tensor(Tensor::scalar(4.0f32)))?;
/// assert_eq!(loss.to_host()?.item::<f32>()?, 32.0);
/// weight.set_grad(eager.tensor(Tensor::new([2], &[8.0f32, 16.0])?))?;
/// assert!(scaler.step(&mut sgd)?);
/// scaler.update()?;
/// assert_eq!(weight.value().to_host()?.to_vec::<f32>()?, [0.0, 0.0]);
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Debug)]
pub struct EagerScaler {
    pub(super) options: ScalerOptions,
    pub(super) parity: bool,
    pub(super) sharded: bool,
    pub(super) init_tracker: i32,
    pub(super) state: Option<State>,
    pub(super) seen: Vec<Seen>,
}

/// The numbers on the device, made by the first call of `scale`.
#[derive(Debug)]
pub(super) struct State {
    pub(super) scale: DeviceTensor,
    pub(super) tracker: DeviceTensor,
}

/// How far an optimizer has come since the last update.
#[derive(Debug)]
pub(super) struct Seen {
    optimizer: Arc<()>,
    stage: Stage,
    /// One flag for each device.
    found: Vec<DeviceTensor>,
}

/// How far an optimizer has come since the last update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing was done.
    Ready,
    /// The gradients are unscaled and checked.
    Unscaled,
    /// The step was taken or skipped.
    Stepped,
}

/// A scale to go on with.
#[derive(Clone, Debug)]
pub enum NewScale {
    /// A number.
    Number(f64),
    /// An integer, which PyTorch refuses; it is a number here unless with `parity`.
    Integer(i64),
    /// A tensor of one element.
    Tensor(DeviceTensor),
    /// A trained tensor, which is refused.
    Trained(Parameter),
}

impl EagerScaler {
    /// A scaler with these settings. The scale comes to be on the device of the first tensor that
    /// is scaled.
    ///
    /// # Errors
    /// If it is enabled and the growth factor is not above 1 or the backoff factor not below 1.
    /// Nothing else is checked.
    pub fn new(options: ScalerOptions) -> Result<Self> {
        options.check()?;
        let (state, seen) = (None, Vec::new());
        Ok(EagerScaler { options, parity: false, sharded: false, init_tracker: 0, state, seen })
    }

    setters! {
        /// With PyTorch's behaviour in every case. Otherwise flags of several devices or optimizers
        /// are combined to 0 or 1 where PyTorch adds them; a fused step is prevented by any flag
        /// that is not zero; one without gradients is refused; a state that lacks an entry changes
        /// nothing; a new scale may be an integer.
        parity(parity: bool) => parity = parity;
        /// For training whose parameters are divided among processes, as PyTorch's
        /// `ShardedGradScaler`: what is scaled keeps its dtype, f16 gradients are unscaled,
        /// repeated places of a sparse one are added in f32, and an optimizer without gradients has
        /// a flag too. Between `unscale_` and `step` each process gives its flags to the others:
        /// see
        /// [`set_found_inf`](EagerScaler::set_found_inf). With `parity` the scale can grow to infinity,
        /// and a fused optimizer that counts its steps is refused after an explicit `unscale_`.
        sharded(sharded: bool) => sharded = sharded;
    }

    /// What is given, a tensor or a nest of tensors, times the scale. A 16-bit tensor without axes
    /// becomes f32, one with axes stays what it is and may overflow, an integer becomes f32. If
    /// disabled, what is given.
    ///
    /// # Errors
    /// If a part is no tensor, or a device fails.
    pub fn scale<S: Scalable>(&mut self, outputs: &S) -> Result<S> {
        if !self.options.enabled {
            return Ok(outputs.clone());
        }
        outputs.scaled(&mut |tensor| {
            let scale = self.state_on(tensor.eager())?.scale.to(tensor.eager())?;
            let keep = self.sharded;
            let product =
                tensor.eager().run(&format!("amp scale {keep}"), &[tensor, &scale], |_, x| {
                    let product = times(x[0], x[1]);
                    vec![if keep { product.to_dtype(x[0].dtype()) } else { product }]
                })?;
            Ok(product[0].clone())
        })
    }

    /// Divides an optimizer's gradients by the scale and checks that they were finite. Do this
    /// first if you want to read or clip them; [`step`](EagerScaler::step) does it otherwise.
    ///
    /// # Errors
    /// If nothing was scaled yet, the optimizer was unscaled or stepped since the last update, or a
    /// gradient is f16; then no gradient has changed.
    pub fn unscale_(&mut self, optimizer: &EagerOptimizer) -> Result<()> {
        if !self.options.enabled {
            return Ok(());
        }
        let scale = self.state("unscale_")?.scale.clone();
        // As in PyTorch, an optimizer is known from here on even if the call fails: the iteration
        // is open.
        self.seen_mut(optimizer);
        match self.stage(optimizer) {
            Stage::Unscaled => return Err(ScalerError::AlreadyUnscaled.into()),
            Stage::Stepped => return Err(ScalerError::UnscaleAfterStep.into()),
            Stage::Ready => {}
        }
        let inverse = reciprocal_scale(&scale)?;
        let mut found = unscale_all(optimizer, &inverse, self.sharded, self.sharded)?;
        if self.sharded && found.is_empty() {
            found.push(scale.eager().tensor(Tensor::scalar(0.0f32)));
        }
        let seen = self.seen_mut(optimizer);
        seen.found = found;
        seen.stage = Stage::Unscaled;
        Ok(())
    }

    /// Takes the optimizer's step unless a gradient was found that is not finite. Returns whether
    /// the optimizer was called: a fused one always is, and decides on its device.
    ///
    /// # Errors
    /// If nothing was scaled yet, the optimizer has stepped since the last update, no parameter has
    /// a gradient, or as [`unscale_`](EagerScaler::unscale_). If a device failed while gradients
    /// were unscaled, the step is skipped when it is asked for again.
    pub fn step(&mut self, optimizer: &mut EagerOptimizer) -> Result<bool> {
        if !self.options.enabled {
            return optimizer.step().map(|()| true);
        }
        self.state("step")?;
        self.seen_mut(optimizer);
        if self.stage(optimizer) == Stage::Stepped {
            return Err(ScalerError::AlreadyStepped.into());
        }
        if optimizer.takes_scale() {
            return self.step_fused(optimizer).map(|()| true);
        }
        if self.stage(optimizer) == Stage::Ready {
            self.unscale_(optimizer)?;
        }
        let flag = match self.found_of(optimizer) {
            Ok(found) => found.ok_or(ScalerError::NothingChecked)?.number(),
            Err(error) => Err(error),
        };
        if flag.is_err() {
            self.mark_unchecked(optimizer)?;
        }
        let good = flag? == 0.0;
        if good {
            optimizer.step()?;
        }
        self.seen_mut(optimizer).stage = Stage::Stepped;
        Ok(good)
    }

    /// The same for a step that computes the loss again, which only a disabled scaler takes.
    ///
    /// # Errors
    /// Always if enabled; else those of the closure and of the step.
    pub fn step_with_closure(
        &mut self,
        optimizer: &mut EagerOptimizer,
        closure: impl FnOnce() -> Result<DeviceTensor>,
    ) -> Result<DeviceTensor> {
        if self.options.enabled {
            return Err(ScalerError::Closure.into());
        }
        let loss = closure()?;
        optimizer.step()?;
        Ok(loss)
    }

    /// The next scale: smaller if a gradient of any optimizer was not finite, larger after enough
    /// good iterations. Every optimizer is ready again.
    ///
    /// # Errors
    /// If nothing was scaled yet, or no gradient was checked since the last update.
    pub fn update(&mut self) -> Result<()> {
        if !self.options.enabled {
            return Ok(());
        }
        let state = self.state("update")?;
        let flags: Vec<DeviceTensor> =
            self.seen.iter().flat_map(|seen| seen.found.iter().cloned()).collect();
        let found =
            self.joined(state.scale.eager(), &flags)?.ok_or(ScalerError::NothingToUpdate)?;
        let ScalerOptions { growth_factor, backoff_factor, growth_interval, .. } = self.options;
        let (scale, tracker) = (&state.scale, &state.tracker);
        if self.sharded && self.parity {
            self.update_unguarded(found.number()?)?;
            self.seen.clear();
            return Ok(());
        }
        amp_update_scale(scale, tracker, &found, growth_factor, backoff_factor, growth_interval)?;
        self.seen.clear();
        Ok(())
    }

    /// The update of PyTorch's sharded scaler on the CPU: on the host, and without a guard against
    /// infinity.
    fn update_unguarded(&mut self, found: f64) -> Result<()> {
        let ScalerOptions { growth_factor, backoff_factor, growth_interval, .. } = self.options;
        let (scale, tracker) = (self.get_scale()?, self.get_growth_tracker()? as i32);
        let count = tracker.wrapping_add(1);
        let (factor, count) = match found {
            found if found >= 1.0 => (backoff_factor, 0),
            _ if i64::from(count) == growth_interval => (growth_factor, 0),
            _ => (1.0, count),
        };
        self.go_on_from(f64::from((scale * factor) as f32), count)
    }

    /// Lets an optimizer that takes the scaler step by itself, as PyTorch's do whose `step` has the
    /// argument `grad_scaler`: nothing is unscaled or checked here.
    ///
    /// # Errors
    /// If nothing was scaled yet or the optimizer has stepped since the last update; those of
    /// `step`.
    pub fn step_by<R>(
        &mut self,
        optimizer: &mut EagerOptimizer,
        step: impl FnOnce(&mut EagerScaler, &mut EagerOptimizer) -> Result<R>,
    ) -> Result<R> {
        if self.options.enabled {
            self.state("step")?;
            if self.stage(optimizer) == Stage::Stepped {
                return Err(ScalerError::AlreadyStepped.into());
            }
        }
        let result = step(self, optimizer)?;
        if self.options.enabled {
            self.seen_mut(optimizer).stage = Stage::Stepped;
        }
        Ok(result)
    }

    /// Goes on with this scale, whatever was found. The growth tracker stays.
    ///
    /// # Errors
    /// If nothing was scaled yet, or the new scale is not one number on the scaler's device.
    pub fn update_to(&mut self, new_scale: impl Into<NewScale>) -> Result<()> {
        if !self.options.enabled {
            return Ok(());
        }
        let scale = &self.state("update")?.scale;
        let number = match new_scale.into() {
            NewScale::Number(number) => number,
            NewScale::Integer(number) if self.parity => {
                return Err(ScalerError::IntegerScale(number).into());
            }
            NewScale::Integer(number) => number as f64,
            NewScale::Tensor(tensor)
                if tensor.ty().numel() == 1 && tensor.eager().same_device(scale.eager()) =>
            {
                tensor.number()?
            }
            NewScale::Tensor(tensor) => {
                return Err(ScalerError::NewScale(format!("{tensor:?}")).into());
            }
            NewScale::Trained(parameter) => {
                return Err(ScalerError::NewScale(format!("{parameter:?}")).into());
            }
        };
        scale.set(&Tensor::scalar(number as f32))?;
        self.seen.clear();
        Ok(())
    }

    /// How far an optimizer has come since the last update.
    pub fn stage(&self, optimizer: &EagerOptimizer) -> Stage {
        self.seen_of(optimizer).map_or(Stage::Ready, |seen| seen.stage)
    }

    /// The flags of an optimizer, one for each device that has gradients of it: not zero if one was
    /// not finite.
    ///
    /// # Errors
    /// If a device fails.
    pub fn found_inf(&self, optimizer: &EagerOptimizer) -> Result<Vec<f64>> {
        let found = self.seen_of(optimizer).map_or(&[][..], |seen| &seen.found);
        found.iter().map(DeviceTensor::number).collect()
    }

    /// Replaces the flags of an unscaled optimizer by one for all processes that train together:
    /// not zero if any of them found a gradient that is not finite. They then skip, back off and
    /// grow together; one that has no gradients takes part.
    ///
    /// # Errors
    /// If nothing was scaled yet, or the optimizer was not unscaled or has stepped since the last
    /// update.
    pub fn set_found_inf(&mut self, optimizer: &EagerOptimizer, found: f64) -> Result<()> {
        if !self.options.enabled {
            return Ok(());
        }
        let flag = if self.parity || found == 0.0 { found } else { 1.0 };
        let flag = self.state("set_found_inf")?.scale.eager().tensor(Tensor::scalar(flag as f32));
        if self.stage(optimizer) != Stage::Unscaled {
            return Err(ScalerError::NotUnscaled.into());
        }
        self.seen_mut(optimizer).found = vec![flag];
        Ok(())
    }

    fn step_fused(&mut self, optimizer: &mut EagerOptimizer) -> Result<()> {
        let scale = self.state("step")?.scale.clone();
        let ready = self.stage(optimizer) == Stage::Ready;
        if ready {
            let one = scale.eager().tensor(Tensor::scalar(1.0f32));
            let found = unscale_grads(optimizer, &one, true)?;
            self.seen_mut(optimizer).found = found;
        }
        // A single flag stays where it is, with the gradients that it is of.
        let found = match &self.seen_mut(optimizer).found[..] {
            [only] => Some(only.clone()),
            _ => self.found_of(optimizer)?,
        };
        if found.is_none() && !self.parity {
            return Err(ScalerError::NothingChecked.into());
        }
        if self.sharded && self.parity && !ready && optimizer.counts_steps() {
            return Err(ScalerError::FlagShape.into());
        }
        optimizer.step_scaled(Scaling {
            grad_scale: ready.then_some(&scale),
            found_inf: found.as_ref(),
            parity: self.parity,
        })?;
        self.seen_mut(optimizer).stage = Stage::Stepped;
        Ok(())
    }

    /// Has an optimizer whose gradients were not unscaled, since a device failed, skip its step:
    /// some of them may still be scaled.
    fn mark_unchecked(&mut self, optimizer: &EagerOptimizer) -> Result<()> {
        let eager = self.state("step")?.scale.eager().clone();
        self.seen_mut(optimizer).found = vec![eager.tensor(Tensor::scalar(1.0f32))];
        Ok(())
    }

    /// The flags of an optimizer as one on the scaler's device, to which each is copied once.
    fn found_of(&mut self, optimizer: &EagerOptimizer) -> Result<Option<DeviceTensor>> {
        let eager = self.state("step")?.scale.eager().clone();
        let flags = &mut self.seen_mut(optimizer).found;
        for flag in flags.iter_mut() {
            *flag = flag.to(&eager)?;
        }
        let flags = flags.clone();
        self.joined(&eager, &flags)
    }

    /// Several flags as one on that device: their sum with `parity`, else the largest.
    fn joined(&self, eager: &Eager, flags: &[DeviceTensor]) -> Result<Option<DeviceTensor>> {
        let flags = flags.iter().map(|flag| flag.to(eager)).collect::<Result<Vec<_>>>()?;
        match &flags[..] {
            [] => Ok(None),
            [only] => Ok(Some(only.clone())),
            several => {
                let parity = self.parity;
                let operands: Vec<&DeviceTensor> = several.iter().collect();
                let joined = eager.run(&format!("amp flags {parity}"), &operands, |_, x| {
                    let flags = x.iter().copied();
                    flags
                        .reduce(|a, b| if parity { a + b } else { a.maximum(b) })
                        .into_iter()
                        .collect()
                })?;
                Ok(joined.into_iter().next())
            }
        }
    }

    fn state(&self, call: &'static str) -> Result<&State> {
        Ok(self.state.as_ref().ok_or(ScalerError::NoScale { call })?)
    }

    /// The state; made there if nothing was scaled yet, or on the host if the device keeps none.
    fn state_on(&mut self, eager: &Eager) -> Result<&State> {
        let made = match self.state.take() {
            Some(state) => state,
            None => {
                let (home, dtype) = match eager.tracker()? {
                    Some(dtype) => (eager.clone(), dtype),
                    None => (eager.on_host()?, DType::I32),
                };
                let tracker = counted(dtype, self.init_tracker)?;
                State {
                    scale: home.tensor(Tensor::scalar(self.options.init_scale as f32)),
                    tracker: home.tensor(tracker),
                }
            }
        };
        Ok(self.state.insert(made))
    }

    fn seen_of(&self, optimizer: &EagerOptimizer) -> Option<&Seen> {
        self.seen.iter().find(|seen| Arc::ptr_eq(&seen.optimizer, optimizer.identity()))
    }

    fn seen_mut(&mut self, optimizer: &EagerOptimizer) -> &mut Seen {
        let identity = optimizer.identity();
        let at = self.seen.iter().position(|seen| Arc::ptr_eq(&seen.optimizer, identity));
        let at = at.unwrap_or_else(|| {
            let (optimizer, found) = (identity.clone(), Vec::new());
            self.seen.push(Seen { optimizer, stage: Stage::Ready, found });
            self.seen.len() - 1
        });
        &mut self.seen[at]
    }
}

/// A count of good steps in the dtype of a device.
pub(super) fn counted(dtype: DType, steps: i32) -> Result<Tensor> {
    Tensor::from_f64s(TensorType::scalar(dtype), &[f64::from(steps)])
}

/// The gradients of an optimizer times `inverse`, and one flag for each device that has some.
///
/// # Errors
/// If a gradient is f16 and that is not allowed; then none has changed. If a device fails.
pub fn unscale_grads(
    optimizer: &EagerOptimizer,
    inverse: &DeviceTensor,
    allow_f16: bool,
) -> Result<Vec<DeviceTensor>> {
    unscale_all(optimizer, inverse, allow_f16, false)
}

/// The same; with `wide`, repeated places of a sparse f16 gradient are added in f32.
fn unscale_all(
    optimizer: &EagerOptimizer,
    inverse: &DeviceTensor,
    allow_f16: bool,
    wide: bool,
) -> Result<Vec<DeviceTensor>> {
    let mut devices: Vec<(Eager, Vec<Gradient>)> = Vec::new();
    for param in optimizer.params() {
        let Some(mut grad) = param.grad() else { continue };
        if grad.values().dtype() == DType::F16 {
            if !allow_f16 {
                return Err(ScalerError::HalfGradient.into());
            }
            if grad.is_sparse() {
                // The sum at a place may overflow where its terms do not.
                grad = if wide { grad.coalesced_wide()? } else { grad.coalesced()? };
                param.set_grad(grad.clone())?;
            }
        }
        let eager = grad.values().eager();
        match devices.iter_mut().find(|(known, _)| known.same_device(eager)) {
            Some((_, grads)) => grads.push(grad),
            None => devices.push((eager.clone(), vec![grad])),
        }
    }
    let mut flags = Vec::new();
    for (eager, grads) in devices {
        let values: Vec<&DeviceTensor> = grads.iter().map(Gradient::values).collect();
        flags.extend(check_and_unscale(&values, &inverse.to(&eager)?)?);
    }
    Ok(flags)
}

/// A tensor times the scale, by PyTorch's rules for a factor without axes.
fn times<'t>(x: Var<'t>, scale: Var<'t>) -> Var<'t> {
    let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let product = x.to_dtype(wide).mul(scale.to_dtype(wide));
    if x.dtype().is_low() && x.shape() != Shape::scalar() {
        product.cast(x.dtype())
    } else {
        product
    }
}

impl From<f64> for NewScale {
    fn from(number: f64) -> Self {
        NewScale::Number(number)
    }
}

impl From<i64> for NewScale {
    fn from(number: i64) -> Self {
        NewScale::Integer(number)
    }
}

impl From<&DeviceTensor> for NewScale {
    fn from(tensor: &DeviceTensor) -> Self {
        NewScale::Tensor(tensor.clone())
    }
}

impl From<&Parameter> for NewScale {
    fn from(parameter: &Parameter) -> Self {
        NewScale::Trained(parameter.clone())
    }
}
