//! Slices along an axis at places computed at run time: `index_add`, `index_copy`, `index_reduce`;
//! and elements at several indices: `index_put`.
//!
//! They are scatters whose index is repeated along the other axes, which costs nothing. Those of an
//! axis count from 0, those of `index_put` from the end too.

use super::elementwise::Elementwise;
use super::index::Indexing;
use super::infer;
use super::scatter::{Reduce, Scatters};
use super::view::Views;
use crate::op::{ANY, Domain, ExpandCx, InferCx, Rounding, composite, composite_own};
use crate::{DType, Shape, Size, Var};
use smallvec::{SmallVec, smallvec};

crate::ops! { trait Indexed;

/// `x` with each slice of `source` along axis `dim`, times `alpha`, added to the one that `index`
/// names. Sums run in the order of `source`, in f32 for 16-bit floats. The sum of truth values is
/// whether any of them holds.
INDEX_ADD = index_add(x, index, source; dim: Int, alpha: OptFloat) -> (y) {
    infer:    &|cx| {
        // Bytes wrap, and so does a product with a negative number.
        let held = match cx.operand(0).dtype {
            DType::U8 => DType::I32,
            dtype => dtype,
        };
        infer::need_held(held, "`alpha`", cx.attrs.float("alpha").unwrap_or(1.0))?;
        sliced(cx)
    },
    body:     composite(None, &|cx| {
        let alpha = cx.attrs.float("alpha").unwrap_or(1.0);
        slices(cx, &|[x, index, source], dim| {
            let source = match (source.dtype(), alpha) {
                (_, 1.0) => source,
                (DType::Bool, _) => source.tracer().zeros_like(source),
                (DType::U8, alpha) => source.mul(alpha.rem_euclid(256.0)),
                _ => source.mul(alpha),
            };
            x.scatter_add(index, source, dim)
        })
    }),
    rounding: Rounding::result("the result, once; the gradients once"),
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], i64[7] in 0 5, T[7, 3] {dim = 0}", "T[4, 6, 2], i32[3] in 0 6, T[4, 3, 2] {dim = 1, alpha = 1.0}", "T[], i64[2] in 0 1, T[2] {dim = 0}"] },
}

/// `x` with each slice of `source` along axis `dim` in the place of the one that `index` names. Of
/// several for one place the last one stays.
INDEX_COPY = index_copy(x, index, source; dim: Int) -> (y) {
    infer:    &sliced,
    body:     composite_own(None, &|cx| slices(cx, &|[x, index, source], dim| x.scatter(index, source, dim))),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], i64[7] in 0 5, T[7, 3] {dim = 0}", "T[4, 6], i32[3] in 0 6, T[4, 3] {dim = -1}"] },
}

/// `x` with the slices of `source` along axis `dim` that `index` sends to one of its own reduced
/// there: `reduce` is `sum`, `prod`, `mean`, `amax` or `amin`. With `include_self` the slice of `x`
/// is reduced along with them, else it is gone where one comes.
INDEX_REDUCE = index_reduce(x, index, source; dim: Int, reduce: OptStr, include_self: Bool) -> (y) {
    infer:    &|cx| {
        Reduce::of(cx.attrs)?.takes(cx.operand(0).dtype)?;
        sliced(cx)
    },
    body:     composite(None, &|cx| {
        let how = Reduce::of(cx.attrs).unwrap_or(Reduce::Sum);
        let include_self = cx.attrs.bool("include_self");
        slices(cx, &|operands, dim| how.scattered(operands, dim, include_self))
    }),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], i64[7] in 0 5, T[7, 3] {dim = 0, reduce = \"amax\"}", "T[4, 6] in 1 2, i32[3] in 0 6, T[4, 3] in 1 2 {dim = 1, reduce = \"prod\", include_self = true}"] },
}

/// `x` with `values` at the places that `indices` name together, one for each of the axes `dims`
/// (the first ones if empty): what `x[indices] = values` makes of it, or with `accumulate` the
/// elements with the values added to them.
///
/// Indices have one shape, or are repeated to one; it stands in the place of the axes if they are
/// side by side, else in front, and `values` are repeated to the whole. Of several values for one
/// place the last one stays, and sums run in their order. A mask takes as many axes as it has, is
/// the only index, and all its places get one value, or one slice of the axes behind it.
INDEX_PUT = index_put(x, indices: list, values; dims: Ints, accumulate: Bool) -> (y) {
    infer:    &put,
    body:     composite_own(None, &|cx| {
        let (indices, values) = cx.args[1..].split_at(cx.args.len() - 2);
        let dims = axes_of(&cx.args[0].shape(), indices.len(), cx.attrs.ints("dims")).unwrap_or_default();
        let places = Places { x: cx.args[0], indices, dims: &dims, accumulate: cx.attrs.bool("accumulate") };
        smallvec![if indices[0].dtype() == DType::Bool { places.masked(values[0]) } else { places.put(values[0]) }]
    }),
    rounding: Rounding::result("sums, once; the gradients nowhere"),
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], [i64[4] in -5 5], T[4, 3] {dims = []}", "T[5, 3], [i64[4] in 0 5], T[3] {dims = [0], accumulate = true}", "T[5, 3, 4], [i64[2, 1] in 0 5, i32[3] in -4 4], T[2, 3, 3] {dims = [0, 2]}", "T[3, 5], [bool[5]], T[3, 1] {dims = [1]}"] },
}
}

/// A tensor without axes has one of a single element here.
fn lifted(shape: &Shape) -> Shape {
    if shape.rank() == 0 { Shape::new(&[1]) } else { shape.clone() }
}

/// The type of an op that sends slices of a source along the axis `dim` to those of `x` that an
/// index names.
fn sliced(cx: &InferCx<'_>) -> infer::Answer {
    let (x, index, source) = (cx.operand(0), cx.operand(1), cx.operand(2));
    let axis = x.shape.axis(cx.attrs.int("dim").expect("required"))?;
    infer::need_index(index)?;
    if index.shape.rank() > 1 {
        return Err(format!("`index` is {index}, expected one axis"));
    }
    if source.dtype != x.dtype {
        return Err(format!("`source` is {source}, expected the dtype of `x`, {}", x.dtype));
    }
    let mut expected: SmallVec<[Size; 4]> = SmallVec::from_slice(&lifted(&x.shape));
    expected[axis] = index.numel();
    if !cx.must.alike(&lifted(&source.shape), &expected) {
        let expected = Shape::new(&expected);
        return Err(format!(
            "`source` is {source}, expected shape {expected}: that of `x`, and one slice for each index"
        ));
    }
    let along = lifted(&x.shape)[axis];
    if index.numel() != 0 && along != index.numel() && !cx.must.hold(along.at_least(1)) {
        return Err(format!("{x} has nothing along axis {axis} to index"));
    }
    infer::same(cx)
}

/// What `scatter` makes of base, index and sources of one shape, along which axis.
fn slices<'t>(
    cx: &ExpandCx<'_, 't>,
    scatter: &dyn Fn([Var<'t>; 3], i64) -> Var<'t>,
) -> SmallVec<[Var<'t>; 1]> {
    let (x, index, source) = (cx.args[0], cx.args[1], cx.args[2]);
    let dim = cx.attrs.int("dim").expect("required");
    let [base, source] = [x, source].map(|v| v.reshape_to(&lifted(&v.shape())));
    let axis = base.shape().axis(dim).expect("inferred");
    let index = along(index.reshape_to(&lifted(&index.shape())), &source.shape(), axis);
    smallvec![scatter([base, index, source], axis as i64).reshape_to(&cx.results[0].shape)]
}

/// Indices along an axis, repeated along the others.
pub(crate) fn along<'t>(index: Var<'t>, shape: &Shape, axis: usize) -> Var<'t> {
    let mut sizes: SmallVec<[Size; 4]> = smallvec![Size::from(1); shape.rank()];
    sizes[axis] = shape[axis];
    index.reshape_to(&Shape::new(&sizes)).expand_to(shape)
}

/// The axes that the indices are for: those named, or the first ones.
fn axes_of(shape: &Shape, count: usize, dims: &[i64]) -> Result<SmallVec<[usize; 4]>, String> {
    if dims.is_empty() {
        return if count <= shape.rank() {
            Ok((0..count).collect())
        } else {
            Err(format!("{count} indices for {} axes", shape.rank()))
        };
    }
    let axes = dims.iter().map(|dim| shape.axis(*dim)).collect::<Result<SmallVec<_>, _>>()?;
    if axes.len() != count || axes.windows(2).any(|w| w[0] >= w[1]) || shape.rank() == 0 {
        return Err(format!(
            "`dims` is {dims:?}, expected one axis for each of {count} indices, in order"
        ));
    }
    Ok(axes)
}

/// The type of `index_put`.
fn put(cx: &InferCx<'_>) -> infer::Answer {
    let (x, indices, values) = (cx.operand(0), cx.list(1), cx.operand(2));
    if values.dtype != x.dtype {
        return Err(format!("`values` are {values}, expected the dtype of `x`, {}", x.dtype));
    }
    let axes = axes_of(&x.shape, indices.len(), cx.attrs.ints("dims"))?;
    let Some(first) = indices.first() else { return Err("takes at least one index".to_owned()) };
    let taken = if first.dtype == DType::Bool {
        masked_shape(cx, axes[0])?
    } else {
        let mut shape = Shape::scalar();
        for index in indices {
            infer::need_index(index)?;
            shape = infer::broadcast(cx.must, &shape, &index.shape)?;
        }
        let is_empty = |axis: &&usize| !cx.must.hold(x.shape[**axis].at_least(1));
        if let Some(axis) = axes.iter().find(is_empty).filter(|_| shape.numel() != 0) {
            return Err(format!("{x} has nothing along axis {axis} to index"));
        }
        // The indices of several axes become those of one.
        let joined: Size = axes.iter().map(|axis| x.shape[*axis]).product();
        if shape.numel() != 0 && !cx.must.hold(joined.at_least(1)) {
            return Err(format!("{x} has nothing along its axes to index"));
        }
        taken(&x.shape, &axes, &shape)
    };
    if infer::broadcast(cx.must, &taken, &values.shape).ok().as_ref() != Some(&taken) {
        return Err(format!(
            "`values` are {values}, expected shape {taken} or one that is repeated to it"
        ));
    }
    infer::same(cx)
}

/// The shape that `x` has at such places: that of the indices in the place of their axes, or in
/// front if those are apart.
fn taken(x: &Shape, axes: &[usize], indices: &Shape) -> Shape {
    let before = if is_adjacent(axes) { axes[0] } else { 0 };
    let rest = || (0..x.rank()).filter(|axis| !axes.contains(axis)).map(|axis| x[axis]);
    rest().take(before).chain(indices.iter().copied()).chain(rest().skip(before)).collect()
}

fn is_adjacent(axes: &[usize]) -> bool {
    axes.windows(2).all(|w| w[1] == w[0] + 1)
}

/// The shape that `x` has at the places of a mask from an axis on, all of which have the same
/// elements.
fn masked_shape(cx: &InferCx<'_>, axis: usize) -> Result<Shape, String> {
    let (x, indices) = (cx.operand(0), cx.list(1));
    let [mask] = indices else {
        return Err("a mask is the only index".to_owned());
    };
    let end = axis + mask.shape.rank();
    let covered = x.shape.get(axis..end).filter(|covered| !covered.is_empty());
    if !covered.is_some_and(|covered| cx.must.alike(covered, &mask.shape)) {
        return Err(format!("the mask is {mask}, expected the shape of {x} from axis {axis} on"));
    }
    let values = &cx.operand(2).shape;
    let taken: Shape =
        x.shape[..axis].iter().chain(&[Size::from(1)]).chain(&x.shape[end..]).copied().collect();
    if values.rank() == taken.rank() && values[axis] != 1 {
        return Err(format!(
            "`values` are {}, one slice for each place of a mask, whose number depends on the data: choose with `where`, or use `masked_scatter`",
            cx.operand(2)
        ));
    }
    Ok(taken)
}

/// Places of a tensor, and what is to be done there.
struct Places<'a, 't> {
    x: Var<'t>,
    indices: &'a [Var<'t>],
    dims: &'a [usize],
    accumulate: bool,
}

impl<'t> Places<'_, 't> {
    /// With values at the places of integers.
    fn put(&self, values: Var<'t>) -> Var<'t> {
        let (x, dims) = (self.x, self.dims);
        if !is_adjacent(dims) {
            let rest = (0..x.rank()).filter(|axis| !dims.contains(axis));
            let order: SmallVec<[i64; 4]> =
                dims.iter().copied().chain(rest).map(|axis| axis as i64).collect();
            let mut back: SmallVec<[i64; 4]> = smallvec![0; order.len()];
            order.iter().enumerate().for_each(|(to, from)| back[*from as usize] = to as i64);
            let dims: SmallVec<[usize; 4]> = (0..dims.len()).collect();
            return Places { x: x.permute(&order), dims: &dims, ..*self }
                .put(values)
                .permute(&back);
        }
        let (shape, first, end) = (x.shape(), dims[0], dims[0] + dims.len());
        let joined = |size: Size| -> Shape {
            shape[..first].iter().chain(&[size]).chain(&shape[end..]).copied().collect()
        };
        let (at, taken_by) = self.joined_index();
        let count = at.ty().numel();
        let values = values.expand_to(&taken(&shape, dims, &taken_by)).reshape_to(&joined(count));
        let base = x.reshape_to(&joined(shape[first..end].iter().product()));
        let at = along(at.reshape_to(&Shape::new(&[count])), &values.shape(), first);
        let dim = first as i64;
        let y = if self.accumulate {
            base.scatter_add(at, values, dim)
        } else {
            base.scatter(at, values, dim)
        };
        y.reshape_to(&shape)
    }

    /// The row-major number of each place among the axes of the indices, and the shape that the
    /// indices have together.
    fn joined_index(&self) -> (Var<'t>, Shape) {
        let shape = self.indices.iter().fold(Shape::scalar(), |shape, index| {
            shape.broadcast(&index.shape()).expect("inferred")
        });
        let each = self.indices.iter().zip(self.dims).map(|(index, axis)| {
            let n = self.x.size(*axis);
            let index = index.to(DType::I64).check_range(Size::from(0) - n, n, None);
            let n = index.tracer().number(n, DType::I64);
            let wrapped = index.lt(0.0).choose(index.add(n), index);
            (wrapped.expand_to(&shape), n)
        });
        let at = each.reduce(|(at, _), (index, n)| (at.mul(n).add(index), n));
        (at.expect("at least one index").0, shape)
    }

    /// With the same values at all places of a mask.
    fn masked(&self, values: Var<'t>) -> Var<'t> {
        let (x, mask, axis) = (self.x, self.indices[0], self.dims[0]);
        let shape = x.shape();
        let (end, one) = (axis + mask.rank(), Size::from(1));
        let ones = |count: usize| std::iter::repeat_n(one, count);
        let around: Shape = ones(axis)
            .chain(mask.shape().iter().copied())
            .chain(ones(shape.rank() - end))
            .collect();
        let (before, behind) = (shape[..axis].iter().copied(), shape[end..].iter().copied());
        let taken: Shape = before.clone().chain([one]).chain(behind.clone()).collect();
        let spread: Shape = before.chain(ones(mask.rank())).chain(behind).collect();
        let values = values.expand_to(&taken).reshape_to(&spread).expand_to(&shape);
        let values = if self.accumulate { x.add(values) } else { values };
        mask.reshape_to(&around).expand_to(&shape).choose(values, x)
    }
}
