//! [`TrainStep`]: a model, a loss and an optimizer as one compiled step.

mod average;
mod builder;
mod recipe;
mod saved;

pub use builder::TrainStepBuilder;

use crate::error::Result;
use crate::jit::{Jit, jit};
use crate::nn::{Context, Model, Module};
use crate::trace::Trace;
use recipe::Recipe;
use std::fmt;
use std::sync::Arc;
use tracecast_ir::{Role, Var};
use tracecast_runtime::{Error, Outputs, Store, Tensor};

/// Computes the loss of a batch: one number.
type Loss = dyn for<'t> Fn(&'t Trace, &Model<'_, 't>) -> Var<'t> + Send + Sync;

/// Computes a learning rate, f32 or f64 without axes, from the number of steps taken before, f64 without axes.
type Schedule = dyn for<'t> Fn(&'t Trace, Var<'t>) -> Var<'t> + Send + Sync;

/// Replaces unscaled gradients by others of their types.
type Change = dyn for<'t> Fn(&'t Trace, &mut [Var<'t>]) + Send + Sync;

/// A training step: forward, backward, accumulation over micro-batches, unscaling, checks, clipping, the optimizer, the next scale,
/// the schedule and the moving average of the weights, compiled as one program. Nothing in it is decided by the host: if a
/// gradient is not finite, every parameter, moment, count and average keeps its value.
///
/// ```
/// use tracecast::nn::{Linear, Module, Relu, Sequential};
/// use tracecast::prelude::*;
///
/// let model = Sequential::new().then(Linear::new(4, 8)).then(Relu).then(Linear::new(8, 3));
/// let step = TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
///     .optimizer(AdamW::new(1e-2))
///     .autocast("cpu", DType::F16)
///     .scaler(ScalerOptions::default())
///     .options(Options::new())
///     .build()?;
///
/// let mut store = Store::new();
/// step.init(&mut store, 0)?;
/// let x = Tensor::new([2, 4], &[0.5f32; 8])?;
/// let y = Tensor::new([2], &[1i64, 2])?;
/// for _ in 0..3 {
///     let done = step.run(&mut store, &[("x", &x), ("y", &y)])?;
///     assert!(done.loss.is_finite() && !done.skipped);
/// }
/// # Ok::<(), tracecast::Error>(())
/// ```
pub struct TrainStep {
    jit: Jit,
    recipe: Arc<Recipe>,
}

/// What a step tells.
#[derive(Debug)]
#[non_exhaustive]
pub struct StepResult {
    /// The loss, before scaling; the mean of those of all micro-batches.
    pub loss: f32,
    /// Whether the step was skipped: a gradient was not finite, or a norm that [`Clip::skip_if_nonfinite`] looks at.
    ///
    /// [`Clip::skip_if_nonfinite`]: crate::optim::Clip::skip_if_nonfinite
    pub skipped: bool,
    /// The scale that the loss was multiplied by; 1 without a scaler.
    pub scale: f32,
    /// How many steps in a row were skipped, this one included; 0 without a scaler.
    pub backoffs: u32,
    /// What to do about it, every time that many steps in a row were skipped that a report was asked for: see
    /// [`ScalerSettings::report_after`](crate::amp::ScalerSettings::report_after).
    pub warning: Option<String>,
    /// The norm of all gradients together before they were clipped, if they were clipped by norm.
    pub grad_norm: Option<f32>,
    /// What each gradient was like, if [`report_gradients`](TrainStepBuilder::report_gradients) asked for it.
    pub gradients: Vec<GradientReport>,
    /// Everything else that the loss closure named with `t.output`, and the above.
    pub outputs: Outputs,
}

/// What the gradient of one parameter was like in a step, unscaled and before clipping.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientReport {
    /// The name of the parameter.
    pub name: String,
    /// True if an element was infinite or NaN.
    pub found_inf: bool,
    /// The largest magnitude of an element; infinite or NaN if one was.
    pub amax: f32,
}

impl TrainStep {
    /// A step that trains `module` by a loss, which `loss` computes from the inputs of a run and the model's answer.
    #[expect(
        clippy::new_ret_no_self,
        reason = "a step without an optimizer is none: the builder makes it"
    )]
    #[track_caller]
    pub fn new(
        module: impl Module + 'static,
        loss: impl for<'t> Fn(&'t Trace, &Model<'_, 't>) -> Var<'t> + Send + Sync + 'static,
    ) -> TrainStepBuilder {
        TrainStepBuilder::new(Box::new(module), Box::new(loss))
    }

    /// Puts first values of everything the step keeps into a store: parameters, moments, counts, the loss scale, the seed. An average
    /// starts as its parameter.
    ///
    /// # Errors
    /// If no tensor has the type of a parameter.
    pub fn init(&self, store: &mut Store, seed: u64) -> Result<()> {
        self.recipe.entries().iter().try_for_each(|entry| entry.put(store, seed))?;
        if self.recipe.ema.is_some() {
            average::start(store, &self.recipe.module.entries())?;
        }
        Ok(())
    }

    /// Takes one step.
    ///
    /// # Errors
    /// An input without elements, since the mean over no rows is not a number; else as [`Jit::run`]. The store is as it was before.
    pub fn run(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<StepResult> {
        if let Some((name, empty)) = inputs.iter().find(|(_, tensor)| tensor.ty().numel() == 0) {
            let message =
                format!("is {} without elements: a step needs at least one row", empty.ty());
            return Err(Error::Input { name: (*name).to_owned(), message }.into());
        }
        let outputs = self.jit.run(store, inputs)?;
        let number = |name: &str| -> Result<Option<f32>> {
            Ok(outputs.find(name).map(Tensor::item).transpose()?)
        };
        let backoffs = outputs.find("backoffs").map(Tensor::item::<i32>).transpose()?;
        let (backoffs, scale) = (backoffs.unwrap_or(0) as u32, number("scale")?.unwrap_or(1.0));
        let mut gradients = Vec::new();
        if self.recipe.report_gradients {
            for entry in self.recipe.module.entries() {
                let (Some(found), Some(amax)) = (
                    number(&format!("found_inf.{}", entry.name))?,
                    number(&format!("amax.{}", entry.name))?,
                ) else {
                    continue;
                };
                gradients.push(GradientReport { name: entry.name, found_inf: found != 0.0, amax });
            }
        }
        let warning = self.recipe.warning(backoffs, scale);
        if let Some(warning) = &warning {
            log::warn!(target: "tracecast", "{warning}");
        }
        Ok(StepResult {
            loss: number("loss")?.unwrap_or(f32::NAN),
            skipped: number("skipped")?.is_some_and(|found| found != 0.0),
            scale,
            backoffs,
            warning,
            grad_norm: number("grad_norm")?,
            gradients,
            outputs,
        })
    }

    /// Another program over the same model and the same store, which evaluates: it has the outputs that `body` names.
    pub fn evaluation(
        &self,
        body: impl for<'t> Fn(&'t Trace, &Model<'_, 't>) + Send + Sync + 'static,
    ) -> Jit {
        let recipe = self.recipe.clone();
        let record =
            move |t: &Trace| body(t, &Model::new(recipe.module.as_ref(), Context::evaluation(t)));
        jit(self.jit.options().clone(), record).named("evaluation")
    }

    /// The same with the moving averages of the weights in the place of the weights: see [`ema`](TrainStepBuilder::ema).
    pub fn averaged_evaluation(
        &self,
        body: impl for<'t> Fn(&'t Trace, &Model<'_, 't>) + Send + Sync + 'static,
    ) -> Jit {
        let recipe = self.recipe.clone();
        let record = move |t: &Trace| {
            let averaged = Context::evaluation(t).with_prefix(average::PREFIX);
            body(t, &Model::new(recipe.module.as_ref(), averaged));
        };
        jit(self.jit.options().clone(), record).named("averaged_evaluation")
    }

    /// The names of the trained parameters.
    pub fn parameters(&self) -> Vec<String> {
        let entries = self.recipe.module.entries().into_iter();
        entries.filter(|entry| entry.role == Role::Param).map(|entry| entry.name).collect()
    }

    /// The compiled programs, their reports and their graphs.
    pub fn jit(&self) -> &Jit {
        &self.jit
    }
}

impl fmt::Debug for TrainStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainStep").field("jit", &self.jit).finish_non_exhaustive()
    }
}
