//! Which nodes are the optimizer: elementwise ones that lead to new state and nowhere else. They
//! stay apart from the rest, so that kernels are the same for every parameter.
//!
//! The end of a softmax or a norm whose result is state is no optimizer, and belongs to the kernel
//! that reduces the rows: see [`of_rows`]. Nor is a sum of products, as the gradient of a weight
//! that is used several times: see [`of_products`].

use super::users::{Users, is_given};
use tracecast_ir::hash::FxHashSet;
use tracecast_ir::kernel::build::{domain, lowering};
use tracecast_ir::op::{Intrinsic, Lower};
use tracecast_ir::{Graph, NodeId, Shape, ValueId};

/// Elementwise nodes that only new state needs, with no reduction or contraction between. What is
/// unscaled where it is checked is not one of them, nor is what a row reduction is part of.
pub(super) fn steps(graph: &Graph, live: &[bool], users: &Users) -> Vec<bool> {
    let outputs: FxHashSet<NodeId> = graph.outputs().iter().map(|(_, v)| v.node).collect();
    let mut step = vec![false; graph.len()];
    for n in graph.nodes().rev().filter(|n| live[n.index()]) {
        let elementwise = is_map(graph, n) || is_view(graph, n);
        let mut of_node = users.of(n).iter().filter(|user| live[user.index()]);
        let swept = graph.node(n).op.intrinsic() == Some(Intrinsic::Unscaled);
        step[n.index()] = elementwise
            && !swept
            && !outputs.contains(&n)
            && of_node.all(|user| step[user.index()]);
    }
    let others = [of_rows(graph, &step, users), of_products(graph, &step, live, users)];
    for n in others.into_iter().flatten() {
        step[n.index()] = false;
    }
    step
}

/// What a value has to do with the rows of a domain.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part<'g> {
    /// One number for each row, made of what a reduction along the rows gave.
    PerRow(&'g Shape),
    /// A number at every position, made of such numbers.
    Whole,
}

/// Those of `step` that continue a row reduction: they take its results back to the positions of
/// the rows, or come after such nodes, and read no state that is replaced. An update of state by
/// its old value, predicated or not, is a step.
fn of_rows(graph: &Graph, step: &[bool], users: &Users) -> Vec<NodeId> {
    let replaced: FxHashSet<NodeId> =
        graph.updates().iter().map(|(port, _)| graph.ports()[*port].node).collect();
    let mut parts: Vec<Option<Part<'_>>> = vec![None; graph.len()];
    for n in graph.nodes().filter(|n| !is_given(graph, *n)) {
        let args = graph.args(n);
        let shape = &graph.node(n).results[0].shape;
        let mut below = args.iter().filter_map(|a| parts[a.node.index()]);
        parts[n.index()] = match lowering(graph, n) {
            Some(Lower::ReduceRow) if graph.hint(shape.numel()) > 1 => {
                Some(Part::PerRow(domain(graph, n)))
            }
            Some(Lower::View(_)) => below.next(),
            Some(Lower::Map(_)) if args.iter().any(|a| replaced.contains(&a.node)) => None,
            Some(Lower::Map(_)) => {
                let whole = |p: &Part<'_>| *p == Part::Whole || *p == Part::PerRow(shape);
                let mut below = below.peekable();
                let first = below.peek().copied();
                if below.any(|p| whole(&p)) { Some(Part::Whole) } else { first }
            }
            _ => None,
        };
    }
    let mut found = vec![false; graph.len()];
    for n in graph.nodes().rev().filter(|n| step[n.index()]) {
        let leads = || users.of(n).iter().any(|user| found[user.index()]);
        found[n.index()] = match parts[n.index()] {
            Some(Part::Whole) => true,
            Some(Part::PerRow(_)) => leads(),
            None => false,
        };
    }
    graph.nodes().filter(|n| found[n.index()]).collect()
}

/// Those of `step` that add up products which nothing else reads. Each addition joins the epilogue
/// of its product: as many bytes are moved, and memory holds one sum instead of all products.
fn of_products(graph: &Graph, step: &[bool], live: &[bool], users: &Users) -> Vec<NodeId> {
    let mut term = vec![false; graph.len()];
    for n in graph.nodes() {
        let is_read_once = users.of(n).iter().filter(|user| live[user.index()]).count() == 1;
        term[n.index()] = is_read_once
            && match lowering(graph, n) {
                Some(Lower::Contract) => true,
                Some(Lower::Map(_)) => step[n.index()] && is_of(graph, n, &term),
                _ => false,
            };
    }
    let mut found = vec![false; graph.len()];
    for n in graph.nodes().rev().filter(|n| step[n.index()] && is_map(graph, *n)) {
        let leads = || users.of(n).iter().any(|user| found[user.index()]);
        found[n.index()] = is_of(graph, n, &term) && (graph.node(n).arity() > 1 || leads());
    }
    graph.nodes().filter(|n| found[n.index()]).collect()
}

/// True if a node reads such values alone, all of its own shape.
fn is_of(graph: &Graph, n: NodeId, values: &[bool]) -> bool {
    let shape = &graph.node(n).results[0].shape;
    let args = graph.args(n);
    let is_one = |arg: &ValueId| values[arg.node.index()] && graph.ty(*arg).shape == *shape;
    !args.is_empty() && args.iter().all(is_one)
}

fn is_map(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::Map(_)))
}

fn is_view(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::View(_)))
}
