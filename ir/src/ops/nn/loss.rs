//! Losses: `nll_loss`, `cross_entropy_loss`, `mse_loss`.
//!
//! Classes are picked by comparing positions with the target, not by an index: the comparison, the
//! sum along the classes and a `log_softmax` before them are one pass over each row.

use crate::op::{
    Dispatch, Domain, ExpandCx, FLOATS, Facts, InferCx, Inferred, Intrinsic, Rounding, composite,
    composite_own, rule,
};
use crate::ops::elementwise::Elementwise;
use crate::ops::index::Indexing;
use crate::ops::infer;
use crate::ops::nn::Softmaxes;
use crate::ops::reduce::Reductions;
use crate::{Attrs, IntoDims, Must, Number, Results, Shape, Size, TensorType, Var};
use smallvec::{SmallVec, smallvec};

/// The target that does not count, if the attribute `ignore_index` does not name another.
pub const IGNORED: i64 = -100;

crate::ops! { trait Losses;

/// Minus the element of `logp` that `target` picks along the classes, times the class's `weight`,
/// averaged over the weights; and the sum of the weights counted, in f32 for 16-bit floats.
///
/// The classes are axis 1, or the only axis. `target` has the other axes. `reduction` is `"mean"`
/// (the default), `"sum"` or `"none"`. Elements whose target is `ignore_index` (-100 by default) do
/// not count; another target out of range is a data error. A mean over nothing is NaN.
NLL_LOSS = nll_loss(logp, target, weight: optional; reduction: OptStr, ignore_index: OptInt) -> (loss, total) {
    infer:    &|cx| {
        let logp = cx.operand(0);
        let reduction = Reduction::of(cx.attrs)?;
        classified(cx)?;
        let shape = if reduction == Reduction::None { cx.operand(1).shape.clone() } else { Shape::scalar() };
        Ok(Inferred::many([TensorType { dtype: logp.dtype, shape }, TensorType::scalar(logp.dtype.compute())]))
    },
    body:     composite(
        Some(rule(&|cx| {
            let (logp, target) = (cx.args[0], cx.args[1]);
            let classes = logp.size(class_axis(logp.rank()));
            let (reduction, ignored) = (cx.attrs.str("reduction"), cx.attrs.int("ignore_index"));
            let mut grads = smallvec![None; cx.args.len()];
            if let Some(dy) = cx.dys[0] {
                grads[0] = Some(dy.nll_loss_backward(target, cx.outs[1], cx.get(2), classes, reduction, ignored));
            }
            grads
        })),
        &|cx| picked(cx),
    ),
    rounding: Rounding::result("the loss; the gradient once"),
    facts:    Facts::new().intrinsic(Intrinsic::Loss),
    domain:   Domain { dtypes: FLOATS, samples: &["T[4, 7], i64[4] in 0 7", "T[4, 7], i64[4] in 0 7, T[7] > 0 {reduction = \"mean\", ignore_index = 3}", "T[5, 3], i32[5] in 0 3 {reduction = \"none\"}", "T[2, 5, 3], i64[2, 3] in 0 5, T[5] > 0 {reduction = \"sum\"}", "T[7], i64[] in 0 7"] },
}

/// The gradient of [`NLL_LOSS`] for `logp`, which has `classes` classes, from the gradient of the
/// loss and the sum of weights it gave.
NLL_LOSS_BACKWARD = nll_loss_backward(dy, target, total, weight: optional; classes: Size, reduction: OptStr, ignore_index: OptInt) -> (dlogp) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let (dy, target, total) = (cx.operand(0), cx.operand(1), cx.operand(2));
        infer::need_float(dy)?;
        infer::need_index(target)?;
        let expected = if Reduction::of(cx.attrs)? == Reduction::None { target.shape.clone() } else { Shape::scalar() };
        if !cx.must.alike(&dy.shape, &expected) || *total != TensorType::scalar(dy.dtype.compute()) {
            return Err(format!("`dy` is {dy}, `total` {total}, expected shapes {expected} and []"));
        }
        let classes = infer::sizes(cx.must, &[cx.attrs.size("classes").expect("required")])?[0];
        let mut sizes: SmallVec<[Size; 4]> = target.shape.iter().copied().collect();
        sizes.insert(sizes.len().min(1), classes);
        weighs(cx.must, cx.get(3), &TensorType::new(dy.dtype, [classes]))?;
        Ok(Inferred::one(TensorType::new(dy.dtype, &sizes[..])))
    },
    body:     composite(None, &|cx| {
        let (dy, target, total) = (cx.args[0], cx.args[1], cx.args[2]);
        let shape = &cx.results[0].shape;
        let axis = class_axis(shape.rank());
        let mut slope = dy.neg();
        match Reduction::of(cx.attrs) {
            Ok(Reduction::Mean) => slope = slope.div(total),
            Ok(Reduction::None) => slope = slope.unsqueeze(axis as i64),
            _ => {}
        }
        if let Some(weight) = cx.get(3) {
            slope = slope.mul(along_classes(weight, shape.rank()));
        }
        let counts = target.ne(ignored(cx.attrs) as f64).unsqueeze(axis as i64);
        let hot = target.one_hot(axis, shape[axis]).logical_and(counts);
        let zero = cx.tracer.full(TensorType::scalar(slope.dtype()), 0.0);
        smallvec![hot.choose(slope, zero)]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: &[crate::DType::F32], samples: &["T[], i64[4] in 0 7, T[] > 0 {classes = 7}", "T[], i64[4] in 0 7, T[] > 0, T[7] > 0 {classes = 7, reduction = \"sum\"}", "bf16[5], i32[5] in 0 3, f32[] > 0 {classes = 3, reduction = \"none\"}", "f16[2, 3], i64[2, 3] in 0 5, f32[] > 0, f16[5] > 0 {classes = 5, reduction = \"none\", ignore_index = 2}"] },
}

/// [`NLL_LOSS`] of the [`log_softmax`](super::softmax::LOG_SOFTMAX) of `x`.
///
/// `label_smoothing` mixes the target with an even choice among the classes. A floating point
/// `target` of the shape of `x` is taken as probabilities of the classes; then a mean is over the
/// elements of one class.
CROSS_ENTROPY_LOSS = cross_entropy_loss(x, target, weight: optional; reduction: OptStr, ignore_index: OptInt, label_smoothing: OptFloat) -> (loss) {
    dispatch: Dispatch::ListedOrExpands { overload: "" },
    infer:    &|cx| {
        let (x, target) = (cx.operand(0), cx.operand(1));
        let reduction = Reduction::of(cx.attrs)?;
        let smoothing = cx.attrs.float("label_smoothing").unwrap_or(0.0);
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(format!("`label_smoothing` is {smoothing}, expected 0 to 1"));
        }
        let each = if is_probabilities(x, target) {
            infer::need_float(x)?;
            let axis = class_axis(x.shape.rank());
            if x.shape.rank() == 0 {
                return Err(format!("`x` is {x}, expected an axis of classes"));
            }
            weighs(cx.must, cx.get(2), &TensorType::new(x.dtype, [x.shape[axis]]))?;
            x.shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, &n)| n).collect()
        } else {
            classified(cx)?;
            target.shape.clone()
        };
        let shape = if reduction == Reduction::None { each } else { Shape::scalar() };
        Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
    },
    body:     composite_own(None, &|cx| smallvec![cross_entropy(cx)]),
    rounding: Rounding::parts("as its parts"),
    facts:    Facts::new().intrinsic(Intrinsic::Loss),
    domain:   Domain { dtypes: FLOATS, samples: &["T[4, 7], i64[4] in 0 7", "T[4, 7], i64[4] in 0 7, T[7] > 0 {label_smoothing = 0.1, ignore_index = 3}", "T[5, 3], i32[5] in 0 3 {reduction = \"none\", label_smoothing = 0.2}", "T[2, 5, 3], i64[2, 3] in 0 5 {reduction = \"sum\"}", "T[4, 7], T[4, 7] in 0 1, T[7] > 0", "T[7], i64[] in 0 7"] },
}

/// The squared difference of `x` and `target`, averaged. `reduction` is `"mean"` (the default),
/// `"sum"` or `"none"`.
MSE_LOSS = mse_loss(x, target; reduction: OptStr) -> (loss) {
    infer:    &|cx| {
        let mut inferred = infer::float_arithmetic(cx)?;
        if Reduction::of(cx.attrs)? != Reduction::None {
            inferred.results[0].shape = Shape::scalar();
        }
        Ok(inferred)
    },
    body:     composite(None, &|cx| {
        let gap = cx.args[0].sub(cx.args[1]);
        let each = gap.mul(gap);
        smallvec![match Reduction::of(cx.attrs) {
            Ok(Reduction::Mean) => each.mean(()),
            Ok(Reduction::Sum) => each.sum(()),
            _ => each,
        }]
    }),
    rounding: Rounding::result("the result; each gradient once"),
    facts:    Facts::new().intrinsic(Intrinsic::Loss).takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]", "T[3, 5], T[5] {reduction = \"none\"}", "T[7], T[7] {reduction = \"sum\"}"] },
}
}

/// How the losses of the elements become one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reduction {
    None,
    Mean,
    Sum,
}

impl Reduction {
    pub(super) fn of(attrs: &Attrs) -> Result<Self, String> {
        match attrs.str("reduction").unwrap_or("mean") {
            "none" => Ok(Reduction::None),
            "mean" => Ok(Reduction::Mean),
            "sum" => Ok(Reduction::Sum),
            other => {
                Err(format!("`reduction` is {other:?}, expected \"none\", \"mean\" or \"sum\""))
            }
        }
    }
}

/// The axis of the classes.
fn class_axis(rank: usize) -> usize {
    usize::from(rank > 1)
}

fn ignored(attrs: &Attrs) -> i64 {
    attrs.int("ignore_index").unwrap_or(IGNORED)
}

fn is_probabilities(x: &TensorType, target: &TensorType) -> bool {
    target.dtype.is_float() && target.shape == x.shape
}

/// Checks scores, a target index for each of their classes, and class weights.
fn classified(cx: &InferCx<'_>) -> Result<(), String> {
    let (x, target) = (cx.operand(0), cx.operand(1));
    infer::need_float(x)?;
    infer::need_index(target)?;
    let axis = class_axis(x.shape.rank());
    let Some(&classes) = x.shape.get(axis) else {
        return Err(format!("the scores are {x}, expected an axis of classes"));
    };
    let expected: Shape =
        x.shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, &n)| n).collect();
    if !cx.must.alike(&target.shape, &expected) {
        return Err(format!(
            "`target` is {target}, expected shape {expected}: that of {x} without its classes"
        ));
    }
    weighs(cx.must, cx.get(2), &TensorType::new(x.dtype, [classes]))
}

fn weighs(
    must: &Must<'_>,
    weight: Option<&TensorType>,
    expected: &TensorType,
) -> Result<(), String> {
    let fits = |w: &TensorType| w.dtype == expected.dtype && must.alike(&w.shape, &expected.shape);
    match weight {
        Some(w) if !fits(w) => Err(format!("`weight` is {w}, expected {expected}")),
        _ => Ok(()),
    }
}

/// A number for each class, lined up with the classes of a tensor of that many axes.
fn along_classes(weight: Var<'_>, rank: usize) -> Var<'_> {
    let mut sizes: SmallVec<[Size; 4]> = smallvec![weight.ty().numel()];
    sizes.resize(rank - class_axis(rank), Size::from(1));
    weight.reshape_to(&Shape::new(&sizes))
}

/// `nll_loss`: the loss and the sum of the weights that counted.
fn picked<'t>(cx: &ExpandCx<'_, 't>) -> Results<'t> {
    let (logp, target) = (cx.args[0], cx.args[1]);
    let (axis, wide) = (class_axis(logp.rank()), logp.dtype());
    let classes = logp.size(axis);
    let target = target.check_range(0, classes, Some(ignored(cx.attrs)));
    let hot = target.one_hot(axis, classes);
    let zero = cx.tracer.full(TensorType::scalar(wide), 0.0);
    let pick = |x: Var<'t>| hot.choose(x, zero).sum(axis as i64);
    let counts = target.ne(ignored(cx.attrs) as f64);
    let (each, share) = match cx.get(2) {
        None => (pick(logp).neg(), counts.to(wide)),
        Some(weight) => {
            let share = pick(along_classes(weight, logp.rank()));
            (pick(logp).neg().mul(share), counts.choose(share, zero))
        }
    };
    let (each, total) = (counts.choose(each, zero), share.sum(()));
    let loss = match Reduction::of(cx.attrs) {
        Ok(Reduction::None) => each,
        Ok(Reduction::Sum) => each.sum(()),
        _ => each.sum(()).div(total),
    };
    smallvec![loss, total]
}

/// `cross_entropy_loss` as PyTorch expands it; `log_softmax` is asked for the dtype of `x`,
/// whatever the policy.
fn cross_entropy<'t>(cx: &ExpandCx<'_, 't>) -> Var<'t> {
    let (x, target, weight) = (cx.args[0], cx.args[1], cx.get(2));
    let axis = class_axis(x.rank());
    let smoothing = cx.attrs.float("label_smoothing").unwrap_or(0.0);
    let even = Number::Ratio(smoothing, x.size(axis));
    let logp = x.log_softmax([axis as i64].dtype(x.dtype()));
    if is_probabilities(&x.ty(), &target.ty()) {
        let target = if smoothing > 0.0 { (target * (1.0 - smoothing)).add(even) } else { target };
        return expected(cx, logp, target);
    }
    let loss =
        logp.nll_loss(target, weight, cx.attrs.str("reduction"), cx.attrs.int("ignore_index"));
    if smoothing == 0.0 {
        return loss;
    }
    let weighted = weight.map_or(logp, |w| logp * along_classes(w, logp.rank()));
    let each = -weighted.sum(axis as i64);
    let counts = target.ne(ignored(cx.attrs) as f64);
    let each = counts.choose(each, cx.tracer.full(TensorType::scalar(each.dtype()), 0.0));
    let smooth = match Reduction::of(cx.attrs) {
        Ok(Reduction::None) => each,
        Ok(Reduction::Sum) => each.sum(()),
        _ => each.sum(()) / loss.result(1).to(each.dtype()),
    };
    loss * (1.0 - smoothing) + smooth.mul(even)
}

/// Cross entropy with probabilities as the target.
fn expected<'t>(cx: &ExpandCx<'_, 't>, logp: Var<'t>, target: Var<'t>) -> Var<'t> {
    let axis = class_axis(logp.rank());
    let terms = logp * target;
    let terms = cx.get(2).map_or(terms, |w| terms * along_classes(w, logp.rank()));
    match Reduction::of(cx.attrs) {
        Ok(Reduction::None) => -terms.sum(axis as i64),
        Ok(Reduction::Sum) => -terms.sum(()),
        _ => {
            let each: Shape =
                (0..logp.rank()).filter(|i| *i != axis).map(|i| logp.size(i)).collect();
            let count = match (logp.ty().numel().number(), logp.size(axis).number()) {
                (Some(all), Some(classes)) => Number::F64(all as f64 / classes.max(1) as f64),
                _ => Number::Size(each.numel()),
            };
            (-terms.sum(())).div(count)
        }
    }
}
