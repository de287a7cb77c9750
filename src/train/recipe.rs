//! [`Recipe`]: everything that a step is made of, and the recording of it.

use crate::amp::{Autocast, GradScaler, ScalerOptions, ScalerSettings};
use crate::device_context::DeviceContext;
use crate::entry::{Entry, Start};
use crate::jit::{Jit, jit};
use crate::nn::{Context, Model, Module};
use crate::optim::{Clip, Optimizer, Recorded};
use crate::options::Options;
use crate::trace::{Part, Trace};
use crate::train::average;
use std::panic::Location;
use std::sync::Arc;
use tracecast_ir::op::Across;
use tracecast_ir::ops::amp::LossScaling;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::collective::Collectives;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::policy::matches_name;
use tracecast_ir::{DType, Graph, Role, Source, TensorType, Var};

/// Computes the loss of a batch: one number.
pub(crate) type Loss = dyn for<'t> Fn(&'t Trace, &Model<'_, 't>) -> Var<'t> + Send + Sync;

/// Computes the sum of the losses of a batch, and how many they are.
pub(crate) type Summed =
    dyn for<'t> Fn(&'t Trace, &Model<'_, 't>) -> (Var<'t>, Var<'t>) + Send + Sync;

/// How the loss of a batch is computed.
pub(crate) enum Objective {
    Mean(Box<Loss>),
    Summed(Box<Summed>),
}

/// Computes a learning rate, f32 or f64 without axes, from the number of steps taken before, f64
/// without axes.
pub(super) type Schedule = dyn for<'t> Fn(&'t Trace, Var<'t>) -> Var<'t> + Send + Sync;

/// Replaces unscaled gradients by others of their types.
pub(super) type Change = dyn for<'t> Fn(&'t Trace, &mut [Var<'t>]) + Send + Sync;

/// Everything that a step is made of.
pub(crate) struct Recipe {
    pub(crate) module: Box<dyn Module>,
    /// What the module keeps in the store; the builder finds out.
    pub(crate) entries: Vec<Entry>,
    pub(crate) loss: Placed<Objective>,
    pub(crate) optimizer: Option<Placed<Box<dyn Optimizer>>>,
    pub(crate) autocast: Option<(Autocast, &'static Location<'static>)>,
    pub(crate) scaler: Option<Placed<ScalerSettings>>,
    /// The number of micro-batches, and the inputs that are divided.
    pub(crate) parts: usize,
    pub(crate) divided: Arc<[String]>,
    pub(crate) change: Option<Placed<Box<Change>>>,
    pub(crate) clip: Option<Placed<Clip>>,
    /// The rate's name, and how it is computed.
    pub(crate) schedule: Option<(String, Placed<Box<Schedule>>)>,
    pub(crate) ema: Option<Placed<f64>>,
    pub(crate) report_gradients: bool,
    pub(crate) hold_statistics: bool,
    /// Patterns of modules whose results are outputs.
    pub(crate) watched: Vec<String>,
}

/// Which part of a step a rank records.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    /// How many ranks there are; `None` for a step that is alone.
    pub(crate) ranks: Option<usize>,
    /// The input by which the loss of this rank is multiplied, where batches differ.
    pub(crate) weight: Option<&'static str>,
}

/// A part of a step, and the user's line that gave it: errors about it point there.
pub(crate) struct Placed<T> {
    pub(crate) what: T,
    line: &'static Location<'static>,
}

impl<T> Placed<T> {
    #[track_caller]
    pub(crate) fn here(what: T) -> Self {
        Placed { what, line: Location::caller() }
    }
}

/// The names under which their state is kept.
const OPTIMIZER: &str = "optim";
const SCALER: &str = "amp";
const STEPS: &str = "train.steps";

impl Recipe {
    /// The step, compiled when it is run.
    pub(crate) fn jit(self: &Arc<Self>, options: &Options) -> Jit {
        let recorded = self.clone();
        jit(options.clone(), move |t| recorded.record(t)).named("train")
    }

    /// The step, line by line as one would write it by hand.
    pub(crate) fn record(&self, t: &Trace) {
        self.record_on(t, &Share::default());
    }

    /// The step of one rank: gradients and losses are those of all ranks before anything looks at
    /// them.
    pub(crate) fn record_on(&self, t: &Trace, share: &Share) {
        let Some(rule) = &self.optimizer else { return };
        let scaler_line = self.scaler.as_ref().map_or(self.loss.line, |scaler| scaler.line);
        let steps = self.counts_steps().then(|| t.state_from(steps_entry()));
        self.bind_rate(t, steps);

        let (loss, mut optimizer, mut scaler) = self.backward(t, rule, scaler_line, share);
        at(t, scaler_line, || scaler.unscale_(&mut optimizer));
        if self.report_gradients {
            at(t, self.loss.line, || report(t, &scaler, &optimizer));
        }
        let refused = self.change(t, &mut optimizer);
        at(t, rule.line, || scaler.step(&mut optimizer));
        at(t, scaler_line, || scaler.update());
        // What the optimizer goes by, so that averages and counts wait with it.
        let found = scaler.found().into_iter().chain(refused).reduce(|a, b| a.maximum(b));
        self.count(t, found, &optimizer, steps);
        if let (true, Some(found)) = (self.hold_statistics, found) {
            at(t, self.loss.line, || self.hold(t, found));
        }
        at(t, self.loss.line, || {
            t.output("loss", if loss.dtype() == DType::F32 { loss } else { loss.cast(DType::F32) });
            let told = [("skipped", found), ("scale", scaler.get_scale())];
            for (name, value) in told {
                value.into_iter().for_each(|value| t.output(name, value));
            }
            if let Some(backoffs) = scaler.backoffs() {
                t.output("backoffs", backoffs);
            }
        });
    }

    /// Changes and clips the unscaled gradients; returns the flag that clipping has the step
    /// skipped by, if it does.
    fn change<'t>(&self, t: &'t Trace, optimizer: &mut Recorded<'t, '_>) -> Option<Var<'t>> {
        if let Some(change) = &self.change {
            at(t, change.line, || (change.what)(t, optimizer.grads_mut()));
        }
        let clip = self.clip.as_ref()?;
        at(t, clip.line, || {
            let clipped = optimizer.clip(&clip.what);
            if let Some(norm) = clipped.norm {
                let norm = if norm.dtype() == DType::F32 { norm } else { norm.cast(DType::F32) };
                t.output("grad_norm", norm);
            }
            clipped.nonfinite
        })
    }

    /// Lets the scheduled rate stand for the input of its name.
    fn bind_rate<'t>(&self, t: &'t Trace, steps: Option<Var<'t>>) {
        let (Some((name, schedule)), Some(steps)) = (&self.schedule, steps) else { return };
        at(t, schedule.line, || {
            let rate = (schedule.what)(t, steps.cast(DType::F64));
            t.bind(name, rate);
            t.output(name, if rate.dtype() == DType::F32 { rate } else { rate.cast(DType::F32) });
        });
    }

    /// Forward and backward of all parts: the mean loss, the optimizer with the gradients of the
    /// scaled mean, and the scaler.
    fn backward<'t, 'o>(
        &self,
        t: &'t Trace,
        rule: &'o Placed<Box<dyn Optimizer>>,
        scaler_line: &'static Location<'static>,
        share: &Share,
    ) -> (Var<'t>, Recorded<'t, 'o>, GradScaler<'t>) {
        let first = self.loss_of(t, 0, share);
        self.warn_of_idle_watches(t);
        // The parameters are known now that the model was called.
        let new = || Recorded::named(t, OPTIMIZER, rule.what.as_ref(), &t.params());
        let mut optimizer = at(t, rule.line, new);
        let scaler = at(t, scaler_line, || GradScaler::recorded(t, SCALER, self.scaler_settings()));
        // Sums over ranks are divided by the count of all, and by nothing else.
        let scaler = scaler.over_ranks(share.ranks.filter(|_| first.summed.is_none()));
        let mut backward = |part: PartLoss<'t>| {
            let scaled = scaler.scale(part.loss);
            match part.summed {
                Some([_, count]) => optimizer.backward_times(scaled, divisor(count)),
                None => optimizer.backward(scaled),
            }
        };
        let mut all = first;
        at(t, self.loss.line, || backward(first));
        for part in 1..self.parts {
            let part = self.loss_of(t, part, share);
            at(t, self.loss.line, || {
                backward(part);
                all = all.and(part);
            });
        }
        if let Some([sum, count]) = all.summed {
            let total = at(t, self.loss.line, || divided(&mut optimizer, sum, count, share.ranks));
            return (total, optimizer, scaler);
        }
        let mut total = all.loss;
        if let Some(ranks) = share.ranks {
            let ranks = ranks as i64;
            let across = |var: Var<'t>, across: Across| var.all_reduce(Some(across.name()), ranks);
            total = at(t, self.loss.line, || {
                let wide = if total.dtype().is_low() { total.cast(DType::F32) } else { total };
                let total = across(wide, Across::Mean);
                // The scaler divides by the number of ranks as it unscales.
                let scaled = scaler.get_scale().is_some();
                // What the program exchanges keeps its order, and the last layers have their
                // gradients first.
                for grad in optimizer.grads_mut().iter_mut().rev() {
                    *grad = across(*grad, if scaled { Across::Sum } else { Across::Mean });
                }
                total
            });
        }
        (total, optimizer, scaler)
    }

    /// The model at a place.
    pub(crate) fn model<'t>(&self, context: Context<'t>) -> Model<'_, 't> {
        Model::of(self.module.as_ref(), context, &self.entries)
    }

    /// The loss of one part: its share in the mean loss, or the mean of its own losses with their
    /// sum and their count.
    fn loss_of<'t>(&self, t: &'t Trace, number: usize, share: &Share) -> PartLoss<'t> {
        let watched: Vec<&str> = self.watched.iter().map(String::as_str).collect();
        let context = Context::training(t);
        let context = if watched.is_empty() { context } else { context.watching(&watched) };
        let model = self.model(context);
        let told = || match &self.loss.what {
            Objective::Mean(loss) => (loss(t, &model), None),
            Objective::Summed(loss) => {
                let (sum, count) = loss(t, &model);
                (sum, Some(count))
            }
        };
        let forward = || match &self.autocast {
            Some((region, line)) => region.run_from(t, line, told),
            None => told(),
        };
        let (loss, count) = if self.parts == 1 {
            forward()
        } else {
            let part = Part { number, of: self.parts, inputs: self.divided.clone() };
            at(t, self.loss.line, || t.must_have_inputs_of(&part));
            t.on_part(part, forward)
        };
        at(t, self.loss.line, || match count {
            Some(count) => {
                let sum = if loss.dtype().is_low() { loss.cast(DType::F32) } else { loss };
                let count = count.to(sum.dtype());
                if self.parts == 1 && share.ranks.is_none() {
                    return PartLoss { loss: sum / count, summed: None };
                }
                PartLoss { loss: sum / divisor(count), summed: Some([sum, count]) }
            }
            None => {
                let loss = if self.parts == 1 { loss } else { loss / self.parts as f64 };
                let weight =
                    share.weight.map(|name| t.input_of(name, TensorType::scalar(DType::F32)));
                PartLoss { loss: weight.map_or(loss, |weight| loss * weight), summed: None }
            }
        })
    }

    /// Warns of patterns of modules that fit none.
    fn warn_of_idle_watches(&self, t: &Trace) {
        let outputs = |graph: &Graph| {
            let names = graph.outputs().iter().map(|(name, _)| name.clone());
            names.collect::<Vec<String>>()
        };
        let outputs = t.tracer().with_graph(outputs);
        // Of parts, the outputs have their numbers behind a dot.
        let name = |output: &String| match self.parts {
            1 => output.clone(),
            _ => output.rsplit_once('.').map_or("", |(name, _)| name).to_owned(),
        };
        let names: Vec<String> = outputs.iter().map(name).collect();
        for pattern in &self.watched {
            if !names.iter().any(|name| matches_name(pattern, name)) {
                t.warn(format!("`watch`: no module fits `{pattern}`"));
            }
        }
    }

    /// Whether the loss is told as a sum and a count.
    pub(crate) fn sums(&self) -> bool {
        matches!(self.loss.what, Objective::Summed(_))
    }

    /// Counts a step that is taken, and moves the averages.
    fn count<'t>(
        &self,
        t: &'t Trace,
        found: Option<Var<'t>>,
        optimizer: &Recorded<'t, '_>,
        steps: Option<Var<'t>>,
    ) {
        let Some(steps) = steps else { return };
        if t.error().is_some() {
            return;
        }
        let skip = found.map(|found| found.ne(0.0));
        if let Some(decay) = &self.ema {
            at(t, decay.line, || {
                average::record(t, optimizer.params(), decay.what, steps, skip);
            });
        }
        let next = steps + 1.0;
        t.update(steps, skip.map_or(next, |skip| skip.choose(steps, next)));
    }

    /// Lets what the model writes keep its value if the flag says that the step is skipped.
    fn hold(&self, t: &Trace, found: Var<'_>) {
        let is_held = |entry: &&Entry| entry.role == Role::State && entry.start != Start::Seed;
        for entry in self.entries.iter().filter(is_held) {
            let state = t.state_of(&entry.name, entry.ty.clone());
            let t = t.tracer();
            if t.last(state).id() != state.id() {
                let skip = found.ne(0.0);
                t.advance(state, |next| skip.choose(state, next));
            }
        }
    }

    fn counts_steps(&self) -> bool {
        self.schedule.is_some() || self.ema.is_some()
    }

    fn scaler_settings(&self) -> ScalerSettings {
        let disabled = || ScalerOptions { enabled: false, ..ScalerOptions::default() }.into();
        self.scaler.as_ref().map_or_else(disabled, |scaler| scaler.what.clone())
    }

    /// What the step keeps in the store besides the model, on a device if that is known.
    pub(crate) fn own_entries(&self, home: Option<&DeviceContext>) -> Vec<Entry> {
        let model = &self.entries;
        let optimizer = self.optimizer.iter().flat_map(|rule| rule.what.entries(OPTIMIZER, model));
        let optimizer = optimizer.collect::<Vec<_>>();
        let steps = self.counts_steps().then(steps_entry).into_iter().collect();
        let averages = if self.ema.is_some() { average::entries(model) } else { Vec::new() };
        let mut scaler = self.scaler_settings().entries(SCALER);
        // Good steps are counted as the device does.
        if let ([_, count, ..], Some(dtype)) =
            (&mut scaler[..], home.and_then(DeviceContext::tracker))
        {
            count.ty = TensorType::scalar(dtype);
        }
        [optimizer, scaler, steps, averages].concat()
    }

    /// What to do about many skipped steps in a row.
    pub(crate) fn warning(&self, backoffs: u32, scale: f32) -> Option<String> {
        let every = self.scaler.as_ref()?.what.report_after?;
        if every == 0 || backoffs == 0 || !backoffs.is_multiple_of(every) {
            return None;
        }
        Some(format!(
            "{backoffs} steps in a row were skipped, the last at a loss scale of {scale}: a gradient is infinite or NaN at any scale; \
             look at StepResult::gradients with report_gradients(true) for the parameters, and at the inputs and the loss"
        ))
    }
}

/// What is known of the loss of a part of the batch.
#[derive(Clone, Copy)]
struct PartLoss<'t> {
    /// What gradients are taken of.
    loss: Var<'t>,
    /// The sum of losses and their count, if gradients are still to be divided.
    summed: Option<[Var<'t>; 2]>,
}

impl<'t> PartLoss<'t> {
    /// This part and another one together.
    fn and(self, other: PartLoss<'t>) -> PartLoss<'t> {
        let both = self.summed.zip(other.summed);
        let summed = both.map(|([sum, count], [s, c])| [sum + s, count + c]);
        PartLoss { loss: self.loss + other.loss, summed }
    }
}

/// Divides gradients, which are sums of those of each loss, by the count of losses, once for all
/// parts and ranks; gives the mean loss.
fn divided<'t>(
    optimizer: &mut Recorded<'t, '_>,
    sum: Var<'t>,
    count: Var<'t>,
    ranks: Option<usize>,
) -> Var<'t> {
    let across = |x: Var<'t>| match ranks {
        Some(ranks) => x.all_reduce(Some(Across::Sum.name()), ranks as i64),
        None => x,
    };
    let (sum, count) = (across(sum), across(count));
    // What the program exchanges keeps its order, and the last layers have their gradients first.
    for grad in optimizer.grads_mut().iter_mut().rev() {
        *grad = across(*grad) / divisor(count).to(grad.dtype());
    }
    sum / count
}

/// The count, and 1 in the place of 0: the gradients of no losses are zeros, whatever their mean
/// is.
fn divisor(count: Var<'_>) -> Var<'_> {
    let one = count.tracer().ones_like(count);
    count.eq(0.0).choose(one, count)
}

/// Records `body` as coming from a line of the user.
fn at<R>(t: &Trace, line: &'static Location<'static>, body: impl FnOnce() -> R) -> R {
    t.tracer().at(Source::Rust(line), body)
}

/// Names the flag and the largest magnitude of each gradient.
fn report<'t>(t: &'t Trace, scaler: &GradScaler<'t>, optimizer: &Recorded<'t, '_>) {
    let name = |param: Var<'t>| t.name_of(param).unwrap_or_default();
    let output = |param: Var<'t>, found: Var<'t>, amax: Var<'t>| {
        t.output(&format!("found_inf.{}", name(param)), found);
        t.output(&format!("amax.{}", name(param)), amax);
    };
    if scaler.get_scale().is_some() {
        for check in scaler.checks() {
            output(check.param, check.found_inf, check.amax());
        }
    } else {
        for (param, grad) in optimizer.params().iter().zip(optimizer.grads()) {
            output(*param, grad.nonfinite(), crate::amp::amax(*grad));
        }
    }
}

/// The number of steps taken.
fn steps_entry() -> Entry {
    Entry::state(STEPS, TensorType::scalar(DType::I64), Start::Constant(0.0))
}
