//! [`jit`] and [`Jit`]: one closure, one compiled program for each signature it meets.

mod compiled;
mod flight;
mod programs;
mod signature;

pub use programs::{JitCounters, Recompilation};

use crate::compile::{compile_quietly, compile_sized_reported, refused};
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::explain::{Explanation, Warning, explain};
use crate::names::AxisNames;
use crate::options::Options;
use crate::profile::Profile;
use crate::report::CompileReport;
use crate::setters::setters;
use crate::trace::{Trace, Traced, Types};
use compiled::{Code, Compiled};
use flight::{Flights, Landed, in_closure};
use programs::Programs;
use signature::{Given, Signature, State, types};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tracecast_ir::{Graph, Role};
use tracecast_runtime::{Limits, Outputs, Session, Started, Store, Tensor, Weights};

/// A program that is traced and compiled when it is first run, and again for each new signature.
///
/// Inside `body`, `t.input("x")` and `t.param("w")` have the types of what the run was given and of
/// what the store holds.
///
/// ```
/// use tracecast::prelude::*;
///
/// let step = jit(Options::new().device("reference"), |t| {
///     let (x, w) = (t.input("x"), t.param("w"));
///     let loss = x.matmul(w).mean(());
///     let dw = t.grad(loss, &[w])[0];
///     t.update(w, w - dw * 0.5);
///     t.output("loss", loss);
/// });
/// let mut store = Store::new().with("w", Tensor::new([2, 1], &[1.0f32, 2.0])?);
/// let x = Tensor::new([1, 2], &[3.0f32, 4.0])?;
/// assert_eq!(step.run(&mut store, &[("x", &x)])?["loss"].item::<f32>()?, 11.0);
/// assert_eq!(store.get("w")?.to_vec::<f32>()?, [-0.5, 0.0]);
/// # Ok::<(), tracecast::Error>(())
/// ```
pub fn jit(options: Options, body: impl Fn(&Trace) + Send + Sync + 'static) -> Jit {
    Jit {
        options,
        body: Box::new(body),
        name: "step".to_owned(),
        names: Ok(AxisNames::default()),
        programs: Programs::default(),
        flights: Flights::default(),
        told: Mutex::default(),
    }
}

/// A closure and the programs it was compiled to. It can be run by several threads at once, each
/// with a store of its own.
///
/// ```
/// use tracecast::nn::{Linear, Module};
/// use tracecast::prelude::*;
///
/// let model = Linear::new(3, 2);
/// let mut store = Store::new();
/// model.init(&mut store, 0)?;
/// let predict = jit(Options::new().threads(1), move |t| t.output("y", t.input("x").linear(t.param("weight"), t.param("bias"))));
/// let x = Tensor::rand([4, 3], 1)?;
/// let one = predict.run(&mut store, &[("x", &x)])?;
/// std::thread::scope(|scope| {
///     let mut workers = Vec::new();
///     for _ in 0..2 {
///         let mut own = store.try_clone()?;
///         let (predict, x) = (&predict, &x);
///         workers.push(scope.spawn(move || predict.run(&mut own, &[("x", x)])));
///     }
///     for worker in workers {
///         assert_eq!(worker.join().expect("it does not panic")?["y"], one["y"]);
///     }
///     Ok::<(), tracecast::Error>(())
/// })?;
/// # Ok::<(), tracecast::Error>(())
/// ```
pub struct Jit {
    options: Options,
    body: Box<dyn Fn(&Trace) + Send + Sync>,
    name: String,
    /// The axes whose sizes are names, as the user said.
    names: std::result::Result<AxisNames, String>,
    programs: Programs,
    flights: Flights,
    /// The warnings that a logger was told: every signature has the same ones.
    told: Mutex<BTreeSet<String>>,
}

impl Jit {
    setters! {
        /// The same with another name for the graph in texts and reports.
        named(name: impl Into<String>) => name = name.into();
        /// The same with names for sizes of inputs: `x: [batch, _], y: [batch]`. One program then
        /// serves all batches; `_` is a number.
        ///
        /// ```
        /// use tracecast::prelude::*;
        ///
        /// let double = jit(Options::new().device("reference"), |t| {
        ///     let x = t.input("x");
        ///     t.output("y", x + x);
        /// });
        /// let double = double.sizes("x: [batch]");
        /// for rows in [1, 2, 3] {
        ///     double.run(&mut Store::new(), &[("x", &Tensor::rand([rows], 7)?)])?;
        /// }
        /// assert_eq!(double.recompilations().len(), 1);
        /// # Ok::<(), tracecast::Error>(())
        /// ```
        sizes(names: &str) => names = AxisNames::parse(names);
    }

    /// Runs the program for the types of these inputs and of the store; traces and compiles it
    /// first if there is none yet.
    ///
    /// Inputs that the program does not use are accepted, so that one batch serves training and
    /// evaluation; [`Options::strict`](Options::strict) refuses them.
    ///
    /// State that the program declares with a start, such as the moments of an optimizer, is put
    /// into the store if it is missing.
    ///
    /// # Errors
    /// An input or a parameter that the program asks for and that is not there, an op that could
    /// not be recorded, a pass or a device that failed, data without meaning. The store is as it
    /// was before.
    pub fn run(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        self.run_by(store, inputs, Compiled::run)
    }

    /// As [`run`](Jit::run), without waiting for the end where the device has a queue: the next
    /// call can give the step behind this one before [`Started::finish`] waits for the results.
    ///
    /// # Errors
    /// As [`run`](Jit::run), as far as that is known now.
    pub fn start(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<Started> {
        self.run_by(store, inputs, Compiled::start)
    }

    /// Finds or compiles the program, puts what is missing into the store, and runs it by `run`.
    fn run_by<R>(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        run: impl Fn(&Compiled, &mut Store, &[(&str, &Tensor)]) -> Result<R>,
    ) -> Result<R> {
        let program = self.program(store, inputs)?;
        if program.is_complete(store) {
            return run(&program, store, inputs);
        }
        let missing: Vec<&Entry> =
            program.starts.iter().filter(|entry| !store.contains(&entry.name)).collect();
        for entry in &missing {
            entry.put(store, self.options.start_seed())?;
        }
        run(&program, store, inputs).map_err(|error| {
            for entry in &missing {
                // An entry that cannot be read back has never been used, so nothing is lost if it
                // stays.
                let _ = store.remove(&entry.name);
            }
            program.without_start(store).unwrap_or(error)
        })
    }

    /// Runs the program for the types of these inputs `runs` times with a clock at every kernel,
    /// after two runs that are not timed, and reports where the time goes: by kernel, with its
    /// module and its line. The store changes as with any runs.
    ///
    /// `limits` are what kernels are compared with: those that
    /// [`measure_limits`](crate::measure_limits) measures, on as many threads as the
    /// [`options`](Options::threads) say.
    ///
    /// ```
    /// use tracecast::prelude::*;
    /// use tracecast::{Vectors, measure_limits};
    ///
    /// let soften = jit(Options::new().threads(1), |t| {
    ///     t.scope("head", || t.output("y", t.input("x").softmax(-1)));
    /// });
    /// let x = Tensor::rand([64, 1024], 0)?;
    /// let limits = measure_limits(1, Vectors::Native);
    /// let profile = soften.profile(&mut Store::new(), &[("x", &x)], 5, Some(limits))?;
    /// println!("{profile}");
    /// let kernel = &profile.kernels[0];
    /// assert_eq!((kernel.module.as_str(), kernel.cost.bytes()), ("head", 2 * 64 * 1024 * 4));
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`run`](Jit::run); if `runs` is 0.
    pub fn profile(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        runs: usize,
        limits: Option<Limits>,
    ) -> Result<Profile> {
        // It puts what is missing into the store, too.
        self.run(store, inputs)?;
        self.program(store, inputs)?.profile(store, inputs, runs, limits)
    }

    /// Runs the program for the types of these inputs and of the weights, which many threads may do
    /// at once, each with a session of its own; traces and compiles it first if there is none yet.
    ///
    /// ```
    /// use tracecast::prelude::*;
    /// use tracecast::{Published, Session};
    ///
    /// let mut store = Store::new().with("w", Tensor::new([2, 1], &[1.0f32, 2.0])?);
    /// let predict = jit(Options::new().threads(1), |t| t.output("y", t.input("x").matmul(t.param("w"))));
    /// let served = Published::new(store.snapshot());
    /// let x = Tensor::new([1, 2], &[3.0f32, 4.0])?;
    /// std::thread::scope(|scope| {
    ///     for _ in 0..2 {
    ///         scope.spawn(|| {
    ///             let mut session = Session::new();
    ///             let y = predict.run_on(&served.current(), &mut session, &[("x", &x)])?;
    ///             assert_eq!(y["y"].to_vec::<f32>()?, [11.0]);
    ///             Ok::<(), tracecast::Error>(())
    ///         });
    ///     }
    /// });
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the program replaces state, or needs an entry that the weights lack; otherwise as
    /// [`run`](Jit::run).
    pub fn run_on(
        &self,
        weights: &Weights,
        session: &mut Session,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Outputs> {
        let program = self.program(weights, inputs)?;
        program
            .run_on(weights, session, inputs)
            .map_err(|error| program.without_start(weights).unwrap_or(error))
    }

    /// Traces and compiles the program for the types of these inputs, unless it is there already,
    /// and does not run it.
    ///
    /// # Errors
    /// As [`run`](Jit::run), but for those of running.
    pub fn prepare(&self, store: &Store, inputs: &[(&str, &Tensor)]) -> Result<CompileReport> {
        Ok(self.program(store, inputs)?.report.clone())
    }

    /// The traced program for the types of these inputs, before any pass.
    ///
    /// # Errors
    /// The first op that could not be recorded.
    pub fn graph(&self, store: &Store, inputs: &[(&str, &Tensor)]) -> Result<Graph> {
        Ok(self.traced(store, inputs)?.graph)
    }

    /// Why every op of the program for the types of these inputs has the precision that it has, and
    /// what becomes of every cast. The program is not compiled.
    ///
    /// # Errors
    /// The first op that could not be recorded, or the pass that could not finish.
    pub fn explain(&self, store: &Store, inputs: &[(&str, &Tensor)]) -> Result<Explanation> {
        let traced = self.traced(store, inputs)?;
        let mut explained = explain(&traced.graph, &self.options)?;
        let noticed = traced.warnings.into_iter().map(Warning::of_tracing);
        explained.warnings.splice(0..0, noticed);
        Ok(explained)
    }

    fn traced(&self, store: &Store, inputs: &[(&str, &Tensor)]) -> Result<Traced> {
        let mut types = types(store, inputs)?;
        types.names = self.names()?;
        let trace = Trace::new(&self.name, &self.options, types)?;
        trace.run(&self.body)?;
        trace.finish()
    }

    /// Why and when programs were compiled, the last 64 of them, oldest first.
    pub fn recompilations(&self) -> Vec<Recompilation> {
        self.programs.history()
    }

    /// What became of the program that was compiled last.
    pub fn report(&self) -> Option<CompileReport> {
        self.programs.history().pop().map(|compiled| compiled.report)
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What it has done so far.
    pub fn counters(&self) -> JitCounters {
        JitCounters { waits: self.flights.waits(), ..self.programs.counters() }
    }

    fn program(&self, state: &dyn State, inputs: &[(&str, &Tensor)]) -> Result<Arc<Compiled>> {
        let given = Given::of(inputs);
        if let Some(program) = self.programs.find(state, &given) {
            return Ok(program);
        }
        let types = types(state, inputs)?;
        let names = self.names()?;
        let signature = Signature::of(&types, &names);
        match self.board(&signature, &types, state, &given) {
            Ok(Landed::Own(program)) => Ok(program),
            Ok(Landed::Others(program)) if program.fits(state, &given) => Ok(program),
            Err(error) if names.is_empty() || !matches!(error, Error::Shared(_)) => Err(error),
            // With names another thread's sizes may need another program than these, or be refused
            // where these are not.
            Ok(Landed::Others(_)) | Err(_) => {
                let signature = Signature::of(&types, &AxisNames::default());
                match self.board(&signature, &types, state, &given)? {
                    Landed::Own(program) | Landed::Others(program) => Ok(program),
                }
            }
        }
    }

    /// The program for these types, which this thread or another one compiles.
    fn board(
        &self,
        signature: &Signature,
        types: &Types,
        state: &dyn State,
        given: &Given<'_>,
    ) -> Result<Landed> {
        self.flights.board(&self.name, signature, || {
            // Another thread may just have compiled it.
            if let Some(program) = self.programs.find(state, given) {
                return Ok(program);
            }
            let program = self.programs.counting(|| self.compile_for(types.clone()))?;
            let program = Arc::new(program);
            self.programs.insert(types, &program, &self.options);
            Ok(program)
        })
    }

    /// The axes whose sizes are names, as the user said.
    fn names(&self) -> Result<AxisNames> {
        let wrong = |message: &String| Error::Option { option: "sizes", message: message.clone() };
        self.names.clone().map_err(|message| wrong(&message))
    }

    /// The program for these types: with names where the user gave some, or where earlier calls
    /// show that sizes change; where that cannot be, which only the names that were inferred may
    /// run into, with numbers.
    fn compile_for(&self, mut types: Types) -> Result<Compiled> {
        types.names = self.names()?;
        let may_infer = self.options.does_infer_sizes() && types.names.is_empty();
        let Some(names) = may_infer.then(|| self.programs.inferred(&types)).flatten() else {
            return self.compile(types);
        };
        let named = Types { names: names.clone(), ..types.clone() };
        match catch_unwind(AssertUnwindSafe(|| self.compile(named))) {
            Ok(Ok(compiled)) => {
                self.programs.infer(Some(names));
                Ok(compiled)
            }
            // Code that takes the number of a size without pinning it, or an op that cannot do with
            // names.
            _ => {
                self.programs.infer(None);
                self.compile(types)
            }
        }
    }

    fn compile(&self, types: Types) -> Result<Compiled> {
        let start = Instant::now();
        let given = types.inputs.clone();
        let trace = Trace::new(&self.name, &self.options, types)?;
        in_closure(|| trace.run(&self.body))?;
        let traced = trace.finish()?;
        let time = start.elapsed();
        let (asked, unused): (BTreeMap<_, _>, BTreeMap<_, _>) =
            given.into_iter().partition(|(name, _)| traced.asked.contains(name));
        if let Some(name) = unused.into_keys().next().filter(|_| self.options.is_strict()) {
            return Err(not_used(name, &traced.asked));
        }
        let absent = traced.asked.iter().filter(|name| !asked.contains_key(*name));
        let absent = absent.cloned().collect();
        let state = traced.graph.ports().iter().filter(|port| port.role != Role::Input);
        let state = state.map(|port| (port.name.clone(), port.ty.clone())).collect();
        let (code, mut report) = if traced.graph.sizes().is_empty() {
            let (executable, report) = compile_quietly(traced.graph, &self.options)?;
            (Code::Numbers(Box::new(executable)), report)
        } else {
            let (program, report) = compile_sized_reported(traced.graph, &self.options)?;
            let first = program.values(&|name| asked.get(name)).map_err(refused)?;
            program.at(&first)?;
            (Code::Names(Box::new(program)), report)
        };
        report.trace = time;
        let noticed = traced.warnings.into_iter().map(Warning::of_tracing);
        report.warnings.splice(0..0, noticed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        report.log(&self.name, |warning| told.insert(warning.to_owned()));
        drop(told);
        let (starts, used) = (traced.starts, AtomicU64::new(0));
        let complete = AtomicU64::new(0);
        Ok(Compiled { inputs: asked, absent, state, starts, code, report, used, complete })
    }
}

/// The error about an input that a strict program does not ask for.
pub(crate) fn not_used(name: String, asked: &BTreeSet<String>) -> Error {
    let asked: Vec<String> = asked.iter().map(|name| format!("`{name}`")).collect();
    let asked = if asked.is_empty() { "none".to_owned() } else { asked.join(", ") };
    let message = format!("is not used by the program, which asks for {asked}, and it is strict");
    Error::Input { name, message }
}

impl fmt::Debug for Jit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jit")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
