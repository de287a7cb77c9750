//! Numbers that a 16-bit float cannot hold: long sums, tiny guards, large positions.

use super::warning::{WarningKind, Warnings};
use tracecast_ir::op::{Body, Inside, Intrinsic, Lower, Magnitude};
use tracecast_ir::{Attr, DType, Graph, Node, NodeId, Size};

pub(super) fn look(found: &mut Warnings<'_>) {
    let cast = found.cast;
    let integers = Integers::of(cast);
    for id in cast.nodes() {
        sum(found, id);
        tiny(found, id);
        if let Some((largest, dtype)) = integers.first_inexact(cast, id) {
            inexact(found, id, largest, dtype);
        }
    }
}

/// A sum of more numbers than its dtype can count.
fn sum(found: &mut Warnings<'_>, id: NodeId) {
    let node = found.cast.node(id);
    if node.op.intrinsic() != Some(Intrinsic::Total) || !node.results[0].dtype.is_low() {
        return;
    }
    let dtype = node.results[0].dtype;
    let Some(format) = dtype.storage().float else { return };
    let count = |size: Size| found.cast.sizes().hint(size).unwrap_or(0).max(1);
    let terms =
        count(found.cast.ty(found.cast.args(id)[0]).numel()) / count(node.results[0].numel());
    if terms as f64 <= format.exact() {
        return;
    }
    let digits = format.digits();
    let mut message =
        format!("a sum of {terms} numbers is rounded to {dtype}, {digits} bits of precision");
    if format.largest() < 1e6 {
        let mean = format.largest() / terms as f64;
        message += &format!(", and overflows where their mean is above {mean:.2}");
    }
    let advice = "sum in f32 (`dtype = f32`, or a region that is off), or take the mean";
    found.about_cast(WarningKind::LowReduction, id, message, advice);
}

/// A number that vanishes, or loses its digits, in the dtype that it is written for.
fn tiny(found: &mut Warnings<'_>, id: NodeId) {
    let node = found.cast.node(id);
    let Some((value, what)) = written(node) else { return };
    let dtype = node.results[0].dtype;
    let Some(format) = dtype.storage().float.filter(|_| dtype.is_low()) else { return };
    let size = value.abs();
    if size == 0.0 || size >= format.smallest_normal() {
        return;
    }
    let message = if size <= format.smallest() / 2.0 {
        format!(
            "{what} {value:e} is 0 in {dtype}, whose smallest number is {:.2e}",
            format.smallest()
        )
    } else {
        format!(
            "{what} {value:e} is below the smallest normal {dtype}, {:.2e}: it keeps few of its digits",
            format.smallest_normal()
        )
    };
    let advice = "compute this in f32, or choose a number that the dtype holds";
    found.about_cast(WarningKind::TinyNumber, id, message, advice);
}

/// The number that an op adds in the dtype of its result, and what it is.
fn written(node: &Node) -> Option<(f64, &'static str)> {
    match (node.op.intrinsic(), node.op.facts().magnitude) {
        (Some(Intrinsic::Constant), _) => Some((node.attrs.float("value")?, "the constant")),
        // A product with a number is made with the number as it is written, and rounded once.
        (_, Some(Magnitude::Sum)) => Some((node.attrs.float("scalar")?, "the number")),
        _ => {
            // What computes in f32 inside adds its `eps` there.
            let own = matches!(&node.op.def().body, Body::Composite { inside, .. } if *inside != Inside::F32);
            match node.attrs.get("eps") {
                Some(Attr::Float(eps)) if own => Some((*eps, "eps")),
                _ => None,
            }
        }
    }
}

fn inexact(found: &mut Warnings<'_>, id: NodeId, largest: f64, dtype: DType) {
    let Some(format) = dtype.storage().float else { return };
    let message = format!(
        "integers up to {largest} are rounded to {dtype}, which holds all of them only up to {}",
        format.exact()
    );
    let advice =
        "compute positions and counts in f32, and make 16-bit numbers only of what is made of them";
    found.about_cast(WarningKind::InexactIntegers, id, message, advice);
}

/// The largest size of the values that are integers because of how they are made: from positions,
/// by views, sums and products with integers.
struct Integers(Vec<Option<f64>>);

impl Integers {
    fn of(graph: &Graph) -> Self {
        let mut largest = Integers(vec![None; graph.len()]);
        for id in graph.nodes() {
            largest.0[id.index()] = largest.of_node(graph, id);
        }
        largest
    }

    fn of_node(&self, graph: &Graph, id: NodeId) -> Option<f64> {
        let node = graph.node(id);
        let args = graph.args(id);
        let arg = |i: usize| args.get(i).and_then(|a| self.0[a.node.index()]);
        let scalar = node.attrs.float("scalar").filter(|s| s.fract() == 0.0);
        let other = || arg(1).or(scalar.map(f64::abs));
        let viewed = match &node.op.def().body {
            Body::Core { kernel, .. } => matches!(kernel, Lower::View(_)),
            _ => false,
        };
        match (node.op.intrinsic(), node.op.facts().magnitude) {
            (Some(Intrinsic::Positions), _) => {
                let shape = &node.results[0].shape;
                let axis = shape.axis(node.attrs.int("dim").unwrap_or(0)).ok()?;
                let last = |n: &Size| graph.sizes().hint(*n).map_or(0.0, |n| (n - 1).max(0) as f64);
                Some(shape.get(axis).map_or(0.0, last))
            }
            (Some(Intrinsic::Constant), _) => {
                node.attrs.float("value").filter(|v| v.fract() == 0.0).map(f64::abs)
            }
            (_, Some(Magnitude::Operand)) => arg(0),
            (_, Some(Magnitude::Sum)) => Some(arg(0)? + other()?),
            (_, Some(Magnitude::Product)) => Some(arg(0)? * other()?),
            _ if viewed => arg(0),
            _ => None,
        }
    }

    /// The largest number and the dtype, if this is where integers stop being exact.
    fn first_inexact(&self, graph: &Graph, id: NodeId) -> Option<(f64, DType)> {
        let dtype = graph.node(id).results[0].dtype;
        let beyond = |dtype: DType, largest: f64| {
            dtype.storage().float.is_some_and(|format| largest > format.exact())
        };
        let largest = self.0[id.index()].filter(|largest| beyond(dtype, *largest))?;
        // A constant is one number, which is written as it is.
        if graph.node(id).op.intrinsic() == Some(Intrinsic::Constant) {
            return None;
        }
        let was = graph.args(id).iter().any(|arg| {
            self.0[arg.node.index()].is_some_and(|before| beyond(graph.ty(*arg).dtype, before))
        });
        (!was).then_some((largest, dtype))
    }
}
