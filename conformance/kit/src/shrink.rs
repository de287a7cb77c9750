//! The smallest program of a case that fails alone.

use crate::compare::{Agreement, differs};
use crate::numbers::random;
use crate::subject::Subject;
use std::collections::{BTreeMap, BTreeSet};
use tracecast::compile;
use tracecast::passes::{Place, standard};
use tracecast::runtime::{Store, Tensor};
use tracecast_ir::policy::DeviceType;
use tracecast_ir::{Args, Graph, NodeId, Port, Printer, Role, Tracer, ValueId};

/// A program of more ops is not tried.
const MOST_NODES: usize = 6;

/// As text: one core op, or one with those before it, or all of the program if that fails only as a
/// whole.
pub(crate) fn smallest(graph: &Graph, agreement: Agreement, on: &Subject) -> String {
    let passes = on.reference().passes();
    // Without source lines: they would be those of the kit.
    let text = |graph| Printer { sources: false, ..Printer::FULL }.print(graph).trim().to_owned();
    let whole = || text(graph);
    let Some(pipeline) = standard(&passes).up_to(Place::NAME) else { return whole() };
    let Ok(core) = pipeline.run(graph.clone(), |_, _, _| ()) else { return whole() };
    let live = core.live();
    let ops: Vec<NodeId> = core
        .nodes()
        .filter(|n| live[n.index()] && core.port_of(*n).is_none() && core.node(*n).arity() > 0)
        .collect();
    for depth in 1..=3 {
        for op in &ops {
            let nodes = producers(&core, *op, depth);
            if nodes.len() > MOST_NODES {
                continue;
            }
            let Some(part) = part(&core, &nodes) else { continue };
            if fails(&part, agreement, on) {
                return text(&part);
            }
        }
    }
    whole()
}

/// An op and its producers up to that depth.
fn producers(core: &Graph, op: NodeId, depth: usize) -> BTreeSet<NodeId> {
    let mut nodes = BTreeSet::from([op]);
    for _ in 1..depth {
        let read: Vec<NodeId> = nodes.iter().flat_map(|n| core.args(*n)).map(|v| v.node).collect();
        nodes.extend(read.into_iter().filter(|n| core.port_of(*n).is_none()));
    }
    nodes
}

/// These nodes as a program of their own: what they read are its inputs, the last one its output.
fn part(core: &Graph, nodes: &BTreeSet<NodeId>) -> Option<Graph> {
    let tracer = Tracer::explicit("smallest");
    let mut made: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut last = None;
    for id in nodes {
        let node = core.node(*id);
        for value in core.args(*id) {
            made.entry(value).or_insert_with(|| {
                let name = format!("x{}", value.node.index());
                let ty = core.ty(value).clone();
                tracer.port(&name, ty, Role::Input, false, DeviceType::Cpu).id()
            });
        }
        let vars: Vec<_> = core.args(*id).iter().map(|v| tracer.var(made[v])).collect();
        let results = tracer.again(node, Args::grouped(&vars, &node.groups));
        for (result, var) in results.into_iter().enumerate() {
            let value = ValueId { node: *id, result: result as u16 };
            made.insert(value, var.id());
            last = (result == 0).then_some(var.id()).or(last);
        }
    }
    tracer.output("y", tracer.var(last?));
    tracer.finish().ok()
}

/// True if the device runs it, and gives something else than the interpreter, once or twice in a
/// row.
fn fails(part: &Graph, agreement: Agreement, on: &Subject) -> bool {
    let (Ok(own), Ok(known)) =
        (compile(part.clone(), &on.options()), compile(part.clone(), &on.reference()))
    else {
        return false;
    };
    (0..3).any(|step| {
        let named = |port: &Port| {
            random(&port.ty, &port.name, step).map(|value| (port.name.clone(), value))
        };
        let inputs = part.ports().iter().map(named).collect::<tracecast::Result<Vec<_>>>();
        let Ok(inputs) = inputs else { return false };
        let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let Ok(wanted) = known.run(&mut Store::new(), &given) else { return false };
        match own.run(&mut Store::new(), &given) {
            Ok(found) => differs(&found["y"], &wanted["y"], agreement).is_some(),
            Err(_) => true,
        }
    })
}
