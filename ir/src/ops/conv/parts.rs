//! What convolutions are made of: products with what windows see.
//!
//! The sum over `k` goes through the channels of a group, and in each through the positions of a
//! window in row-major order, as weights lie in memory. An even number of channels of bf16 is gone
//! through two at a time: at each position the one and then the other. Values are
//! `[batch, group, channel, position..]`, weights `[group, channel for, channel seen, position in
//! the window..]`.

use super::transpose::ConvolutionTranspose;
use crate::ops::elementwise::Elementwise;
use crate::ops::linalg::{Products, product};
use crate::ops::reduce::Reductions;
use crate::ops::view::{Views, cat};
use crate::ops::windows::Windowed;
use crate::{DType, Shape, Size, TensorType, Var};

/// From this number of channels of a group's result on, vectors across them pay.
const SOME_PLANES: i64 = 16;

/// How windows move.
#[derive(Clone, Debug)]
pub(super) struct Moves<'a> {
    pub(super) stride: &'a [i64],
    pub(super) dilation: &'a [i64],
    pub(super) low: &'a [i64],
}

/// The convolution of `x` with `weight`, in f32 for 16-bit floats if `wide`: `count` windows along
/// each axis. A bias is added to the sums before these are laid out as windows are: so it is part
/// of the product's epilogue.
pub(super) fn correlated<'t>(
    x: Var<'t>,
    weight: Var<'t>,
    moves: &Moves<'_>,
    count: &[Size],
    wide: bool,
    bias: Option<Var<'t>>,
) -> Var<'t> {
    let (shape, kernel) = (weight.shape(), kernel_of(weight));
    let seen = windowed(x, &kernel, moves, count);
    let (lead, positions) = (x.shape()[..2].to_vec(), count.iter().product::<Size>());
    let terms = shape[2..].iter().product::<Size>();
    let (seen, weight) = if is_in_pairs(weight) {
        (channels_in_pairs(seen, kernel.len()), channels_in_pairs(weight, kernel.len()))
    } else {
        (seen, weight)
    };
    let seen = seen.reshape_to(&lead.iter().copied().chain([terms, positions]).collect());
    let rows = weight.reshape_to(&Shape::new(&[shape[0], shape[1], terms]));
    let mut y = multiplied(rows, seen, wide);
    if bias.is_some() {
        y = biased(y, bias, x.dtype());
    }
    y.reshape_to(&lead.iter().chain([&shape[1]]).chain(count).copied().collect())
}

/// True if the sum goes through two channels of bf16 at a time: CPUs multiply bf16 in pairs of
/// neighbouring steps, and those of two channels lie alike for every position.
fn is_in_pairs(weight: Var<'_>) -> bool {
    let shape = weight.shape();
    let is_wide = shape[3..].iter().any(|n| *n != 1);
    weight.dtype() == DType::BF16
        && is_wide
        && shape[2].number().is_some_and(|n| n > 0 && n % 2 == 0)
}

/// `[.., pair of channels, position in a window.., channel of the pair, ..]` of
/// `[.., channel, position in a window.., ..]`, whose channels are axis 2.
fn channels_in_pairs<'t>(x: Var<'t>, positions: usize) -> Var<'t> {
    let shape = x.shape();
    let pairs = [shape[2] / Size::from(2), Size::from(2)];
    let apart = shape[..2].iter().copied().chain(pairs).chain(shape[3..].iter().copied());
    let (first, behind) = (4, 4 + positions as i64);
    let order =
        [0, 1, 2].into_iter().chain(first..behind).chain([3]).chain(behind..x.rank() as i64 + 1);
    x.reshape_to(&apart.collect()).permute(order.collect::<Vec<i64>>())
}

/// The gradient of the weight of a convolution of `x` whose result has the gradient `dy`.
pub(super) fn weight_gradient<'t>(
    x: Var<'t>,
    dy: Var<'t>,
    kernel: &[i64],
    moves: &Moves<'_>,
) -> Var<'t> {
    if is_by_line(x, dy, kernel, moves) {
        return by_line(x, dy, kernel, moves);
    }
    let (x_shape, dy_shape) = (x.shape(), dy.shape());
    let axes = kernel.len() as i64;
    // Windows of one position are seen as others are, so that neither factor is copied to have
    // batches and windows along one axis. A single window needs no copy.
    let count = &dy_shape[3..];
    let seen = if count.iter().all(|n| *n == 1) {
        windowed(x, kernel, moves, count)
    } else {
        x.windows(kernel, count, moves.stride, moves.dilation, moves.low)
    };
    // Group, then batch and windows, then channel and positions in a window.
    let order: Vec<i64> =
        [1, 0].into_iter().chain(3 + axes..3 + 2 * axes).chain([2]).chain(3..3 + axes).collect();
    let sums: Size = dy_shape[0] * dy_shape[3..].iter().product::<Size>();
    let sizes = kernel.iter().map(|n| Size::from(*n));
    let terms = x_shape[2] * sizes.clone().product::<Size>();
    let seen = seen.permute(&order).reshape_to(&Shape::new(&[x_shape[1], sums, terms]));
    let order: Vec<i64> = [1, 2, 0].into_iter().chain(3..3 + axes).collect();
    let dy = dy.permute(&order).reshape_to(&Shape::new(&[dy_shape[1], dy_shape[2], sums]));
    let dw = multiplied(dy, seen, false);
    let lead = [x_shape[1], dy_shape[2], x_shape[2]];
    dw.reshape_to(&lead.into_iter().chain(sizes).collect())
}

/// True if each window of a line has sums of its own in the gradient of a weight: of depthwise
/// convolutions whose windows are three by three positions, and no more than two apart. No size
/// decides: so a size that is a name has the bits of its number.
fn is_by_line(x: Var<'_>, dy: Var<'_>, kernel: &[i64], moves: &Moves<'_>) -> bool {
    let is_depthwise = x.size(1) != 1 && x.size(2) == 1 && dy.size(2) == 1;
    let is_near = matches!(moves.stride, [1, 1] | [2, 2]) && moves.dilation == [1, 1];
    is_depthwise && kernel == [3, 3] && is_near && dy.dtype().is_float()
}

/// As [`weight_gradient`], where the sums of a window in a line go through examples and lines, and
/// those of all windows in a line are added up. So vectors go along lines, which need not be
/// turned.
fn by_line<'t>(x: Var<'t>, dy: Var<'t>, kernel: &[i64], moves: &Moves<'_>) -> Var<'t> {
    let (shape, groups) = (dy.shape(), dy.size(1));
    let (lines, windows) = (shape[0] * shape[3], shape[4]);
    let taps = kernel.iter().map(|n| Size::from(*n));
    let (all, one) = (taps.clone().product::<Size>(), Size::from(1));
    // Window of a line, group, then example and line, then position in a window: what is added up
    // lies far apart, and vectors go through what lies between.
    let seen = x.windows(kernel, &shape[3..], moves.stride, moves.dilation, moves.low);
    let seen = seen.permute([6, 1, 0, 5, 2, 3, 4].as_slice());
    let seen = seen.reshape_to(&Shape::new(&[windows, groups, lines, all]));
    let numbers = dy.permute([4, 1, 2, 0, 3].as_slice());
    let numbers = numbers.reshape_to(&Shape::new(&[windows, groups, one, lines]));
    let sums = multiplied(numbers, seen, true).reshape_to(&Shape::new(&[windows, groups * all]));
    let dw = sums.sum([0].as_slice()).to(dy.dtype());
    dw.reshape_to(&[groups, one, one].into_iter().chain(taps).collect())
}

/// The gradient of the operand of a convolution, whose axes have these sizes, for the gradient `dy`
/// of its result; in f32 for 16-bit floats if `wide`.
pub(super) fn input_gradient<'t>(
    dy: Var<'t>,
    weight: Var<'t>,
    moves: &Moves<'_>,
    sizes: &[Size],
    wide: bool,
) -> Var<'t> {
    if is_in_one(dy, weight, moves, wide) {
        return in_one(dy, weight, moves, sizes);
    }
    in_phases(dy, weight, moves, sizes, wide)
}

/// The same, phase by phase: positions of the operand whose numbers differ by a stride see the same
/// positions of a window. Each such *phase* is a convolution of `dy` with that part of the weight,
/// so nothing is multiplied by a zero between elements.
pub(super) fn in_phases<'t>(
    dy: Var<'t>,
    weight: Var<'t>,
    moves: &Moves<'_>,
    sizes: &[Size],
    wide: bool,
) -> Var<'t> {
    let kernel = kernel_of(weight);
    let axes = kernel.len();
    let phases: Vec<Vec<Phase>> = (0..axes)
        .map(|i| {
            let [stride, dilation, low] = [moves.stride[i], moves.dilation[i], moves.low[i]];
            let all = sizes[i].number().map_or(stride, |size| size.min(stride));
            (0..all).map(|at| Phase::of(at, kernel[i], [stride, dilation, low])).collect()
        })
        .collect();
    let counts: Vec<Size> =
        (0..axes).map(|i| (sizes[i] + (moves.stride[i] - 1)) / moves.stride[i]).collect();
    let mut dx = assembled(dy, weight, (&phases, &counts), &mut Vec::new(), wide);
    for (i, size) in sizes.iter().enumerate() {
        if counts[i] * phases[i].len() != *size {
            dx = dx.slice(3 + i as i64, 0, *size, 1);
        }
    }
    dx
}

/// True if a kernel computes all phases in one: of windows that are two apart along the last axis,
/// and no more along the other. Left to phases are convolutions of a few planes, but several, since
/// the kernel goes across planes of the result in vectors, and those of one position, most of whose
/// phases are zeros.
fn is_in_one(dy: Var<'_>, weight: Var<'_>, moves: &Moves<'_>, wide: bool) -> bool {
    let axes = moves.stride.len();
    let is_depthwise = dy.size(2) == 1 && weight.size(2) == 1;
    let is_wide = weight.shape()[3..].iter().any(|n| *n != 1);
    let has_planes = weight.size(2).number().is_some_and(|planes| planes >= SOME_PLANES);
    let by_two = moves.stride[axes - 1] == 2 && moves.stride[0] <= 2 && axes <= 2;
    let is_as_wide = dy.dtype().is_float() && !(wide && dy.dtype().is_low());
    let fits = is_depthwise || has_planes && is_wide;
    fits && by_two && is_as_wide && moves.dilation.iter().all(|n| *n == 1)
}

/// All phases. Groups lie in memory as they do in the operands of convolutions, so that none is
/// copied.
fn in_one<'t>(dy: Var<'t>, weight: Var<'t>, moves: &Moves<'_>, sizes: &[Size]) -> Var<'t> {
    let (from, kernel) = (dy.shape(), weight.shape());
    let groups = kernel[0].number().expect("the sizes of a weight are numbers");
    let merged = |shape: &Shape, axis: usize| -> Shape {
        let lead = shape[..axis].iter().copied().chain([shape[axis] * shape[axis + 1]]);
        lead.chain(shape[axis + 2..].iter().copied()).collect()
    };
    let (x, windows) = (dy.reshape_to(&merged(&from, 1)), weight.reshape_to(&merged(&kernel, 0)));
    let dx = x.convolution_transpose(windows, groups, sizes, moves.stride, moves.low);
    let lead = [from[0], kernel[0], kernel[2]];
    dx.reshape_to(&lead.into_iter().chain(sizes.iter().copied()).collect())
}

/// What the positions of an axis see that are a stride apart.
struct Phase {
    /// The first position of a window that they see, and each how far from the one before.
    first: i64,
    step: i64,
    /// How many they see.
    count: i64,
    /// How windows over the gradient of the result move: one after another, backwards by this, from
    /// this position on.
    dilation: i64,
    low: i64,
}

impl Phase {
    /// Of the positions `at`, `at + stride`, and so on. Position `h` sees position `k` of window
    /// `o` where `h = o * stride + k * dilation - low`.
    fn of(at: i64, kernel: i64, [stride, dilation, low]: [i64; 3]) -> Phase {
        let step = stride / gcd(stride, dilation);
        let first = (0..kernel.min(step)).find(|k| (at + low - k * dilation) % stride == 0);
        let first_or_end = first.unwrap_or(kernel);
        Phase {
            first: first_or_end,
            step,
            count: (kernel - first_or_end + step - 1) / step,
            dilation: -(step * dilation / stride),
            low: -(at + low - first_or_end * dilation).div_euclid(stride),
        }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The gradient at the phases chosen so far and at all of the axes behind these:
/// `[batch, group, channel, (count, 1).., size..]`, a count for each axis that is chosen already,
/// and for each other all its positions, whose phases lie in order: so what the next axis puts
/// together is whole lines.
fn assembled<'t>(
    dy: Var<'t>,
    weight: Var<'t>,
    (phases, counts): (&[Vec<Phase>], &[Size]),
    chosen: &mut Vec<usize>,
    wide: bool,
) -> Var<'t> {
    let axis = chosen.len();
    if axis == phases.len() {
        let chosen: Vec<&Phase> = phases.iter().zip(chosen).map(|(all, at)| &all[*at]).collect();
        return one_phase(dy, weight, &chosen, counts, wide);
    }
    let dtype = if wide { dy.dtype().compute() } else { dy.dtype() };
    // By the number of leading axes that are split, and the phases of the last of these.
    let shape = |apart: usize, last: usize| -> Shape {
        let lead = [dy.size(0), dy.size(1), weight.size(2)];
        let own = |i: usize| Size::from(if i + 1 == apart { last } else { 1 });
        let pairs = (0..apart).flat_map(|i| [counts[i], own(i)]);
        let merged = (apart..counts.len()).map(|i| counts[i] * phases[i].len());
        lead.into_iter().chain(pairs).chain(merged).collect()
    };
    let zeros =
        |unseen: usize| dy.tracer().full(TensorType { dtype, shape: shape(axis + 1, unseen) }, 0.0);
    let mut parts: Vec<Var<'t>> = Vec::new();
    let mut unseen = 0;
    for (at, phase) in phases[axis].iter().enumerate() {
        if phase.count == 0 {
            unseen += 1;
            continue;
        }
        if unseen > 0 {
            parts.push(zeros(unseen));
            unseen = 0;
        }
        chosen.push(at);
        parts.push(assembled(dy, weight, (phases, counts), chosen, wide));
        chosen.pop();
    }
    if unseen > 0 || parts.is_empty() {
        parts.push(zeros(unseen));
    }
    let all = if parts.len() == 1 { parts[0] } else { cat(&parts, 3 + 2 * axis as i64 + 1) };
    all.reshape_to(&shape(axis, 1))
}

/// A convolution of the gradient of the result with a part of the weight:
/// `[batch, group, channel, (count, 1)..]`.
fn one_phase<'t>(
    dy: Var<'t>,
    weight: Var<'t>,
    phases: &[&Phase],
    counts: &[Size],
    wide: bool,
) -> Var<'t> {
    let lead = [dy.size(0), dy.size(1), weight.size(2)];
    let apart = counts.iter().flat_map(|n| [*n, Size::from(1)]);
    let shape: Shape = lead.into_iter().chain(apart).collect();
    let mut part = weight;
    for (i, Phase { first, step, count, .. }) in phases.iter().enumerate() {
        let end = first + (count - 1) * step + 1;
        if *step != 1 || *first != 0 || part.size(3 + i) != *count {
            part = part.slice(3 + i as i64, *first, end, *step);
        }
    }
    let order: Vec<i64> = [0, 2, 1].into_iter().chain(3..3 + phases.len() as i64).collect();
    let (stride, dilation) = (vec![1; phases.len()], phases.iter().map(|p| p.dilation));
    let (dilation, low): (Vec<i64>, Vec<i64>) =
        (dilation.collect(), phases.iter().map(|p| p.low).collect());
    let moves = Moves { stride: &stride, dilation: &dilation, low: &low };
    correlated(dy, part.permute(&order), &moves, counts, wide, None).reshape_to(&shape)
}

/// The sizes of the windows of a weight.
pub(super) fn kernel_of(weight: Var<'_>) -> Vec<i64> {
    let sizes = weight.shape();
    sizes[3..].iter().map(|n| n.number().expect("the sizes of a weight are numbers")).collect()
}

/// `[batch, group, channel, position in the window.., window..]`.
fn windowed<'t>(x: Var<'t>, kernel: &[i64], moves: &Moves<'_>, count: &[Size]) -> Var<'t> {
    let shape = x.shape();
    let is_whole = kernel.iter().all(|n| *n == 1)
        && moves.stride.iter().all(|n| *n == 1)
        && moves.low.iter().all(|n| *n == 0)
        && shape[3..] == *count;
    if is_whole {
        let ones = kernel.iter().map(|_| Size::from(1));
        let sizes = shape[..3].iter().copied().chain(ones).chain(count.iter().copied());
        return x.reshape_to(&sizes.collect());
    }
    x.windows(kernel, count, moves.stride, moves.dilation, moves.low)
}

/// The product of matrices, of 16-bit floats in f32 if `wide`.
fn multiplied<'t>(a: Var<'t>, b: Var<'t>, wide: bool) -> Var<'t> {
    if wide && a.dtype().is_low() { a.contract(b, Some(DType::F32)) } else { product(a, b) }
}

/// With the bias of each channel added, and rounded to that dtype.
pub(super) fn biased<'t>(y: Var<'t>, bias: Option<Var<'t>>, dtype: DType) -> Var<'t> {
    let Some(bias) = bias else { return y.to(dtype) };
    let ones = (3..y.rank()).map(|_| Size::from(1));
    let shape: Shape = [y.size(1), y.size(2)].into_iter().chain(ones).collect();
    y.add(bias.to(y.dtype()).reshape_to(&shape)).to(dtype)
}
