//! V7 for passes that add code: what was there takes no rounding that it did not take before.
//!
//! Gradients and the parts of ops bring roundings of their own, which only their rules can tell
//! from wrong ones. But an op that is still there takes what it took, and results are what they
//! were: a rounding between is one that the pass has added.

use super::casts::{dtypes, error_at, is_cast, points_to, rounds};
use crate::DType;
use crate::error::VerifyError;
use crate::graph::{Graph, NodeId, ValueId};
use crate::hash::FxHashSet;
use crate::op::Body;

/// Reports the roundings that a pass has put between ops of the program before, and before its
/// results.
pub(super) fn check(before: &Graph, after: &Graph, errors: &mut Vec<VerifyError>) {
    let mut compare = |was: ValueId, is: ValueId, at: NodeId| {
        let Some((from, to)) = rounding(after, is.node) else { return };
        if rounding(before, was.node) != Some((from, to)) && !is_made_anew(before, was, after, is) {
            let message = format!("takes {from} rounded to {to} where the program before did not");
            errors.push(error_at(after, at, message));
        }
    };
    let live = after.live();
    for id in after.nodes().filter(|id| live[id.index()]) {
        let Some(old) = same(before, after, id) else { continue };
        let (was, is) = (before.args(old), after.args(id));
        if was.len() == is.len() {
            was.into_iter().zip(is).for_each(|(was, is)| compare(was, is, id));
        }
    }
    let pairs = before.outputs().iter().zip(after.outputs());
    pairs.for_each(|((_, was), (_, is))| compare(*was, *is, is.node));
    let pairs = before.updates().iter().zip(after.updates());
    pairs.for_each(|((_, was), (_, is))| compare(*was, *is, is.node));
}

/// The node of the program before that a node is, if it is still that one.
fn same(before: &Graph, after: &Graph, id: NodeId) -> Option<NodeId> {
    let node = after.node(id);
    let [old] = node.origin.stands_for[..] else { return None };
    let was = (old.index() < before.len()).then(|| before.node(old))?;
    let is_same = was.op == node.op
        && was.attrs == node.attrs
        && was.origin.backward == node.origin.backward
        && !matches!(node.op.def().body, Body::Source(_));
    is_same.then_some(old)
}

/// The dtypes of a cast that rounds.
fn rounding(graph: &Graph, id: NodeId) -> Option<(DType, DType)> {
    let (from, to) = is_cast(graph, id).then(|| dtypes(graph, id))?;
    rounds(from, to).then_some((from, to))
}

/// True for a cast that is the end of what an op was made into, or of a gradient that was asked
/// for; and for one of the program's own behind an op that is gone.
fn is_made_anew(before: &Graph, was: ValueId, after: &Graph, is: ValueId) -> bool {
    let origin = &after.node(is.node).origin;
    let is_old = || points_to(after, is.node).any(|point| (point as usize) < before.points().len());
    match before.node(was.node).op.def().body {
        Body::Core { .. } | Body::Source(_) => false,
        Body::Composite { .. } => is_end(before, was.node, &origin.stands_for) || is_old(),
        Body::Symbolic(_) => {
            origin.backward || is_end(before, was.node, &origin.stands_for) || is_old()
        }
    }
}

/// True if one of these nodes is `op`, or an op that it takes and may hand on as it is, and all
/// between are made into others.
fn is_end(before: &Graph, op: NodeId, stands_for: &[NodeId]) -> bool {
    let (mut ops, mut seen) = (vec![op], FxHashSet::default());
    while let Some(id) = ops.pop() {
        let node = before.node(id);
        let is_made = matches!(node.op.def().body, Body::Composite { .. } | Body::Symbolic(_));
        if !is_made || !seen.insert(id) {
            continue;
        }
        if stands_for.contains(&id) {
            return true;
        }
        let hands_on = |arg: &ValueId| node.results.contains(before.ty(*arg));
        ops.extend(before.args(id).into_iter().filter(hands_on).map(|arg| arg.node));
    }
    false
}
