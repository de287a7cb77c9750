//! The transpose of a convolution whose windows are two apart, as the gradient of its operand is
//! one: a kernel that reads planes once and writes lines whole.

use super::geometry::numbers;
use super::parts::{Moves, correlated, in_phases, kernel_of, weight_gradient};
use crate::kernel;
use crate::op::{
    Dispatch, Domain, ExpandCx, FLOATS, Func, GradCx, Grads, InferCx, Inferred, Lower, Rounding,
    core, rule,
};
use crate::ops::infer;
use crate::{Attrs, Shape, Size, TensorType, Var};
use smallvec::{SmallVec, smallvec};

/// Axes of an operand in front of those that windows move over: examples and channels, or channels
/// of both sides.
pub(crate) const LEAD: usize = 2;

crate::ops! { trait ConvolutionTranspose;

/// The transpose of a convolution of `x`, `[example, channel, o..]`, with `weight`,
/// `[channel, channel of a group's result, k..]`: in each group of channels
/// `y[p, h..] = Σ_c Σ_k x[c, o..] * weight[c, p, k..]` over the channels `c` of a group, and in
/// each over the positions `k` of a window for which there are whole numbers `o` with
/// `h = o * stride + k - low`, in row-major order; an even number of channels of bf16 is gone
/// through two at a time. `x` is zero outside. `size` are the last one or two axes of `y`. Windows
/// are two apart along the last axis, and one or two along the other.
CONVOLUTION_TRANSPOSE = convolution_transpose(x, weight; groups: Int, size: Sizes, stride: Ints, low: Ints) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &inferred,
    body:     core(rule(&gradients), Lower::Transposed(Func::Static(&phases))),
    rounding: Rounding::result("each sum; each gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 3, 4, 3], T[3, 1, 3, 3] {groups = 3, size = [7, 5], stride = [2, 2], low = [1, 1]}",
        "T[1, 2, 2, 5], T[2, 1, 5, 4] {groups = 2, size = [3, 12], stride = [1, 2], low = [2, 0]}",
        "T[1, 3, 6], T[3, 1, 2] {groups = 3, size = [11], stride = [2], low = [0]}",
        "T[2, 4, 3, 2], T[4, 3, 3, 3] {groups = 1, size = [6, 4], stride = [2, 2], low = [1, 1]}",
        "T[1, 6, 4], T[6, 2, 4] {groups = 2, size = [8], stride = [2], low = [1]}",
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
    if !(1..=2).contains(&axes) || low.len() != axes || weight.rank() != axes + LEAD {
        return Err(format!("windows move over 1 or 2 axes, found {axes} and a weight {weight}"));
    }
    let one = |i: usize| {
        let number = |n: i64, least: i64| {
            let n = (least..=1 << 30).contains(&n).then_some(n)?;
            usize::try_from(n).ok()
        };
        Some(kernel::Moves {
            positions: number(weight[LEAD + i].number()?, 1)?,
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

/// In how many groups channels are.
pub(crate) fn groups_of(attrs: &Attrs) -> i64 {
    attrs.int("groups").unwrap_or_default()
}

fn inferred(cx: &InferCx<'_>) -> infer::Answer {
    let (x, weight) = (cx.operand(0), cx.operand(1));
    infer::need_float(x)?;
    if x.dtype != weight.dtype {
        return Err(format!("operands are {x} and {weight}, expected one dtype"));
    }
    if weight.shape.rank() > LEAD {
        numbers(weight)?;
    }
    moves(&weight.shape, cx.attrs)?;
    let size = infer::sizes(cx.must, &cx.attrs.sizes("size"))?;
    let (axes, groups) = (weight.shape.rank() - LEAD, groups_of(cx.attrs));
    let channels = weight.shape[0].number().unwrap_or(0);
    let fits = size.rank() == axes && x.shape.rank() == axes + LEAD && groups > 0;
    if !fits || channels % groups != 0 || !cx.must.alike(&weight.shape[..1], &x.shape[1..LEAD]) {
        return Err(format!(
            "the weight {weight} has no window for each channel of {x} in {groups} groups, to {size}"
        ));
    }
    let lead = [x.shape[0], weight.shape[1] * groups];
    let shape: Shape = lead.into_iter().chain(size.iter().copied()).collect();
    if shape.numel().is_out_of_range() {
        return Err("the element count overflows".to_owned());
    }
    Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
}

/// An operand with its channels, which are this axis, as those of groups.
fn grouped<'t>(x: Var<'t>, axis: usize, groups: Size) -> Var<'t> {
    let all = x.shape();
    let apart = [groups, all[axis] / groups];
    let lead = all[..axis].iter().copied().chain(apart);
    x.reshape_to(&lead.chain(all[axis + 1..].iter().copied()).collect())
}

fn gradients<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (x, weight) = (cx.args[0], cx.args[1]);
    let (x_shape, shape, groups) = (x.shape(), weight.shape(), Size::from(groups_of(cx.attrs)));
    let (dy, windows) = (grouped(cx.dy(), 1, groups), grouped(weight, 0, groups));
    let kernel = kernel_of(windows);
    let ones = vec![1; kernel.len()];
    let (stride, low) = (cx.attrs.ints("stride"), cx.attrs.ints("low"));
    let moves = Moves { stride, dilation: &ones, low };
    let dx = correlated(dy, windows, &moves, &x_shape[LEAD..], false, None);
    let dweight = weight_gradient(dy, grouped(x, 1, groups), &kernel, &moves);
    smallvec![Some(dx.reshape_to(&x_shape)), Some(dweight.reshape_to(&shape))]
}

/// A convolution for each phase of the stride: the same sums, step by step.
fn phases<'t>(cx: &ExpandCx<'_, 't>) -> SmallVec<[Var<'t>; 1]> {
    let (result, groups) = (&cx.results[0].shape, Size::from(groups_of(cx.attrs)));
    let (x, weight) = (grouped(cx.args[0], 1, groups), grouped(cx.args[1], 0, groups));
    let ones = vec![1; result.rank() - LEAD];
    let (stride, low) = (cx.attrs.ints("stride"), cx.attrs.ints("low"));
    let moves = Moves { stride, dilation: &ones, low };
    smallvec![in_phases(x, weight, &moves, &result[LEAD..], false).reshape_to(result)]
}
