//! [`trace`] and [`Trace`]: running a closure once to record what it computes.

mod record;

use crate::device_context::DeviceContext;
use crate::entry::Entry;
use crate::error::Result;
use crate::names::AxisNames;
use crate::options::Options;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tracecast_ir::ops::view::Views;
use tracecast_ir::policy::parity::RegionObject;
use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::unknown::{Ended, guarded};
use tracecast_ir::{Graph, Role, Size, TensorType, Tracer, ValueId, Var};

/// Records what `body` computes, under the standard policies.
///
/// ```
/// use tracecast::prelude::*;
///
/// let graph = trace("head", |t| {
///     let x = t.input_of("x", TensorType::new(DType::F32, [8, 4]));
///     let w = t.param_of("w", TensorType::new(DType::F32, [4, 2]));
///     t.output("y", x.matmul(w).relu());
/// })?;
/// assert_eq!(graph.ports().len(), 2);
/// # Ok::<(), tracecast::Error>(())
/// ```
///
/// # Errors
/// The first op that could not be recorded, with its line.
pub fn trace(name: &str, body: impl FnOnce(&Trace)) -> Result<Graph> {
    trace_with(name, &Options::new(), body)
}

/// Records what `body` computes, under the policies of the options.
///
/// # Errors
/// The first op that could not be recorded, with its line.
pub fn trace_with(name: &str, options: &Options, body: impl FnOnce(&Trace)) -> Result<Graph> {
    let trace = Trace::new(name, options, Types::default())?;
    trace.run(body)?;
    Ok(trace.finish()?.graph)
}

/// A program being recorded: a [`Tracer`] that also knows the types of what a run was given, and
/// how new state starts.
pub struct Trace {
    tracer: Tracer,
    types: Types,
    asked: RefCell<BTreeSet<String>>,
    starts: RefCell<Vec<Entry>>,
    warnings: RefCell<Vec<String>>,
    bound: RefCell<BTreeMap<String, ValueId>>,
    part: RefCell<Option<Part>>,
    depth: Cell<usize>,
    home: DeviceContext,
    objects: RefCell<Vec<(usize, Weak<RefCell<RegionObject>>)>>,
    /// The names of sizes that inputs have given a value, and which input it was.
    sized: RefCell<BTreeMap<String, (i64, String)>>,
}

/// One of several parts of a batch: inputs of these names are divided along their first axis.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) number: usize,
    pub(crate) of: usize,
    pub(crate) inputs: Arc<[String]>,
}

/// The types of the inputs of a run and of the entries of its store.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Types {
    pub(crate) inputs: BTreeMap<String, TensorType>,
    pub(crate) store: BTreeMap<String, TensorType>,
    /// The axes of the inputs whose sizes are names.
    pub(crate) names: AxisNames,
}

/// A recorded program.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) graph: Graph,
    pub(crate) starts: Vec<Entry>,
    pub(crate) warnings: Vec<String>,
    /// The names of the inputs that it asked for, whether the run gave them or not.
    pub(crate) asked: BTreeSet<String>,
}

impl Trace {
    /// # Errors
    /// If the options name no device.
    pub(crate) fn new(name: &str, options: &Options, types: Types) -> Result<Self> {
        let home = options.home()?;
        let tracer = Tracer::with_policies(name, options.policies());
        Ok(Trace {
            // On the cpu constants are like any other number: they follow what they meet.
            tracer: match home.device.kind {
                DeviceType::Cpu => tracer,
                _ => tracer.at_home(home.device),
            },
            types,
            asked: RefCell::default(),
            starts: RefCell::default(),
            warnings: RefCell::default(),
            bound: RefCell::default(),
            part: RefCell::default(),
            depth: Cell::new(0),
            home,
            objects: RefCell::default(),
            sized: RefCell::default(),
        })
    }

    /// The recorder.
    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// A value given anew with each run, of the type that this run gives it; or the value that was
    /// [bound](Trace::bind) to the name.
    #[track_caller]
    pub fn input(&self, name: &str) -> Var<'_> {
        if let Some(value) = self.bound(name) {
            return value;
        }
        match self.given(name).cloned() {
            Some(ty) => {
                let ty = self.with_names(name, &ty);
                self.part_of_batch(name, self.here(name, ty, Role::Input))
            }
            None => self.unknown(
                "input",
                name,
                "was not given to this run, which gave",
                &self.types.inputs,
            ),
        }
    }

    /// A value given anew with each run, of this type; or the value that was [bound](Trace::bind)
    /// to the name, if it has the type.
    #[track_caller]
    pub fn input_of(&self, name: &str, ty: TensorType) -> Var<'_> {
        match self.bound(name) {
            Some(value) if value.is_poison() || value.ty() == ty => value,
            Some(value) => {
                let message = format!(
                    "`{name}` is bound to a value of type {}, asked for as {ty}",
                    value.ty()
                );
                self.tracer.fail("input", message)
            }
            None => {
                self.given(name);
                self.traced_for(name, &ty);
                self.part_of_batch(name, self.here(name, ty, Role::Input))
            }
        }
    }

    /// The type that an input has in the program, for the type that it has in the run that is
    /// traced for.
    #[track_caller]
    fn with_names(&self, input: &str, ty: &TensorType) -> TensorType {
        let Some(names) = self.types.names.get(input) else { return ty.clone() };
        if names.len() != ty.shape.rank() {
            let expected = names.len();
            self.tracer.fail("input", format!("`{input}` is {ty}, expected {expected} axes"));
            return ty.clone();
        }
        let sizes = ty.shape.iter().zip(names).map(|(size, name)| match (name, size.number()) {
            (Some(name), Some(value)) => self.named(input, name, value),
            _ => *size,
        });
        TensorType { dtype: ty.dtype, shape: sizes.collect() }
    }

    /// The size of that name, which an input of this run gives a value.
    #[track_caller]
    fn named(&self, input: &str, name: &str, value: i64) -> Size {
        let mut sized = self.sized.borrow_mut();
        let (known, first) =
            sized.entry(name.to_owned()).or_insert_with(|| (value, input.to_owned()));
        if *known != value {
            let message = format!("`{name}` is {value} in `{input}` and {known} in `{first}`");
            self.tracer.fail("input", message);
            return Size::UNKNOWN;
        }
        if self.tracer.with_graph(|graph| graph.sizes().get(name).is_none()) {
            return self.tracer.size_at(name, 0.., value);
        }
        self.tracer.trace_at(name, value);
        Size::named(name)
    }

    /// Gives the names in the type of an input the values that they have in the run that is traced
    /// for.
    #[track_caller]
    fn traced_for(&self, input: &str, ty: &TensorType) {
        let Some(found) = self.types.inputs.get(input).filter(|_| ty.shape.has_names()) else {
            return;
        };
        for (size, found) in ty.shape.iter().zip(found.shape.iter()) {
            if let (Some(name), Some(value)) = (size.name(), found.number()) {
                self.named(input, name, value);
            }
        }
    }

    /// Runs the closure of a user, to where it asks for the type of what an op that has failed
    /// would have made. What it panics over after that follows from it: the error of the op is what
    /// is told.
    pub(crate) fn run(&self, body: impl FnOnce(&Trace)) -> Result<()> {
        match (guarded(|| body(self)), self.tracer.error()) {
            (Err(_), Some(error)) => Err(error.into()),
            (Err(Ended::Panicked(panic)), None) => resume_unwind(panic),
            _ => Ok(()),
        }
    }

    /// The type that this run gives an input. The program depends on the answer, so the name is
    /// noted.
    fn given(&self, name: &str) -> Option<&TensorType> {
        self.asked.borrow_mut().insert(name.to_owned());
        self.types.inputs.get(name)
    }

    /// Lets a computed value stand for the input of this name from here on: a learning rate that
    /// the program computes by itself.
    #[track_caller]
    pub fn bind(&self, name: &str, value: Var<'_>) {
        if value.is_poison() {
            return;
        }
        let given = self.given(name).is_some();
        if given || self.bound.borrow_mut().insert(name.to_owned(), value.id()).is_some() {
            let why = if given { "is an input of this run" } else { "is bound already" };
            self.tracer.fail("input", format!("`{name}` {why}"));
        }
    }

    /// Runs `body`, whose values backward recomputes instead of keeping them: activation
    /// checkpointing. See [`Tracer::checkpoint`]; for a part of a model there is
    /// [`nn::Checkpoint`](crate::nn::Checkpoint).
    ///
    /// ```
    /// use tracecast::prelude::*;
    ///
    /// let program = |saves: bool| {
    ///     trace("step", |t| {
    ///         let x = t.input_of("x", TensorType::new(DType::F32, [64, 32]));
    ///         let w = t.param_of("w", TensorType::new(DType::F32, [32, 32]));
    ///         let layer = || x.matmul(w).exp().sin().log1p();
    ///         let y = if saves { t.checkpoint(layer) } else { layer() };
    ///         t.output("dw", t.grad(y.matmul(w).pow(2).sum(()), &[w])[0]);
    ///     })
    /// };
    /// let saved = |graph| tracecast::compile_reported(graph, &Options::new()).map(|(_, report)| report.saved_bytes);
    /// assert!(saved(program(true)?)? < saved(program(false)?)?);
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    pub fn checkpoint<R>(&self, body: impl FnOnce() -> R) -> R {
        self.tracer.checkpoint(body)
    }

    /// Names a result. A step that divides its batch records this once per part, and each is a
    /// result: `NAME.0`, `NAME.1`, …
    #[track_caller]
    pub fn output(&self, name: &str, value: Var<'_>) {
        match self.part.borrow().as_ref() {
            Some(part) => self.tracer.output(&format!("{name}.{}", part.number), value),
            None => self.tracer.output(name, value),
        }
    }

    /// Names a result that may be recorded several times: those after the first are `NAME#1`,
    /// `NAME#2`, …
    pub(crate) fn output_again(&self, name: &str, value: Var<'_>) {
        let known = |name: &str| {
            let name = match self.part.borrow().as_ref() {
                Some(part) => format!("{name}.{}", part.number),
                None => name.to_owned(),
            };
            self.tracer.with_graph(|graph| graph.outputs().iter().any(|(known, _)| *known == name))
        };
        let again = (1..).map(|count| format!("{name}#{count}"));
        let free = std::iter::once(name.to_owned()).chain(again).find(|name| !known(name));
        free.iter().for_each(|name| self.output(name, value));
    }

    /// Fails if an input that is to be divided is not there.
    #[track_caller]
    pub(crate) fn must_have_inputs_of(&self, part: &Part) {
        let known = &self.types.inputs;
        for name in part.inputs.iter().filter(|name| !known.contains_key(*name)) {
            self.unknown("micro_batches", name, "is no input of the step, which has", known);
        }
    }

    /// Runs `body` on one part of the batch.
    pub(crate) fn on_part<R>(&self, part: Part, body: impl FnOnce() -> R) -> R {
        let outer = self.part.replace(Some(part));
        let result = body();
        self.part.replace(outer);
        result
    }

    #[track_caller]
    fn part_of_batch<'t>(&'t self, name: &str, whole: Var<'t>) -> Var<'t> {
        let part = self.part.borrow().clone();
        let Some(part) = part.filter(|part| part.inputs.iter().any(|input| input == name)) else {
            return whole;
        };
        if whole.is_poison() {
            return whole;
        }
        let rows = whole.shape().first().copied().unwrap_or_default();
        let some = rows.at_least(1);
        if !self.tracer.holds(some) || !self.tracer.holds(rows.multiple_of(part.of)) {
            let message = format!(
                "`{name}` is {}: its first axis has to be divided into {} equal micro-batches",
                whole.ty(),
                part.of
            );
            return self.tracer.fail("input", message);
        }
        let size = rows / part.of;
        let start = size * part.number;
        whole.slice(0, start, start + size, 1)
    }

    fn bound(&self, name: &str) -> Option<Var<'_>> {
        self.bound.borrow().get(name).map(|id| self.tracer.var(*id))
    }

    /// A trained parameter, of the type it has in the store.
    #[track_caller]
    pub fn param(&self, name: &str) -> Var<'_> {
        match self.types.store.get(name) {
            Some(ty) => self.param_of(name, ty.clone()),
            None => {
                self.unknown("parameter", name, "is not in the store, which has", &self.types.store)
            }
        }
    }

    /// A trained parameter, of this type.
    #[track_caller]
    pub fn param_of(&self, name: &str, ty: TensorType) -> Var<'_> {
        self.here(name, ty, Role::Param)
    }

    /// Other state, of the type it has in the store: a frozen parameter, a counter.
    #[track_caller]
    pub fn state(&self, name: &str) -> Var<'_> {
        match self.types.store.get(name) {
            Some(ty) => self.state_of(name, ty.clone()),
            None => {
                self.unknown("state", name, "is not in the store, which has", &self.types.store)
            }
        }
    }

    /// Other state, of this type.
    #[track_caller]
    pub fn state_of(&self, name: &str, ty: TensorType) -> Var<'_> {
        self.here(name, ty, Role::State)
    }

    /// Other state that a run puts into the store by itself if it is not there yet.
    #[track_caller]
    pub fn state_from(&self, entry: Entry) -> Var<'_> {
        let state =
            self.tracer.port(&entry.name, entry.ty.clone(), Role::State, false, self.home.device);
        let mut starts = self.starts.borrow_mut();
        if !starts.iter().any(|known| known.name == entry.name) {
            starts.push(entry);
        }
        state
    }

    /// The trained parameters recorded so far, in order.
    pub fn params(&self) -> Vec<Var<'_>> {
        let of_params = |graph: &Graph| {
            let params = graph.ports().iter().filter(|port| port.role == Role::Param);
            params.map(|port| ValueId { node: port.node, result: 0 }).collect::<Vec<_>>()
        };
        self.tracer.with_graph(of_params).into_iter().map(|id| self.tracer.var(id)).collect()
    }

    /// The name of the port that a value is; `None` for a computed one.
    pub fn name_of(&self, value: Var<'_>) -> Option<String> {
        if value.is_poison() {
            return None;
        }
        self.tracer.with_graph(|graph| graph.port_of(value.id().node).map(|port| port.name.clone()))
    }

    /// The type that this run gives an input, or of the value that is bound to the name.
    pub(crate) fn input_type(&self, name: &str) -> Option<TensorType> {
        self.bound(name).map(|value| value.ty()).or_else(|| self.given(name).cloned())
    }

    /// The value that a parameter or other state has after this run, as far as recorded.
    pub fn next_of<'t>(&'t self, state: Var<'t>) -> Option<Var<'t>> {
        if state.is_poison() {
            return None;
        }
        let next = self.tracer.with_graph(|graph| {
            let mut updates = graph.updates().iter();
            updates
                .find(|(port, _)| graph.ports()[*port].node == state.id().node)
                .map(|(_, next)| *next)
        });
        next.map(|id| self.tracer.var(id))
    }

    /// Keeps a warning for the report of the compilation.
    pub fn warn(&self, warning: impl Into<String>) {
        self.warnings.borrow_mut().push(warning.into());
    }

    /// Runs `body` under an autocast state that was entered here: an outermost one is a cache scope
    /// of its own.
    pub(crate) fn inside<R>(&self, region: Region, body: impl FnOnce() -> R) -> R {
        let outermost = self.depth.get() == 0;
        let region =
            if outermost { region.with_scope(self.tracer.next_cache_scope()) } else { region };
        let _depth = Depth { of: &self.depth, outer: self.depth.replace(self.depth.get() + 1) };
        self.tracer.in_region(&region, body)
    }

    /// Runs `body` under this autocast state as if outside of every region: what is opened inside
    /// is an outermost one.
    pub(crate) fn afresh<R>(&self, region: Region, body: impl FnOnce() -> R) -> R {
        let _depth = Depth { of: &self.depth, outer: self.depth.replace(0) };
        if region.is_off() && !self.tracer.policies().parity() {
            return self.tracer.in_region(&region, body);
        }
        self.inside(region, body)
    }

    /// A port on the device that the program is for.
    #[track_caller]
    fn here(&self, name: &str, ty: TensorType, role: Role) -> Var<'_> {
        self.tracer.port(name, ty, role, false, self.home.device)
    }

    /// The device that the program is for.
    pub(crate) fn home(&self) -> &DeviceContext {
        &self.home
    }

    /// The object for a region that is entered now, if the region is.
    pub(crate) fn object(&self, key: usize) -> Option<Rc<RefCell<RegionObject>>> {
        let objects = self.objects.borrow();
        let entered = objects.iter().rev().find(|(known, _)| *known == key)?;
        entered.1.upgrade()
    }

    /// Remembers the object for a region for as long as it is entered.
    pub(crate) fn keep_object(
        &self,
        key: usize,
        object: RegionObject,
    ) -> Rc<RefCell<RegionObject>> {
        let object = Rc::new(RefCell::new(object));
        let mut objects = self.objects.borrow_mut();
        objects.retain(|(_, object)| object.strong_count() > 0);
        objects.push((key, Rc::downgrade(&object)));
        object
    }

    pub(crate) fn finish(self) -> Result<Traced> {
        let graph = self.tracer.finish()?;
        Ok(Traced {
            graph,
            starts: self.starts.into_inner(),
            warnings: self.warnings.into_inner(),
            asked: self.asked.into_inner(),
        })
    }

    #[track_caller]
    fn unknown(
        &self,
        what: &str,
        name: &str,
        why: &str,
        known: &BTreeMap<String, TensorType>,
    ) -> Var<'_> {
        let names: Vec<_> = known.keys().map(|known| format!("`{known}`")).collect();
        let list = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        self.tracer.fail(what, format!("`{name}` {why} {list}"))
    }
}

/// Puts the number of open regions back, also when the body panics.
struct Depth<'a> {
    of: &'a Cell<usize>,
    outer: usize,
}

impl Drop for Depth<'_> {
    fn drop(&mut self) {
        self.of.set(self.outer);
    }
}
