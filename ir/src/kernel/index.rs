//! Where an element of a tensor lies as a function of a kernel's loops, and how views change that.

use crate::graph::{Graph, NodeId};
use crate::op::{Body, Lower, Position, View};
use crate::ops::view::{Slicing, permutation};
use crate::ops::windows::Windows;
use crate::{Shape, Size, TensorType};
use smallvec::{SmallVec, smallvec};

/// The element of a tensor that a loop position asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// A position along every axis.
    Axes(SmallVec<[Position; 4]>),
    /// A row-major element number: all that is known behind a reshape that merges axes of a
    /// computed value.
    Linear(Position),
}

impl Index {
    /// Axis `i` of the tensor is axis `i` of `rank` loop axes.
    pub fn identity(axes: usize, rank: usize) -> Self {
        Index::Axes((0..axes).map(|i| unit(i, rank)).collect())
    }

    /// True if tensor axis `i` is loop axis `i` for all the tensor's axes, or all but a last axis
    /// of size 1.
    pub fn is_identity<T: Copy + Into<Size>>(&self, shape: &[Size], loops: &[T]) -> bool {
        let Index::Axes(axes) = self else { return false };
        let last = loops.len().saturating_sub(1);
        shape.len() <= loops.len()
            && shape.iter().zip(loops).enumerate().all(|(i, (a, b))| a == b || i == last && *a == 1)
            && axes.iter().enumerate().all(|(i, p)| shape[i] == 1 || *p == unit(i, loops.len()))
    }
}

fn unit(axis: usize, rank: usize) -> Position {
    let mut strides: SmallVec<[Size; 4]> = smallvec![Size::from(0); rank];
    strides[axis] = Size::from(1);
    Position { strides, ..Position::default() }
}

/// `p * by`, unless a run-time index would have to be multiplied.
fn scaled(p: &Position, by: Size) -> Option<Position> {
    if p.index.is_some() && by != 1 {
        return None;
    }
    Some(Position {
        offset: p.offset * by,
        strides: p.strides.iter().map(|s| *s * by).collect(),
        index: p.index,
    })
}

/// `a + b`, unless both have run-time indices.
fn sum(a: &Position, b: &Position) -> Option<Position> {
    if a.index.is_some() && b.index.is_some() {
        return None;
    }
    let rank = a.strides.len().max(b.strides.len());
    let at = |p: &Position, i: usize| p.strides.get(i).copied().unwrap_or_default();
    let strides = (0..rank).map(|i| at(a, i) + at(b, i)).collect();
    Some(Position { offset: a.offset + b.offset, strides, index: a.index.or(b.index) })
}

/// The row-major element number behind an index into a tensor of that shape.
pub fn linear(index: &Index, shape: &Shape) -> Option<Position> {
    match index {
        Index::Linear(p) => Some(p.clone()),
        Index::Axes(axes) => axes
            .iter()
            .zip(shape.strides())
            .try_fold(Position::default(), |total, (p, stride)| sum(&total, &scaled(p, stride)?)),
    }
}

/// The index into the operand of a view for an index into its result; `None` if it is not a
/// function of this form.
pub fn through(graph: &Graph, node: NodeId, index: &Index) -> Option<Index> {
    let Body::Core { kernel: Lower::View(view), .. } = &graph.node(node).op.def().body else {
        return None;
    };
    let x = graph.ty(graph.args(node)[0]);
    let y = &graph.node(node).results[0];
    let attrs = &graph.node(node).attrs;
    match (view, index) {
        (View::Identity | View::Barrier, _) => Some(index.clone()),
        (View::Reshape, Index::Linear(p)) => Some(Index::Linear(p.clone())),
        (View::Reshape, Index::Axes(axes)) => {
            reshaped(graph, x, y, axes).or_else(|| linear(index, &y.shape).map(Index::Linear))
        }
        (View::Expand, Index::Linear(p)) if x.numel() == 1 => {
            Some(Index::Axes(smallvec![zero(p); x.shape.rank()]))
        }
        (_, Index::Linear(_)) if x.shape == y.shape && *view != View::Permute => {
            Some(index.clone())
        }
        (_, Index::Linear(_)) => None,
        (View::Permute, Index::Axes(axes)) => {
            let dims = permutation(x, attrs.ints("dims")).ok()?;
            let mut back = smallvec![Position::default(); dims.len()];
            for (i, &d) in dims.iter().enumerate() {
                back[d] = axes[i].clone();
            }
            Some(Index::Axes(back))
        }
        (View::Expand, Index::Axes(axes)) => {
            let fresh = y.shape.rank() - x.shape.rank();
            let keep = |i: usize| {
                let repeats = x.shape[i] == 1 || repeats(graph, x.shape[i], y.shape[fresh + i]);
                if repeats { zero(&axes[fresh + i]) } else { axes[fresh + i].clone() }
            };
            Some(Index::Axes((0..x.shape.rank()).map(keep).collect()))
        }
        (View::Slice, Index::Axes(axes)) => {
            let s = Slicing::recorded(x, attrs).ok()?;
            let mut axes = axes.clone();
            axes[s.axis] = scaled(&axes[s.axis], s.step.into())?;
            axes[s.axis].offset += s.start;
            Some(Index::Axes(axes))
        }
    }
}

/// Positions that have an element if each lies from 0 to below its size.
pub(crate) type Bounds = SmallVec<[(Position, Size); 2]>;

/// Where windows read for an index into their result, and the bounds of each axis along which that
/// may be outside of the operand; `None` if the index is none of the loops' positions alone.
pub fn seen_through(graph: &Graph, node: NodeId, index: &Index) -> Option<(Index, Bounds)> {
    let Index::Axes(axes) = index else { return None };
    if axes.iter().any(|p| p.index.is_some()) {
        return None;
    }
    let x = &graph.ty(graph.args(node)[0]).shape;
    let windows = Windows::of(x.rank(), &graph.node(node).attrs).ok()?;
    let mut inner: SmallVec<[Position; 4]> = axes.iter().take(windows.first).cloned().collect();
    let mut bounds = SmallVec::new();
    for axis in 0..windows.axes() {
        let within = windows.first + axis;
        let p = windows.position(axis, &axes[within + windows.axes()], &axes[within]);
        let ([first, last], size) = (windows.seen(axis), x[within]);
        let sizes = graph.sizes();
        if !sizes.proves(first.at_least(0)) || !sizes.proves(size.at_least(last + 1)) {
            bounds.push((p.clone(), size));
        }
        inner.push(p);
    }
    Some((Index::Axes(inner), bounds))
}

fn zero(like: &Position) -> Position {
    still(like.strides.len())
}

/// The first position of an axis, in loops of that many axes.
fn still(rank: usize) -> Position {
    Position { strides: smallvec![Size::from(0); rank], ..Position::default() }
}

/// Whether the one position of an axis of size `from` is repeated along an axis of size `to`, where
/// it is known that otherwise they are equal.
pub(super) fn repeats(graph: &Graph, from: Size, to: Size) -> bool {
    from != to && (from == 1 || from.has_names() && graph.sizes().proves(from.equals(1)))
}

/// The index before a reshape, if it is affine: matching runs of axes with equal element counts
/// must be equal, or one axis before (apart from axes of size 1).
///
/// Sizes are compared as they are written: what is equal for some values of names only stays a
/// merge of all axes.
fn reshaped(graph: &Graph, x: &TensorType, y: &TensorType, axes: &[Position]) -> Option<Index> {
    let (from, to) = (&x.shape[..], &y.shape[..]);
    if from.iter().any(|size| *size == 0) {
        return None;
    }
    let equal = |a: Size, b: Size| {
        a == b || (a.has_names() || b.has_names()) && graph.sizes().proves(a.equals(b))
    };
    let rank = axes.first().map_or(0, |p| p.strides.len());
    let mut before: SmallVec<[Position; 4]> = smallvec![still(rank); x.shape.rank()];
    let (mut i, mut j) = (0, 0);
    let solid = |shape: &[Size], mut at: usize| {
        while at < shape.len() && shape[at] == 1 {
            at += 1;
        }
        at
    };
    loop {
        (i, j) = (solid(from, i), solid(to, j));
        if i == from.len() || j == to.len() {
            return Some(Index::Axes(before));
        }
        let mut merged = axes[j].clone();
        let mut size = to[j];
        while !equal(size, from[i]) {
            j = solid(to, j + 1);
            if j == to.len() || size * (from[i] / size) != from[i] {
                return None;
            }
            merged = sum(&scaled(&merged, to[j])?, &axes[j])?;
            size *= to[j];
        }
        before[i] = merged;
        (i, j) = (i + 1, j + 1);
    }
}

/// The index of a gather's first operand: `place` along `axis`, elsewhere that of the result. A
/// tensor without axes is one element.
pub fn gathered(x: &Shape, axis: usize, axes: &[Position], place: Position) -> Index {
    if x.rank() == 0 {
        return Index::Linear(place);
    }
    // Of no indices there may be more or fewer axes.
    let along = |i| axes.get(i).cloned().unwrap_or_default();
    Index::Axes((0..x.rank()).map(|i| if i == axis { place.clone() } else { along(i) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::view::Views;
    use crate::{DType, Tracer};

    #[test]
    fn a_split_is_affine_and_a_merge_is_linear() {
        let t = Tracer::new("g");
        let x = t.input("x", TensorType::new(DType::F32, [6, 4]));
        let split = x.reshape([2, 3, 1, 4]);
        let merged = x.reshape([24]);
        t.with_graph(|g| {
            let Some(Index::Axes(axes)) = through(g, split.id().node, &Index::identity(4, 4))
            else {
                panic!("affine")
            };
            assert_eq!(axes[0].strides.as_slice(), crate::sizes![3, 1, 0, 0]);
            assert_eq!(axes[1].strides.as_slice(), crate::sizes![0, 0, 0, 1]);
            assert!(matches!(
                through(g, merged.id().node, &Index::identity(1, 1)),
                Some(Index::Linear(_))
            ));
        });
    }
}
