//! Gradients that ranks add up, without the rounding to 16 bits in front of the sum.
//!
//! The gradient of a weight that was cast to 16 bits is rounded to them and widened again. Each
//! rank would round its part, of any sign and magnitude, and the errors of the parts may be larger
//! than their sum. So what makes such a gradient gives it in f32 where nothing but an exchange
//! takes it, and the sum differs from that of one rank with all rows by one rounding of that one.
//!
//! ```text
//! before:  %0 = contract %a, %b : bf16[4, 4]
//!          %1 = cast %0 {to = f32} : f32[4, 4]
//!          %2 = all_reduce %1 {across = "sum", ranks = 2} : f32[4, 4]
//! after:   %0 = contract %a, %b {dtype = f32} : f32[4, 4]
//!          %1 = all_reduce %0 {across = "sum", ranks = 2} : f32[4, 4]
//! ```

use crate::fuse::Users;
use tracecast_ir::hash::FxHashMap;
use tracecast_ir::op::{Across, Body, Inside, Intrinsic, Lower};
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::{Args, DType, Graph, Node, NodeId, Results, TraceError, Tracer};

/// What becomes of a node between a gradient and the sum over ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// It gives what it sums up as it is.
    Sums,
    /// It takes what it is given in f32, in which it computes.
    Widened,
    /// It hands on what it gets now.
    Handed,
    /// It is not needed.
    Gone,
}

/// The program without those roundings.
pub(super) fn unrounded(graph: Graph) -> Result<Graph, TraceError> {
    let changes = changes(&graph);
    if changes.is_empty() {
        return Ok(graph);
    }
    graph.retrace(|t, id, node, args| match changes.get(&id) {
        None | Some(Change::Handed) => t.carry(&graph, id, args),
        Some(Change::Gone) => args.vars.into_iter().collect(),
        Some(Change::Sums) => {
            t.apply(node.op.clone(), args, node.attrs.clone().with("dtype", DType::F32))
        }
        Some(Change::Widened) => widened(t, node, args),
    })
}

fn widened<'t>(t: &'t Tracer, node: &Node, args: Args<'t>) -> Results<'t> {
    let wide = |var: &tracecast_ir::Var<'t>| match var.dtype().is_low() {
        true => var.cast(DType::F32),
        false => *var,
    };
    let args = Args { vars: args.vars.iter().map(wide).collect(), groups: args.groups };
    let results = t.apply(node.op.clone(), args, node.attrs.clone());
    results.into_iter().map(|var| wide(&var)).collect()
}

/// The nodes that change, from what makes a gradient up to the cast in front of the sum.
fn changes(graph: &Graph) -> FxHashMap<NodeId, Change> {
    let mut changes = FxHashMap::default();
    let sums: Vec<NodeId> = graph.nodes().filter(|id| adds_up(graph, *id)).collect();
    if sums.is_empty() {
        return changes;
    }
    let users = Users::of_graph(graph);
    let mut is_root = vec![false; graph.len()];
    graph.roots().for_each(|v| is_root[v.node.index()] = true);
    let only = |id: NodeId| !is_root[id.index()] && users.of(id).len() == 1;
    for sum in sums {
        let cast = graph.args(sum)[0].node;
        if !is_widening(graph, cast) || !only(cast) {
            continue;
        }
        let mut way = vec![(cast, Change::Gone)];
        let mut at = graph.args(cast)[0].node;
        while only(at) && is_view(graph, at) {
            way.push((at, Change::Handed));
            at = graph.args(at)[0].node;
        }
        if let Some(change) = in_f32(graph, at).filter(|_| only(at)) {
            way.push((at, change));
            changes.extend(way);
        }
    }
    changes
}

/// True for a sum or a mean over several ranks.
fn adds_up(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let Some(Lower::Exchange(what)) = node.op.def().lowering() else { return false };
    let adds = matches!(what.across(&node.attrs), Some(Across::Sum | Across::Mean));
    adds && node.attrs.int("ranks").is_some_and(|ranks| ranks > 1)
}

/// True for the cast of a gradient from 16 bits to f32.
fn is_widening(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    node.op.intrinsic() == Some(Intrinsic::Cast)
        && node.origin.backward
        && node.results[0].dtype == DType::F32
        && graph.ty(graph.args(id)[0]).dtype.is_low()
}

fn is_view(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).origin.backward
        && matches!(graph.node(id).op.def().lowering(), Some(Lower::View(_)))
}

/// How a part of a gradient gives in f32 what it rounds once.
fn in_f32(graph: &Graph, id: NodeId) -> Option<Change> {
    let node = graph.node(id);
    let one = node.origin.backward && node.results.len() == 1;
    match &node.op.def().body {
        Body::Core { kernel: Lower::Contract, .. } if one => {
            node.attrs.dtype("dtype").is_none().then_some(Change::Sums)
        }
        Body::Composite { inside: Inside::F32, .. } if one => Some(Change::Widened),
        _ => None,
    }
}
