//! Pooling with PyTorch's arguments: the largest elements that windows see, and means.
//!
//! Windows are taps along axes: a window of few positions is a chain of loads in one kernel, and
//! its gradient a sum of what the windows that cover an element say of it, in order. `geometry`
//! says what windows are over, `parts` what is made of them.

mod geometry;
mod parts;

use super::index::Indexing;
use super::infer;
use super::reduce::Reductions;
use super::scatter::Scatters;
use super::taps::{Along, FEW, summed};
use crate::op::{
    Domain, ExpandCx, FLOATS, GradCx, Grads, InferCx, Inferred, NUMBERS, Rounding, composite,
    composite_own, rule,
};
use crate::{DType, IntoDims, Results, Shape, Size, TensorType};
use geometry::{Geometry, Windows};
use smallvec::smallvec;

const ONCE: Rounding = Rounding::result("the result, once; the gradient once");
const CHOICE: Rounding = Rounding::nowhere("nowhere; the gradient once, where windows overlap");

crate::ops! { trait Pools;

/// The largest element that each window over the last axis sees, NaN if there is one, and its
/// position among the elements of these axes, the first of equal ones:
/// [`torch.nn.functional.max_pool1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.max_pool1d.html).
///
/// Windows have `kernel_size` positions, which are `dilation` apart, and move by `stride`;
/// `padding` positions before and behind are seen as smaller than everything. Each is a number for
/// all axes or one each; empty they are 1, the size, and 0. With `ceil_mode` a window that begins
/// within the operand may reach beyond. Elements are `[batch, channels, positions]`, or without a
/// batch.
MAX_POOL1D = max_pool1d(x; kernel_size: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: Bool) -> (y, indices) {
    infer:    &|cx| largest_types(cx, 1),
    body:     composite_own(Some(rule(&|cx| largest_gradient(cx, 1))), &|cx| largest(cx, 1)),
    rounding: CHOICE,
    domain:   Domain { dtypes: NUMBERS, samples: &[
        "T[2, 3, 7] {kernel_size = [3], stride = [2], padding = [1], dilation = [], ceil_mode = false}",
        "T[3, 8] {kernel_size = [2], stride = [], padding = [], dilation = [2], ceil_mode = true}",
    ] },
}

/// The largest element that each window over the last two axes sees, NaN if there is one, and its
/// position among the elements of these axes, the first of equal ones:
/// [`torch.nn.functional.max_pool2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.max_pool2d.html).
///
/// The arguments are those of [`MAX_POOL1D`].
MAX_POOL2D = max_pool2d(x; kernel_size: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: Bool) -> (y, indices) {
    infer:    &|cx| largest_types(cx, 2),
    body:     composite_own(Some(rule(&|cx| largest_gradient(cx, 2))), &|cx| largest(cx, 2)),
    rounding: CHOICE,
    domain:   Domain { dtypes: NUMBERS, samples: &[
        "T[2, 3, 5, 6] {kernel_size = [3], stride = [2], padding = [1], dilation = [], ceil_mode = false}",
        "T[1, 2, 6, 6] {kernel_size = [2], stride = [], padding = [], dilation = [], ceil_mode = false}",
        "T[2, 5, 7] {kernel_size = [2, 3], stride = [2], padding = [0, 1], dilation = [2, 1], ceil_mode = true}",
    ] },
}

/// The largest element that each window over the last three axes sees, NaN if there is one, and its
/// position among the elements of these axes, the first of equal ones:
/// [`torch.nn.functional.max_pool3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.max_pool3d.html).
///
/// The arguments are those of [`MAX_POOL1D`].
MAX_POOL3D = max_pool3d(x; kernel_size: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: Bool) -> (y, indices) {
    infer:    &|cx| largest_types(cx, 3),
    body:     composite_own(Some(rule(&|cx| largest_gradient(cx, 3))), &|cx| largest(cx, 3)),
    rounding: CHOICE,
    domain:   Domain { dtypes: NUMBERS, samples: &["T[1, 2, 4, 3, 5] {kernel_size = [2], stride = [1, 2, 2], padding = [1], dilation = [], ceil_mode = false}"] },
}

/// Elements put where `indices` says among the positions of two axes of that size, zero elsewhere;
/// of several for one place the last stays:
/// [`torch.nn.functional.max_unpool2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.max_unpool2d.html).
MAX_UNPOOL2D = max_unpool2d(x, indices; output_size: Ints) -> (y) {
    infer:    &|cx| unpooled_type(cx, 2),
    body:     composite_own(None, &|cx| unpooled(cx, 2)),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 2, 2], i64[2, 2, 2] in 0 12 {output_size = [3, 4]}"] },
}

/// Elements put where `indices` says among the positions of three axes of that size, zero
/// elsewhere; of several for one place the last stays:
/// [`torch.nn.functional.max_unpool3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.max_unpool3d.html).
MAX_UNPOOL3D = max_unpool3d(x, indices; output_size: Ints) -> (y) {
    infer:    &|cx| unpooled_type(cx, 3),
    body:     composite_own(None, &|cx| unpooled(cx, 3)),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[1, 2, 1, 2, 2], i64[1, 2, 1, 2, 2] in 0 18 {output_size = [2, 3, 3]}"] },
}

/// The mean of what each window over the last axis sees:
/// [`torch.nn.functional.avg_pool1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.avg_pool1d.html).
///
/// The arguments are those of [`MAX_POOL1D`]. With `count_include_pad` the padding counts as zeros,
/// else not at all. Integers of 64 bits are divided towards zero.
AVG_POOL1D = avg_pool1d(x; kernel_size: Ints, stride: Ints, padding: Ints, ceil_mode: Bool, count_include_pad: Bool) -> (y) {
    infer:    &|cx| mean_type(cx, 1),
    body:     composite(Some(rule(&|cx| mean_gradient(cx, 1))), &|cx| mean(cx, 1)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 3, 7] {kernel_size = [3], stride = [2], padding = [1], ceil_mode = false, count_include_pad = true}",
        "T[3, 8] {kernel_size = [3], stride = [2], padding = [1], ceil_mode = true, count_include_pad = false}",
    ] },
}

/// The mean of what each window over the last two axes sees:
/// [`torch.nn.functional.avg_pool2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.avg_pool2d.html).
///
/// The arguments are those of [`AVG_POOL1D`]; sums are divided by `divisor_override` if it is
/// given.
AVG_POOL2D = avg_pool2d(x; kernel_size: Ints, stride: Ints, padding: Ints, ceil_mode: Bool, count_include_pad: Bool, divisor_override: OptInt) -> (y) {
    infer:    &|cx| mean_type(cx, 2),
    body:     composite(Some(rule(&|cx| mean_gradient(cx, 2))), &|cx| mean(cx, 2)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 3, 5, 6] {kernel_size = [3], stride = [2], padding = [1], ceil_mode = true, count_include_pad = false}",
        "T[1, 2, 6, 6] {kernel_size = [2], stride = [], padding = [], ceil_mode = false, count_include_pad = true}",
        "T[2, 5, 7] {kernel_size = [2, 3], stride = [1], padding = [], ceil_mode = false, count_include_pad = true, divisor_override = 3}",
    ] },
}

/// The mean of what each window over the last three axes sees:
/// [`torch.nn.functional.avg_pool3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.avg_pool3d.html).
///
/// The arguments are those of [`AVG_POOL1D`]; sums are divided by `divisor_override` if it is
/// given.
AVG_POOL3D = avg_pool3d(x; kernel_size: Ints, stride: Ints, padding: Ints, ceil_mode: Bool, count_include_pad: Bool, divisor_override: OptInt) -> (y) {
    infer:    &|cx| mean_type(cx, 3),
    body:     composite(Some(rule(&|cx| mean_gradient(cx, 3))), &|cx| mean(cx, 3)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[1, 2, 4, 3, 5] {kernel_size = [2], stride = [1, 2, 2], padding = [1], ceil_mode = false, count_include_pad = true}"] },
}

/// As [`MAX_POOL1D`], with windows that divide the axis into as many parts as `output_size` says:
/// [`torch.nn.functional.adaptive_max_pool1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.adaptive_max_pool1d.html).
ADAPTIVE_MAX_POOL1D = adaptive_max_pool1d(x; output_size: Ints) -> (y, indices) {
    infer:    &|cx| largest_types(cx, 1),
    body:     composite_own(Some(rule(&|cx| largest_gradient(cx, 1))), &|cx| largest(cx, 1)),
    rounding: CHOICE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3, 7] {output_size = [3]}"] },
}

/// As [`MAX_POOL2D`], with windows that divide each axis into as many parts as `output_size` says:
/// [`torch.nn.functional.adaptive_max_pool2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.adaptive_max_pool2d.html).
ADAPTIVE_MAX_POOL2D = adaptive_max_pool2d(x; output_size: Ints) -> (y, indices) {
    infer:    &|cx| largest_types(cx, 2),
    body:     composite_own(Some(rule(&|cx| largest_gradient(cx, 2))), &|cx| largest(cx, 2)),
    rounding: CHOICE,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[1, 2, 7, 5] {output_size = [3, 2]}",
        "T[2, 3, 4, 4] {output_size = [1]}",
        "T[2, 4, 6] {output_size = [2, 3]}",
    ] },
}

/// As [`MAX_POOL3D`], with windows that divide each axis into as many parts as `output_size` says:
/// [`torch.nn.functional.adaptive_max_pool3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.adaptive_max_pool3d.html).
ADAPTIVE_MAX_POOL3D = adaptive_max_pool3d(x; output_size: Ints) -> (y, indices) {
    infer:    &|cx| largest_types(cx, 3),
    body:     composite_own(Some(rule(&|cx| largest_gradient(cx, 3))), &|cx| largest(cx, 3)),
    rounding: CHOICE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[1, 2, 4, 3, 5] {output_size = [2, 3, 2]}"] },
}

/// The mean over windows that divide the axis into as many parts as `output_size` says:
/// [`torch.nn.functional.adaptive_avg_pool1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.adaptive_avg_pool1d.html).
ADAPTIVE_AVG_POOL1D = adaptive_avg_pool1d(x; output_size: Ints) -> (y) {
    infer:    &|cx| mean_type(cx, 1),
    body:     composite(Some(rule(&|cx| mean_gradient(cx, 1))), &|cx| mean(cx, 1)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3, 7] {output_size = [3]}"] },
}

/// The mean over windows that divide each axis into as many parts as `output_size` says:
/// [`torch.nn.functional.adaptive_avg_pool2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.adaptive_avg_pool2d.html).
ADAPTIVE_AVG_POOL2D = adaptive_avg_pool2d(x; output_size: Ints) -> (y) {
    infer:    &|cx| mean_type(cx, 2),
    body:     composite(Some(rule(&|cx| mean_gradient(cx, 2))), &|cx| mean(cx, 2)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[1, 2, 7, 5] {output_size = [3, 2]}",
        "T[2, 3, 4, 4] {output_size = [1]}",
        "T[2, 4, 6] {output_size = [2, 3]}",
    ] },
}

/// The mean over windows that divide each axis into as many parts as `output_size` says:
/// [`torch.nn.functional.adaptive_avg_pool3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.adaptive_avg_pool3d.html).
ADAPTIVE_AVG_POOL3D = adaptive_avg_pool3d(x; output_size: Ints) -> (y) {
    infer:    &|cx| mean_type(cx, 3),
    body:     composite(Some(rule(&|cx| mean_gradient(cx, 3))), &|cx| mean(cx, 3)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[1, 2, 4, 3, 5] {output_size = [2, 3, 2]}"] },
}
}

const CHECKED: &str = "checked when recorded";

fn largest_types(cx: &InferCx<'_>, axes: usize) -> infer::Answer {
    let x = cx.operand(0);
    let shape = Geometry::of(x, cx.attrs, axes)?.shape(x);
    let indices = TensorType { dtype: DType::I64, shape: shape.clone() };
    Ok(Inferred::many([TensorType { dtype: x.dtype, shape }, indices]))
}

fn mean_type(cx: &InferCx<'_>, axes: usize) -> infer::Answer {
    let x = cx.operand(0);
    let geometry = Geometry::of(x, cx.attrs, axes)?;
    if !x.dtype.is_float() && x.dtype != DType::I64 {
        return Err(format!("takes floats or i64, found {x}"));
    }
    if cx.attrs.int("divisor_override") == Some(0) {
        return Err("`divisor_override` is not zero".to_owned());
    }
    Ok(Inferred::one(TensorType { dtype: x.dtype, shape: geometry.shape(x) }))
}

fn largest<'t>(cx: &ExpandCx<'_, 't>, axes: usize) -> Results<'t> {
    let geometry = Geometry::of(&cx.args[0].ty(), cx.attrs, axes).expect(CHECKED);
    let along = geometry.along();
    let axes: Vec<_> = (geometry.first..).zip(&along).collect();
    let (y, at) = parts::largest(cx.args[0], &axes);
    smallvec![y, at.to(DType::I64)]
}

/// Each window hands its gradient to the element that it chose; an element adds up what windows say
/// of it in their order. Where few windows cover an element, it looks at each of them.
fn largest_gradient<'t>(cx: &GradCx<'_, 't>, axes: usize) -> Grads<'t> {
    let (x, dy, at) = (cx.args[0].ty(), cx.dy(), cx.outs[1]);
    let geometry = Geometry::of(&x, cx.attrs, axes).expect(CHECKED);
    let back: Vec<_> = geometry.along().iter().map(Along::transposed).collect();
    if back.iter().map(|along| along.taps.len()).product::<usize>() <= FEW {
        let back: Vec<_> = (geometry.first..).zip(&back).collect();
        let dx = parts::covering(dy.to(x.dtype.compute()), at, &back);
        return smallvec![Some(dx.to(x.dtype))];
    }
    let (shape, to) = (&x.shape, dy.shape());
    let first = shape.rank() - axes;
    let lead = shape[..first].iter().product::<Size>();
    let flat = |sizes: &Shape| Shape::new(&[lead, sizes[first..].iter().product()]);
    let zeros = cx.tracer.full(TensorType { dtype: x.dtype, shape: flat(shape) }, 0.0);
    let dx = zeros.scatter_add(at.reshape_to(&flat(&to)), dy.reshape_to(&flat(&to)), 1);
    smallvec![Some(dx.reshape_to(shape))]
}

fn mean<'t>(cx: &ExpandCx<'_, 't>, axes: usize) -> Results<'t> {
    let geometry = Geometry::of(&cx.args[0].ty(), cx.attrs, axes).expect(CHECKED);
    let along = geometry.along();
    let axes: Vec<_> = (geometry.first..).zip(&along).collect();
    let x = cx.args[0];
    let sum = if geometry.axes.iter().all(Windows::is_whole) {
        let dim: Vec<i64> = axes.iter().map(|(axis, _)| *axis as i64).collect();
        x.sum(dim[..].keep())
    } else {
        summed(x, &axes)
    };
    smallvec![parts::divided(sum, &geometry, &along, cx.attrs)]
}

fn mean_gradient<'t>(cx: &GradCx<'_, 't>, axes: usize) -> Grads<'t> {
    let x = cx.args[0].ty();
    let geometry = Geometry::of(&x, cx.attrs, axes).expect(CHECKED);
    let along = geometry.along();
    let dy = parts::divided(cx.dy().to(x.dtype.compute()), &geometry, &along, cx.attrs);
    if geometry.axes.iter().all(Windows::is_whole) {
        return smallvec![Some(dy.expand_to(&x.shape).to(x.dtype))];
    }
    let back: Vec<_> = along.iter().map(Along::transposed).collect();
    let axes: Vec<_> = (geometry.first..).zip(&back).collect();
    smallvec![Some(summed(dy, &axes).to(x.dtype))]
}

fn unpooled_type(cx: &InferCx<'_>, axes: usize) -> infer::Answer {
    let (x, indices, size) = (cx.operand(0), cx.operand(1), cx.attrs.ints("output_size"));
    let rank = x.shape.rank();
    if rank != axes + 1 && rank != axes + 2 {
        return Err(format!("takes {} or {} axes, found {x}", axes + 1, axes + 2));
    }
    infer::need_index(indices)?;
    if !cx.must.alike(&indices.shape, &x.shape) {
        return Err(format!("`indices` is {indices}, expected the shape of {x}"));
    }
    if size.len() != axes || size.iter().any(|n| !(1..1 << 40).contains(n)) {
        return Err(format!("`output_size` has {axes} sizes, found {size:?}"));
    }
    let to = size.iter().map(|n| Size::from(*n));
    let shape: Shape = x.shape[..rank - axes].iter().copied().chain(to).collect();
    if shape.numel().is_out_of_range() {
        return Err("the element count overflows".to_owned());
    }
    Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
}

fn unpooled<'t>(cx: &ExpandCx<'_, 't>, axes: usize) -> Results<'t> {
    let (x, result) = (cx.args[0], &cx.results[0]);
    let first = result.shape.rank() - axes;
    let lead = result.shape[..first].iter().product::<Size>();
    let flat = |sizes: &Shape| Shape::new(&[lead, sizes[first..].iter().product()]);
    let zeros = TensorType { dtype: result.dtype, shape: flat(&result.shape) };
    let zeros = cx.tracer.full(zeros, 0.0);
    let [at, x] = [cx.args[1], x].map(|v| v.reshape_to(&flat(&v.shape())));
    smallvec![zeros.scatter(at, x, 1).reshape_to(&result.shape)]
}
