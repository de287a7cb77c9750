//! [`SizedProgram`]: a program whose sizes are names, planned once for each set of sizes that it
//! meets.

use crate::error::{Error, Result};
use crate::options::Options;
use crate::report::CompileReport;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tracecast_ir::{Graph, SizeError, TensorType, Values, Verified};
use tracecast_passes::explain::warnings;
use tracecast_passes::{Autocast, standard};
use tracecast_runtime::{
    Executable, Family, Outputs, Program, Session, Started, Store, Tensor, Weights,
};

/// A program whose sizes are names. It is traced once and goes through the passes once; kernels
/// that the device takes with names are compiled once. For each set of sizes that a run brings,
/// places in memory are found, and kernels that the device cannot compile for all sizes are
/// compiled; both are kept.
///
/// Everything it computes is what the program traced with those numbers computes, bit for bit. It
/// can be run by several threads at once.
///
/// ```
/// use tracecast::prelude::*;
///
/// let graph = trace("means", |t| {
///     let batch = t.size_in("batch", 1..=64);
///     let x = t.input_of("x", TensorType::new(DType::F32, sizes![batch, 2]));
///     t.output("mean", x.mean(1));
/// })?;
/// let program = compile_sized(graph, &Options::new().device("reference"))?;
/// for rows in [1, 3] {
///     let x = Tensor::rand([rows, 2], 7)?;
///     assert_eq!(program.run(&mut Store::new(), &[("x", &x)])?["mean"].shape()[..], [rows]);
/// }
/// let wrong = program.run(&mut Store::new(), &[("x", &Tensor::rand([65, 2], 7)?)]).unwrap_err();
/// assert!(wrong.to_string().starts_with("input `x`: `batch` is 65, expected 1..=64, set at "));
/// # Ok::<(), tracecast::Error>(())
/// ```
pub struct SizedProgram {
    kernels: Verified,
    family: Family,
    options: Options,
    /// The sizes used last come last.
    kept: Mutex<Vec<(Values, Arc<Executable>)>>,
}

/// Compiles a traced program whose sizes may be names.
///
/// # Errors
/// A program that is wrong, or a pass that could not finish.
pub fn compile_sized(graph: Graph, options: &Options) -> Result<SizedProgram> {
    compile_sized_reported(graph, options).map(|(program, _)| program)
}

/// Compiles a traced program whose sizes may be names, and tells what became of it so far: nothing
/// of plans and of code, which are made for sizes.
///
/// # Errors
/// As [`compile_sized`].
pub fn compile_sized_reported(
    graph: Graph,
    options: &Options,
) -> Result<(SizedProgram, CompileReport)> {
    let mut report = CompileReport::default();
    let traced = graph.clone();
    let kernels = standard(&options.passes()).run(graph, |pass, graph, time| {
        report.passed(pass, graph, time, options.keeps_history());
        if pass == Autocast::NAME {
            report.warnings = warnings(&traced, graph, &options.policies());
        }
        options.observe(pass, graph);
    })?;
    let start = Instant::now();
    let program = Program::plan_in_buckets(&kernels, options.bucket())?;
    report.planned(&kernels, &program, start.elapsed());
    let family = program
        .load_sized_with(options.target()?, options.fallback_target()?)?
        .strict(options.is_strict());
    let family = family.reuse_outputs(options.does_reuse_outputs());
    let (options, kept) = (options.clone(), Mutex::default());
    Ok((SizedProgram { kernels, family, options, kept }, report))
}

impl SizedProgram {
    /// Runs one step with the sizes that the inputs have, which are planned for first if they have
    /// not been met.
    ///
    /// # Errors
    /// Sizes that do not fit together, a bound or a size guard that they do not keep; else as
    /// [`Executable::run`]. State is then as it was.
    pub fn run(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        self.run_at(store, inputs, &[])
    }

    /// As [`run`](SizedProgram::run), with values for names that stand alone on no axis of an
    /// input.
    ///
    /// # Errors
    /// As [`run`](SizedProgram::run).
    pub fn run_at(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        sizes: &[(&str, i64)],
    ) -> Result<Outputs> {
        self.for_inputs(inputs, sizes)?.run(store, inputs)
    }

    /// As [`run`](SizedProgram::run), without waiting for the end; see [`Executable::start`].
    ///
    /// # Errors
    /// As [`run`](SizedProgram::run), as far as that is known now.
    pub fn start(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<Started> {
        self.for_inputs(inputs, &[])?.start(store, inputs)
    }

    /// As [`run`](SizedProgram::run), on weights that many threads read at once, each with a
    /// session of its own.
    ///
    /// # Errors
    /// If the program replaces state; otherwise as [`run`](SizedProgram::run).
    pub fn run_on(
        &self,
        weights: &Weights,
        session: &mut Session,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Outputs> {
        self.for_inputs(inputs, &[])?.run_on(weights, session, inputs)
    }

    /// The program with the sizes of these inputs, and with values for other names.
    fn for_inputs(
        &self,
        inputs: &[(&str, &Tensor)],
        sizes: &[(&str, i64)],
    ) -> Result<Arc<Executable>> {
        let ty_of = |name: &str| {
            inputs.iter().find(|(known, _)| *known == name).map(|(_, tensor)| tensor.ty())
        };
        self.at(&self.kernels.values(&ty_of, sizes).map_err(refused)?)
    }

    /// The program with these values for its names, planned if it is not kept.
    ///
    /// # Errors
    /// A bound or a guard that the values do not keep, a pass or a device that failed.
    pub fn at(&self, values: &Values) -> Result<Arc<Executable>> {
        if let Some(found) = self.found(values) {
            return Ok(found);
        }
        self.kernels.sizes().check(values).map_err(SizeError::Size)?;
        let made = Arc::new(self.family.at(values)?);
        self.options.check_run(&made)?;
        let mut kept = self.lock();
        // Another thread may have met the same sizes meanwhile.
        if let Some((_, program)) = kept.iter().find(|(known, _)| known == values) {
            return Ok(program.clone());
        }
        kept.push((values.clone(), made.clone()));
        let surplus = kept.len().saturating_sub(self.options.most_sizes());
        let dropped: Vec<_> = kept.drain(..surplus).collect();
        drop(kept);
        // Which takes a while; runs that find their sizes do not wait for it.
        drop(dropped);
        Ok(made)
    }

    fn found(&self, values: &Values) -> Option<Arc<Executable>> {
        let mut kept = self.lock();
        let at = kept.iter().rposition(|(known, _)| known == values)?;
        let found = kept.remove(at);
        let program = found.1.clone();
        kept.push(found);
        Some(program)
    }

    /// What the names are worth for inputs of these types.
    pub(crate) fn values<'a>(
        &self,
        ty_of: &dyn Fn(&str) -> Option<&'a TensorType>,
    ) -> std::result::Result<Values, SizeError> {
        self.kernels.values(ty_of, &[])
    }

    /// How many kernels have code that serves all sizes, and how many kernels there are. Code of
    /// the others is made for each set of sizes.
    pub fn served(&self) -> (usize, usize) {
        self.family.served()
    }

    /// The bytes that it takes: code, numbers, packed weights, and what a run of the largest sizes
    /// so far needs.
    pub(crate) fn held_bytes(&self) -> usize {
        self.family.held_bytes(self.lock().iter().map(|(_, program)| &**program))
    }

    /// The program with its names, as kernels.
    pub fn graph(&self) -> &Verified {
        &self.kernels
    }

    /// The sizes that are kept, those used last at the end.
    pub fn kept(&self) -> Vec<Values> {
        self.lock().iter().map(|(values, _)| values.clone()).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Values, Arc<Executable>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of a run whose sizes do not fit.
pub(crate) fn refused(error: SizeError) -> Error {
    match error {
        SizeError::Input { input: name, message } => Error::Input { name, message },
        other => other.into(),
    }
}

impl fmt::Debug for SizedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SizedProgram")
            .field("name", &self.kernels.name())
            .field("kept", &self.kept())
            .finish_non_exhaustive()
    }
}
