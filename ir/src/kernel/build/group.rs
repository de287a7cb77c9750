//! [`Group`]: nodes that become one kernel, and what the kernels of all forms are built with.

use super::lowering::lowering;
use crate::graph::{Graph, NodeId, ValueId};
use crate::kernel::emit::Collected;
use crate::kernel::index::Index;
use crate::kernel::{Form, Kernel, Output, Reduction, Sink, Val};
use crate::op::{Intrinsic, Lower, OpName, View};
use crate::ops;
use crate::{Shape, Size};

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

/// How a core reduction combines.
pub(super) fn reduction(graph: &Graph, node: NodeId) -> Result<Reduction, String> {
    ops::reduce::reduction(&graph.node(node).attrs)
}

/// Where a reduction down the columns of a domain goes: a value, to an output.
pub(super) fn column_sink(
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

/// The only result of a node.
pub(super) fn value_of(node: NodeId) -> ValueId {
    ValueId { node, result: 0 }
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
