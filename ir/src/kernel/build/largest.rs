//! Largest magnitudes: reductions that a kernel can do as it goes, in any order.

use super::{lowering, reduction};
use crate::DType;
use crate::graph::{Graph, NodeId, ValueId};
use crate::kernel::Reduction;
use crate::op::{Intrinsic, Lower, Signs, View};

/// A number that is the largest of all elements of a tensor of magnitudes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Largest {
    /// The tensor. No element of it is negative or `-0.0`.
    pub of: ValueId,
    /// The reductions and reshapes from it to the number, the last one first.
    pub chain: Vec<NodeId>,
}

impl Largest {
    /// True if something smaller than the tensor, such as the largest of each row, is reduced on
    /// the way.
    pub fn is_stepwise(&self, graph: &Graph) -> bool {
        self.chain[1..].iter().any(|n| is_max(graph, *n))
    }
}

/// What a node is the largest element of, if it is that.
pub fn largest(graph: &Graph, node: NodeId) -> Option<Largest> {
    let result = &graph.node(node).results[0];
    if !is_max(graph, node)
        || result.numel() != 1
        || !matches!(result.dtype, DType::F32 | DType::F64)
    {
        return None;
    }
    let mut chain = vec![node];
    let mut of = graph.args(node)[0];
    while is_max(graph, of.node) || is_reshape(graph, of.node) {
        chain.push(of.node);
        of = graph.args(of.node)[0];
    }
    // Of nothing, the largest is not zero.
    (graph.sizes().proves(graph.ty(of).numel().at_least(1)) && is_magnitude(graph, of))
        .then_some(Largest { of, chain })
}

fn is_max(graph: &Graph, node: NodeId) -> bool {
    matches!(lowering(graph, node), Some(Lower::ReduceRow))
        && reduction(graph, node) == Ok(Reduction::Max)
}

fn is_reshape(graph: &Graph, node: NodeId) -> bool {
    matches!(lowering(graph, node), Some(Lower::View(View::Reshape)))
}

/// True for absolute values, for truth values as numbers, and for both in another dtype.
fn is_magnitude(graph: &Graph, value: ValueId) -> bool {
    let mut value = value;
    loop {
        let node = graph.node(value.node);
        if node.op.facts().signs == Signs::Cleared {
            return node.results[0].dtype.is_float();
        }
        if node.op.intrinsic() != Some(Intrinsic::Cast) && !is_reshape(graph, value.node) {
            return false;
        }
        value = graph.args(value.node)[0];
        match graph.ty(value).dtype {
            DType::Bool => return true,
            dtype if !dtype.is_float() => return false,
            _ => {}
        }
    }
}
