//! Losses whose operands broadcast against each other: a prediction `[n, 1]` against a target `[n]`
//! gives `[n, n]`, every row against every target, and learning goes on as if nothing were wrong.

use super::warning::{WarningKind, Warnings};
use smallvec::SmallVec;
use std::collections::HashSet;
use tracecast_ir::op::{Body, InferCx, Intrinsic, Lower};
use tracecast_ir::{Graph, Must, NodeId, Shape, Size, TensorType};

pub(super) fn look(found: &mut Warnings<'_>) {
    let graph = found.traced;
    let kind = |id: NodeId| graph.node(id).op.intrinsic();
    let differentiated = graph.nodes().filter(|id| kind(*id) == Some(Intrinsic::Gradient));
    let mut todo: Vec<NodeId> = differentiated.map(|id| graph.args(id)[0].node).collect();
    todo.extend(graph.nodes().filter(|id| kind(*id) == Some(Intrinsic::Loss)));
    let mut seen = HashSet::new();
    // From each loss back over what works element by element and what sums up: what is behind it
    // belongs to the model.
    while let Some(id) = todo.pop() {
        if !seen.insert(id) {
            continue;
        }
        if let Some([column, row]) = crossed(graph, id) {
            let result = found.traced.node(id).results[0].shape.clone();
            let whole = column.broadcast(&row).unwrap_or(result);
            let message = format!(
                "operands of shapes {column} and {row} are broadcast to {whole} on the way to a loss: every element of one meets every \
                 element of the other"
            );
            let advice = "give both one shape, by `reshape`; if it is meant, `expand` them to it";
            found.about(WarningKind::CrossedLoss, id, message, advice);
        }
        if leads_on(graph, id) {
            todo.extend(graph.args(id).iter().map(|arg| arg.node));
        }
    }
}

/// The shapes `[.., n, 1]` and `[.., n]` of two operands that are both expanded, unless both are
/// views of one value.
fn crossed(graph: &Graph, id: NodeId) -> Option<[Shape; 2]> {
    let (node, args) = (graph.node(id), graph.args(id));
    let mut types: SmallVec<[TensorType; 4]> = args.iter().map(|a| graph.ty(*a).clone()).collect();
    if let Some(decision) = &node.decision {
        for (ty, to) in types.iter_mut().zip(&decision.casts) {
            ty.dtype = to.unwrap_or(ty.dtype);
        }
    }
    let must = Must::proven(graph.sizes());
    let (groups, attrs) = (&node.groups, &node.attrs);
    let cx = InferCx { types: &types, groups, attrs, must: &must };
    let inferred = (node.op.def().infer)(&cx).ok()?;
    let is_expanded = |i: &usize| inferred.shapes.get(*i).is_some_and(Option::is_some);
    let expanded: Vec<usize> = (0..types.len()).filter(is_expanded).collect();
    let mut pairs = expanded.iter().flat_map(|i| expanded.iter().map(move |j| (*i, *j)));
    pairs.find_map(|(i, j)| {
        let (column, row) = (&types[i].shape, &types[j].shape);
        let one = Size::from(1);
        let is_column = column.split_last() == Some((&one, &row[..]));
        let is_one = base(graph, args[i].node) == base(graph, args[j].node);
        (is_column && row.last() != Some(&one) && !row.is_empty() && !is_one)
            .then(|| [column.clone(), row.clone()])
    })
}

/// The node that views were made of.
fn base(graph: &Graph, mut id: NodeId) -> NodeId {
    while is_view(graph, id) {
        id = graph.args(id)[0].node;
    }
    id
}

fn is_view(graph: &Graph, id: NodeId) -> bool {
    matches!(&graph.node(id).op.def().body, Body::Core { kernel: Lower::View(_), .. })
}

/// True for what computes elements of a loss or sums them up.
fn leads_on(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let is_map = matches!(&node.op.def().body, Body::Core { kernel: Lower::Map(_), .. });
    let kinds = [Intrinsic::Total, Intrinsic::Mean, Intrinsic::Cast, Intrinsic::Loss];
    let is_kind = node.op.intrinsic().is_some_and(|kind| kinds.contains(&kind));
    // A composite such as `silu` gives each element by itself: its operands broadcast to the
    // result.
    let is_composite = matches!(node.op.def().body, Body::Composite { .. });
    let together = || {
        let mut args = graph.args(id).into_iter().map(|arg| graph.ty(arg).shape.clone());
        args.try_fold(Shape::scalar(), |shape, arg| shape.broadcast(&arg))
    };
    let alike = || together().is_ok_and(|shape| shape == node.results[0].shape);
    is_map || is_kind || is_view(graph, id) || (is_composite && alike())
}
