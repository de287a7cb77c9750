//! The way from a tensor to its largest magnitude: what a kernel that has the tensor in hand can do
//! without storing anything of it.
//!
//! ```text
//! %3 = abs %g; %4 = lt %3 {scalar = inf}; %5 = logical_not %4; %6 = reshape %5; %7 = cast %6 {to = f32}
//! %8 = reduce_row %7 {kind = max}     one number: was anything not finite?
//! ```

use super::users::Users;
use tracecast_ir::hash::{FxHashMap, FxHashSet};
use tracecast_ir::kernel::build::{largest, lowering};
use tracecast_ir::op::Lower;
use tracecast_ir::{Graph, NodeId, Size};

/// The nodes on such ways.
pub(super) struct Magnitudes {
    /// Elementwise nodes and views whose value nothing else needs.
    leading: FxHashSet<NodeId>,
    /// The reductions, each with the number of elements that are reduced in the end.
    reductions: FxHashMap<NodeId, Size>,
    /// Those that are a single step.
    single: FxHashSet<NodeId>,
}

impl Magnitudes {
    pub(super) fn of(graph: &Graph, live: &[bool], is_root: &[bool], users: &Users) -> Self {
        let is_live = |n: &NodeId| live[n.index()];
        let live_users = |n: NodeId| users.of(n).iter().copied().filter(is_live);
        let mut chains: FxHashSet<NodeId> = FxHashSet::default();
        let mut reductions = FxHashMap::default();
        let mut single = FxHashSet::default();
        for n in graph.nodes().filter(is_live) {
            let Some(found) = largest(graph, n) else { continue };
            let alone = |n: &NodeId| !is_root[n.index()] && live_users(*n).count() == 1;
            if !found.chain[1..].iter().all(alone) {
                continue;
            }
            let elements = graph.ty(found.of).numel();
            if !found.is_stepwise(graph) {
                single.insert(n);
            }
            chains.extend(&found.chain);
            let of_chain = found.chain.iter();
            let is_reduction = |n: &&NodeId| matches!(lowering(graph, **n), Some(Lower::ReduceRow));
            reductions.extend(of_chain.filter(is_reduction).map(|n| (*n, elements)));
        }
        let mut leading: FxHashSet<NodeId> = FxHashSet::default();
        if chains.is_empty() {
            return Magnitudes { leading, reductions, single };
        }
        for n in graph.nodes().rev().filter(is_live) {
            let passes = matches!(lowering(graph, n), Some(Lower::Map(_) | Lower::View(_)));
            let leads = |user: NodeId| leading.contains(&user) || chains.contains(&user);
            if passes && !is_root[n.index()] && live_users(n).all(leads) {
                leading.insert(n);
            }
        }
        Magnitudes { leading, reductions, single }
    }

    /// True for an elementwise node or a view that leads to largest magnitudes and nowhere else.
    pub(super) fn leads(&self, n: NodeId) -> bool {
        self.leading.contains(&n)
    }

    /// True for the only reduction on such a way.
    pub(super) fn is_single(&self, n: NodeId) -> bool {
        self.single.contains(&n)
    }

    /// The number of elements that a reduction on such a way reduces in the end.
    pub(super) fn elements(&self, n: NodeId) -> Option<Size> {
        self.reductions.get(&n).copied()
    }
}
