//! Which values rewrites may come to know in advance, and on which operands a result depends
//! whatever they do.
//!
//! Both answers are safe in the same direction: a value counts as known if some rewrite might find
//! it out, and an operand as taken only if none can do without it. So what is taken here must not
//! be lost. What the rewrites at hand have left in place settles most doubts: a node that is still
//! there was not found out, and takes what it took ([`Kept`]).

use super::casts::is_cast;
use super::kept::Kept;
use crate::graph::{Graph, NodeId, ValueId};
use crate::kernel::build::lowering;
use crate::kernel::{FormKind, Reduction};
use crate::op::{Elements, Facts, Intrinsic, Lower, View, WithItself};
use crate::ops::reduce::reduction;

/// So far operands of one operand are looked for.
const REACH: usize = 2;

/// For each node, whether its results may have turned out to be numbers known in advance.
pub(super) fn known(graph: &Graph, kept: &Kept) -> Vec<bool> {
    let mut known = Vec::with_capacity(graph.len());
    for id in graph.nodes() {
        let is_kept = kept.has(id) && graph.node(id).arity() > 0;
        let is_known = !is_kept && may_be_known(graph, id, &known);
        known.push(is_known);
    }
    known
}

fn may_be_known(graph: &Graph, id: NodeId, known: &[bool]) -> bool {
    let args = graph.args(id);
    let is_known = |arg: &ValueId| known[arg.node.index()];
    if graph.port_of(id).is_some() {
        return false;
    }
    if args.iter().all(is_known)
        || may_choose_known(graph, id, known)
        || may_choose_one(graph, id, known)
    {
        return true;
    }
    if graph.node(id).results.iter().any(|ty| ty.dtype.is_float()) {
        return false;
    }
    // Truth values and integers: a value compared with itself, or a product with zero, is known.
    let of_floats = args.iter().all(|arg| graph.ty(*arg).dtype.is_float());
    let op = &graph.node(id).op;
    match (op.facts(), lowering(graph, id)) {
        (Facts { compares: Some(_), with_itself: Some(WithItself::Number(_)), .. }, _) => {
            args.len() == 2
        }
        (Facts { compares: Some(_), .. }, _) => !of_floats && args.len() == 2,
        (Facts { intrinsic: Some(Intrinsic::Cast | Intrinsic::Not), .. }, _)
        | (_, Some(Lower::View(_) | Lower::Gather)) => is_known(&args[0]),
        (facts, Some(Lower::Map(_))) if facts.is_opaque() && args.len() == 1 => is_known(&args[0]),
        _ => true,
    }
}

/// True for a choice between a known number and such a choice: under one condition the number may
/// be all that is left.
fn may_choose_known(graph: &Graph, id: NodeId, known: &[bool]) -> bool {
    let chooses_known = |id: NodeId| {
        let args = graph.args(id);
        (is_choice(graph, id) && args[1..].iter().any(|a| known[a.node.index()])).then_some(args)
    };
    chooses_known(id).is_some_and(|args| {
        args[1..].iter().any(|a| chooses_known(behind_views(graph, a.node)).is_some())
    })
}

/// True for a choice between two known numbers that may be the same.
fn may_choose_one(graph: &Graph, id: NodeId, known: &[bool]) -> bool {
    let args = graph.args(id);
    let bits = |arg: ValueId| number(graph, arg.node).map(f64::to_bits);
    let may_be_one = || match (bits(args[1]), bits(args[2])) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    is_choice(graph, id) && args[1..].iter().all(|arg| known[arg.node.index()]) && may_be_one()
}

/// True if the results of a node cannot do without an operand.
pub(super) fn takes(
    graph: &Graph,
    known: &[bool],
    kept: &Kept,
    id: NodeId,
    operand: usize,
) -> bool {
    let (node, args) = (graph.node(id), graph.args(id));
    let is_empty = |v: &ValueId| graph.ty(*v).numel() == 0;
    if node.results.iter().any(|ty| ty.numel() == 0) || is_empty(&args[operand]) {
        return false;
    }
    let is_float = graph.ty(args[operand]).dtype.is_float();
    let facts = node.op.facts();
    match lowering(graph, id) {
        _ if is_choice(graph, id) => takes_chosen(graph, known, kept, id, operand),
        // Of parts put together, a slice leaves some out.
        Some(Lower::View(View::Slice)) => {
            let below = behind_views(graph, args[0].node);
            kept.has(below) || !matches!(lowering(graph, below), Some(Lower::Cat | Lower::Pad))
        }
        _ if kept.has(id) => true,
        // A value is neither less nor greater than itself, and two values may turn out to be one.
        _ if facts.compares.is_some() => match facts.with_itself {
            Some(WithItself::Number(_)) => {
                args.len() == 1 || is_float && !may_be_one(graph, args[0], args[1])
            }
            _ => is_float || args.len() == 1,
        },
        Some(Lower::ReduceRow) if reduction(&node.attrs).is_ok_and(Reduction::is_position) => {
            graph.ty(args[0]).shape.last().is_some_and(|n| *n != 0 && *n != 1)
        }
        Some(Lower::View(_) | Lower::Pad | Lower::Cat | Lower::Gather) => true,
        _ if matches!(facts.intrinsic, Some(Intrinsic::Cast | Intrinsic::Not)) => true,
        _ => is_float && node.results.len() == 1 && computes(graph, id),
    }
}

/// A choice that is still there takes all it is given. Of another one, a condition is needed where
/// a known number and another one are chosen from; a number unless the condition is known, or may
/// choose before or after as well, or whatever it says.
fn takes_chosen(graph: &Graph, known: &[bool], kept: &Kept, id: NodeId, operand: usize) -> bool {
    let args = graph.args(id);
    let is_known = |i: usize| known[args[i].node.index()];
    let may_choose = |id: NodeId| may_be_one_condition(graph, args[0].node, graph.args(id)[0].node);
    let is_chosen = |v: ValueId| {
        let inner = behind_handing_on(graph, v.node);
        is_choice(graph, inner) && !kept.has(inner) && may_choose(inner)
    };
    match operand {
        _ if kept.has(id) => true,
        0 => is_known(1) != is_known(2) && !args[1..].iter().any(|v| is_chosen(*v)),
        i => {
            let is_chosen_from =
                || handed_to(graph, id, &|user| is_choice(graph, user) && may_choose(user));
            is_part_of(graph, args[i], args[3 - i], REACH)
                || !is_known(0) && !is_chosen(args[i]) && !is_chosen_from()
        }
    }
}

/// True if `y` is computed from `x` within a number of steps.
fn is_part_of(graph: &Graph, x: ValueId, y: ValueId, steps: usize) -> bool {
    let computes = |id: NodeId| matches!(lowering(graph, id), Some(Lower::View(_) | Lower::Map(_)));
    let of_args = || graph.args(y.node).iter().any(|arg| is_part_of(graph, x, *arg, steps - 1));
    x == y || steps > 0 && !is_choice(graph, y.node) && computes(y.node) && of_args()
}

/// True for some user of a value, or of what hands it on.
fn handed_to(graph: &Graph, value: NodeId, is_wanted: &dyn Fn(NodeId) -> bool) -> bool {
    graph
        .dag
        .neighbors(value)
        .any(|user| is_wanted(user) || hands_on(graph, user) && handed_to(graph, user, is_wanted))
}

/// False for two comparisons of which one is for equality and the other for order, with different
/// numbers, or of values that differ.
fn may_be_one_condition(graph: &Graph, a: NodeId, b: NodeId) -> bool {
    let compared = |id: NodeId| {
        let is_negation = |at: NodeId| graph.node(at).op.intrinsic() == Some(Intrinsic::Not);
        let is_shown = |at| matches!(lowering(graph, at), Some(Lower::View(_)));
        let id = behind(graph, id, &|at| is_negation(at) || is_shown(at));
        let compares = graph.node(id).op.facts().compares?;
        Some((compares, graph.node(id).attrs.number("scalar"), graph.args(id)))
    };
    match (compared(a), compared(b)) {
        (Some((kind, Some(c), x)), Some((other, Some(d), y))) => {
            let is_same = c == d || c.value().is_some_and(|c| Some(c) == d.value());
            kind == other && is_same && may_be_one(graph, x[0], y[0])
        }
        (Some((kind, None, x)), Some((other, None, y))) => {
            let may_be = |i: usize, j: usize| may_be_one(graph, x[i], y[j]);
            kind == other && (may_be(0, 0) && may_be(1, 1) || may_be(0, 1) && may_be(1, 0))
        }
        (Some((kind, ..)), Some((other, ..))) => kind == other,
        _ => true,
    }
}

/// False for values of which it is plain that they differ: different ports, or results of functions
/// that nothing turns into another.
fn may_be_one(graph: &Graph, a: ValueId, b: ValueId) -> bool {
    let (a, b) = (behind_views(graph, a.node), behind_views(graph, b.node));
    let stays = |id: NodeId| match lowering(graph, id) {
        Some(Lower::Map(map)) => {
            map.elements() == Elements::New && graph.node(id).op.facts().is_opaque()
        }
        Some(Lower::Cat) => true,
        Some(lower) if is_own_form(lower) => true,
        _ => graph.port_of(id).is_some(),
    };
    let is_one_op = || graph.node(a).op == graph.node(b).op && graph.port_of(a).is_none();
    a == b || !stays(a) || !stays(b) || is_one_op()
}

/// True for ops that compute with every float they are given.
fn computes(graph: &Graph, id: NodeId) -> bool {
    match lowering(graph, id) {
        Some(lower) => {
            matches!(lower, Lower::Map(_) | Lower::ReduceRow | Lower::ReduceColumn)
                || is_own_form(lower)
        }
        // Of those that are made of other ops, the ones that say so.
        None => graph.node(id).op.facts().takes_all,
    }
}

/// True for ops that begin a form of kernels of their own, such as a contraction: each of them
/// sums.
fn is_own_form(lower: &Lower) -> bool {
    FormKind::begun_by(lower).is_some_and(|form| form != FormKind::Nest)
}

/// The value that views show.
pub(super) fn behind_views(graph: &Graph, id: NodeId) -> NodeId {
    behind(graph, id, &|at| {
        matches!(lowering(graph, at), Some(Lower::View(_))) || is_cast(graph, at)
    })
}

/// The number that all elements of a constant hold, perhaps behind views and casts.
pub(super) fn number(graph: &Graph, id: NodeId) -> Option<f64> {
    let at = behind_views(graph, id);
    let node = graph.node(at);
    node.attrs.float("value").filter(|_| node.op.intrinsic() == Some(Intrinsic::Constant))
}

/// The value that an op hands on, with a sign changed at most.
fn behind_handing_on(graph: &Graph, id: NodeId) -> NodeId {
    behind(graph, id, &|at| hands_on(graph, at))
}

fn hands_on(graph: &Graph, id: NodeId) -> bool {
    match lowering(graph, id) {
        Some(Lower::View(_) | Lower::Pad | Lower::Windows | Lower::Gather) => true,
        Some(Lower::Map(map)) => {
            let is_one = graph.node(id).arity() == 1;
            is_cast(graph, id) || is_one && map.handed_on_from().is_some()
        }
        _ => false,
    }
}

fn behind(graph: &Graph, mut id: NodeId, hands_on: &dyn Fn(NodeId) -> bool) -> NodeId {
    while hands_on(id) {
        id = graph.args(id)[0].node;
    }
    id
}

fn is_choice(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).op.intrinsic() == Some(Intrinsic::Choice)
}
