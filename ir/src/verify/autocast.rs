//! Casts against the decisions that they follow from: V4 and V9.

use super::casts::{casts, dtypes, error_at};
use crate::error::VerifyError;
use crate::graph::{Graph, NodeId, ValueId};
use crate::op::InferCx;
use crate::{DType, Must, Reason, TensorType};
use smallvec::SmallVec;
use std::collections::HashMap;

/// What eager autocast makes one cast for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// All uses of a leaf in one scope, found in its cache of weights.
    Leaf(ValueId, DType, u32),
    /// One operand of one op.
    Use(NodeId, u16),
}

/// Every cast of `after` stands for what a decision of `before`, a promotion or the program asked
/// for, and for as much as it should.
pub(super) fn check(before: &Graph, after: &Graph, errors: &mut Vec<VerifyError>) {
    // Points speak of nodes as they were traced; what was recorded again since then has no
    // decisions either.
    if before.nodes().any(|id| before.node(id).origin.node.is_some()) {
        return;
    }
    let mut made: HashMap<Key, NodeId> = HashMap::new();
    for cast in casts(after) {
        let mut first: Option<Key> = None;
        for number in &after.node(cast).origin.points {
            let point = &after.points()[*number as usize];
            if let Some(message) = unasked(before, after, cast, point.reason, point.node) {
                errors.push(error_at(after, cast, message));
            }
            let Reason::Policy { operand } = point.reason else { continue };
            let key = key_of(before, point.node, operand);
            if first.replace(key).is_some_and(|first| first != key) {
                errors.push(error_at(after, cast, shared(before, after, cast, point.node)));
            }
            if made.insert(key, cast).is_some_and(|other| other != cast) {
                let (from, to) = dtypes(after, cast);
                let message = format!(
                    "is a second cast of one weight from {from} to {to} in one scope: eager autocast finds the first in its cache"
                );
                errors.push(error_at(after, cast, message));
            }
        }
    }
    let live = before.live();
    for id in before.nodes().filter(|id| live[id.index()]) {
        for (operand, to) in asked(before, id) {
            if !made.contains_key(&key_of(before, id, operand)) {
                let from = before.ty(before.args(id)[usize::from(operand)]);
                let message =
                    format!("operand {operand}, {from}, is to be cast to {to} and is not");
                errors.push(error_at(before, id, message));
            }
        }
    }
}

/// The casts that a decision asks for: operand and dtype.
fn asked(before: &Graph, id: NodeId) -> impl Iterator<Item = (u16, DType)> + '_ {
    let casts = before.node(id).decision.as_ref().map_or(&[][..], |d| &d.casts[..]);
    before.args(id).into_iter().zip(casts).enumerate().filter_map(|(i, (arg, to))| {
        to.filter(|to| *to != before.ty(arg).dtype).map(|to| (i as u16, to))
    })
}

/// Whether eager autocast looks an operand up in its cache: an f32 leaf that requires a gradient,
/// no view of one, and the cache on.
fn key_of(before: &Graph, user: NodeId, operand: u16) -> Key {
    let args = before.args(user);
    let to = asked(before, user).find(|(i, _)| *i == operand);
    let (Some(value), Some((_, to))) = (args.get(usize::from(operand)), to) else {
        return Key::Use(user, operand);
    };
    let region = before.region(user);
    let leaf = before.port_of(value.node);
    let is_cached = leaf.is_some_and(|p| p.requires_grad() && p.ty.dtype == DType::F32);
    if region.cache() && is_cached {
        Key::Leaf(*value, to, region.scope())
    } else {
        Key::Use(user, operand)
    }
}

/// Why nothing asked for a cast.
fn unasked(
    before: &Graph,
    after: &Graph,
    cast: NodeId,
    reason: Reason,
    node: NodeId,
) -> Option<String> {
    let (from, to) = dtypes(after, cast);
    let expected = match reason {
        Reason::Policy { operand } => {
            asked(before, node).find(|(i, _)| *i == operand).map(|(_, to)| to)
        }
        Reason::Promotion => promoted(before, node).into_iter().find(|wide| *wide == to),
        // The program wrote it, an op is made with it, or it belongs to a gradient.
        _ => return None,
    };
    match expected {
        Some(wanted) if wanted == to => None,
        Some(wanted) => Some(format!(
            "casts {from} to {to}, expected {wanted}, the dtype of the region {}",
            before.region(node)
        )),
        None => Some(format!(
            "casts {from} to {to}, which neither a policy nor a promotion of {} asks for",
            before.node(node).op.name()
        )),
    }
}

/// The dtypes that the type rule of an op asks its operands to be cast to.
fn promoted(before: &Graph, id: NodeId) -> Vec<DType> {
    let node = before.node(id);
    let mut types: SmallVec<[TensorType; 4]> =
        before.args(id).iter().map(|a| before.ty(*a).clone()).collect();
    let mut attrs = node.attrs.clone();
    if let Some(decision) = &node.decision {
        crate::tracer::apply_decision(decision, &mut types, &mut attrs);
    }
    let must = Must::proven(before.sizes());
    (node.op.def().infer)(&InferCx {
        types: &types,
        groups: &node.groups,
        attrs: &attrs,
        must: &must,
    })
    .map_or(Vec::new(), |inferred| inferred.casts.into_iter().flatten().collect())
}

fn shared(before: &Graph, after: &Graph, cast: NodeId, user: NodeId) -> String {
    let (from, to) = dtypes(after, cast);
    format!(
        "one cast from {from} to {to} stands for several uses, of which eager autocast casts that by {} (%{}) apart: \
         gradients would be summed in {to}",
        before.node(user).op.name(),
        user.index()
    )
}
