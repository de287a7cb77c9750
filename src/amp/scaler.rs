//! [`GradScaler`]: loss scaling inside the recorded step, with PyTorch's names, order of calls and
//! arithmetic.
//!
//! A recorded scaler holds no numbers: `scale` records a product, `unscale_` a product and a check
//! per gradient, `step` an optimizer step that keeps every old value if a check failed, `update`
//! the next scale. Its state is two entries of the store, and nothing is ever read by the host to
//! decide what runs.

use crate::amp::policy::{Now, ScalePolicy};
use crate::amp::{Scalable, ScalerOptions, ScalerSettings, own};
use crate::entry::{Entry, Start};
use crate::optim::Recorded;
use crate::trace::Trace;
use tracecast_ir::ops::amp::LossScaling;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::reduce::Reductions;
use tracecast_ir::{DType, TensorType, Var};
use tracecast_runtime::ScaleUpdate;

/// Scales a loss so that small gradients survive 16 bits, and skips the step if one did not stay
/// finite.
///
/// ```
/// use tracecast::prelude::*;
///
/// let mut step = jit(Options::new(), |t| {
///     let (x, w) = (t.input("x"), t.param("w"));
///     let loss = autocast(t, "cpu", DType::F16, || x.matmul(w)).mean(().dtype(DType::F32));
///     let sgd = Sgd::new(0.1);
///     let mut optimizer = Recorded::new(t, &sgd, &[w]);
///     let mut scaler = GradScaler::recorded(t, "amp", ScalerOptions::default());
///     optimizer.backward(scaler.scale(loss));
///     scaler.step(&mut optimizer);
///     scaler.update();
///     t.output("loss", loss);
/// });
/// # let _ = &mut step;
/// ```
pub struct GradScaler<'t> {
    trace: &'t Trace,
    name: String,
    settings: ScalerSettings,
    state: Option<State<'t>>,
    seen: Vec<Seen<'t>>,
    updated: bool,
    backoffs: Option<Var<'t>>,
    /// How many ranks the gradients are the sum of.
    ranks: usize,
}

/// The two entries of the store, as the step finds them.
#[derive(Clone, Copy)]
struct State<'t> {
    scale: Var<'t>,
    tracker: Var<'t>,
}

/// How far an optimizer has come since the last update.
struct Seen<'t> {
    optimizer: String,
    params: Vec<Var<'t>>,
    checks: Vec<Check<'t>>,
    /// The flag that the step was made to depend on.
    found: Option<Var<'t>>,
    stepped: bool,
}

/// What was found out about one gradient.
#[derive(Clone, Copy, Debug)]
pub struct Check<'t> {
    /// The parameter.
    pub param: Var<'t>,
    /// 1 if an element of the gradient was not finite, else 0; f32 without axes.
    pub found_inf: Var<'t>,
    scaled: Var<'t>,
    inverse: Var<'t>,
}

impl<'t> Check<'t> {
    /// The largest magnitude of the unscaled gradient: f32 without axes, infinite or NaN if the
    /// gradient is.
    #[track_caller]
    pub fn amax(&self) -> Var<'t> {
        amax(self.scaled) * self.inverse
    }
}

/// The largest magnitude of a gradient in f32; 0 if it has no elements.
#[track_caller]
pub(crate) fn amax(grad: Var<'_>) -> Var<'_> {
    if grad.ty().numel() == 0 {
        return grad.tracer().full(TensorType::scalar(DType::F32), 0.0);
    }
    let largest = grad.abs().amax(());
    if largest.dtype() == DType::F32 { largest } else { widen(largest) }
}

impl<'t> GradScaler<'t> {
    /// A scaler whose state is `NAME.scale` and `NAME.growth_tracker`, and what the settings ask
    /// for besides. A run puts them into the store if they are not there.
    ///
    /// Settings without meaning are an error of the trace; a factor that is no power of two is a
    /// warning in its report.
    #[track_caller]
    pub fn recorded(t: &'t Trace, name: &str, settings: impl Into<ScalerSettings>) -> Self {
        let settings: ScalerSettings = settings.into();
        if let Some(problem) = settings.problem() {
            t.fail("grad_scaler", problem);
        }
        let state = match &settings.options.entries(name)[..] {
            [scale, tracker] => {
                let ty = TensorType::scalar(own::tracker(t));
                let tracker = Entry::state(tracker.name.clone(), ty, Start::Constant(0.0));
                Some(State { scale: t.state_from(scale.clone()), tracker: t.state_from(tracker) })
            }
            _ => None,
        };
        if state.is_some() && !settings.parity {
            for (what, value) in settings.inexact() {
                t.warn(format!(
                    "the {what} of `{name}` is {value}: scaling is only exact with powers of two"
                ));
            }
        }
        let (name, seen) = (name.to_owned(), Vec::new());
        GradScaler {
            trace: t,
            name,
            settings,
            state,
            seen,
            updated: false,
            backoffs: None,
            ranks: 1,
        }
    }

    /// The same for gradients that are sums over that many ranks: unscaled, they are means.
    #[must_use]
    pub(crate) fn over_ranks(mut self, ranks: Option<usize>) -> Self {
        self.ranks = ranks.unwrap_or(1);
        self
    }

    /// The scale of this step; `None` for a disabled scaler.
    pub fn get_scale(&self) -> Option<Var<'t>> {
        self.state.map(|state| state.scale)
    }

    /// The loss times the scale, or a nest of tensors times it. A 16-bit loss without axes becomes
    /// f32.
    #[track_caller]
    pub fn scale<S: Scalable<Var<'t>>>(&self, outputs: S) -> S {
        let Some(state) = self.state else { return outputs };
        self.trace.tracer().at_caller(|| {
            match outputs.scaled(&mut |x| Ok(times(*x, state.scale))) {
                Ok(scaled) => scaled,
                Err(error) => {
                    self.refuse(error.to_string());
                    outputs
                }
            }
        })
    }

    /// Divides an optimizer's gradients by the scale and checks that they were finite. Do this
    /// first if you want to read or clip them; [`step`](GradScaler::step) does it otherwise.
    #[track_caller]
    pub fn unscale_(&mut self, optimizer: &mut Recorded<'t, '_>) {
        let Some(state) = self.state else { return };
        match self.seen(optimizer) {
            Some(seen) if seen.stepped => {
                return self
                    .refuse("unscale_() after step(): gradients are unscaled before the step");
            }
            Some(_) => {
                return self.refuse(format!(
                    "unscale_() was already called on `{}` since the last update(): call it once per optimizer and step",
                    optimizer.name()
                ));
            }
            None => {}
        }
        if self.updated {
            return self
                .refuse("unscale_() after update(): in a recorded step update() comes last");
        }
        if let Some(problem) = self.shared(optimizer) {
            return self.refuse(problem);
        }
        let checks = self.unscale_all(state, optimizer);
        let found = any(checks.iter().map(|check| check.found_inf));
        let (name, params) = (optimizer.name().to_owned(), optimizer.params().to_vec());
        self.seen.push(Seen { optimizer: name, params, checks, found, stepped: false });
    }

    /// A parameter of two optimizers would be divided by the scale twice.
    fn shared(&self, optimizer: &Recorded<'t, '_>) -> Option<String> {
        self.seen.iter().find_map(|seen| {
            let known = |param: &&Var<'t>| seen.params.iter().any(|p| p.id() == param.id());
            let param = optimizer.params().iter().find(known)?;
            Some(format!(
                "the parameter `{}` is in the optimizers `{}` and `{}`, and would be unscaled by both: give each parameter to one",
                self.trace.name_of(*param).unwrap_or_default(),
                seen.optimizer,
                optimizer.name()
            ))
        })
    }

    /// Checks and unscales each gradient.
    #[track_caller]
    fn unscale_all(&self, state: State<'t>, optimizer: &mut Recorded<'t, '_>) -> Vec<Check<'t>> {
        let inverse = match self.ranks {
            1 => state.scale.reciprocal_scale(),
            ranks => state.scale.reciprocal_scale() * (1.0 / ranks as f64),
        };
        if let Some(low) = optimizer.grads().iter().find(|grad| grad.dtype() == DType::F16) {
            self.refuse(format!(
                "a gradient is {}: f16 gradients are not unscaled; keep parameters in f32 and use autocast",
                low.ty()
            ));
            return Vec::new();
        }
        let params = optimizer.params().to_vec();
        let grads = params.into_iter().zip(optimizer.grads_mut());
        grads
            .map(|(param, grad)| {
                let scaled = *grad;
                let [found_inf, unscaled] = own::check_and_unscale(self.trace, scaled, inverse);
                *grad = unscaled;
                Check { param, found_inf, scaled, inverse }
            })
            .collect()
    }

    /// Records the optimizer's step: every parameter, moment and count keeps its old value if a
    /// gradient was not finite.
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut Recorded<'t, '_>) {
        if self.state.is_none() {
            return optimizer.step();
        }
        if self.seen(optimizer).is_some_and(|seen| seen.stepped) {
            return self.refuse(format!(
                "step() was already called on `{}` since the last update(): call it once per optimizer and step",
                optimizer.name()
            ));
        }
        if self.seen(optimizer).is_none() {
            self.unscale_(optimizer);
        }
        if self.trace.error().is_some() {
            return;
        }
        let again = self.settings.check_updates.then(|| optimizer.grads().to_vec());
        let again = again.into_iter().flatten().map(|grad| grad.nonfinite());
        let at = self.seen.iter().position(|seen| seen.optimizer == optimizer.name());
        let found = at.and_then(|at| any(self.seen[at].found.into_iter().chain(again)));
        match (at, found) {
            (Some(at), Some(found)) => {
                self.seen[at].found = Some(found);
                self.seen[at].stepped = true;
                optimizer.step_unless(found);
            }
            _ => self.refuse(
                "no gradient was checked for this optimizer: call backward() before step()",
            ),
        }
    }

    /// A step that computes the loss again inside cannot be scaled: always an error of the trace,
    /// unless the scaler is disabled.
    #[track_caller]
    pub fn step_with_closure(
        &mut self,
        optimizer: &mut Recorded<'t, '_>,
        closure: impl FnOnce() -> Var<'t>,
    ) -> Option<Var<'t>> {
        if self.state.is_some() {
            self.refuse(crate::amp::ScalerError::Closure.to_string());
            return None;
        }
        let loss = closure();
        optimizer.step();
        Some(loss)
    }

    /// Records the next scale: smaller if a gradient of any optimizer was not finite, larger after
    /// enough good steps.
    #[track_caller]
    pub fn update(&mut self) {
        let Some(state) = self.state else { return };
        if self.updated {
            return self.refuse("update() was already called: call it once, after the last step()");
        }
        let Some(found) = self.found() else {
            return self.refuse(
                "no gradient was checked since the last update(): call step() before update()",
            );
        };
        self.updated = true;
        let (next, count) = self.next(state, found);
        let floor = self.settings.floor();
        let next = match floor > 0.0 {
            true => next.maximum(self.trace.full(next.ty(), floor)),
            false => next,
        };
        self.trace.update(state.scale, next);
        self.trace.update(state.tracker, count);
        self.count_backoffs(found);
    }

    /// Records that the next step has this scale, an f32 without axes, whatever was found; the
    /// growth tracker stays.
    #[track_caller]
    pub fn update_to(&mut self, new_scale: Var<'t>) {
        let Some(state) = self.state else { return };
        if self.updated {
            return self.refuse("update() was already called: call it once, after the last step()");
        }
        if !new_scale.is_poison() && new_scale.ty() != TensorType::scalar(DType::F32) {
            let found = new_scale.ty();
            return self.refuse(format!("the new scale has to be f32[], found {found}"));
        }
        self.updated = true;
        self.trace.update(state.scale, new_scale);
    }

    /// Whether any gradient checked so far was not finite: 1 or 0, with `parity` in how many
    /// optimizers, f32; `None` if none was checked.
    #[track_caller]
    pub fn found(&self) -> Option<Var<'t>> {
        let flags = self.seen.iter().filter_map(|seen| seen.found);
        if self.settings.parity { flags.reduce(|a, b| a + b) } else { any(flags) }
    }

    /// Whether a gradient of this optimizer was not finite: 1 or 0, f32; `None` if none of it was
    /// checked.
    pub fn found_inf(&self, optimizer: &Recorded<'t, '_>) -> Option<Var<'t>> {
        self.seen(optimizer).and_then(|seen| seen.found)
    }

    /// What was found out about each gradient so far.
    pub fn checks(&self) -> impl Iterator<Item = &Check<'t>> {
        self.seen.iter().flat_map(|seen| &seen.checks)
    }

    /// The number of back-offs in a row with this step, i32; `None` before `update` or if they are
    /// not counted.
    pub fn backoffs(&self) -> Option<Var<'t>> {
        self.backoffs
    }

    /// The next scale and growth tracker, before the floor.
    fn next(&self, state: State<'t>, found: Var<'t>) -> (Var<'t>, Var<'t>) {
        let ScalerOptions { growth_factor, backoff_factor, growth_interval, .. } =
            self.settings.options;
        let State { scale, tracker } = state;
        match self.settings.policy {
            ScalePolicy::BackOff => {
                let now = ScaleUpdate {
                    scale,
                    tracker,
                    found_inf: found,
                    growth_factor,
                    backoff_factor,
                    growth_interval,
                };
                own::update_scale(self.trace, now).into()
            }
            ScalePolicy::LogMax(policy) => {
                let largest = self.checks().map(Check::amax).reduce(|a, b| a.maximum(b));
                let amax = largest.expect("a flag comes from a check");
                let now = Now { scale, tracker, found, amax, backoff_factor };
                let entries = self.settings.policy.entries(&self.name);
                (policy.next(self.trace, entries, now), tracker)
            }
            ScalePolicy::Histogram(policy) => {
                let elements: usize =
                    self.checks().map(|check| check.scaled.ty().numel().get()).sum();
                let near = self.checks().map(|check| policy.near(check.scaled));
                let near = near.reduce(|a, b| a + b).expect("a flag comes from a check");
                let share = near / elements.max(1) as f64;
                let now = Now { scale, tracker, found, amax: found, backoff_factor };
                policy.next(self.trace, now, share, (growth_factor, growth_interval))
            }
        }
    }

    #[track_caller]
    fn count_backoffs(&mut self, found: Var<'t>) {
        let Some(entry) = self.settings.backoffs(&self.name) else { return };
        let so_far = self.trace.state_from(entry);
        let zero = self.trace.zeros_like(so_far);
        let now = found.ne(0.0).choose(so_far + 1.0, zero);
        self.trace.update(so_far, now);
        self.backoffs = Some(now);
    }

    fn seen(&self, optimizer: &Recorded<'t, '_>) -> Option<&Seen<'t>> {
        self.seen.iter().find(|seen| seen.optimizer == optimizer.name())
    }

    #[track_caller]
    fn refuse(&self, why: impl Into<String>) {
        self.trace.fail("grad_scaler", why);
    }
}

/// Several flags, each 1 or 0, as one.
#[track_caller]
fn any<'t>(flags: impl IntoIterator<Item = Var<'t>>) -> Option<Var<'t>> {
    flags.into_iter().reduce(|a, b| a.maximum(b))
}

/// A tensor times the scale, by PyTorch's rules for a factor without axes.
fn times<'t>(x: Var<'t>, scale: Var<'t>) -> Var<'t> {
    match x.dtype().is_low() {
        true if x.rank() == 0 => widen(x) * scale,
        // PyTorch multiplies by the number as it is: rounding the scale to f16 first would
        // overflow.
        true => (widen(x) * scale).cast(x.dtype()),
        false => x * scale,
    }
}

fn widen(x: Var<'_>) -> Var<'_> {
    x.cast(DType::F32)
}
