//! Programs as sets of values: the same for programs that differ in the order of recording alone.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use tracecast_ir::{Graph, NodeId, ValueId};

/// What a program is made of: how many nodes there are of each op, attributes and operands, and
/// which of them are wanted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Canonical {
    nodes: BTreeMap<String, usize>,
    wanted: BTreeMap<String, String>,
}

/// Two programs are isomorphic if these are equal: a node's name is made of its op, its attributes
/// and its operands' names. Dead nodes do not count.
pub(super) fn canonical(graph: &Graph) -> Canonical {
    let live = graph.live();
    let mut names: Vec<String> = Vec::new();
    let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
    for id in graph.nodes() {
        names.push(name_of(graph, id, &names));
        if live[id.index()] || graph.port_of(id).is_some() {
            *nodes.entry(names[id.index()].clone()).or_default() += 1;
        }
    }
    let name = |v: &ValueId| format!("{}.{}", names[v.node.index()], v.result);
    let outputs = graph.outputs().iter().map(|(n, v)| (n.clone(), name(v)));
    let next = |p: usize| format!("next {}", graph.ports()[p].name);
    let updates = graph.updates().iter().map(|(p, v)| (next(*p), name(v)));
    Canonical { nodes, wanted: outputs.chain(updates).collect() }
}

/// A name that does not depend on numbers: the op, and a hash of its operands' names, those of
/// commutative ops in order.
fn name_of(graph: &Graph, id: NodeId, names: &[String]) -> String {
    let node = graph.node(id);
    let operand = |a: &ValueId| format!("{}.{}", names[a.node.index()], a.result);
    let mut args: Vec<String> = graph.args(id).iter().map(operand).collect();
    if matches!(node.op.name().text(), "add" | "mul" | "eq" | "ne" | "logical_and" | "logical_or") {
        args.sort();
    }
    let mut hasher = DefaultHasher::new();
    args.hash(&mut hasher);
    node.groups.hash(&mut hasher);
    graph.port_of(id).map(|p| &p.name).hash(&mut hasher);
    node.attrs.get("kernel").map(|k| format!("{k:?}")).hash(&mut hasher);
    let types: Vec<String> = node.results.iter().map(ToString::to_string).collect();
    format!(
        "{} {} {} #{:016x}",
        node.op.name().text(),
        node.attrs,
        types.join(", "),
        hasher.finish()
    )
}
