//! Training the example model on several ranks, each of which has its rows of every batch: threads
//! of this process, or processes of MPI.

use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use tracecast::runtime::Collective;
use tracecast::runtime::collective::{Group, Label, threads};
use tracecast::{DataParallel, StepResult, Store, TrainStep};

use crate::dataset::{Shuffle, Split};
use crate::failure::Failure;
use crate::report::{Exchanged, Outcome, median};
use crate::training::{BATCH, Mode, Settings, accuracy, batch, milliseconds, steps_per_epoch};

/// How long a rank waits for another one.
const DEADLINE: Duration = Duration::from_secs(60);

/// Makes this process a rank among those that `mpirun` has started; exchanges have that deadline.
pub type World = fn(Duration) -> tracecast::runtime::Result<Group>;

/// Who trains together.
pub(crate) enum Team {
    /// Threads of this process; one is alone.
    Threads(usize),
    /// This process and others that `mpirun` has started.
    Processes(Arc<Group>),
}

impl Team {
    /// The processes of `mpirun`, if there are several, or else as many threads as were given.
    pub(crate) fn of(ranks: Option<u32>, world: Option<World>) -> Result<Self, Failure> {
        let asked = ranks.map(|ranks| ranks as usize);
        let Some(size) = processes() else { return Ok(Team::Threads(asked.unwrap_or(1))) };
        let Some(world) = world else {
            // Each would train alone, without a word.
            return Err(Failure::Input(format!(
                "{size} processes of mpirun: this tool has no MPI, and its ranks are threads (--ranks {size}). The tool with MPI is `tracecast-mpi` of the crate in the folder `mpi`: see its README"
            )));
        };
        match asked {
            Some(asked) if asked != size => Err(Failure::Usage(format!(
                "--ranks {asked}: mpirun has started {size} processes, which are the ranks"
            ))),
            _ => Ok(Team::Processes(Arc::new(world(DEADLINE)?))),
        }
    }

    /// True if this process is the one that prints and draws.
    pub(crate) fn speaks(&self) -> bool {
        match self {
            Team::Threads(_) => true,
            Team::Processes(rank) => rank.rank() == 0,
        }
    }

    /// Does something of which other processes are told if it fails, as they would wait.
    pub(crate) fn told_of<R>(
        &self,
        body: impl FnOnce() -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        body().inspect_err(|failure| {
            if let Team::Processes(rank) = self {
                rank.give_up(Label::default(), &failure.to_string());
            }
        })
    }

    /// Trains and evaluates; the outcome of several ranks is that of the first, whose numbers are
    /// those of all.
    pub(crate) fn train(
        &self,
        mode: Mode,
        split: &Split,
        settings: &Settings,
        progress: &ProgressBar,
    ) -> Result<Outcome, Failure> {
        match self {
            Team::Threads(1) => mode.train(split, settings, progress),
            Team::Threads(size) => {
                need_rows(split, *size)?;
                on_threads(*size, mode, split, settings, progress)
            }
            Team::Processes(rank) => {
                need_rows(split, rank.size())?;
                let step = mode.step(settings, &split.train, settings.options.clone())?;
                train_rank(mode, &step, rank.clone(), split, settings, progress)
            }
        }
    }
}

/// How many processes `mpirun` has started together, if several.
fn processes() -> Option<usize> {
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok())
        .filter(|size| *size > 1)
}

/// Fails if a batch has no row for some rank.
fn need_rows(split: &Split, ranks: usize) -> Result<(), Failure> {
    let rest = split.train.len() % BATCH;
    let fewest = if rest == 0 { BATCH } else { rest.min(split.train.len().min(BATCH)) };
    let fewest = fewest.min(split.test.len());
    if ranks > fewest {
        return Err(Failure::Input(format!(
            "--ranks {ranks}: a batch of this data has {fewest} rows, expected a row for each rank at least"
        )));
    }
    Ok(())
}

fn on_threads(
    size: usize,
    mode: Mode,
    split: &Split,
    settings: &Settings,
    progress: &ProgressBar,
) -> Result<Outcome, Failure> {
    let step = mode.step(settings, &split.train, settings.options.clone())?;
    let all = std::thread::scope(|scope| {
        let of_rank = |rank: Group| {
            let step = &step;
            scope.spawn(move || train_rank(mode, step, rank, split, settings, progress))
        };
        let started: Vec<_> = threads(size, DEADLINE).into_iter().map(of_rank).collect();
        let ended = started.into_iter().map(|rank| match rank.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect::<Vec<_>>()
    });
    let mut outcomes = all.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(outcomes.swap_remove(0))
}

fn train_rank(
    mode: Mode,
    step: &TrainStep,
    ranks: impl Collective + 'static,
    split: &Split,
    settings: &Settings,
    progress: &ProgressBar,
) -> Result<Outcome, Failure> {
    let size = ranks.size();
    let mut store = Store::new();
    let mut so_far = mode.start(step, &mut store, settings)?;
    // The last batch of an epoch may not divide.
    let is_uneven =
        !BATCH.is_multiple_of(size) || !(split.train.len() % BATCH).is_multiple_of(size);
    let parallel = step.data_parallel(ranks).uneven(is_uneven);
    let (mut shuffle, mut times, mut waits) = (Shuffle::new(settings.seed), Vec::new(), Vec::new());
    let mut bytes = 0;
    for epoch in 0..settings.epochs {
        let order = shuffle.order(split.train.len());
        if epoch < so_far.epochs {
            continue;
        }
        for rows in order.chunks(BATCH) {
            let (x, y) = batch(&split.train, own(&parallel, rows))?;
            let start = std::time::Instant::now();
            let done = parallel.run(&mut store, &[("x", &x), ("y", &y)])?;
            times.push(milliseconds(start));
            waits.push(waited_ms(&done));
            bytes = done.exchanges.iter().map(|exchange| exchange.bytes).sum();
            so_far.losses.push(f64::from(done.loss));
            so_far.skipped_steps += usize::from(done.skipped);
            if parallel.rank() == 0 {
                progress.inc(1);
            }
        }
        so_far.epochs = epoch + 1;
        if let Some(folder) = &settings.save {
            so_far.put(&mut store, settings.seed)?;
            parallel.save(&store, mode.file(folder))?;
        }
    }
    let (tests, rank, ranks) = (split.test.len(), parallel.rank(), parallel.size());
    let rows = tests * rank / ranks..tests * (rank + 1) / ranks;
    let share = accuracy(step, &mut store, &split.test, rows.clone())?;
    let report = parallel.report().unwrap_or_default();
    Ok(Outcome {
        mode: mode.name(),
        accuracy: parallel.mean(&[share], rows.len())?[0],
        median_step_ms: median(&times),
        compile_ms: report.total().as_secs_f64() * 1e3,
        kernels: report.kernels,
        standalone_casts: report.standalone_casts,
        saved_bytes: report.saved_bytes,
        skipped_steps: so_far.skipped_steps,
        final_scale: mode.scale(&store)?,
        losses: so_far.losses,
        steps_per_epoch: steps_per_epoch(&split.train),
        exchanged: Some(Exchanged { ranks, bytes, waited_ms: median(&waits) }),
    })
}

/// The rows of a rank among those of a batch.
fn own<'r>(parallel: &DataParallel, rows: &'r [usize]) -> &'r [usize] {
    let cut = |rank: usize| rows.len() * rank / parallel.size();
    &rows[cut(parallel.rank())..cut(parallel.rank() + 1)]
}

/// How long a step has waited for other ranks.
fn waited_ms(done: &StepResult) -> f64 {
    done.exchanges.iter().map(|exchange| exchange.wait.time.as_secs_f64() * 1e3).sum()
}
