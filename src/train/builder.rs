//! [`TrainStepBuilder`]: what a training step is made of, part by part.

use crate::amp::{Autocast, ScalerSettings};
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::nn::{Module, Tie};
use crate::optim::{Clip, Optimizer};
use crate::options::Options;
use crate::setters::setters;
use crate::trace::Trace;
use crate::train::TrainStep;
use crate::train::recipe::{Objective, Placed, Recipe};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;
use tracecast_ir::{DType, Var};

/// How many skipped steps in a row are reported if nothing else is said: a scale of 65536 has come
/// down to 1/16 by then, where no overflow is the scale's fault.
const REPORT_AFTER: u32 = 20;

/// A training step that is being put together.
///
/// ```
/// use tracecast::nn::{Linear, Module};
/// use tracecast::optim::Clip;
/// use tracecast::prelude::*;
///
/// let step = TrainStep::new(Linear::new(4, 1), |t, model| model.forward(t.input("x")).mean_squared_error(t.input("y")))
///     .optimizer(Sgd::new("rate"))
///     .autocast("cpu", DType::F16)
///     .scaler(ScalerOptions::default())
///     .micro_batches(2, &["x", "y"])
///     // Half the rate every 100 steps.
///     .schedule("rate", |_, step| (step * (-std::f64::consts::LN_2 / 100.0)).exp() * 0.1)
///     .clip(Clip::norm(1.0))
///     .ema(0.99)
///     .report_gradients(true)
///     .build()?;
///
/// let mut store = Store::new();
/// step.init(&mut store, 0)?;
/// let (x, y) = (Tensor::rand([8, 4], 1)?, Tensor::rand([8, 1], 2)?);
/// let done = step.run(&mut store, &[("x", &x), ("y", &y)])?;
/// assert_eq!(done.gradients[0].name, "weight");
/// assert!(done.gradients[0].amax > 0.0 && !done.gradients[0].found_inf);
/// assert_eq!(store.get("ema.weight")?, store.get("weight")?);
/// # Ok::<(), tracecast::Error>(())
/// ```
pub struct TrainStepBuilder {
    recipe: Recipe,
    options: Options,
    problem: Option<(&'static str, String)>,
}

impl TrainStepBuilder {
    #[track_caller]
    pub(crate) fn new(module: Box<dyn Module>, loss: Objective) -> Self {
        let recipe = Recipe {
            module,
            entries: Vec::new(),
            loss: Placed::here(loss),
            optimizer: None,
            autocast: None,
            scaler: None,
            parts: 1,
            divided: Arc::from([]),
            change: None,
            clip: None,
            schedule: None,
            ema: None,
            report_gradients: false,
            hold_statistics: false,
            watched: Vec::new(),
        };
        TrainStepBuilder { recipe, options: Options::new(), problem: None }
    }

    /// With this optimizer for all parameters that are not frozen.
    #[must_use]
    #[track_caller]
    pub fn optimizer(mut self, optimizer: impl Optimizer + 'static) -> Self {
        self.recipe.optimizer = Some(Placed::here(Box::new(optimizer)));
        self
    }

    /// With the loss computed under autocast for a device, in `dtype` or the device's own low
    /// dtype. An [evaluation](TrainStep::evaluation) is outside this region.
    #[must_use]
    #[track_caller]
    pub fn autocast(mut self, device: &str, dtype: impl Into<Option<DType>>) -> Self {
        let region = Autocast::new(device);
        let region = match dtype.into() {
            Some(dtype) => region.dtype(dtype),
            None => region,
        };
        self.recipe.autocast = Some((region, Location::caller()));
        self
    }

    /// With a scaler of the loss, whose state is `amp.scale` and `amp.growth_tracker`. Takes
    /// PyTorch's [`ScalerOptions`](crate::amp::ScalerOptions) or [`ScalerSettings`].
    #[must_use]
    #[track_caller]
    pub fn scaler(mut self, settings: impl Into<ScalerSettings>) -> Self {
        let mut settings: ScalerSettings = settings.into();
        settings.report_after.get_or_insert(REPORT_AFTER);
        self.recipe.scaler = Some(Placed::here(settings));
        self
    }

    /// With the batch divided into `count` equal parts along the first axis of each input in
    /// `inputs`; other inputs are the same for all parts. The loss closure is recorded once per
    /// part, and the step follows the mean of their losses. Activations take the memory of one
    /// part. The scaler checks and unscales one gradient, the sum over all parts, and clipping sees
    /// that gradient as well. Where parts have different numbers of targets, as with
    /// `ignore_index`, a mean of means is not that of the batch: [`TrainStep::of_sums`] weighs
    /// every target alike.
    ///
    /// What the closure names with `t.output` is named `NAME.0`, `NAME.1`, …
    #[must_use]
    pub fn micro_batches(mut self, count: usize, inputs: &[&str]) -> Self {
        if count == 0 || (count > 1 && inputs.is_empty()) {
            let message =
                format!("expected at least one part and one input, found {count} and {inputs:?}");
            self.problem.get_or_insert(("micro_batches", message));
        }
        self.recipe.parts = count.max(1);
        self.recipe.divided = inputs.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// With unscaled gradients clipped before the step: see [`Clip`]. Clipped by norm, the program
    /// has the output `grad_norm`, the norm before.
    #[must_use]
    #[track_caller]
    pub fn clip(mut self, clip: Clip) -> Self {
        self.recipe.clip = Some(Placed::here(clip));
        self
    }

    /// With unscaled gradients changed in another way before the step, and before they are clipped.
    /// `change` gets them in the order of the parameters, each in the type of its parameter, and
    /// puts others of these types in their places.
    #[must_use]
    #[track_caller]
    pub fn change_gradients(
        mut self,
        change: impl for<'t> Fn(&'t Trace, &mut [Var<'t>]) + Send + Sync + 'static,
    ) -> Self {
        self.recipe.change = Some(Placed::here(Box::new(change)));
        self
    }

    /// With a learning rate that the step computes by a closure, for an optimizer whose rate is the
    /// input `rate`: `Sgd::new("rate")`. The usual ones are a [`Schedule`](crate::optim::Schedule)
    /// that the optimizer is made with.
    ///
    /// `schedule` gets the number of steps taken before this one, f64 without axes, and returns the
    /// rate, f32 or f64 without axes. A skipped step does not count. The count is `train.steps` in
    /// the store; the rate is an output of that name.
    #[must_use]
    #[track_caller]
    pub fn schedule(
        mut self,
        rate: impl Into<String>,
        schedule: impl for<'t> Fn(&'t Trace, Var<'t>) -> Var<'t> + Send + Sync + 'static,
    ) -> Self {
        self.recipe.schedule = Some((rate.into(), Placed::here(Box::new(schedule))));
        self
    }

    /// With a moving average of each trained parameter in the store, `ema.NAME`, in f32 for
    /// parameters of 16 bits: the parameter after the first step, then `decay` times the average
    /// plus the rest times the parameter. [`TrainStep::averaged_evaluation`] uses it.
    #[must_use]
    #[track_caller]
    pub fn ema(mut self, decay: f64) -> Self {
        if !(0.0..=1.0).contains(&decay) {
            let message = format!("the decay is from 0 to 1, found {decay}");
            self.problem.get_or_insert(("ema", message));
        }
        self.recipe.ema = Some(Placed::here(decay));
        self
    }

    setters! {
        /// With [`StepResult::gradients`](crate::StepResult::gradients): for each trained parameter
        /// whether its gradient was finite, and its largest magnitude; as outputs of the program
        /// `found_inf.NAME` and `amax.NAME`.
        report_gradients(report: bool) => recipe.report_gradients = report;
        /// Whether running statistics of norms, and what else the model writes to its buffers, keep
        /// their values in a step that is skipped. PyTorch's do not, since forward has moved them
        /// before a gradient is seen.
        hold_statistics(hold: bool) => recipe.hold_statistics = hold;
        /// With the results of some modules in [`StepResult::outputs`](crate::StepResult::outputs),
        /// each under the path of its module: see
        /// [`Context::watching`](crate::nn::Context::watching). A pattern that fits no module is a
        /// warning of the compilation.
        watch(modules: &[&str]) => recipe.watched = modules.iter().map(|name| (*name).to_owned()).collect();
        /// With these options of tracing and compiling.
        options(options: Options) => options = options;
    }

    /// The step.
    ///
    /// # Errors
    /// If there is no optimizer, a setting has no meaning, two parameters of the model have one
    /// name, a layer is tied to a parameter that no module has, or the parameters are not known
    /// without a run ([`Module::entries`]). What is wrong with the model, the loss or the optimizer
    /// is told by the first run, which records them.
    pub fn build(self) -> Result<TrainStep> {
        if let Some((option, message)) = self.problem {
            return Err(Error::Option { option, message });
        }
        if self.recipe.optimizer.is_none() {
            return Err(Error::Option {
                option: "optimizer",
                message: "a training step needs one".to_owned(),
            });
        }
        let entries = self.recipe.module.entries()?;
        let mut names: HashMap<&str, &Entry> = HashMap::new();
        let twice = entries.iter().find(|&entry| {
            // Several dropouts have one generator.
            names.insert(&entry.name, entry).is_some_and(|first| !entry.is_one_with(first))
        });
        if let Some(twice) = twice {
            let message = format!(
                "two parameters are called `{}`: give the parts of the model names of their own, or tie one to the other",
                twice.name
            );
            return Err(Error::Option { option: "module", message });
        }
        let known = |tie: &Tie| entries.iter().any(|entry| entry.name == tie.of);
        if let Some(tie) = self.recipe.module.ties()?.into_iter().find(|tie| !known(tie)) {
            let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            let message =
                format!("a layer is tied to `{}`, found only {}", tie.of, names.join(", "));
            return Err(Error::Option { option: "module", message });
        }
        let recipe = Arc::new(Recipe { entries, ..self.recipe });
        let jit = recipe.jit(&self.options);
        Ok(TrainStep { jit, recipe })
    }
}
