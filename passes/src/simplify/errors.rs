//! Which values may raise a data error, and whether what a rule records still does.

use smallvec::SmallVec;
use tracecast_ir::op::Lower;
use tracecast_ir::{Graph, NodeId, Tracer, ValueId, Var};

/// How many ops a rule may put between its result and an operand that may raise.
const NEAR: usize = 4;

/// For each node so far, whether it or one that it is made of may raise a data error.
#[derive(Default)]
pub(super) struct Raising(Vec<bool>);

impl Raising {
    fn is(&mut self, graph: &Graph, node: NodeId) -> bool {
        for at in self.0.len()..=node.index() {
            let id = NodeId::new(at);
            let raises =
                raises(graph, id) || graph.args(id).iter().any(|arg| self.0[arg.node.index()]);
            self.0.push(raises);
        }
        self.0[node.index()]
    }

    /// True if the errors of all operands are errors of the result as well.
    pub(super) fn are_kept(
        &mut self,
        tracer: &Tracer,
        operands: &[Var<'_>],
        result: Var<'_>,
    ) -> bool {
        tracer.with_graph(|graph| {
            let operands = operands.iter().map(|v| v.id().node);
            let operands: SmallVec<[NodeId; 4]> =
                operands.filter(|node| self.is(graph, *node)).collect();
            if operands.is_empty() {
                return true;
            }
            let mut near: SmallVec<[NodeId; 16]> = SmallVec::from_slice(&[result.id().node]);
            let mut from = 0;
            for _ in 0..NEAR {
                let to = near.len();
                for at in from..to {
                    let args = graph.args(near[at]);
                    near.extend(
                        args.iter().map(|arg| arg.node).filter(|node| self.is(graph, *node)),
                    );
                }
                from = to;
            }
            operands.iter().all(|node| is_kept(graph, self, &near, *node, NEAR))
        })
    }
}

/// True if data may be wrong for an op: an integer divided by zero, an index out of range.
fn raises(graph: &Graph, id: NodeId) -> bool {
    let def = graph.node(id).op.def();
    let has_index = matches!(def.lowering(), Some(Lower::Gather | Lower::Scatter(_)));
    has_index || graph.node(id).op.facts().raises
}

/// What has to be right for an op that raises: the divisor, or the index.
fn cause(graph: &Graph, id: NodeId) -> Option<ValueId> {
    let args = graph.args(id);
    args.get(1).or(args.first()).copied()
}

/// True if a node is among these, or is no error itself and all that it has its errors from are.
fn is_kept(
    graph: &Graph,
    raising: &mut Raising,
    near: &[NodeId],
    node: NodeId,
    depth: usize,
) -> bool {
    if raises(graph, node) {
        // The op itself, or one that moved and has the same error.
        let stands =
            |n: &NodeId| *n == node || raises(graph, *n) && cause(graph, *n) == cause(graph, node);
        return near.iter().any(stands);
    }
    near.contains(&node)
        || depth > 0
            && graph.args(node).iter().all(|arg| {
                !raising.is(graph, arg.node) || is_kept(graph, raising, near, arg.node, depth - 1)
            })
}
