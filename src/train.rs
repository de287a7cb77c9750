//! [`TrainStep`]: a model, a loss and an optimizer as one compiled step.

use crate::amp::{Autocast, GradScaler, ScalerOptions};
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::jit::{Jit, jit};
use crate::nn::{Context, Model, Module};
use crate::optim::{Optimizer, Recorded};
use crate::options::Options;
use crate::trace::Trace;
use std::fmt;
use std::sync::Arc;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::{DType, Var};
use tracecast_runtime::{Outputs, Store, Tensor};

/// Computes the loss of a batch: one number.
type Loss = dyn for<'t> Fn(&'t Trace, &Model<'_, 't>) -> Var<'t> + Send + Sync;

/// A training step: forward, backward, unscaling, checks and the optimizer, compiled as one program.
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

/// Everything that a step is made of.
struct Recipe {
    module: Box<dyn Module>,
    loss: Box<Loss>,
    optimizer: Option<Box<dyn Optimizer>>,
    autocast: Option<Autocast>,
    scaler: Option<ScalerOptions>,
}

/// A training step that is being put together.
pub struct TrainStepBuilder {
    recipe: Recipe,
    options: Options,
}

/// What a step tells.
#[derive(Debug)]
pub struct StepResult {
    /// The loss, before scaling.
    pub loss: f32,
    /// Whether the step was skipped because a gradient was not finite.
    pub skipped: bool,
    /// The scale that the loss was multiplied by; 1 without a scaler.
    pub scale: f32,
    /// Everything else that the loss closure named with `t.output`, and the above.
    pub outputs: Outputs,
}

impl TrainStep {
    /// A step that trains `module` by a loss, which `loss` computes from the inputs of a run and the model's answer.
    #[expect(
        clippy::new_ret_no_self,
        reason = "a step without an optimizer is none: the builder makes it"
    )]
    pub fn new(
        module: impl Module + 'static,
        loss: impl for<'t> Fn(&'t Trace, &Model<'_, 't>) -> Var<'t> + Send + Sync + 'static,
    ) -> TrainStepBuilder {
        let recipe = Recipe {
            module: Box::new(module),
            loss: Box::new(loss),
            optimizer: None,
            autocast: None,
            scaler: None,
        };
        TrainStepBuilder { recipe, options: Options::new() }
    }

    /// Puts first values of everything the step keeps into a store: parameters, moments, counts, the loss scale, the seed.
    ///
    /// # Errors
    /// If no tensor has the type of a parameter.
    pub fn init(&self, store: &mut Store, seed: u64) -> Result<()> {
        self.recipe.entries().iter().try_for_each(|entry| entry.put(store, seed))
    }

    /// Takes one step.
    ///
    /// # Errors
    /// As [`Jit::run`]; the store is as it was before.
    pub fn run(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<StepResult> {
        let outputs = self.jit.run(store, inputs)?;
        let number = |name: &str| -> Result<Option<f32>> {
            Ok(outputs.get(name).ok().map(Tensor::item).transpose()?)
        };
        Ok(StepResult {
            loss: number("loss")?.unwrap_or(f32::NAN),
            skipped: number("skipped")?.is_some_and(|found| found != 0.0),
            scale: number("scale")?.unwrap_or(1.0),
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

    /// The compiled programs, their reports and their graphs.
    pub fn jit(&self) -> &Jit {
        &self.jit
    }
}

impl TrainStepBuilder {
    /// With this optimizer for all parameters that are not frozen.
    #[must_use]
    pub fn optimizer(mut self, optimizer: impl Optimizer + 'static) -> Self {
        self.recipe.optimizer = Some(Box::new(optimizer));
        self
    }

    /// With the loss computed under autocast for a device, in `dtype` or the device's own low dtype.
    #[must_use]
    pub fn autocast(mut self, device: &str, dtype: impl Into<Option<DType>>) -> Self {
        let region = Autocast::new(device);
        self.recipe.autocast = Some(match dtype.into() {
            Some(dtype) => region.dtype(dtype),
            None => region,
        });
        self
    }

    /// With a scaler of the loss, whose state is `amp.scale` and `amp.growth_tracker`.
    #[must_use]
    pub fn scaler(mut self, options: ScalerOptions) -> Self {
        self.recipe.scaler = Some(options);
        self
    }

    /// With these options of tracing and compiling.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The step.
    ///
    /// # Errors
    /// If there is no optimizer.
    pub fn build(self) -> Result<TrainStep> {
        if self.recipe.optimizer.is_none() {
            return Err(Error::Option {
                option: "optimizer",
                message: "a training step needs one".to_owned(),
            });
        }
        let recipe = Arc::new(self.recipe);
        let recorded = recipe.clone();
        let jit = jit(self.options, move |t| recorded.record(t)).named("train");
        Ok(TrainStep { jit, recipe })
    }
}

impl Recipe {
    /// The step, line by line as one would write it by hand.
    fn record(&self, t: &Trace) {
        let model = Model::new(self.module.as_ref(), Context::training(t));
        let forward = || (self.loss)(t, &model);
        let loss = match &self.autocast {
            Some(region) => region.run(t, forward),
            None => forward(),
        };
        let Some(rule) = self.optimizer.as_deref() else { return };
        let mut optimizer = Recorded::new(t, rule, &t.params());
        let mut scaler = GradScaler::recorded(t, SCALER, self.scaler_options());
        optimizer.backward(scaler.scale(loss));
        scaler.step(&mut optimizer);
        scaler.update();
        t.output("loss", if loss.dtype() == DType::F32 { loss } else { loss.cast(DType::F32) });
        if let (Some(found), Some(scale)) = (scaler.found(), scaler.get_scale()) {
            t.output("skipped", found);
            t.output("scale", scale);
        }
    }

    fn scaler_options(&self) -> ScalerOptions {
        self.scaler.clone().unwrap_or(ScalerOptions { enabled: false, ..ScalerOptions::default() })
    }

    fn entries(&self) -> Vec<Entry> {
        let model = self.module.entries();
        let optimizer = self
            .optimizer
            .iter()
            .flat_map(|rule| rule.entries(OPTIMIZER, &model))
            .collect::<Vec<_>>();
        [model, optimizer, self.scaler_options().entries(SCALER)].concat()
    }
}

/// The names under which their state is kept.
const OPTIMIZER: &str = "optim";
const SCALER: &str = "amp";

impl fmt::Debug for TrainStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainStep").field("jit", &self.jit).finish_non_exhaustive()
    }
}
