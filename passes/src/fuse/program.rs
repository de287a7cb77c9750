//! What is known of a program before its nodes are grouped.

use super::cost::{Prices, Settings};
use super::exchanges::{Exchanges, exchanged};
use super::largest::Magnitudes;
use super::steps::steps;
use super::users::Users;
use tracecast_ir::kernel::KernelLimits;
use tracecast_ir::kernel::build::lowering;
use tracecast_ir::op::Lower;
use tracecast_ir::{Graph, NodeId};

/// Facts about every node that do not depend on which of them share a kernel.
pub(super) struct Program {
    /// Nodes that an output or an update needs.
    pub(super) live: Vec<bool>,
    /// Nodes whose value an output or an update is, or is exchanged between ranks.
    pub(super) is_root: Vec<bool>,
    /// Dead ones among them.
    pub(super) users: Users,
    /// The optimizer (see `steps`).
    pub(super) step: Vec<bool>,
    /// The ways to largest magnitudes.
    pub(super) magnitudes: Magnitudes,
    /// The ways to what ranks exchange.
    pub(super) exchanges: Exchanges,
    pub(super) prices: Prices,
    pub(super) limits: KernelLimits,
}

impl Program {
    pub(super) fn of(graph: &Graph, settings: &Settings) -> Self {
        let (live, users) = (graph.live(), Users::of_graph(graph));
        let mut is_root = vec![false; graph.len()];
        graph.roots().for_each(|v| is_root[v.node.index()] = true);
        if settings.store_all {
            let is_value = |n: &NodeId| {
                let lower = lowering(graph, *n);
                let is_source = matches!(lower, Some(Lower::Port | Lower::Data));
                let is_view = matches!(lower, Some(Lower::View(_) | Lower::Windows));
                live[n.index()] && !graph.args(*n).is_empty() && !is_source && !is_view
            };
            graph.nodes().filter(is_value).for_each(|n| is_root[n.index()] = true);
        }
        exchanged(graph, &live).for_each(|n| is_root[n.index()] = true);
        let step = steps(graph, &live, &users);
        let magnitudes = Magnitudes::of(graph, &live, &is_root, &users);
        let exchanges = Exchanges::of(graph, &live);
        let Settings { prices, limits, .. } = *settings;
        Program { live, is_root, users, step, magnitudes, exchanges, prices, limits }
    }
}
