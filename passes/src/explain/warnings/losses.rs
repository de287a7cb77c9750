//! What is differentiated: losses that are rounded to a low-precision float, losses that overflow
//! when they are scaled, parameters that a loss does not depend on.

use super::warning::{WarningKind, Warnings};
use petgraph::visit::{Dfs, Reversed, Walker};
use std::collections::HashSet;
use tracecast_ir::op::{Body, Grad, Intrinsic, Lower, Magnitude};
use tracecast_ir::{DType, Graph, NodeId, Port, Role, TensorType, ValueId};

/// The scale that PyTorch's scaler starts with.
const INITIAL_SCALE: f64 = 65536.0;

pub(super) fn look(found: &mut Warnings<'_>) {
    let cast = found.cast;
    let grads: Vec<NodeId> = all(cast, Intrinsic::Gradient).collect();
    let mut losses: Vec<NodeId> = all(cast, Intrinsic::Loss).collect();
    for grad in &grads {
        scaled(found, cast.args(*grad)[0]);
        losses.push(behind_scale(cast, cast.args(*grad)[0]).node);
    }
    losses.sort_unstable();
    losses.dedup();
    for loss in losses {
        low(found, loss);
    }
    without_gradient(found);
}

/// The nodes of a kind that the language knows.
fn all(graph: &Graph, kind: Intrinsic) -> impl Iterator<Item = NodeId> + '_ {
    graph.nodes().filter(move |id| graph.node(*id).op.intrinsic() == Some(kind))
}

/// A loss that has been rounded to a low-precision float.
fn low(found: &mut Warnings<'_>, loss: NodeId) {
    let node = found.cast.node(loss);
    let dtype = node.results[0].dtype;
    let Some(format) = dtype.storage().float.filter(|_| dtype.is_low()) else { return };
    let message = format!(
        "the loss is {dtype}: it has {}, and so has what its gradient starts from",
        decimal_digits(format.digits())
    );
    let advice = "compute the loss in f32: cast its operands, or leave the region before it";
    found.about_cast(WarningKind::LowLoss, loss, message, advice);
}

/// The decimal digits that bits of precision are worth.
fn decimal_digits(bits: u32) -> &'static str {
    match (f64::from(bits) * std::f64::consts::LOG10_2) as u32 {
        0 => "at most one decimal digit",
        1 => "one to two decimal digits",
        2 => "two to three decimal digits",
        _ => "three to four decimal digits",
    }
}

/// The value that scaling, casts and views have made a loss of.
fn behind_scale(graph: &Graph, loss: ValueId) -> ValueId {
    let mut value = loss;
    loop {
        let node = graph.node(value.node);
        let args = graph.args(value.node);
        let moves = is_view(graph, value.node);
        let is_product = node.op.facts().magnitude == Some(Magnitude::Product);
        value = match &args[..] {
            [x] if node.op.intrinsic() == Some(Intrinsic::Cast) || moves || is_product => *x,
            [x, s] | [s, x] if is_product && scale_of(graph, *s).is_some() => *x,
            _ => return value,
        };
    }
}

/// The port that a scale lies in, behind the views that broadcast it.
fn scale_of(graph: &Graph, mut value: ValueId) -> Option<&Port> {
    let number = TensorType::scalar(DType::F32);
    while is_view(graph, value.node) {
        value = graph.args(value.node)[0];
    }
    graph.port_of(value.node).filter(|p| p.role != Role::Param && p.ty == number)
}

/// A loss with axes that is f16, or another float that does not hold the scale, after it has been
/// scaled.
fn scaled(found: &mut Warnings<'_>, loss: ValueId) {
    let graph = found.cast;
    let mut todo = vec![loss.node];
    let mut seen = HashSet::new();
    // From the loss back to where such values with axes are multiplied by a number.
    while let Some(id) = todo.pop() {
        if !seen.insert(id) {
            continue;
        }
        let (node, args) = (graph.node(id), graph.args(id));
        let is_short = |id: NodeId| {
            let ty = &graph.node(id).results[0];
            largest(ty.dtype) < INITIAL_SCALE && ty.shape.rank() > 0
        };
        // The product is made in f32 and rounded, or is made in the float at once.
        let product = match (node.op.intrinsic(), &args[..]) {
            (Some(Intrinsic::Cast), [x]) if is_short(id) => x.node,
            _ => id,
        };
        if let Some(scale) = scale_in(graph, product).filter(|_| is_short(id)) {
            overflow(found, id, &scale);
            continue;
        }
        let kinds = [Intrinsic::Total, Intrinsic::Mean, Intrinsic::Cast];
        let reduces = node.op.intrinsic().is_some_and(|kind| kinds.contains(&kind));
        let combines = node.op.commutes()
            && matches!(node.op.facts().magnitude, Some(Magnitude::Sum | Magnitude::Product));
        if reduces || combines || is_view(graph, id) {
            todo.extend(args.iter().map(|a| a.node));
        }
    }
}

/// The largest number of a float; infinite if the dtype is no float.
fn largest(dtype: DType) -> f64 {
    dtype.storage().float.map_or(f64::INFINITY, |format| format.largest())
}

/// The scale of a product with a loss: the number, or the name of its port.
fn scale_in(graph: &Graph, product: NodeId) -> Option<Scale> {
    let node = graph.node(product);
    let args = graph.args(product);
    if node.op.facts().magnitude != Some(Magnitude::Product) {
        return None;
    }
    match &args[..] {
        [_] => node.attrs.float("scalar").filter(|s| s.abs() > 1.0).map(Scale::Number),
        [x, s] => {
            let port = scale_of(graph, *s).or_else(|| scale_of(graph, *x))?;
            (port.role == Role::State).then(|| Scale::Port(port.name.clone()))
        }
        _ => None,
    }
}

fn is_view(graph: &Graph, id: NodeId) -> bool {
    matches!(&graph.node(id).op.def().body, Body::Core { kernel: Lower::View(_), .. })
}

enum Scale {
    Number(f64),
    Port(String),
}

fn overflow(found: &mut Warnings<'_>, product: NodeId, scale: &Scale) {
    let ty = found.cast.node(product).results[0].clone();
    let (dtype, largest) = (ty.dtype, largest(ty.dtype));
    let message = match scale {
        Scale::Number(scale) => format!(
            "a loss of type {ty} stays {dtype} when it is multiplied by {scale}: every element above {:.4} overflows",
            largest / scale.abs()
        ),
        Scale::Port(name) => format!(
            "a loss of type {ty} stays {dtype} when it is multiplied by `{name}`: at a scale of {INITIAL_SCALE}, with which scalers \
             start, every element above {:.4} overflows",
            largest / INITIAL_SCALE
        ),
    };
    let advice = "reduce the loss to one number before it is scaled, or compute it in f32";
    found.about_cast(WarningKind::ScaledLoss, product, message, advice);
}

/// Parameters whose gradient is asked for although no loss depends on them.
fn without_gradient(found: &mut Warnings<'_>) {
    let graph = found.traced;
    let dag = Reversed(graph.petgraph());
    let mut asked: Vec<(NodeId, bool)> = Vec::new();
    for id in all(graph, Intrinsic::Gradient) {
        let args = graph.args(id);
        let reached = differentiable(graph, args[0].node);
        for wrt in &args[1..] {
            asked.push((wrt.node, reached.contains(&wrt.node)));
        }
    }
    let params: Vec<NodeId> = graph.ports().iter().map(|p| p.node).collect();
    for param in params {
        let mut answers = asked.iter().filter(|(node, _)| *node == param).peekable();
        if answers.peek().is_none() || answers.any(|(_, reached)| *reached) {
            continue;
        }
        let used = all(graph, Intrinsic::Gradient)
            .map(|grad| graph.args(grad)[0].node)
            .any(|loss| Dfs::new(dag, loss).iter(dag).any(|n| n == param));
        let message = if used {
            "no gradient reaches it: every way from the loss to it leads through `detach`, integers or comparisons, so its \
             gradient is zero"
        } else {
            "the loss does not depend on it, so its gradient is zero"
        };
        let advice =
            "use it in the loss, or do not ask for its gradient (a frozen parameter is state)";
        found.about(WarningKind::NoGradient, param, message.to_owned(), advice);
    }
}

/// The nodes that gradients of a loss reach.
fn differentiable(graph: &Graph, loss: NodeId) -> HashSet<NodeId> {
    let mut reached = HashSet::new();
    let mut todo = vec![loss];
    while let Some(id) = todo.pop() {
        if !reached.insert(id) {
            continue;
        }
        let stops = matches!(
            &graph.node(id).op.def().body,
            Body::Core { grad: Grad::Zero, .. } | Body::Composite { grad: Some(Grad::Zero), .. }
        );
        if !stops {
            let floats = graph.args(id).into_iter().filter(|a| graph.ty(*a).dtype.is_float());
            todo.extend(floats.map(|a| a.node));
        }
    }
    reached
}
