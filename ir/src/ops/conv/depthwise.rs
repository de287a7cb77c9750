//! The transpose of a depthwise convolution, whose kernel reads planes once and writes lines whole.

use super::geometry::numbers;
use super::parts::{Moves, correlated, weight_gradient};
use crate::kernel;
use crate::op::{
    Dispatch, Domain, FLOATS, GradCx, Grads, InferCx, Inferred, Lower, Rounding, core, rule,
};
use crate::ops::infer;
use crate::{Attrs, Shape, Size, TensorType, Var};
use smallvec::smallvec;

crate::ops! { trait Depthwise;

/// The transpose of a depthwise convolution over the last axis of `x`, or the last two: `y[c, h..] = Σ_k x[c, o..] * weight[c, 0, k..]` over the positions `k` of a
/// window for which there are whole numbers `o` with `h = o * stride + k - low`, in row-major order; `x` is zero outside. `size` are the axes of `y`. Windows are
/// two apart along the last axis, and one or two along the other.
DEPTHWISE_TRANSPOSE = depthwise_transpose(x, weight; size: Sizes, stride: Ints, low: Ints) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &inferred,
    body:     core(rule(&gradients), Lower::Transposed),
    rounding: Rounding::result("each sum; each gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 3, 4, 3], T[3, 1, 3, 3] {size = [7, 5], stride = [2, 2], low = [1, 1]}",
        "T[2, 2, 2, 5], T[2, 1, 5, 4] {size = [3, 12], stride = [1, 2], low = [2, 0]}",
        "T[3, 6], T[3, 1, 2] {size = [11], stride = [2], low = [0]}",
    ] },
}
}

/// How windows move along the rows and the columns of a plane.
///
/// # Errors
/// If attributes or the weight say what they cannot.
pub(crate) fn moves(weight: &Shape, attrs: &Attrs) -> Result<[kernel::Moves; 2], String> {
    let (stride, low) = (attrs.ints("stride"), attrs.ints("low"));
    let axes = stride.len();
    if !(1..=2).contains(&axes) || low.len() != axes || weight.rank() != axes + 2 {
        return Err(format!("windows move over 1 or 2 axes, found {axes} and a weight {weight}"));
    }
    let one = |i: usize| {
        let number = |n: i64, least: i64| {
            let n = (least..=1 << 30).contains(&n).then_some(n)?;
            usize::try_from(n).ok()
        };
        Some(kernel::Moves {
            positions: number(weight[2 + i].number()?, 1)?,
            stride: number(stride[i], 1)?,
            low: number(low[i], 0)?,
        })
    };
    let all: Option<Vec<kernel::Moves>> = (0..axes).map(one).collect();
    let all = all.filter(|all| all[axes - 1].stride == 2 && all[0].stride <= 2);
    match all.as_deref() {
        Some([across]) => Ok([kernel::Moves::STILL, *across]),
        Some([down, across]) => Ok([*down, *across]),
        _ => Err(format!("stride {stride:?} and low {low:?} move no window of {weight}")),
    }
}

fn inferred(cx: &InferCx<'_>) -> infer::Answer {
    let (x, weight) = (cx.operand(0), cx.operand(1));
    infer::need_float(x)?;
    if x.dtype != weight.dtype {
        return Err(format!("operands are {x} and {weight}, expected one dtype"));
    }
    if weight.shape.rank() > 2 {
        numbers(weight)?;
    }
    moves(&weight.shape, cx.attrs)?;
    let size = infer::sizes(cx.must, &cx.attrs.sizes("size"))?;
    let axes = weight.shape.rank() - 2;
    let lead = x.shape.rank().wrapping_sub(axes);
    let fits = size.rank() == axes && (1..=2).contains(&lead);
    if !fits || !cx.must.alike(&weight.shape[..2], &[x.shape[lead - 1], Size::from(1)]) {
        return Err(format!("the weight {weight} has no window for each plane of {x}, to {size}"));
    }
    let shape: Shape = x.shape[..lead].iter().chain(size.iter()).copied().collect();
    if shape.numel().is_out_of_range() {
        return Err("the element count overflows".to_owned());
    }
    Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
}

fn gradients<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (x, weight, dy) = (cx.args[0], cx.args[1], cx.dy());
    let (x_shape, shape) = (x.shape(), weight.shape());
    let axes = shape.rank() - 2;
    let lead = x_shape.rank() - axes;
    // Batch, group, the one channel of it, positions.
    let grouped = |value: Var<'t>| {
        let all = value.shape();
        let batch = if lead == 2 { all[0] } else { Size::from(1) };
        let groups = [batch, shape[0], Size::from(1)];
        value.reshape_to(&groups.into_iter().chain(all[lead..].iter().copied()).collect())
    };
    let kernel: Vec<i64> = shape[2..].iter().map(|n| n.number().expect("a number")).collect();
    let ones = vec![1; axes];
    let (stride, low) = (cx.attrs.ints("stride"), cx.attrs.ints("low"));
    let moves = Moves { stride, dilation: &ones, low };
    let one = [shape[0], Size::from(1), Size::from(1)];
    let windows = weight.reshape_to(&one.into_iter().chain(shape[2..].iter().copied()).collect());
    let dx = correlated(grouped(dy), windows, &moves, &x_shape[lead..], false, None);
    let dweight = weight_gradient(grouped(dy), grouped(x), &kernel, &moves);
    smallvec![Some(dx.reshape_to(&x_shape)), Some(dweight.reshape_to(&shape))]
}
