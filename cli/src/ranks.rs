//! Training the example model on several ranks: threads, each of which has its rows of every batch.

use std::time::Duration;

use indicatif::ProgressBar;
use tracecast::runtime::collective::{Group, threads};
use tracecast::{DataParallel, StepResult, Store, TrainStep};

use crate::dataset::{Shuffle, Split};
use crate::failure::Failure;
use crate::report::{Exchanged, Outcome, median};
use crate::training::{BATCH, Mode, Settings, accuracy, batch, milliseconds, steps_per_epoch};

/// How long a rank waits for another one.
const DEADLINE: Duration = Duration::from_secs(60);

/// Trains on threads and evaluates on them; the outcome is that of rank 0, whose numbers are those of all.
pub(crate) fn train(
    mode: Mode,
    split: &Split,
    settings: &Settings,
    progress: &ProgressBar,
) -> Result<Outcome, Failure> {
    let rest = split.train.len() % BATCH;
    let fewest = if rest == 0 { BATCH } else { rest.min(split.train.len().min(BATCH)) };
    let fewest = fewest.min(split.test.len());
    if settings.ranks > fewest {
        return Err(Failure::Input(format!(
            "--ranks {}: a batch of this data has {fewest} rows, expected a row for each rank at least",
            settings.ranks
        )));
    }
    let step = mode.step(&split.train, settings.options.clone())?;
    let all = std::thread::scope(|scope| {
        let of_rank = |rank: Group| {
            let step = &step;
            scope.spawn(move || train_rank(mode, step, rank, split, settings, progress))
        };
        let started: Vec<_> = threads(settings.ranks, DEADLINE).into_iter().map(of_rank).collect();
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
    rank: Group,
    split: &Split,
    settings: &Settings,
    progress: &ProgressBar,
) -> Result<Outcome, Failure> {
    let mut store = Store::new();
    let mut so_far = mode.start(step, &mut store, settings)?;
    // The last batch of an epoch may not divide.
    let is_uneven = !BATCH.is_multiple_of(settings.ranks)
        || !(split.train.len() % BATCH).is_multiple_of(settings.ranks);
    let parallel = step.data_parallel(rank).uneven(is_uneven);
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

/// Several of this tool under `mpirun` would each train alone, without a word.
pub(crate) fn refuse_mpirun() -> Result<(), Failure> {
    let size = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok());
    match size {
        Some(size) if size > 1 => Err(Failure::Input(format!(
            "{size} processes of mpirun: this tool has no MPI, and its ranks are threads (--ranks {size}). A program with the crate in the folder `mpi` trains on processes: see its README"
        ))),
        _ => Ok(()),
    }
}
