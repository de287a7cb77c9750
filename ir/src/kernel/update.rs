//! Marks outputs that may replace state in place, and kernels that run only in good steps.

use super::build::Built;
use super::{Access, Form, Sink};
use crate::graph::{Graph, NodeId, Role, ValueId};
use crate::op::{Body, Lower};

/// Sets [`Output::update`](super::Output::update) and [`Kernel::when`](super::Kernel::when) where the graph allows it.
pub(super) fn mark(graph: &Graph, built: &mut Built) {
    let Form::Nest(nest) = &built.kernel.form else { return };
    if !nest.is_map() || nest.segments.len() > 1 {
        return;
    }
    for (i, value) in built.outputs.iter().enumerate() {
        let Some(port) = graph.updated_by(*value) else { continue };
        let port = ValueId { node: port.node, result: 0 };
        let Some(input) = built.inputs.iter().position(|v| *v == port) else { continue };
        let Some(place) = store_access(&nest.stages[0].sinks, i) else { continue };
        let dense = nest.loads.iter().filter(|l| l.input == input).all(|l| l.access == *place);
        let taken = built.kernel.outputs.iter().any(|o| o.update == Some(input));
        if dense && !taken {
            built.kernel.outputs[i].update = Some(input);
        }
    }
}

fn store_access(sinks: &[Sink], output: usize) -> Option<&Access> {
    sinks.iter().find_map(|s| match s {
        Sink::Store { output: o, access, .. } if *o == output => Some(access),
        _ => None,
    })
}

/// If `value` is `where(found != 0, old, new)` and updates the port `old`: the f32 scalar `found`, and `new`.
pub fn predicated(graph: &Graph, value: ValueId) -> Option<(ValueId, ValueId)> {
    let node = graph.node(value.node);
    if node.op.name() != "where" {
        return None;
    }
    let args = graph.args(value.node);
    let port = graph.updated_by(value)?;
    if port.role == Role::Input || args[1] != (ValueId { node: port.node, result: 0 }) {
        return None;
    }
    let test = behind_views(graph, args[0]);
    let condition = graph.node(test.node);
    let is_test = condition.op.name() == "ne" && condition.attrs.float("scalar") == Some(0.0)
        || condition.op.name() == "cast" && condition.attrs.dtype("to") == Some(crate::DType::Bool);
    if !is_test {
        return None;
    }
    let found = behind_views(graph, graph.args(test.node)[0]);
    let ty = graph.ty(found);
    (ty.dtype == crate::DType::F32 && ty.numel() == 1).then_some((found, args[2]))
}

/// The value behind reshapes and expansions of one number.
fn behind_views(graph: &Graph, value: ValueId) -> ValueId {
    let is_view = |n: NodeId| {
        matches!(graph.node(n).op.def().body, Body::Core { kernel: Lower::View(_), .. })
    };
    let mut value = value;
    while is_view(value.node) && graph.ty(graph.args(value.node)[0]).numel() == 1 {
        value = graph.args(value.node)[0];
    }
    value
}
