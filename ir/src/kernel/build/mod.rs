//! From a group of core nodes, or one node, to a [`Kernel`].
//!
//! A group is a list of nodes with one iteration domain. Members whose shape is the domain are
//! computed at every position, members one axis shorter (or with a last axis of size 1) once per
//! row. Everything else a member needs is either rematerialised where it is needed
//! ([`Context::inline`]) or loaded.

mod attention;
mod contract;
mod factors;
mod largest;
mod lines;
mod nest;
mod scatter;
mod transposed;

use super::emit::Collected;
use super::index::Index;
use super::{Form, FormKind, Kernel, Output, Reduction, Sink, Val};
use crate::graph::{Graph, NodeId, ValueId};
use crate::op::{Intrinsic, Lower, OpName, View};
use crate::ops;
use crate::{Shape, Size};
pub(super) use attention::build as attention;
pub use attention::seen;
pub(super) use contract::build as contract;
pub use factors::{FactorLoops, factors};
pub use largest::{Largest, largest};
pub(super) use lines::build as lines;
use nest::NestBuilder;
pub(super) use scatter::build as scatter;
pub(super) use transposed::build as transposed;

/// Nodes that become one kernel.
#[derive(Clone, Debug)]
pub struct Group {
    /// In the order of recording.
    pub members: Vec<NodeId>,
    /// The iteration domain: of a contraction its result's shape, of a scatter its source's.
    pub domain: Shape,
}

/// What a group's surroundings say.
pub struct Context<'a> {
    /// The program.
    pub graph: &'a Graph,
    /// Whether a node outside the group is rematerialised where it is needed.
    pub inline: &'a dyn Fn(NodeId) -> bool,
    /// Whether a member's value is needed outside.
    pub stored: &'a dyn Fn(NodeId) -> bool,
}

/// A kernel and the values it reads and makes.
#[derive(Clone, Debug)]
pub struct Built {
    /// The kernel.
    pub kernel: Kernel,
    /// The node that begins its form, a product for instance: the kernel goes by its module and
    /// line.
    pub begins: NodeId,
    /// Its inputs, in order.
    pub inputs: Vec<ValueId>,
    /// Its outputs, in order.
    pub outputs: Vec<ValueId>,
}

/// How a core op takes part in a kernel. A constant of many numbers lies in memory, others are
/// code.
pub fn lowering(graph: &Graph, node: NodeId) -> Option<&Lower> {
    let node = graph.node(node);
    if ops::source::is_data(node) { Some(&Lower::Data) } else { node.op.def().lowering() }
}

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

/// A name made of the first few distinct ops.
fn name(cx: &Context<'_>, group: &Group) -> String {
    let mut ops: Vec<OpName> = Vec::new();
    for &m in &group.members {
        let op = cx.graph.node(m).op.name();
        if !ops.contains(&op) && ops.len() < 4 {
            ops.push(op);
        }
    }
    ops.iter().map(OpName::to_string).collect::<Vec<_>>().join("_")
}

/// The kernel of those loops, and what it reads and makes.
pub(super) fn finish(
    cx: &Context<'_>,
    group: &Group,
    collected: Collected,
    outputs: Vec<ValueId>,
    form: Form,
) -> Built {
    let mut kernel = Kernel {
        name: name(cx, group),
        inputs: collected.inputs.list.iter().map(|v| cx.graph.ty(*v).clone()).collect(),
        outputs: outputs
            .iter()
            .map(|v| Output { ty: cx.graph.ty(*v).clone(), update: None })
            .collect(),
        when: None,
        checks: collected.checks,
        arguments: collected.arguments,
        names: Vec::new(),
        form,
    };
    if !cx.graph.sizes().is_empty() {
        kernel.find_names(cx.graph.sizes());
    }
    Built { kernel, begins: group.members[0], inputs: collected.inputs.list, outputs }
}

/// How a core reduction combines.
fn reduction(graph: &Graph, node: NodeId) -> Result<Reduction, String> {
    ops::reduce::reduction(&graph.node(node).attrs)
}

/// Where a reduction down the columns of a domain goes: a value, to an output.
fn column_sink(
    graph: &Graph,
    node: NodeId,
    domain: &Shape,
    (value, output): (Val, usize),
) -> Result<Sink, String> {
    let n = graph.node(node);
    let axes = domain.axes(n.attrs.ints("dim"))?;
    let kept = (0..domain.rank().max(1)).map(|axis| !axes.contains(&axis)).collect();
    Ok(Sink::Column {
        reduction: reduction(graph, node)?,
        value,
        output,
        dtype: n.results[0].dtype,
        kept,
    })
}

pub(super) fn value_of(node: NodeId) -> ValueId {
    ValueId { node, result: 0 }
}

/// True for the domain without its last axis, or with that axis of size 1.
pub fn is_row(shape: &Shape, domain: &Shape) -> bool {
    let Some((_, outer)) = domain.split_last() else { return false };
    &shape[..] == outer
        || shape.split_last().is_some_and(|(last, rest)| *last == 1 && rest == outer)
}

/// The index of a member over the loops of its kernel: each axis at its own loop, the last axis of
/// a row value at 0.
pub fn own_index(shape: &Shape, domain: &Shape, rank: usize) -> Index {
    let mut index = Index::identity(shape.rank(), rank);
    if let (Index::Axes(axes), true) = (&mut index, shape != domain && shape.rank() == rank) {
        axes[rank - 1].strides[rank - 1] = Size::from(0);
    }
    index
}

/// True for a constant of zeros.
pub fn is_zeros(graph: &Graph, value: ValueId) -> bool {
    let node = graph.node(value.node);
    node.op.intrinsic() == Some(Intrinsic::Constant)
        && node
            .attrs
            .float("value")
            .is_some_and(|v| v.to_bits() == 0 || (!node.results[0].dtype.is_float() && v == 0.0))
        || matches!(lowering(graph, value.node), Some(Lower::View(View::Expand)))
            && is_zeros(graph, graph.args(value.node)[0])
}
