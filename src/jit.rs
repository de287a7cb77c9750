//! [`jit`] and [`Jit`]: one closure, one compiled program for each signature it meets.

use crate::compile::{SizedProgram, compile_quietly, compile_sized_reported, refused};
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::explain::{Explanation, Warning, explain};
use crate::names::AxisNames;
use crate::options::Options;
use crate::report::CompileReport;
use crate::trace::{Trace, Traced, Types};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tracecast_ir::{Graph, Role, SizeError, TensorType};
use tracecast_runtime::{Executable, Outputs, Store, Tensor};

/// A program that is traced and compiled when it is first run, and again for each new signature.
///
/// Inside `body`, `t.input("x")` and `t.param("w")` have the types of what the run was given and of what the store holds.
///
/// ```
/// use tracecast::prelude::*;
///
/// let step = jit(Options::new().device("reference"), |t| {
///     let (x, w) = (t.input("x"), t.param("w"));
///     let loss = x.matmul(w).mean(&[], false, None);
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
        cache: Mutex::default(),
        told: Mutex::default(),
    }
}

/// A closure and the programs it was compiled to. It can be run by several threads at once, each with a store of its own.
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
    cache: Mutex<Cache>,
    /// The warnings that a logger was told: every signature has the same ones.
    told: Mutex<BTreeSet<String>>,
}

#[derive(Default)]
struct Cache {
    /// The most recently used program is the last.
    programs: Vec<Arc<Compiled>>,
    history: Vec<Recompilation>,
    /// The axes whose sizes are names, as calls have shown.
    inferred: AxisNames,
    /// True once a program could not be made with names.
    is_refused: bool,
}

/// How many recompilations are remembered.
const HISTORY: usize = 64;

/// Why and when a program was compiled.
#[derive(Clone, Debug)]
pub struct Recompilation {
    /// What was new.
    pub reason: String,
    /// The types of the inputs that the program asks for.
    pub inputs: Vec<(String, TensorType)>,
    /// What became of the program.
    pub report: CompileReport,
}

/// A compiled program and the signature it holds for.
struct Compiled {
    /// The inputs that the closure asked for. Others of a run are of no concern to it.
    inputs: BTreeMap<String, TensorType>,
    /// Those that it asked for and was not given.
    absent: Vec<String>,
    /// The entries of the store that it reads or writes.
    state: Vec<(String, TensorType)>,
    starts: Vec<Entry>,
    code: Code,
    report: CompileReport,
}

enum Code {
    /// For the sizes of `inputs`.
    Numbers(Box<Executable>),
    /// For all sizes that bounds and guards allow.
    Names(Box<SizedProgram>),
}

impl Jit {
    /// The same with another name for the graph in texts and reports.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The same with names for sizes of inputs: `x: [batch, _], y: [batch]`. One program then serves all batches; `_` is a number.
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
    #[must_use]
    pub fn sizes(mut self, names: &str) -> Self {
        self.names = AxisNames::parse(names);
        self
    }

    /// Runs the program for the types of these inputs and of the store; traces and compiles it first if there is none yet.
    ///
    /// Inputs that the program does not use are accepted, so that one batch serves training and evaluation;
    /// [`Options::strict`](Options::strict) refuses them.
    ///
    /// State that the program declares with a start, such as the moments of an optimizer, is put into the store if it is missing.
    ///
    /// # Errors
    /// An input or a parameter that the program asks for and that is not there, an op that could not be recorded, a pass or a
    /// device that failed, data without meaning. The store is as it was before.
    pub fn run(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        let program = self.program(store, inputs)?;
        let missing: Vec<&Entry> =
            program.starts.iter().filter(|entry| !store.contains(&entry.name)).collect();
        for entry in &missing {
            entry.put(store, self.options.start_seed())?;
        }
        program.run(store, inputs).map_err(|error| {
            for entry in &missing {
                // An entry that cannot be read back has never been used, so nothing is lost if it stays.
                let _ = store.remove(&entry.name);
            }
            program.without_start(store).unwrap_or(error)
        })
    }

    /// Traces and compiles the program for the types of these inputs, unless it is there already, and does not run it.
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

    /// Why every op of the program for the types of these inputs has the precision that it has, and what becomes of every cast. The
    /// program is not compiled.
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
        let trace = Trace::new(&self.name, &self.options, types);
        trace.run(&self.body)?;
        trace.finish()
    }

    /// Why and when programs were compiled, the last 64 of them, oldest first.
    pub fn recompilations(&self) -> Vec<Recompilation> {
        self.lock().history.clone()
    }

    /// What became of the program that was compiled last.
    pub fn report(&self) -> Option<CompileReport> {
        self.lock().history.last().map(|compiled| compiled.report.clone())
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    fn program(&self, store: &Store, inputs: &[(&str, &Tensor)]) -> Result<Arc<Compiled>> {
        let mut cache = self.lock();
        if let Some(at) = cache.position(store, inputs) {
            let program = cache.programs.remove(at);
            cache.programs.push(program.clone());
            return Ok(program);
        }
        let types = types(store, inputs)?;
        let reason = cache.reason(&types, self.options.most_programs());
        let program = Arc::new(self.compile_for(&mut cache, types)?);
        let inputs = program.inputs.clone().into_iter().collect();
        cache.history.push(Recompilation { reason, inputs, report: program.report.clone() });
        let forgotten = cache.history.len().saturating_sub(HISTORY);
        cache.history.drain(..forgotten);
        cache.programs.push(program.clone());
        let surplus = cache.programs.len().saturating_sub(self.options.most_programs());
        cache.programs.drain(..surplus);
        Ok(program)
    }

    /// The axes whose sizes are names, as the user said.
    fn names(&self) -> Result<AxisNames> {
        let wrong = |message: &String| Error::Option { option: "sizes", message: message.clone() };
        self.names.clone().map_err(|message| wrong(&message))
    }

    /// The program for these types: with names where the user gave some, or where earlier calls show that sizes change; where that cannot be,
    /// which only the names that were inferred may run into, with numbers.
    fn compile_for(&self, cache: &mut Cache, mut types: Types) -> Result<Compiled> {
        types.names = self.names()?;
        let may_infer = self.options.does_infer_sizes() && types.names.is_empty();
        if !may_infer || cache.is_refused {
            return self.compile(types);
        }
        let mut programs = cache.programs.iter().rev();
        let shown = programs.find_map(|p| cache.inferred.inferred(&p.inputs, &types.inputs));
        let names = shown.unwrap_or_else(|| cache.inferred.clone());
        if names.is_empty() || !names.fit(&types.inputs) {
            return self.compile(types);
        }
        let named = Types { names: names.clone(), ..types.clone() };
        match catch_unwind(AssertUnwindSafe(|| self.compile(named))) {
            Ok(Ok(compiled)) => {
                cache.inferred = names;
                Ok(compiled)
            }
            // Code that takes the number of a size without pinning it, or an op that cannot do with names.
            _ => {
                cache.is_refused = true;
                self.compile(types)
            }
        }
    }

    fn compile(&self, types: Types) -> Result<Compiled> {
        let start = Instant::now();
        let given = types.inputs.clone();
        let trace = Trace::new(&self.name, &self.options, types);
        trace.run(&self.body)?;
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
        Ok(Compiled { inputs: asked, absent, state, starts: traced.starts, code, report })
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_used(name: String, asked: &BTreeSet<String>) -> Error {
    let asked: Vec<String> = asked.iter().map(|name| format!("`{name}`")).collect();
    let asked = if asked.is_empty() { "none".to_owned() } else { asked.join(", ") };
    let message = format!("is not used by the program, which asks for {asked}, and it is strict");
    tracecast_runtime::Error::Input { name, message }.into()
}

/// The types of what a run is given.
fn types(store: &Store, inputs: &[(&str, &Tensor)]) -> Result<Types> {
    let mut types = Types::default();
    for (name, tensor) in inputs {
        if types.inputs.insert((*name).to_owned(), tensor.ty().clone()).is_some() {
            let (name, message) = ((*name).to_owned(), "is given twice".to_owned());
            return Err(tracecast_runtime::Error::Input { name, message }.into());
        }
    }
    let known = store.names().filter_map(|name| Some((name.to_owned(), store.ty(name)?.clone())));
    types.store = known.collect();
    Ok(types)
}

impl Compiled {
    /// What to say if the store lacks an entry that a run does not make by itself.
    fn without_start(&self, store: &Store) -> Option<Error> {
        let starts = |name: &str| self.starts.iter().any(|entry| entry.name == name);
        let lacks = |name: &String| !store.contains(name) && !starts(name);
        let lacking: Vec<&String> =
            self.state.iter().map(|(name, _)| name).filter(|name| lacks(name)).collect();
        let name = (*lacking.first()?).clone();
        let others = match lacking.len() - 1 {
            0 => String::new(),
            1 => ", and neither is 1 other".to_owned(),
            more => format!(", and neither are {more} others"),
        };
        let has = match store.len() {
            0 => "nothing".to_owned(),
            _ => {
                store.names().take(8).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            }
        };
        let more = if store.len() > 8 { ", …" } else { "" };
        let message = format!(
            "is not in the store{others}; it has {has}{more}; `init` puts first values there, `load` and `load_model` those of a file"
        );
        Some(tracecast_runtime::Error::State { name, message }.into())
    }

    /// True if it can run with these inputs on this store: what is missing in the store has a start.
    fn fits(&self, store: &Store, inputs: &[(&str, &Tensor)]) -> bool {
        let given = |name: &str| inputs.iter().any(|(known, _)| *known == name);
        self.takes(inputs)
            && self.absent.iter().all(|name| !given(name))
            && self.state.iter().all(|(name, ty)| match store.ty(name) {
                Some(known) => known == ty,
                None => self.starts.iter().any(|entry| entry.name == *name),
            })
    }

    fn takes(&self, inputs: &[(&str, &Tensor)]) -> bool {
        let given = |name: &str| inputs.iter().find(|(known, _)| *known == name);
        let ty_of = |name: &str| given(name).map(|(_, x)| x.ty());
        match &self.code {
            Code::Numbers(_) => self.inputs.iter().all(|(name, ty)| ty_of(name) == Some(ty)),
            Code::Names(program) => {
                let has_names = |name: &str| {
                    let port = program.graph().port_named(name);
                    port.is_some_and(|port| port.ty.shape.has_names())
                };
                let fits = |(name, ty): (&String, &TensorType)| match ty_of(name) {
                    Some(found) if has_names(name) => found.dtype == ty.dtype,
                    found => found == Some(ty),
                };
                self.inputs.iter().all(fits) && program.values(&ty_of).is_ok()
            }
        }
    }

    fn run(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        match &self.code {
            Code::Numbers(executable) => Ok(executable.run(store, inputs)?),
            Code::Names(program) => program.run(store, inputs),
        }
    }
}

impl Cache {
    /// The program for these inputs: one for exactly their sizes rather than one for many, of several the one used last.
    fn position(&self, store: &Store, inputs: &[(&str, &Tensor)]) -> Option<usize> {
        let is_exact = |program: &Compiled| matches!(program.code, Code::Numbers(_));
        let of = |exact: bool| {
            let fits = |p: &Arc<Compiled>| is_exact(p) == exact && p.fits(store, inputs);
            self.programs.iter().rposition(fits)
        };
        of(true).or_else(|| of(false))
    }

    /// What is new about a signature, compared with the program that was used last.
    fn reason(&self, types: &Types, most: usize) -> String {
        let Some(last) = self.programs.last() else { return "first run".to_owned() };
        let given = |name: &String, ty: &TensorType| types.inputs.get(name) == Some(ty);
        let known = |r: &Recompilation| r.inputs.iter().all(|(name, ty)| given(name, ty));
        let is_kept = |program: &Arc<Compiled>| program.inputs.iter().all(|(n, t)| given(n, t));
        let is_kept = self.programs.iter().any(is_kept);
        let was_dropped = !is_kept && self.history.iter().any(known);
        let guard = || match &last.code {
            Code::Names(program) => match program.values(&|name| types.inputs.get(name)) {
                Err(SizeError::Size(why)) => Some(why),
                _ => None,
            },
            Code::Numbers(_) => None,
        };
        let input = || {
            last.inputs.iter().find_map(|(name, before)| match types.inputs.get(name) {
                Some(ty) if before == ty => None,
                Some(ty) => Some(format!("input `{name}` is {ty}, was {before}")),
                None => Some(format!("input `{name}` is gone")),
            })
        };
        let new = || {
            let new = last.absent.iter().find(|name| types.inputs.contains_key(*name));
            new.map(|name| format!("input `{name}` is new"))
        };
        let state = || {
            last.state.iter().find_map(|(name, ty)| match types.store.get(name) {
                Some(now) if now == ty => None,
                Some(now) => Some(format!("`{name}` of the store is {now}, was {ty}")),
                None if last.starts.iter().any(|entry| entry.name == *name) => None,
                None => Some(format!("`{name}` is not in the store any more")),
            })
        };
        let what = guard()
            .or_else(input)
            .or_else(new)
            .or_else(state)
            .unwrap_or_else(|| "the signature is new".to_owned());
        if was_dropped {
            return format!("{what}; its program was dropped, at most {most} are kept");
        }
        what
    }
}

impl fmt::Debug for Jit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jit")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
