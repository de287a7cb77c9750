//! `batch_norm` and its gradient: channels shifted and scaled by the statistics of a batch, or by
//! given ones.
//!
//! Sums go over the positions of each example first and over the examples then. So a batch is read
//! once for its statistics, and the sums of squares are of distances from a mean, which loses no
//! digits.

use super::activation::same_type;
use crate::op::{
    Dispatch, Domain, ExpandCx, FLOATS, GradCx, Grads, InferCx, Inferred, Rounding, composite, rule,
};
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::ops::reduce::Reductions;
use crate::ops::view::Views;
use crate::{DType, IntoDims, Must, Number, Results, Shape, Size, TensorType, Var};
use smallvec::smallvec;

crate::ops! { trait BatchNorms;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` for each channel, which is axis 1 of `x`;
/// and the mean and the variance, in f32 for 16-bit floats:
/// [`torch.nn.functional.batch_norm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.batch_norm.html).
///
/// With `training` the statistics are those of `x`, the variance divided by the count, and
/// `running_mean` and `running_var` are not read. Else they are these two. No gradient reaches
/// them. The other operands have the dtype of `x`, or f32 beside 16-bit floats.
BATCH_NORM = batch_norm(x, weight: optional, bias: optional, running_mean: optional, running_var: optional; training: Bool, eps: Float) -> (y, mean, variance) {
    infer:    &inferred,
    body:     composite(Some(rule(&gradient)), &forward),
    rounding: Rounding::result("`y` once; each gradient once"),
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[3, 2, 5], T[2], T[2] {training = true, eps = 1e-3}",
        "T[4, 3, 2, 3], T[3], T[3] {training = true, eps = 1e-3}",
        "T[5, 3], T[3], T[3] {training = true, eps = 1e-3}",
        "T[1, 3, 9] {training = true, eps = 1e-3}",
        "T[2, 3, 5], T[3], T[3], T[3], T[3] > 0 {training = false, eps = 1e-3}",
        "bf16[3, 2, 5], f32[2], f32[2] {training = true, eps = 1e-3}",
    ] },
}

/// The gradients of [`BATCH_NORM`] from its operand and the statistics it gave: with
/// `x^ = (x - mean) / sqrt(variance + eps)`, `dweight` and `dbias` are the sums of `dy * x^` and of
/// `dy` for each channel, and `dx` is `(dy - mean(dy) - x^ * mean(dy * x^)) * weight /
/// sqrt(variance + eps)`; without `training` the two means are left out.
BATCH_NORM_BACKWARD = batch_norm_backward(dy, x, mean, variance, weight: optional; training: Bool, eps: Float) -> (dx, dweight, dbias) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let x = cx.operand(1);
        same_type(cx.must, cx.operand(0), x)?;
        let expected = statistics_type(x)?;
        need_statistics(cx, &expected, ["mean", "variance"])?;
        let dtype = of_channels(cx.must, x, expected.shape[0], &[(cx.get(4), "weight")])?;
        let scale = TensorType { dtype, shape: expected.shape };
        Ok(Inferred::many([x.clone(), scale.clone(), scale]))
    },
    body:     composite(None, &backward),
    rounding: Rounding::result("each result"),
    domain:   Domain { dtypes: &[DType::F32, DType::F64], samples: &[
        "T[3, 2, 5], T[3, 2, 5], T[2], T[2] > 0, T[2] {training = true, eps = 1e-3}",
        "T[5, 3], T[5, 3], T[3], T[3] > 0 {training = true, eps = 1e-3}",
        "T[2, 3, 4], T[2, 3, 4], T[3], T[3] > 0, T[3] {training = false, eps = 1e-3}",
        "bf16[3, 2, 5], bf16[3, 2, 5], f32[2], f32[2] > 0, f32[2] {training = true, eps = 1e-3}",
    ] },
}
}

/// The type of the statistics of the channels of `x`.
fn statistics_type(x: &TensorType) -> Result<TensorType, String> {
    infer::need_float(x)?;
    let channels = match &x.shape[..] {
        [_, channels, ..] => *channels,
        // PyTorch takes nothing in any shape.
        [nothing] if *nothing == 0 => *nothing,
        _ => return Err(format!("takes examples of channels, found {x}")),
    };
    Ok(TensorType { dtype: x.dtype.compute(), shape: Shape::new(&[channels]) })
}

/// The dtype of the operands that are present, or else of `x`: each has a number for every channel.
pub(super) fn of_channels(
    must: &Must<'_>,
    x: &TensorType,
    channels: Size,
    operands: &[(Option<&TensorType>, &str)],
) -> Result<DType, String> {
    let mut dtype: Option<DType> = None;
    for (operand, name) in operands {
        let Some(t) = operand else { continue };
        let fits = t.dtype == x.dtype || x.dtype.is_low() && t.dtype == DType::F32;
        let agrees = *dtype.get_or_insert(t.dtype) == t.dtype;
        if !must.alike(&t.shape, &[channels]) || !fits || !agrees {
            let expected = dtype.filter(|_| fits).unwrap_or(x.dtype);
            let expected = TensorType { dtype: expected, shape: Shape::new(&[channels]) };
            return Err(format!("`{name}` is {t}, expected {expected}"));
        }
    }
    Ok(dtype.unwrap_or(x.dtype))
}

fn inferred(cx: &InferCx<'_>) -> infer::Answer {
    let x = cx.operand(0);
    let statistics = statistics_type(x)?;
    let channels = statistics.shape[0];
    of_channels(cx.must, x, channels, &[(cx.get(1), "weight"), (cx.get(2), "bias")])?;
    let running = [(cx.get(3), "running_mean"), (cx.get(4), "running_var")];
    of_channels(cx.must, x, channels, &running)?;
    if !cx.attrs.bool("training")
        && let Some((_, name)) = running.iter().find(|(operand, _)| operand.is_none())
    {
        return Err(format!("takes `{name}` unless it trains"));
    }
    Ok(Inferred::many([x.clone(), statistics.clone(), statistics]))
}

/// Examples, channels, and positions as one axis if `x` has any: without them there is no row to
/// add up first.
fn layout(x: &TensorType) -> Shape {
    match &x.shape[..] {
        [examples, channels] => Shape::new(&[*examples, *channels]),
        [examples, channels, positions @ ..] => {
            Shape::new(&[*examples, *channels, positions.iter().product()])
        }
        _ => Shape::new(&[Size::from(1), x.numel()]),
    }
}

/// A number for each channel beside `x`, which is laid out so.
fn beside<'t>(channels: Var<'t>, x: Var<'t>) -> Var<'t> {
    let (one, count) = (Size::from(1), channels.ty().numel());
    channels.reshape_to(&Shape::new(&[one, count, one][..x.rank()]))
}

/// For each channel the sum over examples and positions; positions first, then examples as a row.
fn total(x: Var<'_>) -> Var<'_> {
    if x.rank() == 2 {
        return x.sum(0);
    }
    let of_examples = x.sum(2);
    if x.size(0) == 1 {
        return of_examples.reshape_to(&Shape::new(&[x.size(1)]));
    }
    of_examples.permute([1, 0]).sum(1)
}

/// How many elements a channel has.
fn count(shape: &Shape) -> Number {
    (shape[0] * shape[2..].iter().product::<Size>()).into()
}

/// A mean plus the mean distance from it, or plus nothing if there are infinities. Rounding moves a
/// mean of equal numbers, and their distances would be divided by the root of `eps`.
fn corrected<'t>(mean: Var<'t>, of_distances: Var<'t>) -> Var<'t> {
    let zero = mean.tracer().zeros_like(mean);
    mean.add(of_distances.eq(of_distances).choose(of_distances, zero))
}

/// The mean and the variance of each channel.
fn statistics<'t>(x: Var<'t>) -> (Var<'t>, Var<'t>) {
    let shape = x.shape();
    if shape[0] == 1 || shape.rank() == 2 {
        let mean_of = |x| total(x).div(count(&shape));
        let mean = mean_of(x);
        let away = x.sub(beside(mean, x));
        return (corrected(mean, mean_of(away)), mean_of(away.mul(away)));
    }
    // What each example has to say of a channel: its mean and the squared distances from that.
    let own = x.mean([2].keep());
    let away = x.sub(own);
    let squares = away.mul(away).sum(2).permute([1, 0]);
    let own = corrected(own, away.mean([2].keep()));
    let own = own.reshape_to(&Shape::new(&shape[..2])).permute([1, 0]);
    let mean = own.mean(1);
    let apart = own.sub(mean.reshape_to(&Shape::from(crate::sizes![shape[1], 1])));
    let mean = corrected(mean, apart.mean(1));
    let variance = squares.add(apart.mul(apart).mul(shape[2])).sum(1);
    (mean, variance.div(count(&shape)))
}

/// One over the deviation, and that times the weight.
fn scales<'t>(variance: Var<'t>, eps: f64, weight: Option<Var<'t>>) -> [Var<'t>; 2] {
    let rstd = variance.add(eps).rsqrt();
    [rstd, weight.map_or(rstd, |weight| rstd.mul(weight))]
}

fn forward<'t>(cx: &ExpandCx<'_, 't>) -> Results<'t> {
    let x = cx.args[0].reshape_to(&layout(&cx.args[0].ty()));
    let is_training = cx.attrs.bool("training");
    let given = cx.get(3).zip(cx.get(4)).filter(|_| !is_training);
    let (mean, variance) = given.unwrap_or_else(|| statistics(x));
    let [_, scale] = scales(variance, cx.attrs.float("eps").unwrap_or(0.0), cx.get(1));
    let y = if is_training {
        let y = x.sub(beside(mean, x)).mul(beside(scale, x));
        cx.get(2).map_or(y, |bias| y.add(beside(bias, x)))
    } else {
        // As PyTorch: numbers of channels first, so that an element is multiplied once and moved
        // once.
        let shift = mean.mul(scale);
        let shift = cx.get(2).map_or_else(|| shift.neg(), |bias| bias.sub(shift));
        x.mul(beside(scale, x)).add(beside(shift, x))
    };
    [y, mean, variance].iter().zip(cx.results).map(|(v, t)| v.reshape_to(&t.shape)).collect()
}

/// What depends on the channel alone is computed for each channel and not for each element.
fn backward<'t>(cx: &ExpandCx<'_, 't>) -> Results<'t> {
    let shape = layout(&cx.args[1].ty());
    let (dy, x) = (cx.args[0].reshape_to(&shape), cx.args[1].reshape_to(&shape));
    let away = x.sub(beside(cx.args[2], x));
    let [rstd, scale] = scales(cx.args[3], cx.attrs.float("eps").unwrap_or(0.0), cx.get(4));
    let dbias = total(dy);
    let dweight = total(dy.mul(away)).mul(rstd);
    let mut dx = dy.mul(beside(scale, x));
    if cx.attrs.bool("training") {
        let slope = dweight.mul(rstd).div(count(&shape)).mul(scale);
        let shift = dbias.div(count(&shape)).mul(scale);
        dx = dx.sub(away.mul(beside(slope, x))).sub(beside(shift, x));
    }
    [dx, dweight, dbias].iter().zip(cx.results).map(|(v, t)| v.reshape_to(&t.shape)).collect()
}

fn gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (x, mean, variance) = (cx.args[0], cx.outs[1], cx.outs[2]);
    let (is_training, eps) = (cx.attrs.bool("training"), cx.attrs.float("eps").unwrap_or(0.0));
    let mut grads = gradients_of_norm(cx, |dy| {
        dy.batch_norm_backward(x, mean, variance, cx.get(1), is_training, eps).results()
    });
    if !is_training {
        return grads;
    }
    // The statistics are results too: gradients of gradients arrive here.
    let shape = layout(&x.ty());
    let wide = x.to(mean.dtype()).reshape_to(&shape);
    let of_mean = cx.dys[1].map(|d| beside(d, wide).div(count(&shape)));
    let of_variance = cx.dys[2].map(|d| {
        let slope = beside(d, wide).mul(2.0).div(count(&shape));
        wide.sub(beside(mean, wide)).mul(slope)
    });
    add_parts(&mut grads, [of_mean, of_variance], |part| {
        part.expand_to(&shape).reshape_to(&x.shape()).to(x.dtype())
    });
    grads
}

/// Fails unless operands 2 and 3 of a norm's gradient are statistics of that type.
pub(super) fn need_statistics(
    cx: &InferCx<'_>,
    expected: &TensorType,
    names: [&str; 2],
) -> Result<(), String> {
    for (i, name) in (2..).zip(names) {
        if same_type(cx.must, cx.operand(i), expected).is_err() {
            return Err(format!("`{name}` is {}, expected {expected}", cx.operand(i)));
        }
    }
    Ok(())
}

/// The gradients of a norm's operand, weight and bias, those of them that are present, from the
/// results of its backward op.
pub(super) fn gradients_of_norm<'t>(
    cx: &GradCx<'_, 't>,
    backward: impl FnOnce(Var<'t>) -> Results<'t>,
) -> Grads<'t> {
    let mut grads: Grads<'t> = smallvec![None; cx.args.len()];
    if let Some(results) = cx.dys[0].map(backward)
        && let [dx, dweight, dbias] = results[..]
    {
        grads[0] = Some(dx);
        let scales = [(cx.get(1), dweight), (cx.get(2), dbias)];
        let present = scales.iter().filter_map(|(operand, d)| Some(((*operand)?, *d)));
        for (grad, (operand, d)) in grads[1..].iter_mut().zip(present) {
            *grad = Some(d.to(operand.dtype()));
        }
    }
    grads
}

/// Adds what reaches a norm's operand through its statistics.
pub(super) fn add_parts<'t>(
    grads: &mut Grads<'t>,
    parts: [Option<Var<'t>>; 2],
    as_operand: impl Fn(Var<'t>) -> Var<'t>,
) {
    for part in parts.into_iter().flatten().map(as_operand) {
        grads[0] = Some(grads[0].map_or(part, |dx| dx.add(part)));
    }
}
