//! Marks outputs that may replace state in place, and kernels that run only in good steps.

use super::build::Built;
use super::{Access, Form, Nest, Over, ScalarOp, Sink, Stage};
use crate::graph::{Graph, NodeId, Port, Role, ValueId};
use crate::op::{Body, Compares, Facts, Intrinsic, Lower, WithItself};

/// Sets [`Output::update`](super::Output::update) where the graph and the kernel allow it:
/// everything that is read of the old state is read in the stage that writes the new one, at the
/// same position.
pub(super) fn mark(graph: &Graph, built: &mut Built) {
    let nest = match &built.kernel.form {
        Form::Nest(nest) => nest,
        Form::Scatter(scatter) => {
            // What is there already need not be copied there. A source may be made of what is at
            // its own place, if nothing else is put there.
            let base = scatter.base.filter(|base| {
                let replaces = |port: &Port| built.inputs[*base].node == port.node;
                let own = |access: &Access| scatter.index.is_empty() && *access == scatter.place;
                built.kernel.checks.is_empty()
                    && scatter.loads.iter().all(|l| l.input != *base || own(&l.access))
                    && graph.updated_by(built.outputs[0]).is_some_and(replaces)
            });
            built.kernel.outputs[0].update = base;
            return;
        }
        Form::Contract(_) | Form::Lines(_) | Form::Attention(_) | Form::Transposed(_) => return,
    };
    if nest.segments.len() > 1 {
        return;
    }
    for (i, value) in built.outputs.iter().enumerate() {
        let Some(port) = graph.updated_by(*value) else { continue };
        let port = ValueId { node: port.node, result: 0 };
        let Some(input) = built.inputs.iter().position(|v| *v == port) else { continue };
        let Some((stage, place)) = written(nest, i) else { continue };
        let own = nest.loads.iter().filter(|l| l.input == input).all(|l| l.access == *place);
        let elsewhere = nest
            .stages
            .iter()
            .enumerate()
            .any(|(s, other)| s != stage && reads(nest, other, input));
        let taken = built.kernel.outputs.iter().any(|o| o.update == Some(input));
        if own && !elsewhere && !taken {
            built.kernel.outputs[i].update = Some(input);
        }
    }
}

/// The stage along rows that stores an output, and where.
fn written(nest: &Nest, output: usize) -> Option<(usize, &Access)> {
    nest.stages.iter().enumerate().filter(|(_, stage)| stage.over == Over::Row).find_map(
        |(s, stage)| {
            stage.sinks.iter().find_map(|sink| match sink {
                Sink::Store { output: o, access, .. } if *o == output => Some((s, access)),
                _ => None,
            })
        },
    )
}

/// True if a stage loads from an input.
fn reads(nest: &Nest, stage: &Stage, input: usize) -> bool {
    let of_input =
        |op: &ScalarOp| matches!(op, ScalarOp::Load(l) if nest.loads[*l as usize].input == input);
    stage.body.insts.iter().any(|inst| of_input(&inst.op))
}

/// If `value` is `where(found != 0, old, new)` and updates the port `old`: the f32 scalar `found`,
/// and `new`.
pub fn predicated(graph: &Graph, value: ValueId) -> Option<(ValueId, ValueId)> {
    let node = graph.node(value.node);
    if node.op.intrinsic() != Some(Intrinsic::Choice) {
        return None;
    }
    let args = graph.args(value.node);
    let port = graph.updated_by(value)?;
    if port.role == Role::Input || args[1] != (ValueId { node: port.node, result: 0 }) {
        return None;
    }
    let test = behind_views(graph, args[0]);
    let condition = graph.node(test.node);
    let is_test = tells_difference(condition.op.facts())
        && condition.attrs.float("scalar") == Some(0.0)
        || condition.op.intrinsic() == Some(Intrinsic::Cast)
            && condition.attrs.dtype("to") == Some(crate::DType::Bool);
    if !is_test {
        return None;
    }
    let found = behind_views(graph, graph.args(test.node)[0]);
    let ty = graph.ty(found);
    (ty.dtype == crate::DType::F32 && ty.numel() == 1).then_some((found, args[2]))
}

/// True of the comparison that holds where operands differ: it is for equality, and no value
/// differs from itself.
fn tells_difference(facts: &Facts) -> bool {
    facts.compares == Some(Compares::Equality)
        && facts.with_itself == Some(WithItself::NumberExceptFloats(0.0))
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
