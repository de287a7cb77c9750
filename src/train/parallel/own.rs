//! State that a step writes from the rows of each rank, such as the running means of a norm over
//! the batch: ranks do not have it in common.

use crate::explain::Warning;
use tracecast_ir::op::{Exchange, Lower};
use tracecast_ir::{Graph, Role};

/// The names of the state whose next value depends on inputs of which each rank has its own, by a
/// way on which ranks exchange nothing.
pub(super) fn written_from_own(graph: &Graph, is_own_input: impl Fn(&str) -> bool) -> Vec<String> {
    let mut is_own = vec![false; graph.ports().len()];
    for (own, port) in is_own.iter_mut().zip(graph.ports()) {
        *own = port.role == Role::Input && is_own_input(&port.name);
    }
    loop {
        let before = is_own.clone();
        let values = own_values(graph, &is_own);
        for (port, value) in graph.updates() {
            is_own[*port] |= values[value.node.index()];
        }
        if is_own == before {
            break;
        }
    }
    let state = graph.ports().iter().zip(&is_own);
    let state = state.filter(|(port, own)| **own && port.role != Role::Input);
    state.map(|(port, _)| port.name.clone()).collect()
}

/// The nodes whose values depend on such ports.
fn own_values(graph: &Graph, is_own: &[bool]) -> Vec<bool> {
    let mut own = vec![false; graph.len()];
    for (port, is_own) in graph.ports().iter().zip(is_own) {
        own[port.node.index()] = *is_own;
    }
    for id in graph.nodes() {
        let gives_all = matches!(
            graph.node(id).op.def().lowering(),
            Some(Lower::Exchange(Exchange::AllReduce | Exchange::Broadcast | Exchange::AllGather))
        );
        let takes_own = graph.args(id).iter().any(|arg| own[arg.node.index()]);
        own[id.index()] |= takes_own && !gives_all;
    }
    own
}

/// What to say about such state.
pub(super) fn warning(own: &[String]) -> Option<Warning> {
    let (first, others) = own.split_first()?;
    let more = match others.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(Warning::of_tracing(format!(
        "`{first}`{more}: each rank writes it from its own rows, so that ranks have different values, and a checkpoint has those of rank 0"
    )))
}
