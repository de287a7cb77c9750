//! Training the example model in one precision: the step, the loop around it, and what is measured.

use std::time::Instant;

use clap::ValueEnum;
use indicatif::ProgressBar;
use tracecast::nn::{Linear, Relu, Sequential};
use tracecast::prelude::{AdamW, Reductions, ScalerOptions, Shorthand};
use tracecast::{DType, Graph, Options, Store, Tensor, TrainStep};

use crate::dataset::{Dataset, Shuffle, Split};
use crate::failure::Failure;
use crate::report::{Outcome, median};

/// Rows of a batch; the last batch of an epoch has what is left.
const BATCH: usize = 32;

/// Width of the hidden layer.
const HIDDEN: usize = 128;

/// Learning rate; betas, eps and weight decay are the defaults of AdamW.
const RATE: f64 = 1e-3;

/// The precision of a training run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Everything in f32
    F32,
    /// Autocast to bf16
    Bf16,
    /// Autocast to f16 with a scaled loss
    F16,
}

/// What the user chose about a training run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Decides about the first parameters and the order of the rows.
    pub(crate) seed: u64,
    /// How often each row is seen.
    pub(crate) epochs: usize,
    /// Where the step runs.
    pub(crate) options: Options,
}

impl Mode {
    /// In the order of the table.
    pub(crate) const ALL: [Mode; 3] = [Mode::F32, Mode::Bf16, Mode::F16];

    /// The name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::F32 => "f32",
            Mode::Bf16 => "bf16",
            Mode::F16 => "f16",
        }
    }

    /// A multilayer perceptron with one hidden layer, cross entropy, AdamW, in this precision.
    fn step(self, data: &Dataset, options: Options) -> Result<TrainStep, Failure> {
        let model = Sequential::new()
            .named("hidden", Linear::new(data.width, HIDDEN))
            .named("relu", Relu)
            .named("out", Linear::new(HIDDEN, data.classes));
        let step = TrainStep::new(model, |t, model| {
            model.forward(t.input("x")).cross_entropy(t.input("y"))
        })
        .optimizer(AdamW::new(RATE))
        .options(options);
        let step = match self {
            Mode::F32 => step,
            Mode::Bf16 => step.autocast("cpu", DType::BF16),
            Mode::F16 => step.autocast("cpu", DType::F16).scaler(ScalerOptions::default()),
        };
        Ok(step.build()?)
    }

    /// The step as it is traced for a whole batch.
    pub(crate) fn graph(self, split: &Split, settings: &Settings) -> Result<Graph, Failure> {
        let step = self.step(&split.train, settings.options.clone())?;
        let mut store = Store::new();
        step.init(&mut store, settings.seed)?;
        let rows: Vec<usize> = (0..split.train.len().min(BATCH)).collect();
        let (x, y) = batch(&split.train, &rows)?;
        Ok(step.jit().graph(&store, &[("x", &x), ("y", &y)])?)
    }

    /// Trains and evaluates.
    pub(crate) fn train(
        self,
        split: &Split,
        settings: &Settings,
        progress: &ProgressBar,
    ) -> Result<Outcome, Failure> {
        let step = self.step(&split.train, settings.options.clone())?;
        let mut store = Store::new();
        step.init(&mut store, settings.seed)?;
        let compile_ms = prepare(&step, &store, &split.train)?;
        let report = step.jit().recompilations().swap_remove(0).report;
        report.warnings.iter().for_each(|warning| crate::failure::note("warning", warning));
        report.warnings_of_cache().for_each(|warning| crate::failure::note("warning", warning));

        let mut shuffle = Shuffle::new(settings.seed);
        let (mut losses, mut times, mut skipped_steps) = (Vec::new(), Vec::new(), 0);
        for _ in 0..settings.epochs {
            for rows in shuffle.order(split.train.len()).chunks(BATCH) {
                let (x, y) = batch(&split.train, rows)?;
                let start = Instant::now();
                let done = step.run(&mut store, &[("x", &x), ("y", &y)])?;
                times.push(milliseconds(start));
                losses.push(f64::from(done.loss));
                skipped_steps += usize::from(done.skipped);
                progress.inc(1);
            }
        }
        let scale = match self {
            Mode::F32 | Mode::Bf16 => None,
            Mode::F16 => Some(f64::from(store.get("amp.scale")?.item::<f32>()?)),
        };
        Ok(Outcome {
            mode: self.name(),
            accuracy: accuracy(&step, &mut store, &split.test)?,
            median_step_ms: median(&times),
            compile_ms,
            kernels: report.kernels,
            standalone_casts: report.standalone_casts,
            saved_bytes: report.saved_bytes,
            skipped_steps,
            final_scale: scale,
            losses,
            steps_per_epoch: steps_per_epoch(&split.train),
        })
    }
}

/// Steps in which every row is seen once.
pub(crate) fn steps_per_epoch(data: &Dataset) -> usize {
    data.len().div_ceil(BATCH)
}

/// Compiles the step for a whole batch and for the last one of an epoch; returns the time that the first took.
fn prepare(step: &TrainStep, store: &Store, data: &Dataset) -> Result<f64, Failure> {
    let prepare = |rows: usize| {
        let (x, y) = batch(data, &(0..rows).collect::<Vec<_>>())?;
        let start = Instant::now();
        step.jit().prepare(store, &[("x", &x), ("y", &y)])?;
        Ok::<_, Failure>(milliseconds(start))
    };
    let time = prepare(data.len().min(BATCH))?;
    let rest = data.len() % BATCH;
    if rest > 0 && data.len() > BATCH {
        prepare(rest)?;
    }
    Ok(time)
}

/// The share of rows whose class the model finds, in percent; the model answers in f32 in every mode.
fn accuracy(step: &TrainStep, store: &mut Store, data: &Dataset) -> Result<f64, Failure> {
    let evaluation = step.evaluation(|t, model| {
        t.output("class", model.forward(t.input("x")).argmax(Some(1), false))
    });
    let mut right = 0;
    let rows: Vec<usize> = (0..data.len()).collect();
    for rows in rows.chunks(BATCH) {
        let (x, y) = batch(data, rows)?;
        let found = evaluation.run(store, &[("x", &x)])?["class"].to_vec::<i64>()?;
        right +=
            found.iter().zip(y.to_vec::<i64>()?).filter(|(found, label)| **found == *label).count();
    }
    Ok(100.0 * right as f64 / data.len() as f64)
}

fn batch(data: &Dataset, rows: &[usize]) -> Result<(Tensor, Tensor), Failure> {
    let (features, labels) = data.batch(rows);
    Ok((Tensor::new([rows.len(), data.width], &features)?, Tensor::new([rows.len()], &labels)?))
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
