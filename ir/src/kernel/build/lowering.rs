//! How a node takes part in a kernel.

use crate::graph::{Graph, NodeId};
use crate::op::Lower;
use crate::ops;

/// How a core op takes part in a kernel. A constant of many numbers lies in memory, others are
/// code.
pub fn lowering(graph: &Graph, node: NodeId) -> Option<&Lower> {
    let node = graph.node(node);
    if ops::source::is_data(node) { Some(&Lower::Data) } else { node.op.def().lowering() }
}
