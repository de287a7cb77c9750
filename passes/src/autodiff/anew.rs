//! Operands promoted anew, for gradients that are differentiated again.
//!
//! An op of PyTorch promotes and broadcasts its operands inside, and a gradient computes with the
//! operands as they were given: what takes one there promotes it once more. So a gradient of a
//! gradient comes back along each of these ways by itself, summed to the shape of the operand and
//! rounded to its dtype, before it is added to the others. One cast for all of them would round
//! their sum.
//!
//! ```text
//! traced:  %0 = mul %x, %y : f32[3] of f16[] and f32[3]
//! before:  %1 = cast %x; %2 = expand %1; %0 = mul %2, %y; gradient of %y: mul %dy, %2
//! after:   %1 = cast %x; %2 = expand %1; %0 = mul %2, %y; gradient of %y: %3 = cast %x; %4 = expand %3; mul %dy, %4
//! ```
//!
//! The values are the same, and what nobody differentiates is left as it is.

use smallvec::SmallVec;
use tracecast_ir::hash::FxHashSet;
use tracecast_ir::op::{Intrinsic, Lower, View};
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::{Graph, NodeId, Origin, Reason, Tracer, ValueId, Var};

/// The losses whose gradients lie on the way to another loss.
pub(super) fn losses(graph: &Graph) -> FxHashSet<ValueId> {
    let (mut losses, mut reaches) = (FxHashSet::default(), vec![false; graph.len()]);
    for id in graph.nodes().rev() {
        let args = graph.args(id);
        let is_gradient = graph.node(id).op.intrinsic() == Some(Intrinsic::Gradient);
        if is_gradient {
            reaches[args[0].node.index()] = true;
        }
        if reaches[id.index()] {
            args.iter().for_each(|arg| reaches[arg.node.index()] = true);
            losses.extend(args.first().filter(|_| is_gradient));
        }
    }
    losses
}

/// The operand of an op of that origin, with the promotion and the expansion that belong to the op
/// recorded again, on what is `taken` in the place of the value that was given.
pub(super) fn promoted<'t>(
    t: &'t Tracer,
    origin: &Origin,
    x: Var<'t>,
    taken: &dyn Fn(Var<'t>) -> Var<'t>,
) -> Var<'t> {
    let mut of_op: SmallVec<[Var<'t>; 2]> = SmallVec::new();
    let mut given = x;
    while let Some(below) = t.with_graph(|graph| below(graph, origin, given.id().node)) {
        of_op.push(given);
        given = t.var(below);
    }
    of_op.iter().rev().fold(taken(given), |value, step| match value.dtype() == step.dtype() {
        true => value.expand_to(&step.shape()),
        false => t.because(Reason::Promotion, || value.cast(step.dtype())),
    })
}

/// What a node promotes or expands, if it was recorded for an op of that origin.
fn below(graph: &Graph, origin: &Origin, id: NodeId) -> Option<ValueId> {
    let node = graph.node(id);
    let is_of_op = node.origin.node.is_some() && node.origin.node == origin.node;
    if !is_of_op || node.origin.backward || origin.backward {
        return None;
    }
    let is_expansion = matches!(node.op.def().lowering(), Some(Lower::View(View::Expand)));
    let promotes = |point: &u32| graph.points()[*point as usize].reason == Reason::Promotion;
    (is_expansion || node.origin.points.iter().any(promotes)).then(|| graph.args(id)[0])
}
