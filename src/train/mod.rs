//! [`TrainStep`]: a model, a loss and an optimizer as one compiled step.

mod ahead;
mod average;
mod builder;
mod parallel;
mod recipe;
mod result;
mod saved;

pub use ahead::StartedStep;
pub use builder::TrainStepBuilder;
pub use parallel::DataParallel;
pub(crate) use recipe::Objective;
pub use result::{GradientReport, StepResult};

use crate::data::Dataset;
use crate::entry::Entry;
use crate::error::Result;
use crate::jit::{Jit, jit};
use crate::nn::{Context, Model, Module};
use crate::profile::Profile;
use crate::trace::Trace;
use recipe::Recipe;
use std::fmt;
use std::sync::Arc;
use tracecast_ir::{Role, Var};
use tracecast_runtime::{Error, Limits, Store, Tensor};

/// A training step: forward, backward, accumulation over micro-batches, unscaling, checks,
/// clipping, the optimizer, the next scale, the schedule and the moving average of the weights,
/// compiled as one program. Nothing in it is decided by the host: if a gradient is not finite,
/// every parameter, moment, count and average keeps its value.
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

impl TrainStep {
    /// A step that trains `module` by a loss, which `loss` computes from the inputs of a run and
    /// the model's answer.
    #[expect(
        clippy::new_ret_no_self,
        reason = "a step without an optimizer is none: the builder makes it"
    )]
    #[track_caller]
    pub fn new(
        module: impl Module + 'static,
        loss: impl for<'t> Fn(&'t Trace, &Model<'_, 't>) -> Var<'t> + Send + Sync + 'static,
    ) -> TrainStepBuilder {
        TrainStepBuilder::new(Box::new(module), Objective::Mean(Box::new(loss)))
    }

    /// A step that trains `module` by a mean. `loss` returns two tensors without axes: the sum of
    /// the losses, and what the step divides it by. That is their count, of any dtype, or a sum of
    /// weights, such as class weights in f32. The step divides once, by the count of the whole
    /// batch. With [micro-batches](TrainStepBuilder::micro_batches) and on
    /// [many ranks](DataParallel) every loss counts the same, however many of them a part has.
    ///
    /// ```
    /// use tracecast::nn::{Linear, Module};
    /// use tracecast::prelude::*;
    ///
    /// // Targets of -100 are ignored; the second half of the batch has one that counts, the first half has two.
    /// let step = TrainStep::of_sums(Linear::new(2, 3), |t, model| {
    ///     let (y, targets) = (model.forward(t.input("x")), t.input("y"));
    ///     let loss = nn::CrossEntropyLoss::new().reduction(nn::Reduction::Sum);
    ///     let count = targets.ne(-100.0).cast(DType::F32).sum(());
    ///     (model.context().apply("loss", &loss, (y, targets)), count)
    /// })
    /// .optimizer(Sgd::new(0.1))
    /// .micro_batches(2, &["x", "y"])
    /// .build()?;
    /// let mut store = Store::new();
    /// step.init(&mut store, 0)?;
    /// let (x, y) = (Tensor::rand([4, 2], 0)?, Tensor::new([4], &[0i64, 2, -100, 1])?);
    /// assert!(step.run(&mut store, &[("x", &x), ("y", &y)])?.loss.is_finite());
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    #[track_caller]
    pub fn of_sums(
        module: impl Module + 'static,
        loss: impl for<'t> Fn(&'t Trace, &Model<'_, 't>) -> (Var<'t>, Var<'t>) + Send + Sync + 'static,
    ) -> TrainStepBuilder {
        TrainStepBuilder::new(Box::new(module), Objective::Summed(Box::new(loss)))
    }

    /// Puts first values of everything the step keeps into a store: parameters, moments, counts,
    /// the loss scale, the seed. An average starts as its parameter.
    ///
    /// # Errors
    /// If no tensor has the type of a parameter.
    pub fn init(&self, store: &mut Store, seed: u64) -> Result<()> {
        let entries = [self.recipe.entries.clone(), self.own_entries()].concat();
        entries.iter().try_for_each(|entry| entry.put(store, seed))?;
        if self.recipe.ema.is_some() {
            average::start(store, &self.recipe.entries)?;
        }
        Ok(())
    }

    /// Takes one step.
    ///
    /// # Errors
    /// An input without elements, since the mean over no rows is not a number; else as
    /// [`Jit::run`]. The store is as it was before.
    pub fn run(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<StepResult> {
        need_elements(inputs)?;
        StepResult::of(&self.recipe, self.jit.run(store, inputs)?)
    }

    /// Takes one step, and does not wait for its end where the device has a queue. Inputs are
    /// uploaded and steps computed in the order of the calls, so that the device goes from one to
    /// the next while the host makes the batch behind it.
    ///
    /// ```
    /// use tracecast::nn::{Linear, Module};
    /// use tracecast::prelude::*;
    ///
    /// let step = TrainStep::new(Linear::new(2, 3), |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
    ///     .optimizer(Sgd::new(0.1))
    ///     .build()?;
    /// let mut store = Store::new();
    /// step.init(&mut store, 0)?;
    /// let (x, y) = (Tensor::rand([4, 2], 0)?, Tensor::new([4], &[0i64, 2, 1, 1])?);
    /// let first = step.start(&mut store, &[("x", &x), ("y", &y)])?;
    /// let second = step.start(&mut store, &[("x", &x), ("y", &y)])?;
    /// let (first, second) = (first.finish(&store)?, second.finish(&store)?);
    /// assert!(second.loss < first.loss);
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`run`](TrainStep::run), as far as that is known now; [`StartedStep::finish`] returns the
    /// rest.
    pub fn start(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<StartedStep> {
        need_elements(inputs)?;
        Ok(StartedStep { started: self.jit.start(store, inputs)?, recipe: self.recipe.clone() })
    }

    /// Takes a step for each batch, and gives their results in order. Where the device has a queue,
    /// a batch is uploaded and its step given before the result of the one before it is waited for.
    ///
    /// After an error there are no more results, and the store holds what it did before the step
    /// that failed. Who stops early on a device with a queue has trained one batch more than there
    /// were results.
    ///
    /// ```
    /// use tracecast::data::Dataset;
    /// use tracecast::nn::{Linear, Module};
    /// use tracecast::prelude::*;
    ///
    /// let x = Tensor::rand([64, 2], 0)?;
    /// let train = Dataset::new([("y", x.slice(1, 0..1)?), ("x", x)])?;
    /// let step = TrainStep::new(Linear::new(2, 1), |t, model| model.forward(t.input("x")).mean_squared_error(t.input("y")))
    ///     .optimizer(AdamW::new(0.1))
    ///     .build()?;
    /// let mut store = Store::new();
    /// step.init(&mut store, 0)?;
    /// let mut losses = Vec::new();
    /// for epoch in 0..4 {
    ///     for done in step.run_batches(&mut store, train.shuffled(epoch).batches(16)?) {
    ///         losses.push(done?.loss);
    ///     }
    /// }
    /// assert!(losses.len() == 16 && losses[15] < losses[0]);
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    pub fn run_batches<'s>(
        &'s self,
        store: &'s mut Store,
        batches: impl IntoIterator<Item = Dataset, IntoIter: 's>,
    ) -> impl Iterator<Item = Result<StepResult>> + 's {
        // Without a queue a step has ended when it is started: there is nothing to overlap with.
        let device = self.jit.options().target();
        let overlaps = device.is_ok_and(|device| device.queue().is_some());
        let mut batches = batches.into_iter();
        let start =
            move |store: &mut Store| batches.next().map(|batch| self.start(store, &batch.inputs()));
        ahead::results(store, overlaps, start)
    }

    /// Takes `runs` steps with a clock at every kernel, after two that are not timed, and reports
    /// where the time goes: the kernels of forward, backward and optimizer, each with its module,
    /// its line, its time and how far it is from `limits`. They are real steps: the model trains.
    ///
    /// ```
    /// use tracecast::nn::{Linear, Module, Relu, Sequential};
    /// use tracecast::prelude::*;
    /// use tracecast::{Vectors, measure_limits};
    ///
    /// let model = Sequential::new().named("up", Linear::new(64, 256)).then(Relu).named("down", Linear::new(256, 10));
    /// let step = TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
    ///     .optimizer(AdamW::new(1e-3))
    ///     .options(Options::new().threads(1))
    ///     .build()?;
    /// let mut store = Store::new();
    /// step.init(&mut store, 0)?;
    /// let (x, y) = (Tensor::rand([32, 64], 1)?, Tensor::new([32], &[3i64; 32])?);
    /// let limits = measure_limits(1, Vectors::Native);
    /// let profile = step.profile(&mut store, &[("x", &x), ("y", &y)], 5, Some(limits))?;
    /// println!("{profile}");
    /// let product = profile.kernels.iter().find(|kernel| kernel.module == "down").expect("a product");
    /// println!("{} at {}: {:.1} GFLOP/s", product.name, product.source_line, product.gflops());
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`run`](TrainStep::run); if `runs` is 0.
    pub fn profile(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        runs: usize,
        limits: Option<Limits>,
    ) -> Result<Profile> {
        need_elements(inputs)?;
        self.jit.profile(store, inputs, runs, limits)
    }

    /// Another program over the same model and the same store, which evaluates: it has the outputs
    /// that `body` names.
    ///
    /// The region of [`TrainStepBuilder::autocast`] holds for the loss alone: this program computes
    /// in the dtypes of its weights and inputs. A region in `body` gives it a low dtype:
    ///
    /// ```
    /// use tracecast::nn::{Linear, Module};
    /// use tracecast::prelude::*;
    ///
    /// let step = TrainStep::new(Linear::new(2, 3), |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
    ///     .optimizer(Sgd::new(0.1))
    ///     .autocast("cpu", DType::BF16)
    ///     .build()?;
    /// let mut store = Store::new();
    /// step.init(&mut store, 0)?;
    /// let evaluate = step.evaluation(|t, model| {
    ///     t.output("wide", model.forward(t.input("x")));
    ///     t.output("low", autocast(t, "cpu", DType::BF16, || model.forward(t.input("x"))));
    /// });
    /// let out = evaluate.run(&mut store, &[("x", &Tensor::rand([4, 2], 1)?)])?;
    /// assert_eq!([out["wide"].dtype(), out["low"].dtype()], [DType::F32, DType::BF16]);
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    pub fn evaluation(
        &self,
        body: impl for<'t> Fn(&'t Trace, &Model<'_, 't>) + Send + Sync + 'static,
    ) -> Jit {
        let recipe = self.recipe.clone();
        let record = move |t: &Trace| body(t, &recipe.model(Context::evaluation(t)));
        jit(self.jit.options().clone(), record).named("evaluation")
    }

    /// The same with the moving averages of the weights in the place of the weights: see
    /// [`ema`](TrainStepBuilder::ema).
    pub fn averaged_evaluation(
        &self,
        body: impl for<'t> Fn(&'t Trace, &Model<'_, 't>) + Send + Sync + 'static,
    ) -> Jit {
        let recipe = self.recipe.clone();
        let record = move |t: &Trace| {
            let averaged = Context::evaluation(t).with_prefix(average::PREFIX);
            body(t, &recipe.model(averaged));
        };
        jit(self.jit.options().clone(), record).named("averaged_evaluation")
    }

    /// The names of the trained parameters.
    pub fn parameters(&self) -> Vec<String> {
        let trained = self.recipe.entries.iter().filter(|entry| entry.role == Role::Param);
        trained.map(|entry| entry.name.clone()).collect()
    }

    /// The compiled programs, their reports and their graphs.
    pub fn jit(&self) -> &Jit {
        &self.jit
    }

    /// What the step keeps besides the model. That its device is not known is told when it is
    /// compiled.
    fn own_entries(&self) -> Vec<Entry> {
        self.recipe.own_entries(self.jit.options().home().ok().as_ref())
    }
}

/// The mean over no rows is not a number.
fn need_elements(inputs: &[(&str, &Tensor)]) -> Result<()> {
    let Some((name, empty)) = inputs.iter().find(|(_, tensor)| tensor.bytes().is_empty()) else {
        return Ok(());
    };
    let message = format!("is {} without elements: a step needs at least one row", empty.ty());
    Err(Error::Input { name: (*name).to_owned(), message })
}

impl fmt::Debug for TrainStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainStep").field("jit", &self.jit).finish_non_exhaustive()
    }
}
