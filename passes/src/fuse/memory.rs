//! Why values lie in memory between kernels, and what kernels compute again instead of reading it.

use super::cost::Weighed;
use super::{Fused, behind_gradients};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use tracecast_ir::kernel::build::{Group, form, lowering};
use tracecast_ir::kernel::{FormKind, Operands};
use tracecast_ir::op::Lower;
use tracecast_ir::{Graph, NodeId, ValueId};

/// Why a value is written to memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// It is a result of the program.
    Result,
    /// It is the next value of state.
    State,
    /// It is reduced, contracted, gathered or put together: that is done once.
    Whole,
    /// A kernel takes it in an order of its own, as a contraction its factors; why that is fastest
    /// from memory.
    Factor(&'static str),
    /// It takes functions, or divisions, that cost more than to write and read it.
    Dear,
    /// What it is made of would take more bytes, or more operations, than to write and read it.
    Bytes,
    /// Fusion planned one kernel for it and its readers, and no kernel holds them; why.
    Apart(String),
}

impl Keep {
    /// The name for machines.
    pub const fn name(&self) -> &'static str {
        match self {
            Keep::Result => "result",
            Keep::State => "state",
            Keep::Whole => "whole",
            Keep::Factor(_) => "factor",
            Keep::Dear => "dear",
            Keep::Bytes => "bytes",
            Keep::Apart(_) => "apart",
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Keep::Apart(why) => return write!(f, "no kernel holds it and its readers: {why}"),
            Keep::Result => "a result of the program",
            Keep::State => "the next value of state",
            Keep::Whole => "made as a whole, once",
            Keep::Factor(why) => why,
            Keep::Dear => "its function costs more to compute again than to read",
            Keep::Bytes => "what it is made of would cost more to read",
        })
    }
}

/// A value in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The node of the program that is fused.
    pub node: NodeId,
    /// The kernel that writes it.
    pub kernel: String,
    /// The kernels that read it, in the order of the program.
    pub readers: Vec<String>,
    /// Why it is written.
    pub why: Keep,
    /// What both ways cost, if fusion had a choice.
    pub cost: Option<Weighed>,
    /// True if the forward part writes it, not as state, and a kernel of backward reads it.
    pub for_backward: bool,
}

/// A node that several kernels compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Again {
    /// The node of the program that is fused.
    pub node: NodeId,
    /// The kernels, in the order of the program.
    pub kernels: Vec<String>,
    /// What both ways cost, if fusion had a choice.
    pub cost: Option<Weighed>,
}

/// What the kernels of a program write, kernel after kernel, and what several of them compute.
pub(super) fn memory(
    graph: &Graph,
    fused: &Fused<'_>,
    names: &[String],
) -> (Vec<Stored>, Vec<Again>) {
    let maker: HashMap<ValueId, usize> = (0..fused.kernels.len())
        .flat_map(|i| fused.kernels[i].outputs.iter().map(move |v| (*v, i)))
        .collect();
    let place: HashMap<usize, usize> = fused.order.iter().copied().zip(0..).collect();
    let (mut factors, mut computed) = (BTreeMap::new(), BTreeMap::<_, BTreeSet<usize>>::new());
    for (group, outputs) in &fused.groups {
        let kernel = outputs.first().and_then(|v| maker.get(v)).map(|k| place[k]);
        for &member in &group.members {
            let (inline, read) = behind(graph, fused, group, member);
            if let Some(
                Operands::InOwnOrder { why }
                | Operands::InMemory { why }
                | Operands::SeenInMemory { why },
            ) = form(graph, member).map(FormKind::operands)
            {
                factors.extend(read.into_iter().map(|factor| (factor, why)));
            }
            let computes = inline.into_iter().chain([member]).filter(|n| is_computed(graph, *n));
            for n in computes.filter(|_| kernel.is_some()) {
                computed.entry(n).or_default().extend(kernel);
            }
        }
    }
    let name = |place: usize| names[fused.order[place]].clone();
    let mut readers: HashMap<ValueId, Vec<String>> = HashMap::new();
    let later = behind_gradients(graph);
    let is_later = |i: usize| fused.kernels[i].outputs.iter().all(|v| later[v.node.index()]);
    let mut read_later: HashSet<ValueId> = HashSet::new();
    for &i in &fused.order {
        for value in &fused.kernels[i].inputs {
            readers.entry(*value).or_default().push(names[i].clone());
            read_later.extend(Some(*value).filter(|_| is_later(i)));
        }
    }
    let results: HashSet<ValueId> = graph.outputs().iter().map(|(_, v)| *v).collect();
    let state: HashSet<ValueId> = graph.updates().iter().map(|(_, v)| *v).collect();
    let mut stored = Vec::new();
    for &i in &fused.order {
        for value in &fused.kernels[i].outputs {
            let why = match (lowering(graph, value.node), fused.apart.get(&value.node)) {
                _ if results.contains(value) => Keep::Result,
                _ if state.contains(value) => Keep::State,
                (_, Some(why)) => Keep::Apart(why.clone()),
                (Some(Lower::Map(map)), None) => match factors.get(&value.node) {
                    Some(why) => Keep::Factor(why),
                    None if map.is_cheap() => Keep::Bytes,
                    None => Keep::Dear,
                },
                _ => Keep::Whole,
            };
            let readers = readers.remove(value).unwrap_or_default();
            let for_backward = read_later.contains(value) && !is_later(i) && !state.contains(value);
            let cost = fused.weighed.get(&value.node).copied();
            let kernel = names[i].clone();
            stored.push(Stored { node: value.node, kernel, readers, why, cost, for_backward });
        }
    }
    let several = computed.into_iter().filter(|(_, kernels)| kernels.len() > 1);
    let again = several.map(|(node, kernels)| {
        let cost = fused.weighed.get(&node).copied();
        Again { node, kernels: kernels.into_iter().map(name).collect(), cost }
    });
    (stored, again.collect())
}

/// The nodes that a member computes in its loads, and the ones it reads behind them.
fn behind(
    graph: &Graph,
    fused: &Fused<'_>,
    group: &Group,
    member: NodeId,
) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
    let (mut inline, mut read) = (BTreeSet::new(), BTreeSet::new());
    let mut todo: Vec<NodeId> = graph.args(member).iter().map(|a| a.node).collect();
    while let Some(node) = todo.pop() {
        if !fused.inline[node.index()] || group.members.contains(&node) {
            read.insert(node);
        } else if inline.insert(node) {
            todo.extend(graph.args(node).iter().map(|a| a.node));
        }
    }
    (inline, read)
}

/// True for arithmetic: views, constants and casts are part of loads and stores.
fn is_computed(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    matches!(lowering(graph, n), Some(Lower::Map(_))) && node.arity() > 0 && !node.op.is_cast()
}
