//! Programs recorded in another order.

use super::dice::Dice;
use std::collections::HashMap;
use std::sync::Arc;
use tracecast_ir::ops::grad::GRAD;
use tracecast_ir::policy::PolicySet;
use tracecast_ir::{Args, Graph, NodeId, Tracer, ValueId, Var};

/// The same traced program with its nodes recorded in another order, the uses of each value in the
/// same one if there are gradients.
pub(super) fn reordered(graph: &Graph, dice: &mut Dice) -> Graph {
    let t = Tracer::with_policies(graph.name(), Arc::new(PolicySet::standard()));
    let mut new: HashMap<ValueId, ValueId> = HashMap::new();
    for port in graph.ports() {
        let var = t.port(&port.name, port.ty.clone(), port.role, port.grad, port.device);
        new.insert(ValueId { node: port.node, result: 0 }, var.id());
    }
    let live = graph.live();
    let before = if graph.nodes().any(|id| graph.node(id).op.name() == GRAD.name) {
        earlier_uses(graph)
    } else {
        vec![Vec::new(); graph.len()]
    };
    let mut left: Vec<NodeId> =
        graph.nodes().filter(|id| graph.port_of(*id).is_none() && live[id.index()]).collect();
    while !left.is_empty() {
        let is_ready = |id: NodeId| {
            graph.args(id).iter().all(|a| new.contains_key(a))
                && before[id.index()].iter().all(|other| !left.contains(other))
        };
        let ready: Vec<usize> = (0..left.len()).filter(|i| is_ready(left[*i])).collect();
        let id = left.remove(ready[dice.below(ready.len())]);
        let node = graph.node(id);
        let vars: Vec<Var<'_>> = graph.args(id).iter().map(|a| t.var(new[a])).collect();
        let results =
            t.in_region(graph.region(id), || t.again(node, Args::grouped(&vars, &node.groups)));
        for (result, var) in results.iter().enumerate() {
            new.insert(ValueId { node: id, result: result as u16 }, var.id());
        }
    }
    for (name, value) in graph.outputs() {
        t.output(name, t.var(new[value]));
    }
    for (port, value) in graph.updates() {
        t.update(
            t.var(new[&ValueId { node: graph.ports()[*port].node, result: 0 }]),
            t.var(new[value]),
        );
    }
    t.finish().expect("the same ops")
}

/// For each node, those that use one of its operands before it does.
fn earlier_uses(graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut last: HashMap<ValueId, NodeId> = HashMap::new();
    let mut before = vec![Vec::new(); graph.len()];
    let live = graph.live();
    for id in graph.nodes().filter(|id| live[id.index()]) {
        for arg in graph.args(id).into_iter().filter(|arg| graph.ty(*arg).dtype.is_float()) {
            before[id.index()].extend(last.insert(arg, id).filter(|other| *other != id));
        }
    }
    before
}
