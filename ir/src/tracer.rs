//! [`Tracer`]: the only way a node comes to be.
//!
//! User code, the text parser and every pass record through [`Tracer::apply`]. A user's tracer
//! looks every op up in its policies and stores the decision on the node; a pass's tracer is
//! *explicit*: it records casts and expansions that an op asks for as nodes of their own. The first
//! error is kept with its source line and returned by [`Tracer::finish`].

mod blame;
mod checkpoint;
mod draws;
mod region;
mod scene;
mod sizes;
mod trail;
mod updates;
pub mod var;

use blame::Refused;
pub(crate) use blame::with_operands;
use draws::Draws;
use scene::{Called, Former, Restore};
use trail::Trail;

use crate::args::{Args, Results};
use crate::error::TraceError;
use crate::graph::residence::{Residence, of_constant, of_result};
use crate::graph::{Graph, Node, NodeId, Port, Role, Source, ValueId};
use crate::hash::FxHashSet;
use crate::op::{Body, Dispatch, ExpandCx, Inferred, OpDef, OpName, OpRef};
use crate::ops::{cast, infer, source, view};
use crate::policy::parity::Thread;
use crate::policy::{Decision, DeviceType, PolicySet, Site};
use crate::{Attr, Attrs, Number, TensorType, Var};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// How deep composites may lie inside each other.
pub(crate) const DEEPEST: usize = 32;

/// Records ops into a growing [`Graph`].
pub struct Tracer {
    state: RefCell<State>,
    /// How many expansions are being recorded, one inside the other.
    expanding: Cell<usize>,
    policies: Arc<PolicySet>,
    explicit: bool,
    draws: RefCell<Draws>,
    pub(crate) trail: RefCell<Trail>,
}

struct State {
    graph: Graph,
    region: u32,
    /// The checkpoint region that ops are recorded in; 0 for none.
    checkpoint: u32,
    scope: Arc<str>,
    origin: Option<Source>,
    part_of: Option<OpName>,
    /// The function that the user called, outside of which there is no other.
    called: Option<Called>,
    /// The ops that are not of the table.
    named: HashMap<OpName, OpRef>,
    /// The addresses of the ops that are known to be the only ones of their names here. Each lives
    /// as long as the trace: it is of a table or in `named`.
    checked: FxHashSet<usize>,
    /// How many nodes of a module path and op there are: the next one's number in its name.
    counts: HashMap<(Arc<str>, OpName), usize>,
    error: Option<TraceError>,
    /// Where the results of each node live.
    devices: Vec<Residence>,
    /// Where constants are put.
    home: Option<Site>,
    streams: u32,
    cache_scopes: u32,
    /// PyTorch's autocast state with its defects, if the policies ask for parity.
    thread: Option<Box<Thread>>,
    /// For that state: what a tensor was changed to in place, and which tensor it is.
    changed: HashMap<ValueId, ValueId>,
}

impl Tracer {
    /// A tracer for user code under the standard policies, with every region off.
    pub fn new(name: &str) -> Self {
        Tracer::with_policies(name, Arc::new(PolicySet::standard()))
    }

    /// A tracer for user code under these policies.
    pub fn with_policies(name: &str, policies: Arc<PolicySet>) -> Self {
        Tracer::make(Graph::new(name), policies, false)
    }

    /// A tracer for a pass: no policies; casts and expansions become nodes as soon as an op asks
    /// for them.
    pub fn explicit(name: &str) -> Self {
        Tracer::make(Graph::new(name), Arc::new(PolicySet::empty()), true)
    }

    fn make(graph: Graph, policies: Arc<PolicySet>, explicit: bool) -> Self {
        let state = State {
            graph,
            region: 0,
            checkpoint: 0,
            scope: Arc::from(""),
            origin: None,
            part_of: None,
            called: None,
            named: HashMap::new(),
            checked: FxHashSet::default(),
            counts: HashMap::new(),
            error: None,
            devices: Vec::new(),
            home: None,
            streams: 0,
            cache_scopes: 0,
            thread: policies.parity().then(Box::default),
            changed: HashMap::new(),
        };
        Tracer {
            state: RefCell::new(state),
            expanding: Cell::new(0),
            policies,
            explicit,
            draws: RefCell::default(),
            trail: RefCell::default(),
        }
    }

    /// The policies that decide casts.
    pub fn policies(&self) -> &PolicySet {
        &self.policies
    }

    /// A value given anew with each run.
    #[track_caller]
    pub fn input(&self, name: &str, ty: TensorType) -> Var<'_> {
        self.port(name, ty, Role::Input, false, DeviceType::Cpu)
    }

    /// A trained parameter.
    #[track_caller]
    pub fn param(&self, name: &str, ty: TensorType) -> Var<'_> {
        self.port(name, ty, Role::Param, false, DeviceType::Cpu)
    }

    /// Other state: it keeps its value from run to run unless an update gives it a new one.
    #[track_caller]
    pub fn state(&self, name: &str, ty: TensorType) -> Var<'_> {
        self.port(name, ty, Role::State, false, DeviceType::Cpu)
    }

    /// A value from outside. A second request for a port of that name gives the same value, if type
    /// and role agree.
    #[track_caller]
    pub fn port(
        &self,
        name: &str,
        ty: TensorType,
        role: Role,
        grad: bool,
        device: impl Into<Site>,
    ) -> Var<'_> {
        let device = device.into();
        if ty.shape.is_unknown() {
            return self.pass_on();
        }
        let known = self.state.borrow().graph.port_named(name).cloned();
        if let Some(port) = known {
            if port.ty != ty || port.role != role {
                return self.fail(
                    "input",
                    format!(
                        "`{name}` is already a {:?} of type {}{}, asked for as a {role:?} of type {ty}",
                        port.role,
                        port.ty,
                        self.line_of(port.node)
                    ),
                );
            }
            return self.var(ValueId { node: port.node, result: 0 });
        }
        if let Err(message) = ty.check_size().and_then(|()| self.check_names(&ty, role)) {
            return self.fail("input", message);
        }
        if !ty.dtype.is_computable() {
            return self.fail("input", format!("no kernels exist for dtype {}", ty.dtype));
        }
        if grad && !ty.dtype.is_float() || role == Role::Param && !ty.dtype.is_float() {
            return self.fail(
                "input",
                format!("`{name}` is {ty}: only floating point values have gradients"),
            );
        }
        let node = self.make_node(
            (&source::INPUT).into(),
            Attrs::new(),
            Inferred::one(ty.clone()).results,
            SmallVec::new(),
        );
        let mut state = self.state.borrow_mut();
        let port = |node| Port { name: name.to_owned(), ty, role, grad, device, node };
        let node = state.graph.add_port(node, port);
        state.devices.push(Some(device.kind));
        drop(state);
        self.var(ValueId { node, result: 0 })
    }

    /// A tensor of equal numbers.
    #[track_caller]
    pub fn full(&self, ty: TensorType, value: impl Into<Number>) -> Var<'_> {
        let attrs = Attrs::new().with("dtype", ty.dtype).with("shape", &ty.shape[..]);
        self.apply(&source::CONSTANT, Args::new(), attrs.with("value", value.into()))[0]
    }

    /// Zeros in the type of `x`.
    #[track_caller]
    pub fn zeros_like<'t>(&'t self, x: Var<'t>) -> Var<'t> {
        if x.is_poison() { self.poison() } else { self.full(x.ty(), 0.0) }
    }

    /// Ones in the type of `x`.
    #[track_caller]
    pub fn ones_like<'t>(&'t self, x: Var<'t>) -> Var<'t> {
        if x.is_poison() { self.poison() } else { self.full(x.ty(), 1.0) }
    }

    /// Names a result.
    #[track_caller]
    pub fn output(&self, name: &str, value: Var<'_>) {
        if value.is_poison() {
            return;
        }
        if !self.owns(value) {
            self.fail("output", foreign());
        } else if !self.state.borrow_mut().graph.add_output(name, value.id) {
            let first = self.state.borrow().graph.output_named(name).map(|value| value.node);
            let line = first.map_or_else(String::new, |node| self.line_of(node));
            self.fail("output", format!("`{name}` is already an output{line}"));
        }
    }

    /// `, recorded at LINE`; nothing if that is not known.
    fn line_of(&self, node: crate::NodeId) -> String {
        let line = self.state.borrow().graph.node(node).source.to_string();
        if line.is_empty() { line } else { format!(", recorded at {line}") }
    }

    /// Records an op and returns its results.
    ///
    /// An op that cannot be recorded leaves the first such error for [`Tracer::finish`] and returns
    /// values that other ops pass on.
    #[track_caller]
    pub fn apply<'t>(&'t self, op: impl Into<OpRef>, args: Args<'t>, attrs: Attrs) -> Results<'t> {
        self.applied(op.into(), args, attrs)
    }

    #[track_caller]
    fn applied<'t>(&'t self, op: OpRef, mut args: Args<'t>, mut attrs: Attrs) -> Results<'t> {
        let count = op.def().schema.results.len();
        if args.vars.iter().any(|v| v.is_poison()) {
            return SmallVec::from_elem(self.poison(), count);
        }
        if attrs.is_unknown() {
            return SmallVec::from_elem(self.pass_on(), count);
        }
        match self.try_apply(&op, &mut args, &mut attrs) {
            Ok(results) => results,
            Err(message) => {
                let types: Vec<TensorType> = args.vars.iter().map(|v| v.ty()).collect();
                let message = with_operands(message, op.def(), &args.groups, &types, &attrs);
                SmallVec::from_elem(self.fail(op.name(), message), count)
            }
        }
    }

    #[track_caller]
    fn try_apply<'t>(
        &'t self,
        op: &OpRef,
        args: &mut Args<'t>,
        attrs: &mut Attrs,
    ) -> Result<Results<'t>, String> {
        if args.vars.iter().any(|v| !self.owns(*v)) {
            return Err(foreign());
        }
        let def = op.def();
        if args.vars.len() > usize::from(u16::MAX) {
            return Err(format!("takes at most {} values, found {}", u16::MAX, args.vars.len()));
        }
        self.refuse_namesake(op)?;
        args.check(&def.schema)?;
        if let (Some(Attr::Int(number)), Some(x)) = (attrs.get("scalar"), args.vars.first()) {
            infer::need_exact(x.dtype(), *number)?;
        }
        crate::args::check_attrs(&def.schema, attrs)?;
        self.divide_draw(def, args, attrs)?;
        let mut types = self.types_of(args);
        let decision = match self.explicit {
            true => None,
            false => {
                self.check_devices(def, args)?;
                self.decide(op, args, attrs)?
            }
        };
        let expands = matches!(def.dispatch, Dispatch::Expands | Dispatch::ListedOrExpands { .. })
            && decision.is_none();
        if let (true, Body::Composite { expand, .. }) = (expands, &def.body) {
            let results = self.infer(op, &types, &args.groups, attrs)?.results;
            let cx = ExpandCx {
                tracer: self,
                args: &args.vars,
                groups: &args.groups,
                attrs,
                results: &results,
            };
            let depth = self.expanding.get();
            if depth == DEEPEST {
                return Err(format!(
                    "lies inside {DEEPEST} composites: it seems to be made of itself"
                ));
            }
            self.expanding.set(depth + 1);
            let parts = self.at_caller(|| self.part_of(op.name(), || expand(&cx)));
            self.expanding.set(depth);
            return Ok(parts);
        }
        let mut seen = Cow::Borrowed(&*attrs);
        if let Some(d) = &decision {
            apply_decision(d, &mut types, seen.to_mut());
        }
        let inferred = self.infer(op, &types, &args.groups, &seen).map_err(|message| {
            let decision = decision.as_ref();
            let refused = Refused { def, args, attrs: &seen, types: &types, decision };
            self.with_provenance(&refused, message)
        })?;
        for ty in &inferred.results {
            ty.check_size()?;
        }
        let takes_as_is = decision.is_none() && (self.explicit || inferred.is_explicit());
        if self.explicit && !inferred.is_explicit() {
            self.at_caller(|| make_explicit(args, &inferred));
            if args.vars.iter().any(|v| v.is_poison()) {
                return Ok(SmallVec::from_elem(self.poison(), inferred.results.len()));
            }
        }
        let attrs = std::mem::take(attrs);
        let mut node = self.make_node(op.clone(), attrs, inferred.results, args.groups.clone());
        node.decision = decision.map(Box::new);
        node.takes_as_is = takes_as_is;
        Ok(self.push(node, args))
    }

    fn types_of(&self, args: &Args<'_>) -> SmallVec<[TensorType; 4]> {
        let graph = &self.state.borrow().graph;
        args.vars.iter().map(|v| graph.ty(v.id).clone()).collect()
    }

    /// True if a node of another graph can be recorded here on these operands as it was there: they
    /// have the types that its operands have there, and its rule takes such as they are.
    pub(crate) fn takes_alike(&self, other: &Graph, id: NodeId, args: &Args<'_>) -> bool {
        let node = other.node(id);
        if !self.explicit || !node.takes_as_is || node.groups != args.groups {
            return false;
        }
        let state = self.state.borrow();
        let alike =
            |(v, old): (&Var<'_>, ValueId)| self.owns(*v) && state.graph.ty(v.id) == other.ty(old);
        args.vars.len() == node.arity()
            && args.vars.iter().zip(other.args(id)).all(alike)
            && state.checked.contains(&address(node.op.def()))
    }

    /// A node like one of another graph, with the line, the module path and the region that are
    /// recorded under here.
    pub(crate) fn copy_of(&self, node: &Node) -> Node {
        let (op, attrs, results) = (node.op.clone(), node.attrs.clone(), node.results.clone());
        let mut copy = self.make_node(op, attrs, results, node.groups.clone());
        copy.takes_as_is = true;
        copy
    }

    /// Ops are distinguished by name, so one name stands for one op: that of the table, or the
    /// first of a trace.
    fn refuse_namesake(&self, op: &OpRef) -> Result<(), String> {
        let address = address(op.def());
        if self.state.borrow().checked.contains(&address) {
            return Ok(());
        }
        self.compare_with_namesake(op)?;
        self.state.borrow_mut().checked.insert(address);
        Ok(())
    }

    fn compare_with_namesake(&self, op: &OpRef) -> Result<(), String> {
        if let Some(known) = crate::ops::find(op.name().text()) {
            let same = std::ptr::eq(known, op.def());
            return if same {
                Ok(())
            } else {
                Err("is the name of another op of the table".to_owned())
            };
        }
        let mut state = self.state.borrow_mut();
        let first = state.named.entry(op.name()).or_insert_with(|| op.clone());
        let same = std::ptr::eq(first.def(), op.def());
        if same { Ok(()) } else { Err("is the name of another op of this trace".to_owned()) }
    }

    pub(crate) fn push<'t>(&'t self, mut node: Node, args: &Args<'t>) -> Results<'t> {
        let ids: SmallVec<[ValueId; 4]> = args.vars.iter().map(|v| v.id).collect();
        let mut state = self.state.borrow_mut();
        let from = ids.first().map(|id| state.graph.ty(*id).dtype);
        self.mark(&mut state.graph, &mut node, from);
        let count = node.results.len();
        let residence = match (ids.is_empty(), node.results.first()) {
            (true, Some(ty)) => {
                node.device = state.home;
                of_constant(state.home.map(|home| home.kind), ty)
            }
            _ => of_result(ids.iter().map(|id| state.devices[id.node.index()])),
        };
        state.devices.push(residence);
        // Policies ask for it.
        if !self.explicit {
            *state.counts.entry((node.scope.clone(), node.op.name())).or_default() += 1;
        }
        let node = state.graph.push(node, &ids);
        drop(state);
        (0..count as u16).map(|result| self.var(ValueId { node, result })).collect()
    }

    #[track_caller]
    fn make_node(
        &self,
        op: OpRef,
        attrs: Attrs,
        results: SmallVec<[TensorType; 1]>,
        groups: crate::graph::Groups,
    ) -> Node {
        let state = self.state.borrow();
        let mut node = Node::new(op, attrs, results, groups, state.scope.clone());
        node.region = state.region;
        node.checkpoint = state.checkpoint;
        node.part_of = state.part_of;
        node.source = state.origin.clone().unwrap_or(Source::Rust(Location::caller()));
        node
    }

    /// A stream of random numbers that no other op of this trace draws from.
    pub fn next_stream(&self) -> u32 {
        let mut state = self.state.borrow_mut();
        state.streams += 1;
        state.streams - 1
    }

    /// Keeps an error, unless there is one already, and returns the value that stands for a failed
    /// op. It names the function or the composite op that is being recorded, if this is one of its
    /// parts.
    #[track_caller]
    pub fn fail(&self, op: impl fmt::Display, message: impl Into<String>) -> Var<'_> {
        let mut state = self.state.borrow_mut();
        let here = state.origin.clone().unwrap_or(Source::Rust(Location::caller()));
        if state.error.is_none() {
            let (op, part) = state.blamed(op.to_string());
            let message = message.into() + part.as_deref().unwrap_or_default();
            let (source_line, scope) = (here.to_string(), state.scope.to_string());
            state.error = Some(TraceError { op, message, source_line, scope });
        }
        drop(state);
        self.poison()
    }

    /// The first error so far.
    pub fn error(&self) -> Option<TraceError> {
        self.state.borrow().error.clone()
    }

    /// Takes the first error so far, so that what follows is recorded as if there had been none:
    /// for those who look for all that is wrong with a program.
    pub fn take_error(&self) -> Option<TraceError> {
        self.state.borrow_mut().error.take()
    }

    /// The value with that number.
    ///
    /// # Panics
    /// If nothing with that number was recorded by this tracer.
    pub fn var(&self, id: ValueId) -> Var<'_> {
        let state = self.state.borrow();
        assert!(id.node.index() < state.graph.len(), "no node {} in this trace", id.node.index());
        drop(state);
        Var { tracer: self, id }
    }

    /// Lends the graph so far.
    ///
    /// # Panics
    /// If `read` records something: the graph is lent for reading only.
    pub fn with_graph<R>(&self, read: impl FnOnce(&Graph) -> R) -> R {
        read(&self.state.borrow().graph)
    }

    /// Lends the graph so far to what completes nodes.
    pub(crate) fn with_graph_mut<R>(&self, change: impl FnOnce(&mut Graph) -> R) -> R {
        change(&mut self.state.borrow_mut().graph)
    }

    /// True for a tracer of passes.
    pub(crate) fn is_explicit(&self) -> bool {
        self.explicit
    }

    /// True if something could not be recorded.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.borrow().error.is_some()
    }

    fn poison(&self) -> Var<'_> {
        Var::poison(self)
    }

    /// A value of no type, as the result of a failed op is, without an error: all that is made of
    /// it is one, too.
    pub fn unknown(&self) -> Var<'_> {
        self.poison()
    }

    fn owns(&self, var: Var<'_>) -> bool {
        std::ptr::eq(self, var.tracer) && !var.is_poison()
    }

    /// The recorded graph.
    ///
    /// # Errors
    /// The first op that could not be recorded.
    pub fn finish(self) -> Result<Graph, TraceError> {
        let state = self.state.into_inner();
        match state.error {
            Some(error) => Err(error),
            None => Ok(state.graph),
        }
    }
}

fn address(def: &OpDef) -> usize {
    std::ptr::from_ref(def).addr()
}

fn foreign() -> String {
    "an operand belongs to another trace".to_owned()
}

/// The operand types and the attributes as the decision leaves them.
pub(crate) fn apply_decision(decision: &Decision, types: &mut [TensorType], attrs: &mut Attrs) {
    for (ty, cast) in types.iter_mut().zip(&decision.casts) {
        if let Some(dtype) = cast {
            ty.dtype = *dtype;
        }
    }
    if let Some(dtype) = decision.dtype_arg {
        attrs.set("dtype", dtype);
    }
}

/// Records the casts and expansions that a type rule asked for.
fn make_explicit(args: &mut Args<'_>, inferred: &Inferred) {
    for (i, var) in args.vars.iter_mut().enumerate() {
        if let Some(Some(dtype)) = inferred.casts.get(i) {
            *var = cast::Cast::cast(*var, *dtype);
        }
        if let Some(Some(shape)) = inferred.shapes.get(i) {
            *var = view::Views::expand(*var, shape);
        }
    }
}
