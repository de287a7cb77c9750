//! From a group of core nodes, or one node, to a [`Kernel`](super::Kernel).
//!
//! A group is a list of nodes with one iteration domain. Members whose shape is the domain are
//! computed at every position, members one axis shorter (or with a last axis of size 1) once per
//! row. Everything else a member needs is either rematerialised where it is needed
//! ([`Context::inline`]) or loaded.

mod attention;
mod contract;
mod factors;
mod group;
mod largest;
mod lines;
mod lowering;
mod nest;
mod scatter;
mod transposed;

use super::{Form, FormKind};
use crate::Shape;
use crate::graph::{Graph, NodeId, ValueId};
pub(super) use attention::build as attention;
pub use attention::seen;
pub(super) use contract::build as contract;
pub use factors::{FactorLoops, factors};
pub use group::{Built, Context, Group, is_row, is_zeros, own_index};
use group::{column_sink, finish, reduction, value_of};
pub use largest::{Largest, largest};
pub(super) use lines::build as lines;
pub use lowering::lowering;
use nest::NestBuilder;
pub(super) use scatter::build as scatter;
pub(super) use transposed::build as transposed;

/// The form whose kernels a node begins, if it becomes one.
pub fn form(graph: &Graph, node: NodeId) -> Option<FormKind> {
    FormKind::begun_by(lowering(graph, node)?)
}

/// The iteration domain of a node on its own.
pub fn domain(graph: &Graph, node: NodeId) -> &Shape {
    let form = form(graph, node).unwrap_or(FormKind::Nest);
    (form.grouping().domain)(graph, node)
}

/// The kernel of one core node whose operands lie in memory.
///
/// # Errors
/// If the node is not a core op that computes something.
pub fn single(graph: &Graph, node: NodeId) -> Result<Built, String> {
    let group = Group { members: vec![node], domain: domain(graph, node).clone() };
    let cx = Context { graph, inline: &|_| false, stored: &|_| true };
    match form(graph, node) {
        Some(FormKind::Nest) => unconditional(&cx, &group),
        _ => kernel(&cx, &group),
    }
}

/// The kernel of a group.
///
/// # Errors
/// If a member needs a value at an index that is not affine in the loops; then that value has to be
/// in a group of its own.
pub fn kernel(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let first = group.members[0];
    let form = form(cx.graph, first)
        .ok_or_else(|| format!("{} does not become a kernel", cx.graph.node(first).op.name()))?;
    (form.grouping().build)(cx, group)
}

/// A nest; if all it stores are predicated updates of state under one flag, the whole kernel is
/// predicated instead.
pub(super) fn nest(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let stored: Vec<NodeId> = group.members.iter().copied().filter(|m| (cx.stored)(*m)).collect();
    let updates: Option<Vec<(ValueId, ValueId)>> =
        stored.iter().map(|m| super::update::predicated(cx.graph, value_of(*m))).collect();
    // The flag is read from memory before the kernel runs, so it is to be a port's value or another
    // kernel's.
    let in_memory = |v: ValueId| !(cx.inline)(v.node) && !group.members.contains(&v.node);
    let one_flag = |u: &Vec<(ValueId, ValueId)>| {
        u.first()
            .is_some_and(|first| in_memory(first.0) && u.iter().all(|(found, _)| *found == first.0))
    };
    if let Some(updates) = updates.filter(one_flag) {
        let new = stored.iter().zip(&updates).map(|(m, (_, new))| (*m, *new)).collect();
        let mut built = NestBuilder::new(cx, group).predicated(updates[0].0, new).build()?;
        super::update::mark(cx.graph, &mut built);
        let is_map = matches!(&built.kernel.form, Form::Nest(n) if n.is_map());
        if is_map && built.kernel.outputs.iter().all(|o| o.update.is_some()) {
            return Ok(built);
        }
    }
    unconditional(cx, group)
}

/// A nest that always runs, and reads what its members take.
fn unconditional(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let mut built = NestBuilder::new(cx, group).build()?;
    super::update::mark(cx.graph, &mut built);
    Ok(built)
}
