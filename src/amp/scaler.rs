//! [`GradScaler`]: loss scaling inside the recorded step, with PyTorch's names, order of calls and arithmetic.
//!
//! A recorded scaler holds no numbers: `scale` records a product, `unscale_` a product and a check per gradient, `step` an
//! optimizer step that keeps every old value if a check failed, `update` the next scale. Its state is two entries of the store,
//! and nothing is ever read by the host to decide what runs.

use crate::entry::{Entry, Start};
use crate::optim::Recorded;
use crate::trace::Trace;
use tracecast_ir::ops::amp::LossScaling;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::{DType, TensorType, Var};

/// The settings of a [`GradScaler`], with PyTorch's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalerOptions {
    /// The first scale.
    pub init_scale: f64,
    /// What the scale is multiplied by after `growth_interval` good steps in a row.
    pub growth_factor: f64,
    /// What the scale is multiplied by after a step with a gradient that is not finite.
    pub backoff_factor: f64,
    /// The number of good steps after which the scale grows.
    pub growth_interval: i64,
    /// If false, nothing is scaled and every step is taken.
    pub enabled: bool,
}

impl Default for ScalerOptions {
    fn default() -> Self {
        ScalerOptions {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            enabled: true,
        }
    }
}

impl ScalerOptions {
    /// The entries that a scaler of this name keeps in the store: `NAME.scale` and `NAME.growth_tracker`.
    pub fn entries(&self, name: &str) -> Vec<Entry> {
        if !self.enabled {
            return Vec::new();
        }
        let (scale, tracker) = (TensorType::scalar(DType::F32), TensorType::scalar(DType::I32));
        vec![
            Entry::state(format!("{name}.scale"), scale, Start::Constant(self.init_scale)),
            Entry::state(format!("{name}.growth_tracker"), tracker, Start::Constant(0.0)),
        ]
    }

    fn problem(&self) -> Option<String> {
        if self.enabled && (self.growth_factor.is_nan() || self.growth_factor <= 1.0) {
            return Some(format!(
                "the growth factor has to be above 1, found {}",
                self.growth_factor
            ));
        }
        if self.enabled && (self.backoff_factor.is_nan() || self.backoff_factor >= 1.0) {
            return Some(format!(
                "the backoff factor has to be below 1, found {}",
                self.backoff_factor
            ));
        }
        None
    }
}

/// Scales a loss so that small gradients survive 16 bits, and skips the step if one did not stay finite.
///
/// ```
/// use tracecast::prelude::*;
///
/// let mut step = jit(Options::new(), |t| {
///     let (x, w) = (t.input("x"), t.param("w"));
///     let loss = autocast(t, "cpu", DType::F16, || x.matmul(w)).mean(&[], false, Some(DType::F32));
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
    options: ScalerOptions,
    state: Option<State<'t>>,
    seen: Vec<Seen<'t>>,
    updated: bool,
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
    found: Option<Var<'t>>,
    stepped: bool,
}

impl<'t> GradScaler<'t> {
    /// A scaler whose state is `NAME.scale` and `NAME.growth_tracker`. A run puts them into the store if they are not there.
    #[track_caller]
    pub fn recorded(t: &'t Trace, name: &str, options: ScalerOptions) -> Self {
        if let Some(problem) = options.problem() {
            t.fail("grad_scaler", problem);
        }
        let state = match &options.entries(name)[..] {
            [scale, tracker] => Some(State {
                scale: t.state_from(scale.clone()),
                tracker: t.state_from(tracker.clone()),
            }),
            _ => None,
        };
        GradScaler { trace: t, options, state, seen: Vec::new(), updated: false }
    }

    /// The scale of this step; `None` for a disabled scaler.
    pub fn get_scale(&self) -> Option<Var<'t>> {
        self.state.map(|state| state.scale)
    }

    /// The loss times the scale. A 16-bit loss without axes becomes f32.
    #[track_caller]
    pub fn scale(&self, loss: Var<'t>) -> Var<'t> {
        match self.state {
            Some(state) if loss.rank() == 0 && loss.dtype().is_low() => widen(loss) * state.scale,
            // PyTorch multiplies by the number as it is: rounding the scale to f16 first would overflow.
            Some(state) if loss.dtype().is_low() => (widen(loss) * state.scale).to(loss.dtype()),
            Some(state) => loss * state.scale,
            None => loss,
        }
    }

    /// Divides an optimizer's gradients by the scale and checks that they were finite. Do this first if you want to read or clip
    /// them; [`step`](GradScaler::step) does it otherwise.
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
        let found = self.unscale_all(state, optimizer);
        self.seen.push(Seen { optimizer: optimizer.name().to_owned(), found, stepped: false });
    }

    /// Unscales each gradient, and returns the largest of their flags.
    #[track_caller]
    fn unscale_all(&self, state: State<'t>, optimizer: &mut Recorded<'t, '_>) -> Option<Var<'t>> {
        let inverse = state.scale.reciprocal_scale();
        let grads = optimizer.grads_mut();
        if let Some(low) = grads.iter().find(|grad| grad.dtype() == DType::F16) {
            self.refuse(format!(
                "a gradient is {}: f16 gradients are not unscaled; keep parameters in f32 and use autocast",
                low.ty()
            ));
            return None;
        }
        let mut found = None;
        for grad in grads {
            let flag = grad.nonfinite();
            *grad = grad.unscale(inverse);
            found = Some(found.map_or(flag, |so_far: Var<'t>| so_far.maximum(flag)));
        }
        found
    }

    /// Records the optimizer's step: every parameter, moment and count keeps its old value if a gradient was not finite.
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
        let name = optimizer.name().to_owned();
        match self.seen.iter_mut().find(|seen| seen.optimizer == name) {
            Some(Seen { found: Some(found), stepped, .. }) => {
                *stepped = true;
                optimizer.step_unless(*found);
            }
            _ => self.refuse(
                "no gradient was checked for this optimizer: call backward() before step()",
            ),
        }
    }

    /// Records the next scale: smaller if a gradient of any optimizer was not finite, larger after enough good steps.
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
        let ScalerOptions { growth_factor, backoff_factor, growth_interval, .. } = self.options;
        let next = state.scale.update_scale(
            state.tracker,
            found,
            growth_factor,
            backoff_factor,
            growth_interval,
        );
        self.trace.update(state.scale, next);
        self.trace.update(state.tracker, next.result(1));
    }

    /// Whether any gradient checked so far was not finite: 1 or 0, f32; `None` if none was checked.
    #[track_caller]
    pub fn found(&self) -> Option<Var<'t>> {
        self.seen.iter().filter_map(|seen| seen.found).reduce(|a, b| a.maximum(b))
    }

    fn seen(&self, optimizer: &Recorded<'t, '_>) -> Option<&Seen<'t>> {
        self.seen.iter().find(|seen| seen.optimizer == optimizer.name())
    }

    #[track_caller]
    fn refuse(&self, why: impl Into<String>) {
        self.trace.fail("grad_scaler", why);
    }
}

fn widen(loss: Var<'_>) -> Var<'_> {
    tracecast_ir::ops::cast::Cast::cast(loss, DType::F32)
}
