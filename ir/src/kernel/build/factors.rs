//! Over which axes the factors of a contraction are computed: the row and the column of a matrix,
//! or the axes that a reshape has merged into them.
//!
//! Windows have an axis for each axis they move over and one for the positions in them. A
//! contraction sums over all the latter, and has a result for all the former, so both are merged by
//! a reshape, behind which no position is an affine number of the loops. Hence a factor that is
//! read through windows is computed over the axes before the merge, and so is the other factor if
//! it needs that.

use super::lowering;
use crate::graph::{Graph, NodeId, ValueId};
use crate::kernel::Split;
use crate::kernel::index::{Index, through};
use crate::op::Lower;
use crate::{Shape, Size};

/// What a contraction multiplies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactorLoops {
    /// What is computed.
    pub value: ValueId,
    /// Where: for each axis of `value`, the axis of the factor that it is a part of; `None` for
    /// axes of size 1.
    pub parts: Vec<Option<usize>>,
    /// The axes that rows and columns are made of, if they are several.
    pub split: Option<Split>,
}

/// The factors of the contraction `node`, where `inline` says what is rematerialised.
pub fn factors(graph: &Graph, node: NodeId, inline: &dyn Fn(NodeId) -> bool) -> [FactorLoops; 2] {
    let args = graph.args(node);
    let behind = [args[0], args[1]].map(|arg| merged(graph, arg, inline));
    let windows = |at: &Option<FactorLoops>| {
        at.as_ref().is_some_and(|at| sees_windows(graph, at.value, inline))
    };
    let any = behind.iter().any(windows);
    let mut behind = behind.into_iter();
    [args[0], args[1]].map(|arg| {
        let split = behind.next().flatten().filter(|split| {
            any && (sees_windows(graph, split.value, inline) || !is_affine(graph, arg, inline))
        });
        split.unwrap_or_else(|| {
            let parts = (0..graph.ty(arg).shape.rank()).map(Some).collect();
            FactorLoops { value: arg, parts, split: None }
        })
    })
}

/// The factor before a reshape that merges axes into its row and its column, and leaves the others
/// as they are.
fn merged(graph: &Graph, arg: ValueId, inline: &dyn Fn(NodeId) -> bool) -> Option<FactorLoops> {
    let is_reshape =
        matches!(lowering(graph, arg.node), Some(Lower::View(crate::op::View::Reshape)));
    if !is_reshape || !inline(arg.node) {
        return None;
    }
    let value = graph.args(arg.node)[0];
    let (from, to) = (&graph.ty(value).shape, &graph.ty(arg).shape);
    let parts = parts(from, to)?;
    let lead = to.rank() - 2;
    // A batch axis is one axis.
    let is_single = |axis: usize| parts.iter().filter(|part| **part == Some(axis)).count() <= 1;
    if !(0..lead).all(is_single) {
        return None;
    }
    let of = |axis: usize| -> Vec<Size> {
        let own = parts.iter().zip(from.iter()).filter(|(part, _)| **part == Some(axis));
        let own: Vec<Size> = own.map(|(_, size)| *size).collect();
        if own.is_empty() { vec![Size::from(1)] } else { own }
    };
    let split = Split { rows: of(lead), columns: of(lead + 1) };
    Some(FactorLoops { value, split: Some(split), parts })
}

/// For each axis before a reshape the one after it that it is merged into, `None` for axes of size
/// 1; `None` if axes are cut as well.
fn parts(from: &Shape, to: &Shape) -> Option<Vec<Option<usize>>> {
    let mut parts = Vec::with_capacity(from.rank());
    let (mut axis, mut size) = (0, Size::from(1));
    if from.iter().any(|n| *n == 0) {
        return None;
    }
    for n in from.iter().copied() {
        if n == 1 {
            parts.push(None);
            continue;
        }
        while axis < to.rank() && size == to[axis] {
            (axis, size) = (axis + 1, Size::from(1));
        }
        parts.push(Some(axis));
        size *= n;
        let whole = *to.get(axis)?;
        if whole.number().zip(size.number()).is_some_and(|(whole, size)| whole % size != 0) {
            return None;
        }
    }
    let rest = to.iter().skip(axis + 1).all(|n| *n == 1);
    (to.get(axis).is_none_or(|n| *n == size) && rest).then_some(parts)
}

/// True if only views and casts lie between a value and windows that are read at their places.
fn sees_windows(graph: &Graph, value: ValueId, inline: &dyn Fn(NodeId) -> bool) -> bool {
    let mut at = value.node;
    while inline(at) {
        let next = graph.args(at);
        at = match (lowering(graph, at), &next[..]) {
            (Some(Lower::Windows), _) => return true,
            (Some(Lower::View(_) | Lower::Map(_)), [x]) => x.node,
            _ => return false,
        };
    }
    false
}

/// True if the rows and columns of a factor are affine numbers in what it is computed from.
fn is_affine(graph: &Graph, value: ValueId, inline: &dyn Fn(NodeId) -> bool) -> bool {
    let rank = graph.ty(value).shape.rank();
    let (mut at, mut index) = (value.node, Index::identity(rank, rank));
    while inline(at) {
        let next = graph.args(at);
        at = match (lowering(graph, at), &next[..]) {
            (Some(Lower::View(_)), [x]) => match through(graph, at, &index) {
                Some(inner) => {
                    index = inner;
                    x.node
                }
                None => return false,
            },
            (Some(Lower::Map(_)), [x]) => x.node,
            _ => return true,
        };
    }
    true
}
