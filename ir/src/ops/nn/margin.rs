//! Losses of rows: margins between classes, and distances of embeddings.
//!
//! `reduction` is `"mean"` (the default), `"sum"` or `"none"` everywhere.

use super::loss::Reduction;
use crate::op::{
    Domain, ExpandCx, FLOATS, Facts, InferCx, Inferred, Intrinsic, Rounding, composite,
};
use crate::ops::elementwise::Elementwise;
use crate::ops::index::Indexing;
use crate::ops::infer;
use crate::ops::length::Lengths;
use crate::ops::reduce::Reductions;
use crate::ops::view::Views;
use crate::{DType, Results, Shape, Size, TensorType, Var};
use smallvec::smallvec;

const ROUNDED: Rounding = Rounding::result("the loss; each gradient once");
const LOSS: Facts = Facts::new().intrinsic(Intrinsic::Loss);

crate::ops! { trait Margins;

/// The mean over the other classes of `max(0, margin - x[target] + x[class])^p`, times the weight
/// of the target; `p` is 1 or 2:
/// [`torch.nn.functional.multi_margin_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.multi_margin_loss.html).
MULTI_MARGIN_LOSS = multi_margin_loss(x, target, weight: optional; p: OptFloat, margin: OptFloat, reduction: OptStr) -> (loss) {
    infer:    &|cx| {
        let (x, target) = (&classes_of(cx.operand(0)), cx.operand(1));
        let p = cx.attrs.float("p").unwrap_or(1.0);
        if p != 1.0 && p != 2.0 {
            return Err(format!("`p` is {p}, expected 1 or 2"));
        }
        let outer = outer_of(x)?;
        infer::need_elements(cx.must, x, &[x.shape.rank() - 1])?;
        if target.dtype != DType::I64 || target.numel() != outer.numel() || target.shape.rank() > 1 {
            return Err(format!("`target` is {target}, expected i64{outer} beside {x}"));
        }
        if let Some(weight) = cx.get(2).filter(|w| w.dtype != x.dtype || w.shape[..] != x.shape[x.shape.rank() - 1..]) {
            return Err(format!("`weight` is {weight}, expected one number for each class of {x}"));
        }
        of_rows(cx, x.dtype, target.shape.clone())
    },
    body:     composite(None, &|cx| {
        let x = as_rows(cx.args[0]);
        let (rows, classes) = (x.size(0), x.size(1));
        let target = cx.args[1].reshape_to(&Shape::new(&[rows, 1.into()]));
        let own = x.gather(target, 1);
        let gap = above_zero(own.rsub(cx.attrs.float("margin").unwrap_or(1.0)).add(x));
        let gap = if cx.attrs.float("p") == Some(2.0) { gap.mul(gap) } else { gap };
        let is_own = cx.tracer.iota(DType::I64, Shape::new(&[1.into(), classes]), 1).eq(target);
        let mut each = is_own.choose(cx.tracer.zeros_like(gap), gap);
        if let Some(weight) = cx.get(2) {
            let all = weight.unsqueeze(0).expand_to(&x.shape());
            each = each.mul(all.gather(target, 1));
        }
        finish(cx, each.mean(1), &cx.args[1].shape())
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], i64[3] in 0 5", "T[3, 5], i64[3] in 0 5, T[5] > 0 {p = 2.0, margin = 0.5}"] },
}

/// For rows of labels that end at the first one below zero: the sum over labels and classes that
/// are none of `max(0, 1 - x[label] + x[class])`, by the number of classes:
/// [`torch.nn.functional.multilabel_margin_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.multilabel_margin_loss.html).
MULTILABEL_MARGIN_LOSS = multilabel_margin_loss(x, target; reduction: OptStr) -> (loss) {
    infer:    &|cx| {
        let (x, target) = (&classes_of(cx.operand(0)), &classes_of(cx.operand(1)));
        let outer = outer_of(x)?;
        infer::need_elements(cx.must, x, &[x.shape.rank() - 1])?;
        if target.dtype != DType::I64 || target.shape != x.shape {
            return Err(format!("`target` is {target}, expected i64{}", x.shape));
        }
        of_rows(cx, x.dtype, outer)
    },
    body:     composite(None, &|cx| {
        let (x, target) = (as_rows(cx.args[0]), as_rows(cx.args[1]));
        let (t, classes) = (cx.tracer, x.size(1));
        let places = |dim: usize| {
            let shape = [1.into(), if dim == 1 { classes } else { 1.into() }, if dim == 2 { classes } else { 1.into() }];
            t.iota(DType::I64, Shape::new(&shape), dim)
        };
        // [row, label, earlier label]: whether one up to it is below zero.
        let ended = target.lt(0.0).unsqueeze(1).logical_and(places(2).le(places(1)));
        let ended = ended.amax(2);
        let safe = ended.choose(t.zeros_like(target), target);
        // [row, label, class]
        let named = safe.unsqueeze(2).eq(places(2)).logical_and(ended.logical_not().unsqueeze(2));
        let is_label = named.amax(1);
        let own = x.gather(safe, 1);
        let gap = above_zero(x.unsqueeze(1).sub(own.unsqueeze(2)).add(1.0));
        let is_left_out = ended.unsqueeze(2).logical_or(is_label.unsqueeze(1));
        let each = is_left_out.choose(t.zeros_like(gap), gap).sum(1);
        finish(cx, each.mean(1), &outer_of(&classes_of(&cx.args[0].ty())).unwrap_or(Shape::scalar()))
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], i64[3, 5] in -1 5"] },
}

/// `max(0, margin + d(x, positive) - d(x, negative))` of distances of order `p`; with `swap` the
/// negative is compared with the nearer of the two:
/// [`torch.nn.functional.triplet_margin_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.triplet_margin_loss.html).
TRIPLET_MARGIN_LOSS = triplet_margin_loss(x, positive, negative; margin: OptFloat, p: OptFloat, eps: OptFloat, swap: Bool, reduction: OptStr) -> (loss) {
    infer:    &|cx| {
        if cx.attrs.float("margin").is_some_and(|margin| margin.is_nan() || margin <= 0.0) {
            return Err("`margin` is not above 0".to_owned());
        }
        // Integers wrap before the distance is taken.
        let inferred = infer::arithmetic(cx)?;
        if cx.types.iter().any(|t| t.shape.rank() != cx.types[0].shape.rank()) {
            return Err("the operands have not as many axes".to_owned());
        }
        let y = &inferred.results[0];
        let outer = outer_of_any(y)?;
        let dtype = if y.dtype.is_float() { y.dtype } else { DType::F32 };
        let done = of_rows(cx, dtype, outer)?;
        Ok(Inferred { results: done.results, ..inferred })
    },
    body:     composite(None, &|cx| {
        let (p, eps) = (cx.attrs.float("p").unwrap_or(2.0), cx.attrs.float("eps").unwrap_or(1e-6));
        let (x, positive, negative) = (cx.args[0], cx.args[1], cx.args[2]);
        let near = distance(x, positive, p, eps);
        let mut far = distance(x, negative, p, eps);
        if cx.attrs.bool("swap") {
            far = far.minimum(distance(positive, negative, p, eps));
        }
        let gap = near.sub(far).add(cx.attrs.float("margin").unwrap_or(1.0));
        let shape = gap.shape();
        finish(cx, gap.clamp_to(Some(0.0), None), &shape)
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5], T[3, 5]", "T[3, 5], T[3, 5], T[3, 5] {swap = true, margin = 0.5}"] },
}

/// `1 - cos` of rows whose target is 1, `max(0, cos - margin)` of those whose is -1:
/// [`torch.nn.functional.cosine_embedding_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cosine_embedding_loss.html).
COSINE_EMBEDDING_LOSS = cosine_embedding_loss(x1, x2, target; margin: OptFloat, reduction: OptStr) -> (loss) {
    infer:    &|cx| {
        let (x, other, target) = (cx.operand(0), cx.operand(1), cx.operand(2));
        let outer = outer_of_any(x)?;
        if x.shape != other.shape || target.shape != outer {
            return Err(format!("{x}, {other} and `target` {target}: expected rows of one shape and a target for each"));
        }
        let dtype = infer::promote([x, other].into_iter())?;
        let dtype = if dtype.is_float() { dtype } else { DType::F32 };
        let casts = [Some(dtype), Some(dtype), None].into_iter().zip(cx.types);
        let casts = casts.map(|(to, t)| to.filter(|to| *to != t.dtype)).collect();
        let done = of_rows(cx, dtype, outer)?;
        Ok(Inferred { casts, ..done })
    },
    body:     composite(None, &|cx| {
        let (x, other, target) = (cx.args[0], cx.args[1], cx.args[2]);
        let cos = product(x, other).div(squared(x).mul(squared(other)).sqrt());
        let far = cos.sub(cx.attrs.float("margin").unwrap_or(0.0)).clamp_to(Some(0.0), None);
        let zero = cx.tracer.zeros_like(cos);
        let near = target.eq(1.0).choose(cos.rsub(1.0), zero);
        // No byte is -1.
        let each = match target.dtype() {
            DType::U8 => near,
            _ => near.add(target.eq(-1.0).choose(far, zero)),
        };
        let shape = each.shape();
        finish(cx, each, &shape)
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] != 0, T[3, 5] != 0, T[3]"] },
}
}

/// The norm of order `p` of `a - b + eps` for each row.
fn distance<'t>(a: Var<'t>, b: Var<'t>, p: f64, eps: f64) -> Var<'t> {
    a.sub(b).add(eps).vector_norm(-1, p)
}

/// The product of the vectors along the last axis.
fn product<'t>(a: Var<'t>, b: Var<'t>) -> Var<'t> {
    a.mul(b).sum(-1)
}

/// The square of the length of each row, above zero.
fn squared(a: Var<'_>) -> Var<'_> {
    product(a, a).add(1e-12)
}

/// A tensor without axes is a row of one class.
fn classes_of(x: &TensorType) -> TensorType {
    match x.shape.rank() {
        0 => TensorType::new(x.dtype, [1]),
        _ => x.clone(),
    }
}

/// The axes of one or several rows without the last one, of floats.
fn outer_of(x: &TensorType) -> Result<Shape, String> {
    infer::need_float(x)?;
    if x.shape.rank() > 2 {
        return Err(format!("takes one row or several, found {x}"));
    }
    outer_of_any(x)
}

fn outer_of_any(x: &TensorType) -> Result<Shape, String> {
    match x.shape.split_last() {
        Some((_, outer)) => Ok(Shape::new(outer)),
        None => Err(format!("takes at least one axis, found {x}")),
    }
}

/// The type of a loss of each row, or of their mean or sum.
fn of_rows(cx: &InferCx<'_>, dtype: DType, outer: Shape) -> infer::Answer {
    let is_each = Reduction::of(cx.attrs)? == Reduction::None;
    let shape = if is_each { outer } else { Shape::scalar() };
    Ok(Inferred::one(TensorType { dtype, shape }))
}

/// One row or several as several.
fn as_rows(x: Var<'_>) -> Var<'_> {
    let x = if x.rank() == 0 { x.reshape([1]) } else { x };
    let width = x.size(x.rank() - 1);
    let rows = if x.rank() == 2 { x.size(0) } else { Size::from(1) };
    x.reshape_to(&Shape::new(&[rows, width]))
}

/// The loss of all rows.
fn finish<'t>(cx: &ExpandCx<'_, 't>, each: Var<'t>, outer: &Shape) -> Results<'t> {
    smallvec![match Reduction::of(cx.attrs) {
        Ok(Reduction::None) => each.reshape_to(outer),
        Ok(Reduction::Sum) => each.sum(()),
        _ => each.mean(()),
    }]
}

/// `x` where it is above zero; zero in the place of NaN, as in PyTorch's kernels of margins between
/// classes.
fn above_zero(x: Var<'_>) -> Var<'_> {
    x.gt(0.0).choose(x, x.tracer().zeros_like(x))
}
