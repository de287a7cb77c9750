//! What the uses of values make of them: the same 16 bits, all of them, or not.

use smallvec::SmallVec;
use std::collections::HashMap;
use tracecast_ir::op::{Body, Elements, Lower, View};
use tracecast_ir::{DType, Graph, Node, NodeId, ValueId};

/// What the uses of a value make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Nothing yet.
    Open,
    /// All of them round it to this dtype.
    Narrow(DType),
    /// Some use takes it as it is.
    Wide,
}

impl Demand {
    fn and(self, other: Demand) -> Demand {
        match (self, other) {
            (Demand::Open, d) | (d, Demand::Open) => d,
            (a, b) if a == b => a,
            _ => Demand::Wide,
        }
    }
}

/// What the uses of every node's result make of it.
pub(super) fn demands(graph: &Graph) -> Vec<Demand> {
    let mut demands = vec![Demand::Open; graph.len()];
    for root in graph.roots() {
        demands[root.node.index()] = Demand::Wide;
    }
    let live = graph.live();
    for id in graph.nodes().rev().filter(|id| live[id.index()]) {
        let node = graph.node(id);
        for (operand, arg) in graph.args(id).into_iter().enumerate() {
            let own = demands[id.index()];
            let dtype = graph.ty(arg).dtype;
            let demand =
                if dtype.is_float() { demand_of(node, operand, dtype, own) } else { Demand::Wide };
            demands[arg.node.index()] = demands[arg.node.index()].and(demand);
        }
    }
    demands
}

/// For every node, whether a narrow copy of its first operand is worth its bytes: all uses take the copy (a port has one, as it
/// lies), or no other kernel takes the wide value, or the copy has two readers at least. One alone would not get back, by what it
/// reads, what is written next to the wide value. Views and casts are part of the loads of those behind them, so these are the readers.
pub(super) fn copied(graph: &Graph, demands: &[Demand]) -> Vec<bool> {
    let live = graph.live();
    let uses = |id: NodeId| {
        let (node, args) = (graph.node(id), graph.args(id));
        let asks = move |(operand, arg): (usize, ValueId)| {
            let dtype = graph.ty(arg).dtype;
            match demand_of(node, operand, dtype, demands[id.index()]) {
                Demand::Narrow(to) if dtype.is_float() => Some((arg, to)),
                _ => None,
            }
        };
        args.into_iter().enumerate().filter_map(asks).collect::<SmallVec<[_; 2]>>()
    };
    let readers = readers(graph, &live);
    let mut narrow: HashMap<(ValueId, DType), usize> = HashMap::new();
    let mut apart = vec![false; graph.len()];
    graph.roots().for_each(|root| apart[root.node.index()] = true);
    for id in graph.nodes().filter(|id| live[id.index()]) {
        let own = if is_loaded(graph, id) { readers[id.index()] } else { 1 };
        let asked = uses(id);
        for arg in graph.args(id).into_iter().filter(|a| asked.iter().all(|(v, _)| v != a)) {
            apart[arg.node.index()] |= !is_joined(graph, arg, id);
        }
        asked.into_iter().for_each(|asked| *narrow.entry(asked).or_default() += own);
    }
    let is_shared = |asked: &(ValueId, DType)| {
        let value = asked.0.node.index();
        demands[value] != Demand::Wide || !apart[value] || narrow.get(asked).is_some_and(|n| *n > 1)
    };
    graph.nodes().map(|id| uses(id).first().is_some_and(is_shared)).collect()
}

/// How many nodes read the result of each node, behind views and casts; whoever takes a result of the program is one of them.
fn readers(graph: &Graph, live: &[bool]) -> Vec<usize> {
    let mut readers = vec![0usize; graph.len()];
    graph.roots().for_each(|root| readers[root.node.index()] += 1);
    for id in graph.nodes().rev().filter(|id| live[id.index()]) {
        let own = if is_loaded(graph, id) { readers[id.index()] } else { 1 };
        for arg in graph.args(id) {
            readers[arg.node.index()] = readers[arg.node.index()].saturating_add(own);
        }
    }
    readers
}

/// True if a node most likely becomes part of the kernel that makes its operand: it takes each element where it is made.
fn is_joined(graph: &Graph, operand: ValueId, user: NodeId) -> bool {
    let lowering = |id: NodeId| match &graph.node(id).op.def().body {
        Body::Core { kernel, .. } => Some(kernel),
        _ => None,
    };
    let is_nest = |kernel: Option<&Lower>| match kernel {
        Some(Lower::Map(_)) => graph.node(user).results[0].shape == graph.ty(operand).shape,
        kernel => matches!(kernel, Some(Lower::ReduceRow | Lower::ReduceColumn)),
    };
    let made = lowering(operand.node);
    is_nest(lowering(user)) && matches!(made, Some(Lower::Map(_) | Lower::ReduceRow))
}

/// True for what is no more than a way to load its operand.
fn is_loaded(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let is_view = matches!(&node.op.def().body, Body::Core { kernel: Lower::View(_), .. });
    is_view || matches!(node.op.name(), "cast" | "round_to")
}

/// What one use makes of an operand of that dtype, where `own` is what becomes of its result.
pub(super) fn demand_of(node: &Node, operand: usize, dtype: DType, own: Demand) -> Demand {
    let is_narrowing = |to: &DType| to.is_float() && *to != dtype && to.fits_in(dtype);
    match Through::of(node) {
        _ if matches!(node.op.name(), "cast" | "round_to") => match (node.attrs.dtype("to"), own) {
            (Some(to), _) if is_narrowing(&to) => Demand::Narrow(to),
            // Widened and then rounded is rounded.
            (Some(to), Demand::Narrow(narrow)) if dtype.fits_in(to) && is_narrowing(&narrow) => own,
            _ => Demand::Wide,
        },
        Some(through) if through.rounds_either_way && through.data.contains(&operand) => own,
        _ => Demand::Wide,
    }
}

/// An op that hands elements of its data operands on.
pub(super) struct Through {
    /// Which operands are data.
    pub(super) data: std::ops::Range<usize>,
    /// True if rounding the operands rounds the result.
    pub(super) rounds_either_way: bool,
    /// True for views that do not drop elements: nothing more is rounded above them than below.
    pub(super) is_whole_view: bool,
    /// True if it looks at the numbers.
    pub(super) is_selection: bool,
}

impl Through {
    pub(super) fn of(node: &Node) -> Option<Through> {
        let (Body::Core { kernel, .. } | Body::Source(kernel)) = &node.op.def().body else {
            return None;
        };
        let count = node.arity();
        let (data, is_selection) = match kernel {
            Lower::View(_) | Lower::Pad | Lower::Gather => (0..1, false),
            Lower::Cat => (0..count, false),
            Lower::Map(map) => (map.handed_on_from()?..count, true),
            _ => return None,
        };
        Some(Through {
            data,
            rounds_either_way: !matches!(kernel, Lower::Map(map) if map.elements() == Elements::Extreme),
            is_whole_view: matches!(kernel, Lower::View(view) if *view != View::Slice),
            is_selection,
        })
    }
}
