//! [`Graph`]: a petgraph DAG of ops that only ever grows, and read-only views of it.
//!
//! Nodes are numbered in the order of recording, which is a topological order. Operand order lives
//! on edges. Only a [`Tracer`](crate::Tracer) adds nodes; dead code disappears when a graph is
//! traced again.

pub mod attrs;
pub(crate) mod names;
pub mod point;
pub(crate) mod query;
pub(crate) mod residence;

use crate::op::{OpName, OpRef};
use crate::policy::{Decision, Region, Site};
use crate::{Attrs, Size, Sizes, TensorType};
use petgraph::graph::{DiGraph, NodeIndex};
use point::{Origin, Point};
use smallvec::SmallVec;
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// The number of a node.
pub type NodeId = NodeIndex<u32>;

/// One result of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId {
    /// The node.
    pub node: NodeId,
    /// Which of its results.
    pub result: u16,
}

/// An edge: the value is result `result` of the source and operand `operand` of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Position among the flat operands.
    pub operand: u16,
    /// Which result of the source.
    pub result: u16,
}

/// Where a node was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Not known.
    #[default]
    Unknown,
    /// A line of the user's Rust program.
    Rust(&'static Location<'static>),
    /// As the text said, or put together by a pass.
    Text(Arc<str>),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Unknown => Ok(()),
            Source::Rust(l) => write!(f, "{}:{}:{}", l.file(), l.line(), l.column()),
            Source::Text(s) => f.write_str(s),
        }
    }
}

/// How many flat operands each operand of the schema takes: 1, 0 or 1 if optional, any number for a
/// list.
pub type Groups = SmallVec<[u16; 4]>;

/// One op application.
#[derive(Clone, Debug)]
pub struct Node {
    /// The op.
    pub op: OpRef,
    /// Its constants.
    pub attrs: Attrs,
    /// The types of its results.
    pub results: SmallVec<[TensorType; 1]>,
    /// The split of the flat operands among the operands of the schema.
    pub groups: Groups,
    /// What the autocast policy said, until `autocast` has acted on it.
    pub decision: Option<Box<Decision>>,
    /// The autocast state it was recorded under: an index into [`Graph::regions`].
    pub region: u32,
    /// The innermost checkpoint region that it was recorded in; 0 for none. See
    /// [`Graph::checkpoints_of`].
    pub checkpoint: u32,
    /// The module path, such as `encoder.0.attention`; empty at the top.
    pub scope: Arc<str>,
    /// The line that recorded it.
    pub source: Source,
    /// The op that the user recorded, if this node is a part of it: what an error names.
    pub part_of: Option<OpName>,
    /// Where a constant lives, if it was said.
    pub device: Option<Site>,
    /// The number of the port that it stands for.
    port: Option<u32>,
    /// Which part of the traced program it stands for.
    pub origin: Origin,
    /// True if its rule took the types of its operands as they are, and no policy spoke of it.
    pub(crate) takes_as_is: bool,
    first_edge: u32,
    arity: u16,
}

/// The name `module.path/op#k` of the `k`-th node of an op in a module.
pub(crate) fn node_name(scope: &str, op: OpName, number: usize) -> String {
    format!("{scope}/{op}#{number}")
}

/// What a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Given anew with each run.
    Input,
    /// A trained parameter: lives in the store, requires a gradient.
    Param,
    /// Other state that lives in the store: moments, counters, frozen parameters.
    State,
}

/// A named value that comes from outside.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Unique among the ports.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// What it is for.
    pub role: Role,
    /// True if an input requires a gradient; parameters always do.
    pub grad: bool,
    /// The device it lives on, as policies see it.
    pub device: Site,
    /// The node that stands for it.
    pub node: NodeId,
}

impl Port {
    /// True for a leaf that requires a gradient.
    pub fn requires_grad(&self) -> bool {
        self.grad || self.role == Role::Param
    }
}

/// A recorded program.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) dag: DiGraph<Node, Use, u32>,
    pub(crate) ports: Vec<Port>,
    pub(crate) outputs: Vec<(String, ValueId)>,
    pub(crate) updates: Vec<(usize, ValueId)>,
    pub(crate) regions: Vec<Region>,
    /// The checkpoint regions, each with the one around it; the first stands for none.
    pub(crate) checkpoints: Vec<u32>,
    pub(crate) policy: u64,
    pub(crate) points: Arc<Vec<Point>>,
    /// The names of sizes, and what the program needs of them.
    pub(crate) sizes: Sizes,
    /// The words that a text called values by.
    pub(crate) written: Vec<(ValueId, String)>,
    /// True once it is verified: what is recorded from now on stands for its nodes, no longer for
    /// those it was made from.
    pub(crate) settled: bool,
    /// What has been found out about it.
    pub(crate) note: Note,
    index: Index,
}

/// Finds ports, outputs and updates without a search.
#[derive(Clone, Debug, Default)]
struct Index {
    ports: HashMap<String, usize>,
    outputs: HashSet<String>,
    /// The first update that takes a value.
    takers: HashMap<ValueId, usize>,
    /// The ports that have a next value.
    updated: HashSet<usize>,
}

/// What an analysis has found out about a program, kept with it so that who comes next need not
/// find it out again: at most one finding. Two programs that differ in nothing else are the same
/// program.
#[derive(Clone, Default)]
pub(crate) struct Note(Option<Arc<dyn Any + Send + Sync>>);

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a note" } else { "no note" })
    }
}

impl Graph {
    pub(crate) fn new(name: &str) -> Self {
        Graph {
            name: name.to_owned(),
            dag: DiGraph::default(),
            ports: Vec::new(),
            outputs: Vec::new(),
            updates: Vec::new(),
            regions: vec![Region::default()],
            checkpoints: vec![0],
            policy: 0,
            index: Index::default(),
            points: Arc::default(),
            sizes: Sizes::default(),
            written: Vec::new(),
            settled: false,
            note: Note::default(),
        }
    }

    /// The name after `@` in text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The petgraph behind it, for algorithms that only read.
    pub fn petgraph(&self) -> &DiGraph<Node, Use, u32> {
        &self.dag
    }

    /// The number of nodes, ports included.
    pub fn len(&self) -> usize {
        self.dag.node_count()
    }

    /// True if nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All nodes, operands before uses.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + use<> {
        (0..self.len() as u32).map(NodeId::from)
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.dag[id]
    }

    /// The flat operands of a node, in order.
    pub fn args(&self, id: NodeId) -> SmallVec<[ValueId; 4]> {
        let node = &self.dag[id];
        let first = node.first_edge as usize;
        let operands = &self.dag.raw_edges()[first..first + usize::from(node.arity)];
        operands.iter().map(|e| ValueId { node: e.source(), result: e.weight.result }).collect()
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.dag[value.node].results[value.result as usize]
    }

    /// The values that come from outside, in order.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// The named results, in order.
    pub fn outputs(&self) -> &[(String, ValueId)] {
        &self.outputs
    }

    /// The next values of state: (index of the port, value).
    pub fn updates(&self) -> &[(usize, ValueId)] {
        &self.updates
    }

    /// The words by which the text that it was read from called results of ops, such as `hidden`
    /// for `%hidden`, in order. Text that is printed numbers them anew, and a pass makes other
    /// values.
    pub fn written(&self) -> &[(ValueId, String)] {
        &self.written
    }

    /// The autocast states that nodes refer to; the first is "off everywhere".
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The region of a node.
    pub fn region(&self, id: NodeId) -> &Region {
        &self.regions[self.dag[id].region as usize]
    }

    /// The checkpoint regions that a node lies in, the innermost first. Backward recomputes what
    /// was recorded in them: see [`Tracer::checkpoint`](crate::Tracer::checkpoint).
    pub fn checkpoints_of(&self, id: NodeId) -> impl Iterator<Item = u32> + '_ {
        self.checkpoints_around(self.dag[id].checkpoint)
    }

    /// A checkpoint region and those around it, the innermost first; nothing for 0.
    pub(crate) fn checkpoints_around(&self, region: u32) -> impl Iterator<Item = u32> + '_ {
        let around = |region: &u32| Some(self.checkpoints[*region as usize]);
        std::iter::successors(Some(region), around).take_while(|region| *region != 0)
    }

    /// The same program with every value kept for backward.
    #[must_use]
    pub fn without_checkpoints(mut self) -> Graph {
        self.dag.node_weights_mut().for_each(|node| node.checkpoint = 0);
        self.checkpoints.truncate(1);
        self
    }

    /// The number that a size had when the program was traced: for what something costs, never for
    /// what must be right. What has none counts as large.
    #[inline]
    pub fn hint(&self, size: Size) -> usize {
        let number = size.number().or_else(|| self.sizes.hint(size).ok());
        number.map_or(1 << 40, |number| usize::try_from(number).unwrap_or(0))
    }

    /// The names that sizes are made of, and the size guards.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The hash of the policy set it was traced under; 0 if no region was ever on.
    pub fn policy_hash(&self) -> u64 {
        self.policy
    }

    /// The port a node stands for.
    pub fn port_of(&self, id: NodeId) -> Option<&Port> {
        self.port_index(id).map(|port| &self.ports[port])
    }

    /// The number, among the ports, of the one a node stands for.
    pub fn port_index(&self, id: NodeId) -> Option<usize> {
        self.dag[id].port.map(|port| port as usize)
    }

    /// The port of that name.
    pub fn port_named(&self, name: &str) -> Option<&Port> {
        self.index.ports.get(name).map(|port| &self.ports[*port])
    }

    /// The port whose next value this is, the first if there are several.
    pub fn updated_by(&self, value: ValueId) -> Option<&Port> {
        self.index.takers.get(&value).map(|port| &self.ports[*port])
    }

    /// The result of that name.
    pub(crate) fn output_named(&self, name: &str) -> Option<ValueId> {
        self.outputs.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// The values that must be computed: outputs and updates.
    pub fn roots(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.outputs.iter().map(|(_, v)| *v).chain(self.updates.iter().map(|(_, v)| *v))
    }

    /// For each node, whether an output or an update needs it.
    pub fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.len()];
        for root in self.roots() {
            live[root.node.index()] = true;
        }
        // Edges are recorded with the nodes that they lead to, so all uses of a node come after
        // those of what it is made of.
        for edge in self.dag.raw_edges().iter().rev() {
            if live[edge.target().index()] {
                live[edge.source().index()] = true;
            }
        }
        live
    }

    /// The users of every value: for node `i`, pairs (node, operand) with the result they take.
    pub fn users(&self) -> Vec<SmallVec<[(NodeId, Use); 4]>> {
        let mut users = vec![SmallVec::new(); self.len()];
        for id in self.nodes() {
            for (operand, arg) in self.args(id).into_iter().enumerate() {
                users[arg.node.index()]
                    .push((id, Use { operand: operand as u16, result: arg.result }));
            }
        }
        users
    }

    /// The name `module.path/op#k` of every node, stable across traces; `k` counts equal names.
    pub fn names(&self) -> Vec<String> {
        let mut seen = HashMap::<(Arc<str>, OpName), usize>::new();
        self.dag
            .node_weights()
            .map(|n| {
                let number = seen.entry((n.scope.clone(), n.op.name())).or_default();
                *number += 1;
                node_name(&n.scope, n.op.name(), *number - 1)
            })
            .collect()
    }

    /// The program with a finding about it, in place of one that it had. What is recorded from the
    /// program has none.
    ///
    /// A finding has to follow from the program alone: text does not have it, and whoever asks for
    /// it works it out if it is missing.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tracecast_ir::{DType, TensorType, Tracer};
    ///
    /// let t = Tracer::new("g");
    /// t.output("y", t.input("x", TensorType::new(DType::F32, [2])));
    /// let graph = t.finish().unwrap().with_note(Arc::new(7_usize));
    /// assert_eq!(graph.clone().note::<usize>().as_deref(), Some(&7));
    /// assert!(graph.note::<String>().is_none());
    /// ```
    #[must_use]
    pub fn with_note<T: Any + Send + Sync>(mut self, note: Arc<T>) -> Graph {
        self.note = Note(Some(note));
        self
    }

    /// The finding, if there is one of that type.
    pub fn note<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.note.0.clone()?.downcast().ok()
    }

    /// Adds a value from outside, whose name is new.
    pub(crate) fn add_port(&mut self, mut node: Node, port: impl FnOnce(NodeId) -> Port) -> NodeId {
        node.port = Some(self.ports.len() as u32);
        node.checkpoint = 0;
        let id = self.push(node, &[]);
        let port = port(id);
        self.index.ports.insert(port.name.clone(), self.ports.len());
        self.ports.push(port);
        id
    }

    /// Names a result; false if something else has the name.
    pub(crate) fn add_output(&mut self, name: &str, value: ValueId) -> bool {
        let new = self.index.outputs.insert(name.to_owned());
        if new {
            self.outputs.push((name.to_owned(), value));
        }
        new
    }

    /// Gives a port its next value; false if it has one.
    pub(crate) fn add_update(&mut self, port: usize, value: ValueId) -> bool {
        let new = self.index.updated.insert(port);
        if new {
            self.index.takers.entry(value).or_insert(port);
            self.updates.push((port, value));
        }
        new
    }

    /// Gives a port that has a next value another one.
    pub(crate) fn replace_update(&mut self, port: usize, value: ValueId) {
        for (_, next) in self.updates.iter_mut().filter(|(at, _)| *at == port) {
            if self.index.takers.get(next) == Some(&port) {
                self.index.takers.remove(next);
            }
            *next = value;
        }
        self.index.takers.entry(value).or_insert(port);
    }

    /// Marks it as verified. A program verified before is its own predecessor.
    pub(crate) fn settle(&mut self) {
        if self.settled {
            for id in self.dag.node_indices() {
                self.dag[id].origin.stands_for = SmallVec::from_elem(id, 1);
            }
        }
        self.settled = true;
    }

    pub(crate) fn push(&mut self, mut node: Node, args: &[ValueId]) -> NodeId {
        node.first_edge = self.dag.edge_count() as u32;
        node.arity = args.len() as u16;
        let id = self.dag.add_node(node);
        for (operand, arg) in args.iter().enumerate() {
            self.dag.add_edge(arg.node, id, Use { operand: operand as u16, result: arg.result });
        }
        id
    }
}

impl Node {
    pub(crate) fn new(
        op: OpRef,
        attrs: Attrs,
        results: SmallVec<[TensorType; 1]>,
        groups: Groups,
        scope: Arc<str>,
    ) -> Self {
        Node {
            op,
            attrs,
            results,
            groups,
            decision: None,
            region: 0,
            checkpoint: 0,
            scope,
            source: Source::Unknown,
            part_of: None,
            device: None,
            port: None,
            origin: Origin::default(),
            takes_as_is: false,
            first_edge: 0,
            arity: 0,
        }
    }

    /// The number of flat operands.
    pub fn arity(&self) -> usize {
        usize::from(self.arity)
    }
}
