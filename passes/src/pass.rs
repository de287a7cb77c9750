//! [`Pass`], one rewrite of a program, and [`Pipeline`], several in order.
//!
//! A pass takes a verified graph and makes a new one; nothing unverified reaches the next pass.

use smallvec::SmallVec;
use std::fmt;
use std::time::{Duration, Instant};
use tracecast_ir::hash::FxHashMap;
use tracecast_ir::op::{Body, Lower};
use tracecast_ir::{
    Graph, Node, NodeId, PassError, Promise, Results, Stage, TraceError, Tracer, ValueId, Var,
    Verified, compare, verify,
};

/// One rewrite of a program that keeps its meaning.
pub trait Pass: Send + Sync {
    /// The name used on the command line, in filetests, dumps and errors: the constant `NAME` of
    /// the standard passes.
    fn name(&self) -> &'static str;

    /// The stage the result is in; most passes stay where they are.
    fn ensures(&self, before: Stage) -> Stage {
        before
    }

    /// What it may do to casts, which the verifier holds it to; passes from elsewhere mostly add
    /// code.
    fn promise(&self) -> Promise {
        Promise::Adds
    }

    /// A new graph with the same meaning.
    ///
    /// # Errors
    /// The first op that could not be recorded.
    fn run(&self, graph: &Verified) -> Result<Graph, TraceError>;
}

/// Passes in order, with the verifier after each.
#[derive(Default)]
pub struct Pipeline {
    passes: Vec<Box<dyn Pass>>,
}

impl Pipeline {
    /// What a program is called before the first pass, where passes are told by name.
    pub const TRACED: &'static str = "trace";

    /// No pass.
    pub fn new() -> Self {
        Pipeline::default()
    }

    /// The same with one more pass at the end.
    #[must_use]
    pub fn then(self, pass: impl Pass + 'static) -> Self {
        self.then_boxed(Box::new(pass))
    }

    /// The same with one more pass, found by name, at the end.
    #[must_use]
    pub fn then_boxed(mut self, pass: Box<dyn Pass>) -> Self {
        self.passes.push(pass);
        self
    }

    /// The same behind one more pass.
    #[must_use]
    pub fn after(mut self, pass: impl Pass + 'static) -> Self {
        self.passes.insert(0, Box::new(pass));
        self
    }

    /// The names of the passes, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.passes.iter().map(|p| p.name()).collect()
    }

    /// The pipeline up to and with the first pass of that name; `None` if there is none.
    #[must_use]
    pub fn up_to(mut self, name: &str) -> Option<Self> {
        let last = self.passes.iter().position(|p| p.name() == name)?;
        self.passes.truncate(last + 1);
        Some(self)
    }

    /// The pipeline without the passes of that name: for those that only make programs faster.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.passes.retain(|p| p.name() != name);
        self
    }

    /// The passes up to and with the first one of that name, and those behind it.
    #[must_use]
    pub fn split_after(mut self, name: &str) -> (Self, Self) {
        let behind = self
            .passes
            .iter()
            .position(|p| p.name() == name)
            .map_or(self.passes.len(), |at| at + 1);
        let rest = self.passes.split_off(behind);
        (self, Pipeline { passes: rest })
    }

    /// Runs every pass on a traced program.
    ///
    /// `observe` sees the program as it came, under the name [`TRACED`](Pipeline::TRACED), and
    /// after each pass, with the time that the pass and the verifier took.
    ///
    /// # Errors
    /// What is wrong with the traced program, or the first pass that failed.
    pub fn run(
        &self,
        graph: Graph,
        observe: impl FnMut(&str, &Verified, Duration),
    ) -> Result<Verified, PassError> {
        self.run_from(Stage::Traced, graph, observe)
    }

    /// As [`run`](Pipeline::run), for a program that has come to `stage` already.
    ///
    /// # Errors
    /// What is wrong with the program, or the first pass that failed.
    pub fn run_from(
        &self,
        stage: Stage,
        graph: Graph,
        mut observe: impl FnMut(&str, &Verified, Duration),
    ) -> Result<Verified, PassError> {
        let start = Instant::now();
        let mut graph = verify(graph, stage).map_err(PassError::Input)?;
        observe(Pipeline::TRACED, &graph, start.elapsed());
        for pass in &self.passes {
            let (start, name) = (Instant::now(), pass.name());
            let next = pass.run(&graph).map_err(|error| PassError::InPass { pass: name, error })?;
            let wrong = |errors| PassError::AfterPass { pass: name, errors };
            let next = verify(next, pass.ensures(graph.stage())).map_err(wrong)?;
            // What policies decided is checked always, what rewrites do to it while they are
            // developed.
            if cfg!(debug_assertions) || pass.promise() == Promise::Casts {
                compare(&graph, &next, pass.promise()).map_err(wrong)?;
            }
            graph = next;
            observe(name, &graph, start.elapsed());
        }
        Ok(graph)
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// The new values of the old graph's nodes, for a rule that needs more than the operands of the
/// node at hand.
#[derive(Default)]
pub(crate) struct Renamed(FxHashMap<NodeId, SmallVec<[ValueId; 1]>>);

impl Renamed {
    /// Remembers what stands in the place of a node.
    pub(crate) fn note(&mut self, old: NodeId, new: &Results<'_>) {
        self.0.insert(old, new.iter().map(|v| v.id()).collect());
    }

    /// The new value of an old one; `None` if it is not recorded yet.
    pub(crate) fn get<'t>(&self, t: &'t Tracer, graph: &Graph, old: ValueId) -> Option<Var<'t>> {
        if let Some(port) = graph.port_index(old.node) {
            let node = t.with_graph(|g| g.ports()[port].node);
            return Some(t.var(ValueId { node, result: 0 }));
        }
        let new = self.0.get(&old.node)?.get(usize::from(old.result))?;
        Some(t.var(*new))
    }
}

/// Fails if an autocast decision is still open: recording the node again would lose it.
pub(crate) fn need_decided(graph: &Graph) -> Result<(), TraceError> {
    match graph.nodes().map(|id| graph.node(id)).find(|n| n.decision.is_some()) {
        Some(node) => {
            Err(error_at(node, "its autocast decision is still open: `autocast` has to run first"))
        }
        None => Ok(()),
    }
}

/// The same graph without what no output and no update needs.
pub(crate) fn without_dead_code(graph: &Graph) -> Result<Graph, TraceError> {
    graph.retrace(|t, id, _, args| t.carry(graph, id, args))
}

/// The graph, without what no output and no update needs if there is any such.
pub(crate) fn swept(graph: Graph) -> Result<Graph, TraceError> {
    let live = graph.live();
    let is_port = |id: NodeId| matches!(graph.node(id).op.def().body, Body::Source(Lower::Port));
    if graph.nodes().all(|id| live[id.index()] || is_port(id)) {
        return Ok(graph);
    }
    without_dead_code(&graph)
}

/// An error about a node.
pub(crate) fn error_at(node: &Node, message: impl Into<String>) -> TraceError {
    TraceError {
        op: node.op.name().to_string(),
        message: message.into(),
        source_line: node.source.to_string(),
        scope: node.scope.to_string(),
    }
}
