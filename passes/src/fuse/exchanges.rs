//! Which nodes lead to what ranks exchange, and which exchanges they depend on.
//!
//! Ranks whose batches have other numbers of rows may have other kernels, as kernels are formed by
//! what they cost. What they exchange, in which order and in which buckets must be the same all the
//! same. So an exchange keeps its place among the exchanges of the program, and its kernels depend
//! on no exchange that its nodes do not depend on: those whose values lead to one take in only
//! nodes that depend on the same exchanges, and that read nothing which may come to depend on later
//! ones.

use tracecast_ir::kernel::build::lowering;
use tracecast_ir::op::Lower;
use tracecast_ir::{Graph, NodeId};

/// True for what ranks do together: it takes the place of a kernel, and nothing joins it.
pub(super) fn is_exchange(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::Exchange(_)))
}

/// The nodes whose values ranks exchange, which therefore lie in memory as a whole.
pub(super) fn exchanged<'a>(
    graph: &'a Graph,
    live: &'a [bool],
) -> impl Iterator<Item = NodeId> + 'a {
    let exchanges = graph.nodes().filter(|n| live[n.index()] && is_exchange(graph, *n));
    exchanges.flat_map(|n| graph.args(n)).map(|v| v.node)
}

/// An exchange by its place among those of the program, from 1; 0 stands for none.
pub(super) type Number = u32;

/// What nodes have to do with exchanges. Nothing is kept of a program without any.
#[derive(Default)]
pub(super) struct Exchanges {
    /// The last exchange that each node depends on.
    behind: Vec<Number>,
    /// The nodes that an exchange depends on.
    leads: Vec<bool>,
}

impl Exchanges {
    pub(super) fn of(graph: &Graph, live: &[bool]) -> Self {
        let together = |n: NodeId| live[n.index()] && is_exchange(graph, n);
        if !graph.nodes().any(together) {
            return Exchanges::default();
        }
        let (mut behind, mut count) = (Vec::with_capacity(graph.len()), 0);
        for n in graph.nodes() {
            count += Number::from(together(n));
            let of_args = graph.args(n).iter().map(|a| behind[a.node.index()]).max();
            behind.push(if together(n) { count } else { of_args.unwrap_or(0) });
        }
        let mut leads = vec![false; graph.len()];
        for n in graph.nodes().rev().filter(|n| live[n.index()]) {
            if together(n) || leads[n.index()] {
                graph.args(n).iter().for_each(|a| leads[a.node.index()] = true);
            }
        }
        Exchanges { behind, leads }
    }

    /// The last exchange that a node depends on.
    pub(super) fn behind(&self, n: NodeId) -> Number {
        self.behind.get(n.index()).copied().unwrap_or(0)
    }

    /// The same if an exchange depends on the node.
    pub(super) fn leads(&self, n: NodeId) -> Option<Number> {
        self.leads.get(n.index()).filter(|leads| **leads).map(|_| self.behind(n))
    }
}
