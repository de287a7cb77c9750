//! When kernels can run: what stands behind a `barrier` is not computed before.
//!
//! Nodes are numbered in the order of recording, and so are barriers. A value behind a barrier in a
//! kernel that something recorded before the barrier reads would be made in that kernel's time, and
//! be kept until it is needed.

use tracecast_ir::kernel::build::lowering;
use tracecast_ir::op::{Lower, View};
use tracecast_ir::{Graph, NodeId};

/// The last barrier that each node stands behind; the first node, which stands for none, of the
/// others.
pub(super) fn behind(graph: &Graph) -> Vec<NodeId> {
    let mut behind: Vec<NodeId> = Vec::with_capacity(graph.len());
    for n in graph.nodes() {
        let own = match lowering(graph, n) {
            Some(Lower::View(View::Barrier)) => n,
            _ => NodeId::new(0),
        };
        let last = graph.args(n).iter().map(|arg| behind[arg.node.index()]).max();
        behind.push(last.map_or(own, |last| last.max(own)));
    }
    behind
}

/// When a kernel can run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    /// The last barrier that something in it stands behind.
    behind: NodeId,
    /// The first node of another kernel that reads it.
    reader: NodeId,
}

impl Default for Late {
    fn default() -> Self {
        Late { behind: NodeId::new(0), reader: NodeId::end() }
    }
}

impl Late {
    /// True if nothing that was recorded before that barrier reads it.
    pub(super) fn may_stand_behind(&self, barrier: NodeId) -> bool {
        barrier <= self.reader
    }

    pub(super) fn stand_behind(&mut self, barrier: NodeId) {
        self.behind = self.behind.max(barrier);
    }

    pub(super) fn read_by(&mut self, node: NodeId) {
        self.reader = self.reader.min(node);
    }

    /// True if both can run at one time.
    pub(super) fn fits(&self, other: &Late) -> bool {
        self.may_stand_behind(other.behind) && other.may_stand_behind(self.behind)
    }

    pub(super) fn merge(&mut self, other: &Late) {
        self.stand_behind(other.behind);
        self.read_by(other.reader);
    }
}
