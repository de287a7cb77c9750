//! Who uses the values of a program, in two arrays.

use tracecast_ir::kernel::build::lowering;
use tracecast_ir::op::Lower;
use tracecast_ir::{Graph, NodeId};

/// True for what is there before the first kernel runs: a value from outside, numbers in memory.
pub(super) fn is_given(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::Port | Lower::Data))
}

/// The users of every node, in the order of recording; a node that takes a value twice stands there
/// twice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Users {
    /// Where the users of each node begin; one more than there are nodes.
    first: Vec<u32>,
    users: Vec<NodeId>,
}

impl Users {
    pub(crate) fn of_graph(graph: &Graph) -> Self {
        let edges = graph.petgraph().raw_edges();
        let mut first = vec![0; graph.len() + 1];
        for edge in edges {
            first[edge.source().index() + 1] += 1;
        }
        for i in 1..first.len() {
            first[i] += first[i - 1];
        }
        let mut next = first.clone();
        let mut users = vec![NodeId::default(); edges.len()];
        // Edges are recorded with their targets, so they lie in the order of these.
        for edge in edges {
            let at = &mut next[edge.source().index()];
            users[*at as usize] = edge.target();
            *at += 1;
        }
        Users { first, users }
    }

    /// The users of a node.
    pub(crate) fn of(&self, node: NodeId) -> &[NodeId] {
        let [from, to] = [node.index(), node.index() + 1].map(|i| self.first[i] as usize);
        &self.users[from..to]
    }
}

#[cfg(test)]
mod tests {
    use super::Users;
    use tracecast_ir::text::parse;

    #[test]
    fn users_are_those_of_the_graph() {
        let text = "graph @g(%x: f32[2], %y: f32[2]) {
          %0 = mul %x, %x : f32[2]
          %1 = add %0, %y : f32[2]
          %2 = add %x, %1 : f32[2]
          return a = %2, b = %0
        }";
        let graph = parse(text).unwrap();
        let users = Users::of_graph(&graph);
        for (node, expected) in graph.nodes().zip(graph.users()) {
            let expected: Vec<_> = expected.iter().map(|(user, _)| *user).collect();
            assert_eq!(users.of(node), expected, "{}", node.index());
        }
    }
}
