//! Training the example model in one precision: the step, the loop around it, and what is measured.

pub(crate) mod exported;
pub(crate) mod network;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use indicatif::ProgressBar;
use tracecast::checkpoint::Load;
use tracecast::prelude::{AdamW, Reductions, ScalerOptions, Shorthand};
use tracecast::{DType, Graph, Options, Store, Tensor, TrainStep};
use tracecast_ir::policy::DeviceType;

use self::network::Network;
use crate::dataset::{Dataset, Shuffle, Split};
use crate::failure::{Failure, note};
use crate::report::{Outcome, median};
use crate::target::shown;

/// Rows of a batch; the last batch of an epoch has what is left.
pub(crate) const BATCH: usize = 32;

/// Learning rate; betas, eps and weight decay are the defaults of AdamW.
pub(crate) const RATE: f64 = 1e-3;

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
    /// What is trained.
    pub(crate) network: Network,
    /// Decides about the first parameters and the order of the rows.
    pub(crate) seed: u64,
    /// How often each row is seen.
    pub(crate) epochs: usize,
    /// Where the step runs.
    pub(crate) options: Options,
    /// The device type of autocast regions there.
    pub(crate) device_type: DeviceType,
    /// The folder in which the state is kept after every epoch.
    pub(crate) save: Option<PathBuf>,
    /// The folder with states to go on from.
    pub(crate) load: Option<PathBuf>,
}

/// What is kept of a training besides the state of its step: a checkpoint holds it as entries of
/// the store.
#[derive(Clone)]
pub(crate) struct Progress {
    pub(crate) epochs: usize,
    pub(crate) losses: Vec<f64>,
    pub(crate) skipped_steps: usize,
}

impl Progress {
    /// The names of its entries.
    const ENTRIES: [&str; 4] = ["epochs", "losses", "skipped_steps", "seed"];

    pub(crate) fn put(&self, store: &mut Store, seed: u64) -> Result<(), Failure> {
        let values = [
            Tensor::scalar(self.epochs as i64),
            Tensor::new([self.losses.len()], &self.losses)?,
            Tensor::scalar(self.skipped_steps as i64),
            Tensor::scalar(seed as i64),
        ];
        Self::ENTRIES.into_iter().zip(values).for_each(|(name, value)| store.insert(name, value));
        Ok(())
    }

    /// Reads what a checkpoint has brought.
    fn of(store: &Store, seed: u64) -> Result<Self, Failure> {
        let [epochs, losses, skipped, of_seed] = Self::ENTRIES.map(|name| store.get(name));
        let of_seed = of_seed?.item::<i64>()? as u64;
        if of_seed != seed {
            return Err(Failure::Input(format!(
                "the state is that of a training with --seed {of_seed}, found {seed}"
            )));
        }
        Ok(Progress {
            epochs: epochs?.item::<i64>()? as usize,
            losses: losses?.to_vec()?,
            skipped_steps: skipped?.item::<i64>()? as usize,
        })
    }
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

    /// The network with cross entropy and AdamW, in this precision.
    pub(crate) fn step(
        self,
        settings: &Settings,
        data: &Dataset,
        options: Options,
    ) -> Result<TrainStep, Failure> {
        let model = settings.network.model(data)?;
        let device = settings.device_type.name();
        let step = TrainStep::new(model, |t, model| {
            model.forward(t.input("x")).cross_entropy(t.input("y"))
        })
        .optimizer(AdamW::new(RATE))
        .options(options);
        let step = match self {
            Mode::F32 => step,
            Mode::Bf16 => step.autocast(device, DType::BF16),
            Mode::F16 => step.autocast(device, DType::F16).scaler(ScalerOptions::default()),
        };
        Ok(step.build()?)
    }

    /// The step as it is traced for a whole batch.
    pub(crate) fn graph(self, split: &Split, settings: &Settings) -> Result<Graph, Failure> {
        let step = self.step(settings, &split.train, settings.options.clone())?;
        let mut store = Store::new();
        step.init(&mut store, settings.seed)?;
        let rows: Vec<usize> = (0..split.train.len().min(BATCH)).collect();
        let (x, y) = batch(&split.train, &rows)?;
        Ok(step.jit().graph(&store, &[("x", &x), ("y", &y)])?)
    }

    /// The scale of the loss, if it is scaled.
    pub(crate) fn scale(self, store: &Store) -> Result<Option<f64>, Failure> {
        match self {
            Mode::F32 | Mode::Bf16 => Ok(None),
            Mode::F16 => Ok(Some(f64::from(store.get("amp.scale")?.item::<f32>()?))),
        }
    }

    /// The file of its state in a folder.
    pub(crate) fn file(self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.safetensors", self.name()))
    }

    /// Puts the state to begin with into the store: one that was saved, if there is one to go on
    /// from.
    pub(crate) fn start(
        self,
        step: &TrainStep,
        store: &mut Store,
        settings: &Settings,
    ) -> Result<Progress, Failure> {
        match settings.load.as_ref().map(|folder| self.file(folder)) {
            Some(file) if file.exists() => {
                step.load(store, &file, &Load::strict())?;
                let so_far = Progress::of(store, settings.seed);
                let so_far = so_far.map_err(|error| Failure::in_file(&file, error))?;
                if so_far.epochs >= settings.epochs {
                    let (file, done) = (file.display(), so_far.epochs);
                    let asked = settings.epochs;
                    let message = format!(
                        "{file}: has {done} epochs already, and --epochs is {asked}: nothing is trained"
                    );
                    note("note", message);
                }
                return Ok(so_far);
            }
            Some(file) => note("note", format!("{}: {} begins anew", file.display(), self.name())),
            None => {}
        }
        step.init(store, settings.seed)?;
        Ok(Progress { epochs: 0, losses: Vec::new(), skipped_steps: 0 })
    }

    /// Trains and evaluates.
    pub(crate) fn train(
        self,
        split: &Split,
        settings: &Settings,
        progress: &ProgressBar,
    ) -> Result<Outcome, Failure> {
        let options = shown(settings.options.clone(), Some(progress.clone()));
        let step = self.step(settings, &split.train, options)?;
        let mut store = Store::new();
        let mut so_far = self.start(&step, &mut store, settings)?;
        let compile_ms = prepare(&step, &store, &split.train)?;
        let report = step.jit().recompilations().swap_remove(0).report;

        let (mut shuffle, mut times) = (Shuffle::new(settings.seed), Vec::new());
        for epoch in 0..settings.epochs {
            let order = shuffle.order(split.train.len());
            if epoch < so_far.epochs {
                progress.inc(steps_per_epoch(&split.train) as u64);
                continue;
            }
            for rows in order.chunks(BATCH) {
                let (x, y) = batch(&split.train, rows)?;
                let start = Instant::now();
                let done = step.run(&mut store, &[("x", &x), ("y", &y)])?;
                times.push(milliseconds(start));
                so_far.losses.push(f64::from(done.loss));
                so_far.skipped_steps += usize::from(done.skipped);
                progress.inc(1);
            }
            so_far.epochs = epoch + 1;
            if let Some(folder) = &settings.save {
                so_far.put(&mut store, settings.seed)?;
                step.save(&store, self.file(folder))?;
            }
        }
        Ok(Outcome {
            mode: self.name(),
            accuracy: accuracy(&step, &mut store, &split.test, 0..split.test.len())?,
            median_step_ms: median(&times),
            compile_ms,
            kernels: report.kernels,
            standalone_casts: report.standalone_casts,
            saved_bytes: report.saved_bytes,
            skipped_steps: so_far.skipped_steps,
            final_scale: self.scale(&store)?,
            exchanged: None,
            losses: so_far.losses,
            steps_per_epoch: steps_per_epoch(&split.train),
        })
    }
}

/// Steps in which every row is seen once.
pub(crate) fn steps_per_epoch(data: &Dataset) -> usize {
    data.len().div_ceil(BATCH)
}

/// Compiles the step for a whole batch and for the last one of an epoch; returns the time that the
/// first took.
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

/// The share of these rows whose class the model finds, in percent; the model answers in f32 in
/// every mode.
pub(crate) fn accuracy(
    step: &TrainStep,
    store: &mut Store,
    data: &Dataset,
    rows: Range<usize>,
) -> Result<f64, Failure> {
    let evaluation =
        step.evaluation(|t, model| t.output("class", model.forward(t.input("x")).argmax(1)));
    let mut right = 0;
    let count = rows.len();
    for rows in rows.collect::<Vec<usize>>().chunks(BATCH) {
        let (x, y) = batch(data, rows)?;
        let found = evaluation.run(store, &[("x", &x)])?["class"].to_vec::<i64>()?;
        right +=
            found.iter().zip(y.to_vec::<i64>()?).filter(|(found, label)| **found == *label).count();
    }
    Ok(100.0 * right as f64 / count as f64)
}

pub(crate) fn batch(data: &Dataset, rows: &[usize]) -> Result<(Tensor, Tensor), Failure> {
    let (features, labels) = data.batch(rows);
    Ok((Tensor::new([rows.len(), data.width], &features)?, Tensor::new([rows.len()], &labels)?))
}

pub(crate) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
