//! What the uses of values make of them: the same 16 bits, all of them, or not.

use tracecast_ir::op::{Body, Elements, Lower, View};
use tracecast_ir::{DType, Graph, Node};

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

/// What one use makes of an operand of that dtype, where `own` is what becomes of its result.
pub(super) fn demand_of(node: &Node, operand: usize, dtype: DType, own: Demand) -> Demand {
    let is_narrowing = |to: &DType| to.is_float() && *to != dtype && to.fits_in(dtype);
    match Through::of(node) {
        _ if node.op.is_cast() => match (node.attrs.dtype("to"), own) {
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
    /// True if it may drop elements.
    pub(super) drops: bool,
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
            Lower::View(_) | Lower::Pad | Lower::Windows | Lower::Gather => (0..1, false),
            Lower::Cat => (0..count, false),
            Lower::Map(map) => (map.handed_on_from()?..count, true),
            _ => return None,
        };
        Some(Through {
            data,
            rounds_either_way: !matches!(kernel, Lower::Map(map) if map.elements() == Elements::Extreme),
            is_whole_view: matches!(kernel, Lower::View(view) if *view != View::Slice),
            drops: matches!(kernel, Lower::View(View::Slice) | Lower::Gather | Lower::Windows),
            is_selection,
        })
    }
}
