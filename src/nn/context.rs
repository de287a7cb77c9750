//! [`Context`]: where in the tree of modules a call is, and whether it trains.

use crate::entry::{Entry, Start};
use crate::nn::declared::{Asker, Declared, Tie};
use crate::trace::Trace;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::policy::matches_name;
use tracecast_ir::unknown::exempt;
use tracecast_ir::{Role, Source, TensorType, Var};
use tracecast_runtime::Tensor;

/// Where a module is called: its path, and whether the model trains or is evaluated.
#[derive(Clone)]
pub struct Context<'t> {
    trace: &'t Trace,
    path: String,
    training: bool,
    frozen: bool,
    /// What the names of trained parameters start with, which are state then.
    prefix: Option<&'static str>,
    /// The names of what is not trained, as far as the model tells them.
    states: Arc<BTreeSet<String>>,
    /// Where parameters are noted instead of recorded.
    declared: Option<Rc<Declared>>,
    /// The module that is called.
    module: Asker,
    /// Another start for parameters of some types: that of the model around.
    start: Option<fn(&TensorType) -> Option<Start>>,
    /// Modules whose results are outputs, by patterns of their paths.
    watched: Option<Arc<[String]>>,
    /// Where the types of results are noted.
    seen: Option<Seen>,
    caller: &'static Location<'static>,
}

/// The types of results by the paths of their modules.
pub(super) type Seen = Rc<RefCell<Vec<(String, TensorType)>>>;

impl<'t> Context<'t> {
    /// The outside of a model that trains.
    #[track_caller]
    pub fn training(trace: &'t Trace) -> Self {
        Context {
            trace,
            path: String::new(),
            training: true,
            frozen: false,
            prefix: None,
            states: Arc::default(),
            declared: None,
            module: 0,
            start: None,
            watched: None,
            seen: None,
            caller: Location::caller(),
        }
    }

    /// The outside of a model that is evaluated: dropout does nothing.
    #[track_caller]
    pub fn evaluation(trace: &'t Trace) -> Self {
        Context { training: false, ..Context::training(trace) }
    }

    /// The program being recorded.
    pub fn trace(&self) -> &'t Trace {
        self.trace
    }

    /// Whether the model trains.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// The path of the module that is called, such as `encoder.0`; empty at the top.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The same place with parameters as state that is not trained.
    #[must_use]
    pub fn frozen(&self) -> Self {
        Context { frozen: true, ..self.clone() }
    }

    /// The same place with what the store holds as `PREFIX.NAME` in the place of each trained
    /// parameter.
    #[must_use]
    pub(crate) fn with_prefix(&self, prefix: &'static str) -> Self {
        Context { prefix: Some(prefix), ..self.clone() }
    }

    /// The same place with the results of some modules as outputs of the program, each under the
    /// path of its module: `*` stands for any run of characters without a dot, `**` for any run.
    /// The second call of a module gives `PATH#1`, and so on.
    ///
    /// ```
    /// use tracecast::nn::{Context, Linear, Module, Relu, Sequential};
    /// use tracecast::prelude::*;
    ///
    /// let model = Sequential::new().then(Linear::new(4, 8)).then(Relu);
    /// let mut store = Store::new();
    /// model.init(&mut store, 0)?;
    /// let run = jit(Options::new(), move |t| {
    ///     let y = model.forward(&Context::evaluation(t).watching(&["0"]), t.input("x"));
    ///     t.output("y", y);
    /// });
    /// let out = run.run(&mut store, &[("x", &Tensor::rand([2, 4], 0)?)])?;
    /// assert_eq!(out["0"].shape()[..], [2, 8]);
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    #[must_use]
    pub fn watching(&self, modules: &[&str]) -> Self {
        let watched = modules.iter().map(|name| (*name).to_owned()).collect();
        Context { watched: Some(watched), ..self.clone() }
    }

    /// The same place with the types of results noted.
    pub(super) fn seeing(&self, seen: &Seen) -> Self {
        Context { seen: Some(seen.clone()), ..self.clone() }
    }

    /// Names the result of the module at this path, or notes its type, where that was asked for.
    pub(super) fn shown(&self, path: &str, y: Var<'t>) {
        if self.is_declaring() || y.is_poison() {
            return;
        }
        if let Some(seen) = &self.seen {
            seen.borrow_mut().push((path.to_owned(), y.ty()));
        }
        let fits = |pattern: &String| matches_name(pattern, path);
        if self.watched.as_ref().is_some_and(|watched| watched.iter().any(fits)) {
            self.trace.output_again(path, y);
        }
    }

    /// The same for a call by the user of a module that lies at this address.
    #[track_caller]
    pub(super) fn of_caller(&self, module: *const ()) -> Self {
        Context { caller: Location::caller(), module: module.addr(), ..self.clone() }
    }

    /// The same place, called at the line of this call.
    #[track_caller]
    pub(super) fn at_caller(&self) -> Self {
        Context { caller: Location::caller(), ..self.clone() }
    }

    /// The place in a model of these entries: those that are not trained are state.
    pub(super) fn with_entries(self, entries: &[Entry]) -> Self {
        let states = entries.iter().filter(|entry| entry.role == Role::State);
        let states = Arc::new(states.map(|entry| entry.name.clone()).collect());
        Context { states, ..self }
    }

    /// The place of a part of that name.
    pub(super) fn inside(&self, name: &str) -> Self {
        Context { path: self.full_name(name), ..self.clone() }
    }

    /// Records ops at the line where this module is called, instead of their own lines: for modules
    /// that are not the user's. While parameters are looked for, `body` may ask for the type of a
    /// value that has none.
    pub fn here<R>(&self, body: impl FnOnce() -> R) -> R {
        let _library = exempt();
        self.trace.tracer().at(Source::Rust(self.caller), body)
    }

    /// A parameter of the module that is called: its name, its type and how it starts. No other
    /// list of parameters is needed: see [`Module::entries`](crate::nn::Module::entries).
    pub fn parameter(&self, name: &str, ty: TensorType, start: Start) -> Var<'t> {
        let start = self.start.and_then(|other| other(&ty)).unwrap_or(start);
        let name = self.full_name(name);
        if self.declared.is_none() {
            return self.recorded(&name, ty);
        }
        let entry = Entry::param(name, ty, start);
        self.noted(if self.frozen { entry.frozen() } else { entry })
    }

    /// Other state of the module that is called, which is never trained: what PyTorch calls a
    /// buffer.
    pub fn buffer(&self, name: &str, ty: TensorType, start: Start) -> Var<'t> {
        let name = self.full_name(name);
        match self.declared {
            None => self.here(|| self.trace.state_of(&name, ty)),
            Some(_) => self.noted(Entry::state(name, ty, start)),
        }
    }

    /// Numbers that the module that is called was given. Where it is a part of a model they are a
    /// [buffer](Context::buffer) of it; at the top, where no store has them, they are numbers of
    /// the program.
    pub(super) fn numbers(&self, name: &str, given: &Tensor) -> Var<'t> {
        if self.declared.is_none() && self.path.is_empty() {
            let ty = given.ty();
            let sizes = ty.shape.numbers();
            return self.here(|| self.trace.tracer().constant(ty.dtype, &sizes, &given.to_f64s()));
        }
        self.buffer(name, given.ty().clone(), Start::Given(given.clone()))
    }

    /// A [buffer](Context::buffer) that a run puts into the store by itself if it is not there yet.
    pub(super) fn started_buffer(&self, name: &str, ty: TensorType, start: Start) -> Var<'t> {
        self.here(|| self.state_from(Entry::state(self.full_name(name), ty, start)))
    }

    /// State that a run puts into the store by itself if it is not there yet.
    pub(crate) fn state_from(&self, entry: Entry) -> Var<'t> {
        match &self.declared {
            None => self.trace.state_from(entry),
            // Without a program nothing moves it.
            Some(declared) => {
                declared.note(entry, self.module);
                self.unknown()
            }
        }
    }

    /// A parameter of any module, by its full name.
    pub fn tied(&self, name: &str, ty: TensorType) -> Var<'t> {
        self.tied_to(name, ty, None)
    }

    /// A parameter of any module, by its full name, in the place of one that the module that is
    /// called would call `own`.
    pub fn tied_as(&self, own: &str, name: &str, ty: TensorType) -> Var<'t> {
        self.tied_to(name, ty, Some(self.full_name(own)))
    }

    fn tied_to(&self, name: &str, ty: TensorType, own: Option<String>) -> Var<'t> {
        match &self.declared {
            None => self.recorded(name, ty),
            Some(declared) => {
                declared.note_tie(Tie { of: name.to_owned(), own });
                self.trace.tracer().state(name, ty)
            }
        }
    }

    fn recorded(&self, name: &str, ty: TensorType) -> Var<'t> {
        self.here(|| match self.prefix {
            _ if self.frozen || self.states.contains(name) => self.trace.state_of(name, ty),
            None => self.trace.param_of(name, ty),
            Some(prefix) => {
                let stored = self.trace.state(&format!("{prefix}.{name}"));
                if stored.dtype() == ty.dtype { stored } else { stored.cast(ty.dtype) }
            }
        })
    }

    /// The same place, where parameters are noted instead of recorded.
    pub(super) fn declaring(&self, declared: &Rc<Declared>) -> Self {
        Context { declared: Some(declared.clone()), ..self.clone() }
    }

    /// Takes note of an entry; the value has its type.
    fn noted(&self, entry: Entry) -> Var<'t> {
        let (name, ty) = (entry.name.clone(), entry.ty.clone());
        if let Some(declared) = &self.declared {
            declared.note(entry, self.module);
        }
        self.trace.tracer().state(&name, ty)
    }

    /// The same place, where parameters of some types start otherwise.
    pub(super) fn starting(&self, start: fn(&TensorType) -> Option<Start>) -> Self {
        Context { start: self.start.or(Some(start)), ..self.clone() }
    }

    /// A value of no type: all that is made of it is one, too.
    pub(crate) fn unknown(&self) -> Var<'t> {
        self.trace.tracer().unknown()
    }

    /// Whether parameters are noted instead of recorded.
    pub(crate) fn is_declaring(&self) -> bool {
        self.declared.is_some()
    }

    /// The value, or one of this type where it has none and parameters are noted.
    pub(super) fn typed(&self, x: Var<'t>, ty: &TensorType) -> Var<'t> {
        if !self.is_declaring() || !x.is_poison() {
            return x;
        }
        let t = self.trace.tracer();
        let number = t.with_graph(|graph| graph.ports().len());
        t.input(&format!("input {number}"), ty.clone())
    }

    fn full_name(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}
