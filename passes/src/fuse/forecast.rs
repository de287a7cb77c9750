//! Which kernels the nodes of a program would be parts of, for passes that come before.

use super::grouping::Groups;
use std::cell::OnceCell;
use tracecast_ir::hash::FxHashSet;
use tracecast_ir::{Graph, NodeId};

/// Which kernels the nodes of a program of core ops would be parts of, were it fused as it is.
pub(crate) struct Forecast {
    /// The number of each node's kernel; `None` for ports, dead nodes, and nodes that each kernel computes again where it needs them.
    pub(crate) kernel: Vec<Option<usize>>,
    /// The nodes that each kernel computes again where it needs them.
    pub(crate) inline: Vec<bool>,
    /// The nodes whose values kernels write to memory.
    pub(crate) stored: FxHashSet<NodeId>,
    /// The bytes that kernels read and write.
    pub(crate) moved: usize,
}

impl Forecast {
    pub(crate) fn of(graph: &Graph) -> Self {
        let groups = Groups::of(graph);
        let mut kernel = vec![None; graph.len()];
        for (number, group) in groups.iter().enumerate() {
            group.members.iter().for_each(|m| kernel[m.index()] = Some(number));
        }
        let mut stored = groups.stored();
        stored.retain(|node| kernel[node.index()].is_some());
        let moved = groups.bytes_moved();
        Forecast { kernel, stored, moved, inline: groups.into_reach().inline }
    }
}

/// The forecast for a program, made when it is first asked for.
pub(crate) struct Foreseen<'a> {
    graph: &'a Graph,
    forecast: OnceCell<Forecast>,
}

impl<'a> Foreseen<'a> {
    pub(crate) fn of(graph: &'a Graph) -> Self {
        Foreseen { graph, forecast: OnceCell::new() }
    }

    pub(crate) fn forecast(&self) -> &Forecast {
        self.forecast.get_or_init(|| Forecast::of(self.graph))
    }
}
