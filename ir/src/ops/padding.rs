//! Tensors surrounded by elements of their own, under the names that PyTorch's policies know: a
//! table may list them, and then no policy is asked about their parts.
//!
//! `padding` are the positions before and behind the last axis, then those of the one before it,
//! and so on.

use super::elementwise::Elementwise;
use super::infer;
use super::view::Views;
use crate::op::{ANY, Dispatch, Domain, ExpandCx, InferCx, Inferred, Rounding, composite_own};
use crate::{DType, Results, Shape, Size, TensorType, Var};
use smallvec::smallvec;

/// What stands around a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// This number.
    Constant(f64),
    /// The elements mirrored at the ends, which are not repeated.
    Reflect,
    /// The ends.
    Replicate,
    /// The elements from the other end.
    Circular,
}

const LISTED_OR_EXPANDS: Dispatch = Dispatch::ListedOrExpands { overload: "" };
const MOVED: Rounding = Rounding::nowhere("nowhere; the gradient adds up in f32");

crate::ops! { trait Paddings;

/// The last axis with its elements mirrored at the ends:
/// [`torch.nn.ReflectionPad1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReflectionPad1d.html).
REFLECTION_PAD1D = reflection_pad1d(x; padding: Ints) -> (y) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| larger(cx, 1, PadMode::Reflect),
    body:     composite_own(None, &|cx| surrounded(cx, PadMode::Reflect)),
    rounding: MOVED,
    domain:   Domain { dtypes: ANY, samples: &["T[2, 5] {padding = [2, 1]}"] },
}

/// The last two axes with their elements mirrored at the ends:
/// [`torch.nn.ReflectionPad2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReflectionPad2d.html).
REFLECTION_PAD2D = reflection_pad2d(x; padding: Ints) -> (y) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| larger(cx, 2, PadMode::Reflect),
    body:     composite_own(None, &|cx| surrounded(cx, PadMode::Reflect)),
    rounding: MOVED,
    domain:   Domain { dtypes: ANY, samples: &["T[2, 3, 4] {padding = [1, 2, 0, 1]}"] },
}

/// The last three axes with their elements mirrored at the ends:
/// [`torch.nn.ReflectionPad3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReflectionPad3d.html).
REFLECTION_PAD3D = reflection_pad3d(x; padding: Ints) -> (y) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| larger(cx, 3, PadMode::Reflect),
    body:     composite_own(None, &|cx| surrounded(cx, PadMode::Reflect)),
    rounding: MOVED,
    domain:   Domain { dtypes: ANY, samples: &["T[1, 2, 3, 2] {padding = [1, 1, 2, 0, 0, 1]}"] },
}

/// The last axis with its ends repeated:
/// [`torch.nn.ReplicationPad1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReplicationPad1d.html).
REPLICATION_PAD1D = replication_pad1d(x; padding: Ints) -> (y) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| larger(cx, 1, PadMode::Replicate),
    body:     composite_own(None, &|cx| surrounded(cx, PadMode::Replicate)),
    rounding: MOVED,
    domain:   Domain { dtypes: ANY, samples: &["T[2, 5] {padding = [2, 1]}"] },
}

/// The last two axes with their ends repeated:
/// [`torch.nn.ReplicationPad2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReplicationPad2d.html).
REPLICATION_PAD2D = replication_pad2d(x; padding: Ints) -> (y) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| larger(cx, 2, PadMode::Replicate),
    body:     composite_own(None, &|cx| surrounded(cx, PadMode::Replicate)),
    rounding: MOVED,
    domain:   Domain { dtypes: ANY, samples: &["T[2, 3, 4] {padding = [1, 2, 0, -1]}"] },
}

/// The last three axes with their ends repeated:
/// [`torch.nn.ReplicationPad3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ReplicationPad3d.html).
REPLICATION_PAD3D = replication_pad3d(x; padding: Ints) -> (y) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| larger(cx, 3, PadMode::Replicate),
    body:     composite_own(None, &|cx| surrounded(cx, PadMode::Replicate)),
    rounding: MOVED,
    domain:   Domain { dtypes: ANY, samples: &["T[1, 2, 3, 2] {padding = [1, 1, 2, 0, 0, 1]}"] },
}
}

/// The positions before and behind each axis, in order of the axes.
fn sides(x: &TensorType, sizes: &[i64], mode: PadMode) -> Result<Vec<[i64; 2]>, String> {
    let (pairs, rank) = (sizes.len() / 2, x.shape.rank());
    if sizes.len() % 2 == 1 || pairs > rank {
        return Err(format!("{sizes:?} are no pairs for {rank} axes"));
    }
    if let Some(n) = sizes.iter().find(|n| n.unsigned_abs() > Size::MAX as u64 / 2) {
        return Err(format!("{n} positions more or less"));
    }
    let mut sides = vec![[0, 0]; rank];
    for (pair, side) in sizes.chunks(2).zip(sides.iter_mut().rev()) {
        *side = [pair[0], pair[1]];
    }
    for (axis, &[before, behind]) in sides.iter().enumerate() {
        if [before, behind] != [0, 0] {
            check_side(x, axis, [before, behind], mode)?;
        }
    }
    Ok(sides)
}

/// Fails if more is to be cut than an axis has, or more to be repeated than it can give.
fn check_side(
    x: &TensorType,
    axis: usize,
    [before, behind]: [i64; 2],
    mode: PadMode,
) -> Result<(), String> {
    let n = infer::pinned(x, axis)?;
    if before + behind + n < 0 || before.min(0) + behind.min(0) + n < 0 {
        return Err(format!("{before} and {behind} cut more than axis {axis} has"));
    }
    let most = match mode {
        PadMode::Constant(_) => return Ok(()),
        PadMode::Reflect => n - 1,
        // What is cut off is not repeated.
        PadMode::Circular => n + before.min(0) + behind.min(0),
        PadMode::Replicate if n == 0 => 0,
        PadMode::Replicate => i64::MAX,
    };
    if before.max(behind).max(0) > most.max(0) && !(x.numel() == 0 && n > 0) {
        return Err(format!("{before} and {behind} are more than axis {axis} can give"));
    }
    Ok(())
}

/// The type of a tensor that `pairs` of its last axes surround.
fn larger(cx: &InferCx<'_>, pairs: usize, mode: PadMode) -> infer::Answer {
    let (x, sizes) = (cx.operand(0), cx.attrs.ints("padding"));
    if sizes.len() != 2 * pairs || ![pairs + 1, pairs + 2].contains(&x.shape.rank()) {
        return Err(format!(
            "`padding` is {sizes:?}, expected {pairs} pairs for {} or {} axes",
            pairs + 1,
            pairs + 2
        ));
    }
    let sides = sides(x, sizes, mode)?;
    let grown = x.shape.iter().zip(&sides).map(|(n, [before, behind])| *n + (before + behind));
    Ok(Inferred::one(TensorType { dtype: x.dtype, shape: grown.collect() }))
}

fn surrounded<'t>(cx: &ExpandCx<'_, 't>, mode: PadMode) -> Results<'t> {
    let (x, sizes) = (cx.args[0], cx.attrs.ints("padding"));
    smallvec![x.surrounded(sizes, mode).unwrap_or_else(|why| cx.tracer.fail("padding", why))]
}

impl<'t> Var<'t> {
    /// Surrounded along its last axes, whatever policies say.
    ///
    /// # Errors
    /// If the sizes are no pairs for its axes, or an axis cannot give as much.
    pub(crate) fn surrounded(self, sizes: &[i64], mode: PadMode) -> Result<Var<'t>, String> {
        let sides = sides(&self.ty(), sizes, mode)?;
        if let PadMode::Constant(value) = mode {
            return Ok(self.among_numbers(&sides, value));
        }
        let mut y = self;
        for (axis, &[before, behind]) in sides.iter().enumerate() {
            if mode == PadMode::Circular {
                // What is cut off is not repeated.
                y = y.cut(axis, before, behind).extended(axis, before.max(0), behind.max(0), mode);
            } else {
                y = y.extended(axis, before.max(0), behind.max(0), mode).cut(axis, before, behind);
            }
        }
        Ok(y)
    }

    fn among_numbers(self, sides: &[[i64; 2]], value: f64) -> Var<'t> {
        let cut = |y: Var<'t>, (axis, side): (usize, &[i64; 2])| y.cut(axis, side[0], side[1]);
        let y = sides.iter().enumerate().fold(self, cut);
        let of = |i: usize| sides.iter().map(|side| side[i].max(0)).collect::<Vec<i64>>();
        let (low, high) = (of(0), of(1));
        if low.iter().chain(&high).any(|n| *n > 0) { y.pad(&low, &high, value) } else { y }
    }

    /// Without as many positions at the ends of an axis as the numbers lie below zero.
    fn cut(self, axis: usize, before: i64, behind: i64) -> Var<'t> {
        if before >= 0 && behind >= 0 {
            return self;
        }
        let end = self.size(axis) - behind.min(0).unsigned_abs();
        self.slice(axis as i64, -before.min(0), end, 1)
    }

    /// With elements of its own before and behind along an axis.
    fn extended(self, axis: usize, before: i64, behind: i64, mode: PadMode) -> Var<'t> {
        if before == 0 && behind == 0 {
            return self;
        }
        let n = self.size(axis).number().unwrap_or(0);
        if self.ty().numel() == 0 && n > 0 {
            let mut sizes = self.shape().to_vec();
            sizes[axis] = Size::from(before + n + behind);
            return self.reshape_to(&Shape::new(&sizes));
        }
        let t = self.tracer();
        let at = t.iota(DType::I64, Shape::new(&[before + n + behind]), 0);
        let at = at.sub(before as f64);
        let number = |v: i64| t.full(at.ty(), v as f64);
        let last = (n - 1) as f64;
        let index = match mode {
            PadMode::Reflect => at.abs().sub(last).abs().rsub(last),
            PadMode::Circular => {
                let behind = at.ge(n as f64);
                behind.choose(at.sub(n as f64), at).wrapped(n)
            }
            _ => at.maximum(number(0)).minimum(number(n - 1)),
        };
        self.picked(axis, index)
    }
}
