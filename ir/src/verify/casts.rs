//! Casts of a program: their dtypes, whether they round, and the points they stand for.

use crate::error::VerifyError;
use crate::graph::{Graph, NodeId};
use crate::{DType, Point};

/// An error about a node of either program.
pub(super) fn error_at(graph: &Graph, id: NodeId, message: String) -> VerifyError {
    let node = graph.node(id);
    VerifyError {
        node: id.index(),
        op: node.op.name().to_string(),
        message,
        source_line: node.source.to_string(),
    }
}

/// The points that a cast stands for, those to its own dtype: a widening carries along what it
/// widens.
pub(super) fn points_to(graph: &Graph, cast: NodeId) -> impl Iterator<Item = u32> + '_ {
    let (_, to) = dtypes(graph, cast);
    let points = graph.node(cast).origin.points.iter().copied();
    points.filter(move |number| graph.points()[*number as usize].to == to)
}

/// The nodes that change a dtype.
pub(super) fn casts(graph: &Graph) -> impl Iterator<Item = NodeId> + '_ {
    graph.nodes().filter(|id| graph.node(*id).op.is_cast())
}

/// The dtype before a cast, and the one it casts or rounds to.
pub(super) fn dtypes(graph: &Graph, cast: NodeId) -> (DType, DType) {
    let from = graph.ty(graph.args(cast)[0]).dtype;
    (from, graph.node(cast).attrs.dtype("to").unwrap_or(from))
}

/// True if the change from one float to the other loses digits.
pub(super) fn rounds(from: DType, to: DType) -> bool {
    from.is_float() && to.is_float() && !from.fits_in(to)
}

/// True if the point is a rounding.
pub(super) fn is_rounding(point: &Point) -> bool {
    rounds(point.from, point.to)
}

pub(super) fn is_cast(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).op.is_cast()
}

pub(super) fn bit(dtype: DType) -> u8 {
    DType::FLOATS.iter().position(|d| *d == dtype).map_or(0, |i| 1 << i)
}

/// The floats that hold every number of a dtype.
pub(super) fn holders(dtype: DType) -> u8 {
    DType::FLOATS.iter().filter(|to| dtype.fits_in(**to)).fold(0, |all, to| all | bit(*to))
}
