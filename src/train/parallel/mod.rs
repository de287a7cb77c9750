//! [`DataParallel`]: a training step on many ranks, each with a part of the batch.

mod agreed;
mod batch;
mod own;
mod program;
mod save;

use crate::error::Result;
use crate::jit::Jit;
use crate::nn::Model;
use crate::options::Options;
use crate::report::CompileReport;
use crate::trace::Trace;
use crate::train::recipe::Recipe;
use crate::train::{StepResult, TrainStep, need_elements};
use program::{Compiled, Rows};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracecast_ir::DType;
use tracecast_ir::op::Across;
use tracecast_runtime::collective::{Label, Transfer};
use tracecast_runtime::{Collective, Error, Store, Tensor};

/// A training step on many ranks: each has all parameters and a part of the batch, and takes the
/// step that one rank would take with the whole batch.
///
/// * The loss and the gradients are means over all ranks. Gradients are added up **before** they
///   are checked, so that all ranks skip a step or none does, and have the same loss scale and the
///   same parameters, bit for bit.
/// * A rank has the rows of the batch that follow those of the rank before it. What is drawn at
///   random, as by a [`Dropout`](crate::nn::Dropout), is what a run with all rows draws for them.
///   Of [micro-batches](crate::TrainStepBuilder::micro_batches), the first of all ranks are one
///   micro-batch of the whole; only the sum of their gradients is exchanged.
/// * Before the first step of a program, ranks compare what it is, the types of its inputs and
///   every entry of their stores that it uses, the seed among them. State that a step writes from
///   the rows of each rank, as the running means of a norm over the batch are, differs from rank to
///   rank: of that only the types are compared, a [warning](CompileReport::warnings) tells of it,
///   and a checkpoint has that of rank 0.
/// * If a rank is late or leaves, the others end with [`Error::Rank`],
///   and every store holds the last step that this rank has completed.
///
/// ```
/// use std::time::Duration;
/// use tracecast::nn::{Linear, Module};
/// use tracecast::prelude::*;
/// use tracecast::runtime::collective::threads;
///
/// let step = TrainStep::new(Linear::new(4, 1), |t, model| model.forward(t.input("x")).mean_squared_error(t.input("y")))
///     .optimizer(Sgd::new(0.1))
///     .options(Options::new().threads(1))
///     .build()?;
/// let (x, y) = (Tensor::rand([8, 4], 1)?, Tensor::rand([8, 1], 2)?);
///
/// let mut alone = Store::new();
/// step.init(&mut alone, 0)?;
/// let wanted = step.run(&mut alone, &[("x", &x), ("y", &y)])?;
///
/// std::thread::scope(|scope| {
///     for rank in threads(2, Duration::from_secs(30)) {
///         let (step, x, y, wanted) = (&step, &x, &y, &wanted);
///         scope.spawn(move || {
///             let step = step.data_parallel(rank);
///             let mut store = Store::new();
///             step.init(&mut store, 0)?;
///             let rows = 4 * step.rank()..4 * step.rank() + 4;
///             let done = step.run(&mut store, &[("x", &x.slice(0, rows.clone())?), ("y", &y.slice(0, rows)?)])?;
///             assert!((done.loss - wanted.loss).abs() < 1e-6);
///             Ok::<(), tracecast::Error>(())
///         });
///     }
/// });
/// # Ok::<(), tracecast::Error>(())
/// ```
pub struct DataParallel {
    recipe: Arc<Recipe>,
    options: Options,
    evaluation: TrainStep,
    ranks: Arc<dyn Collective>,
    /// The inputs that are the same on all ranks.
    same: BTreeSet<String>,
    uneven: bool,
    programs: Mutex<Vec<Arc<Compiled>>>,
    /// The number of the next step.
    step: AtomicU64,
    /// False if a store may have other values than those that were compared.
    is_compared: AtomicBool,
}

/// Numbers that stand for what is exchanged outside of programs.
const ROWS: u64 = 1;
const MEAN: u64 = 2;
const SAVE: u64 = 3;
const AGREE: u64 = 4;

impl TrainStep {
    /// The same step on many ranks, of which `ranks` is this one. Each rank makes one, with the
    /// same settings.
    ///
    /// [`collective::threads`](crate::runtime::collective::threads) gives ranks within a process.
    pub fn data_parallel(&self, ranks: impl Collective + 'static) -> DataParallel {
        DataParallel {
            recipe: self.recipe.clone(),
            options: self.jit.options().clone(),
            evaluation: TrainStep {
                jit: self.recipe.jit(self.jit.options()),
                recipe: self.recipe.clone(),
            },
            ranks: Arc::new(ranks),
            same: BTreeSet::new(),
            uneven: false,
            programs: Mutex::default(),
            step: AtomicU64::new(0),
            is_compared: AtomicBool::new(false),
        }
    }
}

impl DataParallel {
    /// With inputs that are the same on all ranks; all others have a row of the batch at each
    /// position of their first axis. Inputs without axes are the same anyway.
    #[must_use]
    pub fn same_inputs(mut self, names: &[&str]) -> Self {
        self.same.extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    /// With batches of which ranks may have different numbers of rows, as the last one of an epoch:
    /// every row counts as much as any other. Otherwise that is an error. The ranks tell each other
    /// their rows before each step.
    #[must_use]
    pub fn uneven(mut self, uneven: bool) -> Self {
        self.uneven = uneven;
        self
    }

    /// With this number for the next step, for errors; otherwise it is 0.
    #[must_use]
    pub fn from_step(self, step: u64) -> Self {
        self.step.store(step, Ordering::Relaxed);
        self
    }

    /// Which rank this is.
    pub fn rank(&self) -> usize {
        self.ranks.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.ranks.size()
    }

    /// As [`TrainStep::init`]; with the same seed, every rank starts with the same values.
    ///
    /// # Errors
    /// As there.
    pub fn init(&self, store: &mut Store, seed: u64) -> Result<()> {
        self.is_compared.store(false, Ordering::Relaxed);
        self.evaluation.init(store, seed)
    }

    /// Takes one step, together with all other ranks; `inputs` have this rank's rows of the batch.
    ///
    /// # Errors
    /// As [`TrainStep::run`]; if the ranks disagree on the program, the types of its inputs or the
    /// entries of their stores; if a rank has another number of rows, unless that was
    /// [asked for](DataParallel::uneven); if a rank is late, or has left. The store is as it was
    /// before. A rank that fails by itself ends the others, which are told why.
    pub fn run(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<StepResult> {
        let step = self.next_step();
        self.take(store, inputs, step).inspect_err(|error| {
            // What all ranks are told, they know.
            if !matches!(error, Error::Rank { .. } | Error::Parallel(_)) {
                self.ranks.give_up(self.label(0, step), &error.to_string());
            }
        })
    }

    fn take(&self, store: &mut Store, inputs: &[(&str, &Tensor)], step: u64) -> Result<StepResult> {
        let rows = self.rows(inputs, step)?;
        need_elements(inputs)?;
        let (program, is_new) = self.program(store, inputs, &rows)?;
        let missing = program.put_missing(store, self.options.start_seed())?;
        let ran = self
            .compare(&program, is_new, store, inputs, step)
            .and_then(|()| program.run(store, inputs, &rows, step));
        match ran {
            Ok(outputs) => {
                self.step.store(step + 1, Ordering::Relaxed);
                let mut result = StepResult::of(&self.recipe, outputs)?;
                result.exchanges = program.exchanges();
                Ok(result)
            }
            Err(error) => {
                for name in missing {
                    // An entry that cannot be read back has never been used, so nothing is lost if
                    // it stays.
                    let _ = store.remove(&name);
                }
                Err(error)
            }
        }
    }

    /// The program for these inputs, compiled if it is not there; and whether it is new.
    fn program(
        &self,
        store: &Store,
        inputs: &[(&str, &Tensor)],
        rows: &Rows,
    ) -> Result<(Arc<Compiled>, bool)> {
        let mut programs = self.lock();
        if let Some(at) = programs.iter().rposition(|p| p.fits(store, inputs, rows)) {
            let program = programs.remove(at);
            programs.push(program.clone());
            return Ok((program, false));
        }
        let (recipe, ranks) = (&self.recipe, self.ranks.clone());
        let made = Compiled::of(recipe, &self.options, ranks, store, inputs, rows, self.uneven)?;
        let made = Arc::new(made);
        programs.push(made.clone());
        let surplus = programs.len().saturating_sub(self.options.most_programs());
        programs.drain(..surplus);
        Ok((made, true))
    }

    /// Compares with the other ranks what the step starts from, where that is new.
    fn compare(
        &self,
        program: &Compiled,
        is_new: bool,
        store: &Store,
        inputs: &[(&str, &Tensor)],
        step: u64,
    ) -> Result<()> {
        // Where batches differ, a program is not new on all ranks at once.
        let is_due = is_new && !self.uneven;
        if !is_due && self.is_compared.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Until all agree: who tries again after an error is compared again.
        self.is_compared.store(false, Ordering::Relaxed);
        agreed::compare(&*self.ranks, program, store, inputs, self.label(AGREE, step))?;
        self.is_compared.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn label(&self, program: u64, step: u64) -> Label {
        Label { program, step, bucket: 0 }
    }

    fn next_step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    /// Another program over the same model and the same store, which evaluates this rank's rows: as
    /// [`TrainStep::evaluation`]. For numbers over all ranks, see [`mean`](DataParallel::mean).
    pub fn evaluation(
        &self,
        body: impl for<'t> Fn(&'t Trace, &Model<'_, 't>) + Send + Sync + 'static,
    ) -> Jit {
        self.evaluation.evaluation(body)
    }

    /// The mean of numbers over all ranks, each rank counting by its rows: the share of right
    /// answers, say. All ranks call it together.
    ///
    /// # Errors
    /// If a rank is late, has left, or does something else; if no rank has rows.
    pub fn mean(&self, numbers: &[f64], rows: usize) -> Result<Vec<f64>> {
        let weight = rows as f64;
        // A mean over no rows is no number.
        let weighted = |x: &f64| if rows == 0 { 0.0 } else { x * weight };
        let own = numbers.iter().map(weighted).chain([weight]);
        let data: Vec<u8> = own.flat_map(f64::to_le_bytes).collect();
        let sum = Transfer::Reduce { across: Across::Sum, dtype: DType::F64 };
        let label = self.label(MEAN, self.next_step());
        let done = self.ranks.wait(self.ranks.start(sum, label, data)?)?;
        let mut sums: Vec<f64> =
            done.data.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x)).collect();
        let rows = sums.pop().unwrap_or(0.0);
        if rows == 0.0 {
            return Err(Error::Parallel("a mean over no rows of any rank".to_owned()));
        }
        Ok(sums.into_iter().map(|sum| sum / rows).collect())
    }

    /// As [`TrainStep::load`], on every rank.
    ///
    /// # Errors
    /// As there. What ranks have read is compared before the next step.
    pub fn load(
        &self,
        store: &mut Store,
        path: impl AsRef<Path>,
        load: &crate::checkpoint::Load,
    ) -> Result<crate::checkpoint::Loaded> {
        self.is_compared.store(false, Ordering::Relaxed);
        self.evaluation.load(store, path, load)
    }

    /// What became of the program that ran last.
    pub fn report(&self) -> Option<CompileReport> {
        self.lock().last().map(|program| program.report().clone())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Compiled>>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for DataParallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataParallel").field("ranks", &self.ranks).finish_non_exhaustive()
    }
}
