//! Tensors side by side, and tensors stretched to each other.

use super::{Made, named, named_parts};
use crate::ops::listed::STACK;
use crate::ops::view::{Views, cat};
use crate::{Args, Attrs, Shape, Size, Var};

/// Records a function of several tensors.
///
/// # Panics
/// If there are none: then there is no tracer to record with.
#[track_caller]
fn joined<'t>(
    xs: &[Var<'t>],
    name: &'static str,
    body: impl FnOnce(&[Var<'t>]) -> Made<Var<'t>>,
) -> Var<'t> {
    let first = xs.first().expect("takes at least one tensor");
    match xs.iter().find(|x| x.is_poison()) {
        Some(poison) => *poison,
        None => named(*first, name, || body(xs)),
    }
}

/// Tensors of one shape one after the other along a new axis, in the dtype that they promote to:
/// [`torch.stack`](https://docs.pytorch.org/docs/stable/generated/torch.stack.html). Autocast
/// decides about it by its name.
///
/// # Panics
/// If there are none.
#[track_caller]
pub fn stack<'t>(xs: &[Var<'t>], dim: i64) -> Var<'t> {
    let first = xs.first().expect("takes at least one tensor");
    let mut args = Args::new();
    args.push(xs.iter().copied());
    first.tracer().apply(&STACK, args, Attrs::new().with("dim", dim))[0]
}

/// Along the second axis, or the only one:
/// [`torch.hstack`](https://docs.pytorch.org/docs/stable/generated/torch.hstack.html).
///
/// # Panics
/// If there are none.
#[track_caller]
pub fn hstack<'t>(xs: &[Var<'t>]) -> Var<'t> {
    joined(xs, "hstack", |xs| {
        let each: Vec<Var<'t>> = xs.iter().map(|x| x.at_least(1)).collect();
        Ok(cat(&each, i64::from(each[0].rank() > 1)))
    })
}

/// Along the first axis, vectors as rows:
/// [`torch.vstack`](https://docs.pytorch.org/docs/stable/generated/torch.vstack.html).
///
/// # Panics
/// If there are none.
#[track_caller]
pub fn vstack<'t>(xs: &[Var<'t>]) -> Var<'t> {
    joined(xs, "vstack", |xs| Ok(cat(&xs.iter().map(|x| x.at_least(2)).collect::<Vec<_>>(), 0)))
}

/// Along the third axis:
/// [`torch.dstack`](https://docs.pytorch.org/docs/stable/generated/torch.dstack.html).
///
/// # Panics
/// If there are none.
#[track_caller]
pub fn dstack<'t>(xs: &[Var<'t>]) -> Var<'t> {
    joined(xs, "dstack", |xs| Ok(cat(&xs.iter().map(|x| x.at_least(3)).collect::<Vec<_>>(), 2)))
}

/// Along the second axis, vectors as columns:
/// [`torch.column_stack`](https://docs.pytorch.org/docs/stable/generated/torch.column_stack.html).
///
/// # Panics
/// If there are none.
#[track_caller]
pub fn column_stack<'t>(xs: &[Var<'t>]) -> Var<'t> {
    joined(xs, "column_stack", |xs| {
        let column = |x: &Var<'t>| if x.rank() < 2 { x.reshape([-1, 1]) } else { *x };
        Ok(cat(&xs.iter().map(column).collect::<Vec<_>>(), 1))
    })
}

/// Matrices along a diagonal, zeros elsewhere:
/// [`torch.block_diag`](https://docs.pytorch.org/docs/stable/generated/torch.block_diag.html).
///
/// # Panics
/// If there are none.
#[track_caller]
pub fn block_diag<'t>(xs: &[Var<'t>]) -> Var<'t> {
    joined(xs, "block_diag", |xs| {
        let each: Vec<Var<'t>> = xs.iter().map(|x| x.at_least(2)).collect();
        if let Some(x) = each.iter().find(|x| x.rank() > 2) {
            return Err(format!("{} is no matrix", x.ty()));
        }
        let all: Size = each.iter().map(|x| x.size(1)).sum();
        let mut before = Size::from(0);
        let rows = each.iter().map(|x| {
            let behind = all - before - x.size(1);
            let row = x.pad([Size::from(0), before], [Size::from(0), behind], 0.0);
            before += x.size(1);
            row
        });
        Ok(cat(&rows.collect::<Vec<_>>(), 0))
    })
}

/// Each tensor repeated to the shape that all have in common:
/// [`torch.broadcast_tensors`](https://docs.pytorch.org/docs/stable/generated/torch.broadcast_tensors.html).
#[track_caller]
pub fn broadcast_tensors<'t>(xs: &[Var<'t>]) -> Vec<Var<'t>> {
    let Some(first) = xs.first() else { return Vec::new() };
    named_parts(*first, "broadcast_tensors", Some(xs.len()), || {
        let shape = xs.iter().try_fold(Shape::scalar(), |shape, x| shape.broadcast(&x.shape()))?;
        Ok(xs.iter().map(|x| x.expand_to(&shape)).collect())
    })
}

/// The grids of all combinations of vectors; with `swapped`, PyTorch's indexing `xy`, the second
/// vector runs along the first axis:
/// [`torch.meshgrid`](https://docs.pytorch.org/docs/stable/generated/torch.meshgrid.html).
#[track_caller]
pub fn meshgrid<'t>(xs: &[Var<'t>], swapped: bool) -> Vec<Var<'t>> {
    let Some(first) = xs.first() else { return Vec::new() };
    let place = |i: usize| if swapped && xs.len() > 1 && i < 2 { 1 - i } else { i };
    named_parts(*first, "meshgrid", Some(xs.len()), || {
        if let Some(x) = xs.iter().find(|x| x.rank() > 1) {
            return Err(format!("takes vectors, found {}", x.ty()));
        }
        if let Some(x) = xs.iter().find(|x| x.dtype() != first.dtype()) {
            return Err(format!("takes one dtype, found {}", x.ty()));
        }
        let mut shape: Vec<Size> = vec![Size::from(1); xs.len()];
        xs.iter().enumerate().for_each(|(i, x)| shape[place(i)] = x.ty().numel());
        let grid = |(i, x): (usize, &Var<'t>)| {
            let mut own: Vec<Size> = vec![Size::from(1); xs.len()];
            own[place(i)] = x.ty().numel();
            x.reshape(&own).expand_to(&Shape::new(&shape))
        };
        Ok(xs.iter().enumerate().map(grid).collect())
    })
}
