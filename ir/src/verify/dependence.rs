//! Which values rewrites may come to know in advance, and on which operands a result depends whatever they do.
//!
//! Both answers are safe in the same direction: a value counts as known if some rewrite might find it out, and an operand as taken
//! only if none can do without it. So what is taken here must not be lost.

use crate::graph::{Graph, NodeId, ValueId};
use crate::op::{Body, Lower};

/// For each node, whether its results may turn out to be numbers known in advance.
pub(super) fn known(graph: &Graph) -> Vec<bool> {
    let mut known = Vec::with_capacity(graph.len());
    for id in graph.nodes() {
        let is_known = may_be_known(graph, id, &known);
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
    if args.iter().all(is_known) || may_choose_known(graph, id, known) {
        return true;
    }
    if graph.node(id).results.iter().any(|ty| ty.dtype.is_float()) {
        return false;
    }
    // Truth values and integers: a value compared with itself, or a product with zero, is known.
    let of_floats = args.iter().all(|arg| graph.ty(*arg).dtype.is_float());
    match graph.node(id).op.name() {
        "eq" | "ne" | "le" | "ge" if of_floats => false,
        "eq" | "ne" | "lt" | "le" | "gt" | "ge" => args.len() == 2,
        "cast" | "reshape" | "permute" | "expand" | "slice" | "gather" | "logical_not"
        | "check_range" => is_known(&args[0]),
        _ => true,
    }
}

/// True for a choice between a known number and such a choice: under one condition the number may be all that is left.
fn may_choose_known(graph: &Graph, id: NodeId, known: &[bool]) -> bool {
    let chooses_known = |id: NodeId| {
        let args = graph.args(id);
        let is_choice = graph.node(id).op.name() == "where";
        (is_choice && args[1..].iter().any(|a| known[a.node.index()])).then_some(args)
    };
    chooses_known(id).is_some_and(|args| {
        args[1..].iter().any(|a| chooses_known(behind_views(graph, a.node)).is_some())
    })
}

/// True if the results of a node cannot do without an operand.
pub(super) fn takes(graph: &Graph, known: &[bool], id: NodeId, operand: usize) -> bool {
    let (node, args) = (graph.node(id), graph.args(id));
    let is_empty = |v: &ValueId| graph.ty(*v).numel() == 0;
    if node.results.iter().any(|ty| ty.numel() == 0) || is_empty(&args[operand]) {
        return false;
    }
    let is_float = graph.ty(args[operand]).dtype.is_float();
    match node.op.name() {
        "where" => takes_chosen(graph, known, &args, operand),
        // Of parts put together, a slice leaves some out.
        "slice" => !matches!(
            lowering(graph, behind_views(graph, args[0].node)),
            Some(Lower::Cat | Lower::Pad)
        ),
        // A value is neither less nor greater than itself, and two values may turn out to be one.
        "lt" | "gt" => args.len() == 1 || is_float && !may_be_one(graph, args[0], args[1]),
        "eq" | "ne" | "le" | "ge" => is_float || args.len() == 1,
        "reduce_row" | "argmax" if node.attrs.str("kind") == Some("argmax") => {
            graph.ty(args[0]).shape.last().is_some_and(|n| *n > 1)
        }
        "cast" | "reshape" | "permute" | "expand" | "detach" | "pad" | "cat" | "gather"
        | "logical_not" => true,
        _ => is_float && node.results.len() == 1 && computes(graph, id),
    }
}

/// A condition is needed where a known number and another one are chosen from; a number unless the condition is known, or may have
/// chosen before.
fn takes_chosen(graph: &Graph, known: &[bool], args: &[ValueId], operand: usize) -> bool {
    let is_known = |i: usize| known[args[i].node.index()];
    let is_chosen = |v: ValueId| {
        let inner = behind_handing_on(graph, v.node);
        let is_choice = graph.node(inner).op.name() == "where";
        is_choice && may_be_one_condition(graph, args[0].node, graph.args(inner)[0].node)
    };
    match operand {
        0 => is_known(1) != is_known(2) && !args[1..].iter().any(|v| is_chosen(*v)),
        i => !is_known(0) && !is_chosen(args[i]),
    }
}

/// False for two comparisons of which one is for equality and the other for order, or with different numbers.
fn may_be_one_condition(graph: &Graph, a: NodeId, b: NodeId) -> bool {
    let kind = |id: NodeId| {
        let is_negation = |at| graph.node(at).op.name() == "logical_not";
        let is_shown = |at| matches!(lowering(graph, at), Some(Lower::View(_)));
        let node = graph.node(behind(graph, id, &|at| is_negation(at) || is_shown(at)));
        let is_order = match node.op.name() {
            "eq" | "ne" => Some(false),
            "lt" | "le" | "gt" | "ge" => Some(true),
            _ => None,
        };
        is_order.map(|is_order| (is_order, node.attrs.float("scalar")))
    };
    match (kind(a), kind(b)) {
        (Some((order, x)), Some((other, y))) => {
            order == other && (x.is_none() || y.is_none() || x == y)
        }
        _ => true,
    }
}

/// False for values of which it is plain that they differ: different ports, or results of functions that nothing turns into another.
fn may_be_one(graph: &Graph, a: ValueId, b: ValueId) -> bool {
    let (a, b) = (behind_views(graph, a.node), behind_views(graph, b.node));
    let stays = |id: NodeId| {
        graph.port_of(id).is_some()
            || matches!(
                graph.node(id).op.name(),
                "exp"
                    | "log"
                    | "sqrt"
                    | "rsqrt"
                    | "tanh"
                    | "erf"
                    | "sin"
                    | "cos"
                    | "floor"
                    | "sigmoid"
                    | "contract"
                    | "random"
                    | "cat"
                    | "scatter_add"
            )
    };
    let is_one_op = || graph.node(a).op == graph.node(b).op && graph.port_of(a).is_none();
    a == b || !stays(a) || !stays(b) || is_one_op()
}

/// True for ops that compute with every float they are given.
fn computes(graph: &Graph, id: NodeId) -> bool {
    match lowering(graph, id) {
        Some(kernel) => matches!(
            kernel,
            Lower::Map(_)
                | Lower::Contract
                | Lower::ReduceRow
                | Lower::ReduceColumn
                | Lower::Scatter
        ),
        // Of those that are made of other ops, the ones whose parts are known to.
        None => matches!(
            graph.node(id).op.name(),
            "gelu"
                | "silu"
                | "tanh_backward"
                | "sigmoid_backward"
                | "gelu_backward"
                | "silu_backward"
                | "softmax"
                | "softmax_backward"
                | "log_softmax"
                | "log_softmax_backward"
                | "matmul"
                | "linear"
                | "sum"
                | "mean"
                | "amax"
                | "embedding"
                | "embedding_backward"
                | "mse_loss"
                | "unscale"
                | "unscaled"
        ),
    }
}

/// The value that views show.
pub(super) fn behind_views(graph: &Graph, id: NodeId) -> NodeId {
    behind(graph, id, &|at| {
        matches!(lowering(graph, at), Some(Lower::View(_))) || is_cast(graph, at)
    })
}

/// The value that an op hands on, with a sign changed at most.
fn behind_handing_on(graph: &Graph, id: NodeId) -> NodeId {
    behind(graph, id, &|at| match lowering(graph, at) {
        Some(Lower::View(_) | Lower::Pad | Lower::Gather) => true,
        Some(Lower::Map(map)) => {
            let is_one = graph.node(at).arity() == 1;
            is_cast(graph, at) || is_one && map.handed_on_from().is_some()
        }
        _ => false,
    })
}

fn behind(graph: &Graph, mut id: NodeId, hands_on: &dyn Fn(NodeId) -> bool) -> NodeId {
    while hands_on(id) {
        id = graph.args(id)[0].node;
    }
    id
}

fn is_cast(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.node(id).op.name(), "cast" | "round_to")
}

/// How a core op becomes part of a kernel.
pub(super) fn lowering(graph: &Graph, id: NodeId) -> Option<&Lower> {
    match &graph.node(id).op.def().body {
        Body::Core { kernel, .. } | Body::Source(kernel) => Some(kernel),
        _ => None,
    }
}
