//! Interpolation with PyTorch's arguments: tensors resized along their last axes, and read at
//! places that a grid says.
//!
//! What positions of a result see is known when a program is recorded: taps with weights
//! (`weights`), axis by axis from the last. The gradient takes the taps the other way round. A grid
//! is data (`grid`), so its elements are gathered.

mod grid;
mod weights;

use super::bits::Bits;
use super::elementwise::Elementwise;
use super::infer;
use super::taps::{Along, Tap, summed};
use crate::op::{
    Body, Domain, ExpandCx, ExpandFn, FLOATS, GradCx, GradFn, Grads, InferCx, Inferred, Rounding,
    composite, composite_own, rule,
};
use crate::{Attrs, DType, Results, Shape, Size, TensorType, Var};
use smallvec::smallvec;
use weights::{Filter, Resized};

const ONCE: Rounding = Rounding::result("the result, once; the gradient once");
const CHOICE: Rounding = Rounding::nowhere("nowhere; the gradient once");

crate::ops! { trait Resizes;

/// Each position of the last axis the element at or before its place in `x`,
/// `[batch, channels, positions]`:
/// [`torch.nn.functional.interpolate`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html).
///
/// `output_size` is the new size. `scales` says how many times as large as `x` the result is taken
/// to be; without it the sizes do.
UPSAMPLE_NEAREST1D = upsample_nearest1d(x; output_size: Ints, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 1, true),
    body:     nearest(&|cx| expanded(cx, Filter::Nearest), &|cx| gradient(cx, Filter::Nearest)),
    rounding: CHOICE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3, 5] {output_size = [7]}", "T[1, 2, 4] {output_size = [8]}", "u8[2, 3, 4] {output_size = [6], scales = [1.7]}"] },
}

/// As [`UPSAMPLE_NEAREST1D`], over the last two axes.
UPSAMPLE_NEAREST2D = upsample_nearest2d(x; output_size: Ints, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 2, true),
    body:     nearest(&|cx| expanded(cx, Filter::Nearest), &|cx| gradient(cx, Filter::Nearest)),
    rounding: CHOICE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3, 4, 5] {output_size = [7, 3]}", "T[1, 2, 3, 4] {output_size = [6, 8]}"] },
}

/// As [`UPSAMPLE_NEAREST1D`], over the last three axes.
UPSAMPLE_NEAREST3D = upsample_nearest3d(x; output_size: Ints, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 3, true),
    body:     nearest(&|cx| expanded(cx, Filter::Nearest), &|cx| gradient(cx, Filter::Nearest)),
    rounding: CHOICE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[1, 2, 3, 2, 4] {output_size = [2, 4, 5]}"] },
}

/// Each position of the last axis the element of `x` whose middle is next to its own; the arguments
/// are those of [`UPSAMPLE_NEAREST1D`].
UPSAMPLE_NEAREST_EXACT1D = upsample_nearest_exact1d as "_upsample_nearest_exact1d"(x; output_size: Ints, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 1, true),
    body:     nearest(&|cx| expanded(cx, Filter::NearestExact), &|cx| gradient(cx, Filter::NearestExact)),
    rounding: CHOICE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3, 5] {output_size = [3]}", "T[1, 2, 4] {output_size = [7]}"] },
}

/// As [`UPSAMPLE_NEAREST_EXACT1D`], over the last two axes.
UPSAMPLE_NEAREST_EXACT2D = upsample_nearest_exact2d as "_upsample_nearest_exact2d"(x; output_size: Ints, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 2, true),
    body:     nearest(&|cx| expanded(cx, Filter::NearestExact), &|cx| gradient(cx, Filter::NearestExact)),
    rounding: CHOICE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3, 4, 5] {output_size = [7, 3]}"] },
}

/// As [`UPSAMPLE_NEAREST_EXACT1D`], over the last three axes.
UPSAMPLE_NEAREST_EXACT3D = upsample_nearest_exact3d as "_upsample_nearest_exact3d"(x; output_size: Ints, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 3, true),
    body:     nearest(&|cx| expanded(cx, Filter::NearestExact), &|cx| gradient(cx, Filter::NearestExact)),
    rounding: CHOICE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[1, 2, 3, 2, 4] {output_size = [2, 4, 5]}"] },
}

/// Each position of the last axis a number on the line between its two neighbours in `x`,
/// `[batch, channels, positions]`:
/// [`torch.nn.functional.interpolate`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html).
///
/// With `align_corners` the first and the last elements fall on each other, else the ends of the
/// axes. The other arguments are those of [`UPSAMPLE_NEAREST1D`].
UPSAMPLE_LINEAR1D = upsample_linear1d(x; output_size: Ints, align_corners: Bool, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 1, false),
    body:     weighed(&|cx| expanded(cx, Filter::Linear), &|cx| gradient(cx, Filter::Linear)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3, 5] {output_size = [7], align_corners = false}", "T[1, 2, 6] {output_size = [4], align_corners = true}", "T[1, 2, 4] {output_size = [6], align_corners = false, scales = [1.7]}"] },
}

/// As [`UPSAMPLE_LINEAR1D`], over the last two axes. Of u8 it computes with integers, as PyTorch
/// does.
UPSAMPLE_BILINEAR2D = upsample_bilinear2d(x; output_size: Ints, align_corners: Bool, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 2, true),
    body:     weighed(&|cx| expanded(cx, Filter::Linear), &|cx| gradient(cx, Filter::Linear)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3, 4, 5] {output_size = [8, 10], align_corners = false}", "T[1, 2, 6, 3] {output_size = [4, 5], align_corners = true}", "u8[2, 3, 4, 4] {output_size = [3, 6], align_corners = true}"] },
}

/// As [`UPSAMPLE_LINEAR1D`], over the last three axes.
UPSAMPLE_TRILINEAR3D = upsample_trilinear3d(x; output_size: Ints, align_corners: Bool, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 3, false),
    body:     weighed(&|cx| expanded(cx, Filter::Linear), &|cx| gradient(cx, Filter::Linear)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[1, 2, 3, 2, 4] {output_size = [2, 4, 5], align_corners = false}"] },
}

/// Each position of the last two axes a number on curves of the third degree through four
/// neighbours along each axis of `x`; the arguments are those of [`UPSAMPLE_LINEAR1D`]. Of u8 it
/// computes with integers, as PyTorch does.
UPSAMPLE_BICUBIC2D = upsample_bicubic2d(x; output_size: Ints, align_corners: Bool, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 2, true),
    body:     weighed(&|cx| expanded(cx, Filter::Cubic), &|cx| gradient(cx, Filter::Cubic)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3, 4, 5] {output_size = [7, 3], align_corners = false}", "T[1, 2, 6, 3] {output_size = [4, 5], align_corners = true}", "u8[2, 3, 4, 4] {output_size = [5, 5], align_corners = true}"] },
}

/// As [`UPSAMPLE_BILINEAR2D`]; along an axis that becomes smaller all elements count that fall on a
/// position: `antialias` of PyTorch.
UPSAMPLE_BILINEAR2D_AA = upsample_bilinear2d_aa as "_upsample_bilinear2d_aa"(x; output_size: Ints, align_corners: Bool, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 2, true),
    body:     weighed(&|cx| expanded(cx, Filter::SmoothLinear), &|cx| gradient(cx, Filter::SmoothLinear)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[1, 2, 7, 5] {output_size = [3, 7], align_corners = false}", "T[1, 1, 80, 3] {output_size = [3, 2], align_corners = false}", "u8[1, 2, 7, 5] {output_size = [3, 2], align_corners = false}"] },
}

/// As [`UPSAMPLE_BICUBIC2D`]; along an axis that becomes smaller all elements count that fall on a
/// position: `antialias` of PyTorch.
UPSAMPLE_BICUBIC2D_AA = upsample_bicubic2d_aa as "_upsample_bicubic2d_aa"(x; output_size: Ints, align_corners: Bool, scales: OptFloats) -> (y) {
    infer:    &|cx| resized_type(cx, 2, true),
    body:     weighed(&|cx| expanded(cx, Filter::SmoothCubic), &|cx| gradient(cx, Filter::SmoothCubic)),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[1, 2, 7, 5] {output_size = [3, 7], align_corners = false}"] },
}

/// `x`, `[batch, channels, positions]` over two or three axes, at the places of `grid`,
/// `[batch, positions of the result, axes]`, whose numbers go from -1 to 1 along each axis of `x`,
/// the last one first:
/// [`torch.nn.functional.grid_sample`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.grid_sample.html).
///
/// `mode` is `bilinear`, `nearest` or `bicubic`, this over two axes alone; `padding_mode` is
/// `zeros`, `border` or `reflection`. With `align_corners` -1 and 1 are the middles of the first
/// and the last element, else their outer ends. Gradients are those of the places as well.
GRID_SAMPLER = grid_sampler(x, grid; mode: OptStr, padding_mode: OptStr, align_corners: Bool) -> (y) {
    infer:    &grid::inferred,
    body:     composite(None, &grid::expanded),
    rounding: ONCE,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 3, 4, 5], T[2, 3, 2, 2] in -1.3 1.3 {align_corners = false}",
        "T[1, 2, 4, 3], T[1, 2, 3, 2] in -2 2 {mode = \"bilinear\", padding_mode = \"reflection\", align_corners = true}",
        "T[1, 2, 4, 3], T[1, 2, 3, 2] in -2 2 {mode = \"bilinear\", padding_mode = \"border\", align_corners = false}",
        "T[1, 2, 4, 3], T[1, 2, 3, 2] in -1.3 1.3 {mode = \"nearest\", padding_mode = \"zeros\", align_corners = false}",
        "T[1, 2, 4, 5], T[1, 2, 3, 2] in -1.3 1.3 {mode = \"bicubic\", padding_mode = \"border\", align_corners = false}",
        "T[1, 2, 3, 2, 4], T[1, 2, 1, 2, 3] in -1.3 1.3 {mode = \"bilinear\", padding_mode = \"zeros\", align_corners = true}",
    ] },
}
}

const CHECKED: &str = "checked when recorded";

/// What chooses among elements.
const fn nearest(expand: &'static ExpandFn, gradient: &'static GradFn) -> Body {
    composite_own(Some(rule(gradient)), expand)
}

/// What weighs elements.
const fn weighed(expand: &'static ExpandFn, gradient: &'static GradFn) -> Body {
    composite(Some(rule(gradient)), expand)
}

/// Lists of positions are bounded: the most positions of a result along an axis.
pub(crate) const MOST: i64 = 1 << 22;

/// The last axes and how each is resized.
fn axes(x: &TensorType, attrs: &Attrs) -> Result<Vec<(usize, Resized)>, String> {
    let (to, scales) = (attrs.ints("output_size"), attrs.floats("scales"));
    let first = x.shape.rank() - to.len();
    if !scales.is_empty() && scales.len() != to.len() {
        return Err(format!("`scales` has {} numbers, found {scales:?}", to.len()));
    }
    let axis = |(i, to): (usize, &i64)| {
        let from = x.shape[first + i].number();
        let from = from.ok_or_else(|| {
            format!("{x} needs numbers there: pin the sizes of axes that are resized")
        })?;
        if from < 1 {
            return Err(format!("takes channels with positions, found {x}"));
        }
        if !(1..=MOST).contains(to) || from > MOST {
            return Err(format!("`output_size` is from 1 to {MOST}, found {to}, of {x}"));
        }
        let scale = scales.get(i).copied().filter(|scale| *scale > 0.0);
        let is_wide = matches!(x.dtype, DType::F64 | DType::U8);
        let align_corners = attrs.bool("align_corners");
        let resized = Resized { from, to: *to, scale, align_corners, is_wide };
        match resized.fits() {
            true => Ok((first + i, resized)),
            false => {
                Err(format!("`scales` do not take {from} positions to {to}, found {scales:?}"))
            }
        }
    };
    to.iter().enumerate().map(axis).collect()
}

fn resized_type(cx: &InferCx<'_>, count: usize, takes_bytes: bool) -> infer::Answer {
    let (x, to) = (cx.operand(0), cx.attrs.ints("output_size"));
    if !(x.dtype.is_float() || takes_bytes && x.dtype == DType::U8) {
        let bytes = if takes_bytes { " or u8" } else { "" };
        return Err(format!("takes floats{bytes}, found {x}"));
    }
    if x.shape.rank() != count + 2 {
        return Err(format!("takes {} axes, found {x}", count + 2));
    }
    if to.len() != count {
        return Err(format!("`output_size` has {count} sizes, found {to:?}"));
    }
    axes(x, cx.attrs)?;
    if !cx.must.hold(x.shape[1].at_least(1)) {
        return Err(format!("takes channels with positions, found {x}"));
    }
    let shape: Shape =
        x.shape[..2].iter().copied().chain(to.iter().map(|n| Size::from(*n))).collect();
    if shape.numel().is_out_of_range() {
        return Err("the element count overflows".to_owned());
    }
    Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
}

/// What is seen along each axis that changes.
fn along(x: &TensorType, attrs: &Attrs, filter: Filter) -> Vec<(usize, Along)> {
    let axes = axes(x, attrs).expect(CHECKED);
    axes.into_iter().map(|(axis, resized)| (axis, resized.along(filter))).collect()
}

fn expanded<'t>(cx: &ExpandCx<'_, 't>, filter: Filter) -> Results<'t> {
    let x = cx.args[0];
    // Sixteen bits are wider here, and their positions are not.
    let seen = along(&x.ty().with_dtype(cx.results[0].dtype), cx.attrs, filter);
    if x.dtype() == DType::U8 && !matches!(filter, Filter::Nearest | Filter::NearestExact) {
        return smallvec![in_integers(x, &seen)];
    }
    let seen: Vec<_> = seen.iter().map(|(axis, along)| (*axis, along)).collect();
    smallvec![summed(x, &seen)]
}

fn gradient<'t>(cx: &GradCx<'_, 't>, filter: Filter) -> Grads<'t> {
    let x = cx.args[0].ty();
    if !x.dtype.is_float() {
        return smallvec![None];
    }
    let seen = along(&x, cx.attrs, filter);
    let back: Vec<_> = seen.iter().map(|(axis, along)| (*axis, along.transposed())).collect();
    let back: Vec<_> = back.iter().map(|(axis, along)| (*axis, along)).collect();
    smallvec![Some(summed(cx.dy().to(x.dtype.compute()), &back).to(x.dtype))]
}

/// Bytes: along one axis after the other, the last one first, with weights of 16 bits, rounded to
/// the nearest byte in between.
fn in_integers<'t>(x: Var<'t>, seen: &[(usize, Along)]) -> Var<'t> {
    let t = x.tracer();
    let one = |y: Var<'t>, (axis, along): &(usize, Along)| {
        let weights = |tap: &Tap| tap.weights.clone().unwrap_or_else(|| vec![1.0; tap.at.len()]);
        let most = along.taps.iter().flat_map(weights).fold(0.0, f64::max);
        // The most bits behind the point with which the largest weight is a number of 16 bits.
        let fits = |bits: &i32| 0.5 + most * f64::from(2 << bits) < f64::from(1 << 15);
        let bits = (0..22).find(|bits| !fits(bits)).unwrap_or(22);
        let whole =
            |weight: &f64| (weight * f64::from(1 << bits) + 0.5f64.copysign(*weight)).trunc();
        let tap = |tap: &Tap| Tap {
            at: tap.at.clone(),
            weights: Some(weights(tap).iter().map(whole).collect()),
        };
        let along = Along { taps: along.taps.iter().map(tap).collect(), ..along.clone() };
        let sum = summed(y, &[(*axis, &along)]).add(f64::from(1 << bits >> 1));
        let by = t.full(sum.ty(), f64::from(bits));
        let ends = [0.0, 255.0].map(|end| t.full(sum.ty(), end));
        sum.bitwise_right_shift(by).maximum(ends[0]).minimum(ends[1])
    };
    let changed = seen.iter().filter(|(_, along)| along.from != along.to);
    changed.rev().fold(x.to(DType::I32), one).to(DType::U8)
}
