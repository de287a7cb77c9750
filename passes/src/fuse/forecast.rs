//! Which kernels the nodes of a program become parts of: foretold for passes that come before, and
//! what `fuse` makes.

use super::cost::{Settings, Weighed};
use super::exchanges::exchanged;
use super::grouping::Groups;
use std::cell::OnceCell;
use std::sync::Arc;
use tracecast_ir::hash::FxHashMap;
use tracecast_ir::kernel::build::Group;
use tracecast_ir::{Graph, NodeId};

/// Which kernels the nodes of a program of core ops are parts of, if it is fused as it is.
pub(crate) struct Forecast {
    /// The number of each node's kernel; `None` for ports, dead nodes, and nodes that each kernel
    /// computes again where it needs them.
    pub(crate) kernel: Vec<Option<usize>>,
    /// The nodes that each kernel computes again where it needs them.
    pub(crate) inline: Vec<bool>,
    /// The nodes whose values kernels write to memory.
    pub(crate) stored: Vec<bool>,
    /// The bytes that kernels read and write.
    pub(crate) moved: usize,
    /// The nodes of each kernel.
    pub(super) groups: Vec<Group>,
    /// Values of which both storing and rematerialising were possible.
    pub(super) weighed: FxHashMap<NodeId, Weighed>,
    /// How fusion decided.
    pub(super) settings: Settings,
}

impl Forecast {
    pub(crate) fn of(graph: &Graph, settings: &Settings) -> Self {
        let grown = Groups::of(graph, settings);
        let moved = grown.bytes_moved();
        let mut stored = grown.stored();
        let (groups, inline, weighed) = grown.finished();
        let mut kernel = vec![None; graph.len()];
        for (number, group) in groups.iter().enumerate() {
            group.members.iter().for_each(|m| kernel[m.index()] = Some(number));
        }
        let live = graph.live();
        let wanted = graph.roots().map(|v| v.node).chain(exchanged(graph, &live));
        wanted.for_each(|n| stored[n.index()] &= kernel[n.index()].is_some());
        Forecast { kernel, inline, stored, moved, groups, weighed, settings: *settings }
    }

    /// The forecast that the pass before has left with the program, or a new one.
    pub(crate) fn known(graph: &Graph, settings: &Settings) -> Arc<Forecast> {
        graph.note::<Forecast>().unwrap_or_else(|| Arc::new(Forecast::of(graph, settings)))
    }

    /// True if kernels write the value of that node to memory.
    pub(crate) fn is_stored(&self, node: NodeId) -> bool {
        self.stored[node.index()]
    }
}

/// The forecast for a program, made when it is first asked for.
pub(crate) struct Foreseen<'a> {
    graph: &'a Graph,
    settings: Settings,
    forecast: OnceCell<Arc<Forecast>>,
}

impl<'a> Foreseen<'a> {
    pub(crate) fn of(graph: &'a Graph, settings: Settings) -> Self {
        Foreseen { graph, settings, forecast: OnceCell::new() }
    }

    /// The same for another program.
    pub(crate) fn same_of<'b>(&self, graph: &'b Graph) -> Foreseen<'b> {
        Foreseen::of(graph, self.settings)
    }

    pub(crate) fn forecast(&self) -> &Arc<Forecast> {
        self.forecast.get_or_init(|| Arc::new(Forecast::of(self.graph, &self.settings)))
    }

    /// The forecast, if somebody has asked for it.
    pub(crate) fn made(self) -> Option<Arc<Forecast>> {
        self.forecast.into_inner()
    }
}
