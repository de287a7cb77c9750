//! Convolutions with PyTorch's arguments, and transposed ones: products with what windows see.
//!
//! `geometry` says what a convolution is over, `parts` what it is made of. No window is copied to
//! memory: a contraction reads the operand through windows while it packs it.

mod geometry;
mod parts;
pub mod transpose;

use super::infer;
use super::reduce::Reductions;
use crate::op::{
    Dispatch, Domain, ExpandCx, FLOATS, GradCx, Grads, InferCx, Inferred, Rounding, composite_own,
    rule,
};
use crate::{Attrs, Must, Results, Shape, TensorType, Var};
use geometry::Geometry;
use parts::{Moves, biased, correlated, input_gradient, weight_gradient};
use smallvec::smallvec;

const OF_INPUT: Dispatch = Dispatch::Listed { overload: "input" };
const ROUNDED: Rounding = Rounding::result("the result, once, after the bias; each gradient");

crate::ops! { trait Convolutions;

/// The convolution over the last axis of `x`, `[batch, channels, positions]` or one example without
/// its axis, with `weight`, `[channels, channels of a group, positions of a window]`:
/// [`torch.nn.functional.conv1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.conv1d.html).
///
/// `stride`, `padding` and `dilation` are a number for each axis, or one for all; empty they are 1,
/// 0 and 1. With `same` there are as many zeros around `x` as keep its size, the odd one behind it.
CONV1D = conv1d(x, weight, bias: optional; stride: Ints, padding: Ints, dilation: Ints, groups: OptInt, same: Bool) -> (y) {
    infer:    &|cx| inferred(cx, Some(1), false),
    body:     composite_own(Some(rule(&|cx| gradients(cx, false))), &|cx| expanded(cx, false)),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 3, 7], T[4, 3, 3], T[4] {stride = [2], padding = [1], dilation = [], groups = 1, same = false}",
        "T[4, 6], T[4, 2, 2] {stride = [], padding = [], dilation = [2], groups = 2, same = true}",
    ] },
}

/// As [`CONV1D`], over the last two axes:
/// [`torch.nn.functional.conv2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.conv2d.html).
CONV2D = conv2d(x, weight, bias: optional; stride: Ints, padding: Ints, dilation: Ints, groups: OptInt, same: Bool) -> (y) {
    infer:    &|cx| inferred(cx, Some(2), false),
    body:     composite_own(Some(rule(&|cx| gradients(cx, false))), &|cx| expanded(cx, false)),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 3, 5, 6], T[4, 3, 3, 2], T[4] {stride = [], padding = [1], dilation = [], groups = 1, same = false}",
        "T[1, 4, 6, 5], T[6, 2, 3, 3], T[6] {stride = [2, 1], padding = [1, 2], dilation = [1, 2], groups = 2, same = false}",
        "T[2, 3, 5, 5], T[3, 1, 3, 3], T[3] {stride = [2], padding = [1], dilation = [], groups = 3, same = false}",
        "T[2, 3, 4, 4], T[5, 3, 1, 1] {stride = [], padding = [], dilation = [], groups = 1, same = false}",
    ] },
}

/// As [`CONV1D`], over the last three axes:
/// [`torch.nn.functional.conv3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.conv3d.html).
CONV3D = conv3d(x, weight, bias: optional; stride: Ints, padding: Ints, dilation: Ints, groups: OptInt, same: Bool) -> (y) {
    infer:    &|cx| inferred(cx, Some(3), false),
    body:     composite_own(Some(rule(&|cx| gradients(cx, false))), &|cx| expanded(cx, false)),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 2, 4, 3, 4], T[2, 2, 2, 3, 2], T[2] {stride = [2, 1, 1], padding = [0, 1, 0], dilation = [], groups = 1, same = false}",
    ] },
}

/// The transpose of the convolution of as many axes: what its gradient makes of `x`, whose channels
/// are those of the convolution's result. `weight` is `[channels, channels of a group of the
/// result, positions of a window]`, and `output_padding` says which of the sizes that the
/// convolution takes to the same one is meant:
/// [`torch.nn.functional.conv_transpose1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.conv_transpose1d.html).
CONV_TRANSPOSE1D = conv_transpose1d(x, weight, bias: optional; stride: Ints, padding: Ints, output_padding: Ints, groups: OptInt, dilation: Ints) -> (y) {
    infer:    &|cx| inferred(cx, Some(1), true),
    body:     composite_own(Some(rule(&|cx| gradients(cx, true))), &|cx| expanded(cx, true)),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 4, 5], T[4, 3, 3], T[6] {stride = [2], padding = [1], output_padding = [1], groups = 2, dilation = [2]}",
        "T[2, 5], T[2, 3, 2] {stride = [3], padding = [], output_padding = [], groups = 1, dilation = []}",
    ] },
}

/// As [`CONV_TRANSPOSE1D`], over the last two axes:
/// [`torch.nn.functional.conv_transpose2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.conv_transpose2d.html).
CONV_TRANSPOSE2D = conv_transpose2d(x, weight, bias: optional; stride: Ints, padding: Ints, output_padding: Ints, groups: OptInt, dilation: Ints) -> (y) {
    dispatch: OF_INPUT,
    infer:    &|cx| inferred(cx, Some(2), true),
    body:     composite_own(Some(rule(&|cx| gradients(cx, true))), &|cx| expanded(cx, true)),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 4, 3, 3], T[4, 3, 3, 2], T[3] {stride = [2, 1], padding = [1, 0], output_padding = [1, 0], groups = 1, dilation = []}",
    ] },
}

/// As [`CONV_TRANSPOSE1D`], over the last three axes:
/// [`torch.nn.functional.conv_transpose3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.conv_transpose3d.html).
CONV_TRANSPOSE3D = conv_transpose3d(x, weight, bias: optional; stride: Ints, padding: Ints, output_padding: Ints, groups: OptInt, dilation: Ints) -> (y) {
    dispatch: OF_INPUT,
    infer:    &|cx| inferred(cx, Some(3), true),
    body:     composite_own(Some(rule(&|cx| gradients(cx, true))), &|cx| expanded(cx, true)),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[1, 2, 2, 3, 2], T[2, 2, 2, 2, 2], T[2] {stride = [2, 1, 1], padding = [], output_padding = [1, 0, 0], groups = 1, dilation = []}",
    ] },
}

/// A convolution or a transposed one, over as many axes as `weight` has behind its channels:
/// [`torch.convolution`](https://docs.pytorch.org/docs/stable/torch.compiler_ir.html), to which
/// PyTorch reduces the others.
CONVOLUTION = convolution(x, weight, bias: optional; stride: Ints, padding: Ints, dilation: Ints, transposed: Bool, output_padding: Ints, groups: OptInt) -> (y) {
    infer:    &|cx| inferred(cx, None, is_transposed(cx.attrs)),
    body:     composite_own(
        Some(rule(&|cx| gradients(cx, is_transposed(cx.attrs)))),
        &|cx| expanded(cx, is_transposed(cx.attrs)),
    ),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 3, 5, 4], T[4, 3, 2, 2], T[4] {stride = [2, 1], padding = [1], dilation = [1], transposed = false, output_padding = [0], groups = 1}",
        "T[1, 4, 5], T[4, 2, 3] {stride = [2], padding = [1], dilation = [1], transposed = true, output_padding = [1], groups = 2}",
    ] },
}
}

fn is_transposed(attrs: &Attrs) -> bool {
    attrs.bool("transposed")
}

/// The type of the result, over that many axes, or 1 to 3.
fn inferred(cx: &InferCx<'_>, axes: Option<usize>, transposed: bool) -> infer::Answer {
    let (x, weight) = (cx.operand(0), cx.operand(1));
    let found = weight.shape.rank().saturating_sub(2);
    if axes.map_or(!(1..=3).contains(&found), |axes| axes != found) {
        let expected = axes.map_or("3 to 5".to_owned(), |axes| (axes + 2).to_string());
        return Err(format!("`weight` has {expected} axes, found {weight}"));
    }
    let geometry = Geometry::of(cx.must, [x, weight], cx.get(2), cx.attrs, transposed)?;
    Ok(Inferred::one(TensorType { dtype: x.dtype, shape: geometry.shape()? }))
}

/// What was inferred when the op was recorded.
fn recorded(args: &[Var<'_>], attrs: &Attrs, transposed: bool) -> Geometry {
    let (x, weight) = (args[0].ty(), args[1].ty());
    let found = args[0].tracer().with_graph(|graph| {
        Geometry::of(&Must::proven(graph.sizes()), [&x, &weight], None, attrs, transposed)
    });
    found.expect("checked when recorded")
}

impl Geometry {
    fn moves(&self) -> Moves<'_> {
        Moves { stride: &self.stride, dilation: &self.dilation, low: &self.low }
    }
}

fn expanded<'t>(cx: &ExpandCx<'_, 't>, transposed: bool) -> Results<'t> {
    let geometry = recorded(cx.args, cx.attrs, transposed);
    let x = cx.args[0].reshape_to(&geometry.grouped(0));
    let weight = cx.args[1].reshape_to(&geometry.weight());
    let (bias, result) = (cx.get(2), &cx.results[0]);
    let wide = bias.is_some();
    let y = if transposed {
        let y = input_gradient(x, weight, &geometry.moves(), &geometry.to, wide);
        biased(y, bias, result.dtype)
    } else {
        correlated(x, weight, &geometry.moves(), &geometry.to, wide, bias)
    };
    smallvec![y.reshape_to(&result.shape)]
}

fn gradients<'t>(cx: &GradCx<'_, 't>, transposed: bool) -> Grads<'t> {
    let geometry = recorded(cx.args, cx.attrs, transposed);
    let (x, weight, all) = (cx.args[0], cx.args[1], cx.dy());
    let dy = all.reshape_to(&geometry.grouped(1));
    let grouped = x.reshape_to(&geometry.grouped(0));
    let (parts, moves) = (weight.reshape_to(&geometry.weight()), geometry.moves());
    let (dx, dweight) = if transposed {
        (
            correlated(dy, parts, &moves, &geometry.from, false, None),
            weight_gradient(dy, grouped, &geometry.kernel, &moves),
        )
    } else {
        (
            input_gradient(dy, parts, &moves, &geometry.from, false),
            weight_gradient(grouped, dy, &geometry.kernel, &moves),
        )
    };
    let mut grads: Grads<'t> =
        smallvec![Some(dx.reshape_to(&x.shape())), Some(dweight.reshape_to(&weight.shape()))];
    if cx.get(2).is_some() {
        let channels = Shape::new(&[geometry.channels[1] * geometry.groups]);
        let axes: Vec<i64> = [0].into_iter().chain(3..dy.rank() as i64).collect();
        grads.push(Some(dy.sum(&axes).reshape_to(&channels)));
    }
    grads
}
