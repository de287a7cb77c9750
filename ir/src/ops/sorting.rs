//! Sorted elements, the largest and smallest ones, and those of a rank: elements at the positions
//! that [`ORDER`](super::lines::ORDER) gives.

use super::elementwise::Elementwise;
use super::index::Indexing;
use super::infer;
use super::lines::LineOps;
use super::reduce::Reductions;
use super::scans::picked;
use super::view::Views;
use crate::op::{
    ANY, Dispatch, Domain, ExpandCx, Grad, InferCx, Inferred, NUMBERS, Rounding, composite_own,
};
use crate::{Attrs, DType, IntoDims, Shape, Size, TensorType, Var};
use smallvec::{SmallVec, smallvec};

const PICKED: Rounding = Rounding::nowhere("nowhere; the gradient once, after f32 sums");

crate::ops! { trait Sorting;

/// The elements along axis `dim` in order, and their positions. Equal elements stay as they come;
/// NaN counts as the largest.
SORT = sort_values as "sort"(x; dim: Int, descending: Bool) -> (values, indices) {
    infer:    &|cx| {
        let x = cx.operand(0);
        x.shape.axis(dim(cx.attrs))?;
        Ok(Inferred::many([x.clone(), x.with_dtype(DType::I64)]))
    },
    body:     composite_own(None, &|cx| {
        let (x, dim) = (cx.args[0], dim(cx.attrs));
        let indices = x.order(dim, cx.attrs.bool("descending"), None);
        smallvec![picked(x, indices, dim), indices]
    }),
    rounding: PICKED,
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {dim = 1}", "T[4, 3] {dim = 0, descending = true}", "T[2, 70] {dim = -1}"] },
}

/// The positions of the elements along axis `dim` in order: the indices of [`SORT`].
ARGSORT = argsort(x; dim: Int, descending: Bool) -> (y) {
    infer:    &|cx| {
        cx.operand(0).shape.axis(dim(cx.attrs))?;
        Ok(Inferred::one(cx.operand(0).with_dtype(DType::I64)))
    },
    body:     composite_own(Some(Grad::Zero), &|cx| {
        smallvec![cx.args[0].order(dim(cx.attrs), cx.attrs.bool("descending"), None)]
    }),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {dim = 1}", "T[4, 3] {dim = 0, descending = true}"] },
}

/// The elements along the first axis in order.
MSORT = msort(x) -> (y) {
    infer:    &infer::same,
    body:     composite_own(None, &|cx| {
        let x = cx.args[0];
        smallvec![picked(x, x.order(0, false, None), 0)]
    }),
    rounding: PICKED,
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3]", "T[9]"] },
}

/// The `k` largest elements along axis `dim`, the largest first, and their positions; with
/// `smallest` the smallest ones.
TOPK = topk_values as "topk"(x; k: Int, dim: Int, smallest: Bool) -> (values, indices) {
    infer:    &|cx| {
        let (x, k) = (cx.operand(0), cx.attrs.int("k").unwrap_or(0));
        infer::need_number(x)?;
        let shape = with_axis(cx, k)?;
        Ok(Inferred::many([x.dtype, DType::I64].map(|dtype| TensorType { dtype, shape: shape.clone() })))
    },
    body:     composite_own(None, &|cx| {
        let (x, dim) = (cx.args[0], dim(cx.attrs));
        let indices = x.order(dim, !cx.attrs.bool("smallest"), cx.attrs.int("k"));
        smallvec![picked(x, indices, dim), indices]
    }),
    rounding: PICKED,
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {k = 2, dim = 1}", "T[20, 3] {k = 1, dim = 0, smallest = true}", "T[2, 90] {k = 4, dim = -1}"] },
}

/// The `k`-th smallest element along axis `dim`, counted from 1, and its position.
KTHVALUE = kthvalue_values as "kthvalue"(x; [dim: Int, keepdim: Bool], k: Int) -> (values, indices) {
    infer:    &|cx| {
        let k = cx.attrs.int("k").unwrap_or(0);
        infer::need_number(cx.operand(0))?;
        if k < 1 {
            return Err(format!("`k` is {k}, expected at least 1"));
        }
        with_axis(cx, k)?;
        one_of_each(cx)
    },
    body:     composite_own(None, &|cx| {
        let (x, dim, k) = (cx.args[0], dim(cx.attrs), cx.attrs.int("k").unwrap_or(1));
        let first = x.order(dim, false, Some(k));
        let indices = if x.rank() == 0 { first } else { first.slice(dim, k - 1, k, 1) };
        chosen(cx, x, indices)
    }),
    rounding: PICKED,
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {k = 2, dim = 1}", "T[7, 3] {k = 1, dim = 0, keepdim = true}"] },
}

/// The element in the middle of those along axis `dim`, the lower one of two, and its position; a
/// NaN if there is one.
MEDIAN = median_values as "median"(x; [dim: Int, keepdim: Bool]) -> (values, indices) {
    dispatch: Dispatch::Listed { overload: "dim" },
    infer:    &one_of_each,
    body:     composite_own(None, &|cx| middle(cx, |numbers, others| {
        // Behind the numbers stands the first NaN.
        others.eq(0.0).choose(half(numbers), numbers)
    })),
    rounding: PICKED,
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {dim = 1}", "T[6, 3] {dim = 0, keepdim = true}"] },
}

/// The element in the middle of the numbers along axis `dim`, the lower one of two, and its
/// position; a NaN if there is no number.
NANMEDIAN = nanmedian_values as "nanmedian"(x; [dim: Int, keepdim: Bool]) -> (values, indices) {
    dispatch: Dispatch::Listed { overload: "dim" },
    infer:    &one_of_each,
    body:     composite_own(None, &|cx| middle(cx, |numbers, _| half(numbers))),
    rounding: PICKED,
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {dim = 1}", "T[6, 3] {dim = 0, keepdim = true}"] },
}
}

/// Ops with two results: the values and their positions.
impl<'t> Var<'t> {
    /// The elements along axis `dim` in order, and their positions, as i64. Equal elements stay as
    /// they come; NaN counts as the largest.
    ///
    /// ```
    /// use tracecast_ir::{DType, Tracer};
    ///
    /// let tracer = Tracer::new("g");
    /// let (values, indices) = tracer.constant(DType::F32, &[3], &[2.0, 3.0, 1.0]).sort(0, true);
    /// assert_eq!((values.dtype(), indices.dtype()), (DType::F32, DType::I64));
    /// ```
    #[track_caller]
    pub fn sort(self, dim: i64, descending: bool) -> (Var<'t>, Var<'t>) {
        both(self.sort_values(dim, descending))
    }

    /// The `k` largest elements along axis `dim`, the largest first, and their positions; with
    /// `smallest` the smallest ones.
    #[track_caller]
    pub fn topk(self, k: i64, dim: i64, smallest: bool) -> (Var<'t>, Var<'t>) {
        both(self.topk_values(k, dim, smallest))
    }

    /// The `k`-th smallest element along axis `dim`, counted from 1, and its position.
    #[track_caller]
    pub fn kthvalue(self, k: i64, dim: impl IntoDims) -> (Var<'t>, Var<'t>) {
        both(self.kthvalue_values(dim, k))
    }

    /// The element in the middle of those along axis `dim`, the lower one of two, and its position;
    /// a NaN if there is one.
    #[track_caller]
    pub fn median(self, dim: impl IntoDims) -> (Var<'t>, Var<'t>) {
        both(self.median_values(dim))
    }

    /// As [`median`](Var::median), of the numbers alone; a NaN if there is none.
    #[track_caller]
    pub fn nanmedian(self, dim: impl IntoDims) -> (Var<'t>, Var<'t>) {
        both(self.nanmedian_values(dim))
    }
}

/// Both results of an op, of which the first is given.
pub(super) fn both(first: Var<'_>) -> (Var<'_>, Var<'_>) {
    let results = first.results();
    (first, results[results.len() - 1])
}

/// The axis that an op is along: the last one where none is named.
fn dim(cx: &Attrs) -> i64 {
    cx.int("dim").unwrap_or(-1)
}

/// The shape of the first operand with `k` elements along the axis.
fn with_axis(cx: &InferCx<'_>, k: i64) -> Result<Shape, String> {
    let x = cx.operand(0);
    let axis = x.shape.axis(dim(cx.attrs))?;
    let length = x.shape.get(axis).copied().unwrap_or(Size::from(1));
    if k < 0 || !cx.must.hold(length.at_least(k)) {
        return Err(format!("`k` is {k}, but a line of {x} has {length} elements"));
    }
    let mut sizes: SmallVec<[Size; 4]> = SmallVec::from_slice(&x.shape);
    if let Some(size) = sizes.get_mut(axis) {
        *size = Size::from(k);
    } else if k != 1 {
        return Err(format!("`k` is {k}, but {x} has one element"));
    }
    Ok(Shape::new(&sizes))
}

/// One element of each line, and its position.
fn one_of_each(cx: &InferCx<'_>) -> infer::Answer {
    let x = cx.operand(0);
    infer::need_number(x)?;
    with_axis(cx, 1)?;
    let axis = x.shape.axis(dim(cx.attrs))?;
    let keep = cx.attrs.bool("keepdim");
    let sizes = x.shape.iter().enumerate().filter(|(a, _)| keep || *a != axis);
    let shape: Shape = sizes.map(|(a, s)| if a == axis { Size::from(1) } else { *s }).collect();
    Ok(Inferred::many(
        [x.dtype, DType::I64].map(|dtype| TensorType { dtype, shape: shape.clone() }),
    ))
}

/// The elements at positions, of which there is one for each line, and the positions, in the shapes
/// of the results.
fn chosen<'t>(cx: &ExpandCx<'_, 't>, x: Var<'t>, indices: Var<'t>) -> SmallVec<[Var<'t>; 1]> {
    let values = picked(x, indices, dim(cx.attrs));
    [values, indices].iter().zip(cx.results).map(|(v, ty)| v.reshape_to(&ty.shape)).collect()
}

/// The middle of that many elements, the lower one of two; 0 of none.
fn half(count: Var<'_>) -> Var<'_> {
    count.sub(1.0).div_trunc(2.0)
}

/// The elements of the ranks that `rank` makes of how many numbers and how many NaN a line has.
fn middle<'t>(
    cx: &ExpandCx<'_, 't>,
    rank: impl Fn(Var<'t>, Var<'t>) -> Var<'t>,
) -> SmallVec<[Var<'t>; 1]> {
    let x = if cx.args[0].rank() == 0 { cx.args[0].reshape([1]) } else { cx.args[0] };
    let dim = dim(cx.attrs);
    let count = |holds: Var<'t>| holds.sum([dim].keep());
    let rank = rank(count(x.eq(x)), count(x.ne(x)));
    chosen(cx, x, x.order(dim, false, None).gather(rank, dim))
}
