//! `group_norm` and its gradient: channels in groups, each of which is shifted and scaled by its
//! own statistics in each example.

use super::activation::same_type;
use super::batch_norm::{add_parts, gradients_of_norm, need_statistics, of_channels};
use crate::op::{
    Dispatch, Domain, ExpandCx, FLOATS, GradCx, Grads, Inferred, Rounding, composite, rule,
};
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::ops::reduce::Reductions;
use crate::{Attrs, DType, IntoDims, Number, Results, Shape, Size, TensorType, Var};

crate::ops! { trait GroupNorms;

/// `(x - mean) * rstd * weight + bias` with the mean and `rstd = 1 / sqrt(variance + eps)` of each
/// of `num_groups` groups of channels in each example; and the mean and `rstd`,
/// `[examples, groups]`, in f32 for 16-bit floats:
/// [`torch.nn.functional.group_norm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.group_norm.html).
///
/// Channels are axis 1 of `x`. `weight` and `bias` have a number for each, in the dtype of `x`, or
/// f32 beside 16-bit floats.
GROUP_NORM = group_norm(x, weight: optional, bias: optional; num_groups: Int, eps: Float) -> (y, mean, rstd) {
    infer:    &|cx| {
        let x = cx.operand(0);
        let statistics = statistics_type(x, cx.attrs)?;
        let scales = [(cx.get(1), "weight"), (cx.get(2), "bias")];
        of_channels(cx.must, x, x.shape[1], &scales)?;
        Ok(Inferred::many([x.clone(), statistics.clone(), statistics]))
    },
    body:     composite(Some(rule(&gradient)), &forward),
    rounding: Rounding::result("`y` once; each gradient once"),
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 4, 3], T[4], T[4] {num_groups = 2, eps = 1e-3}",
        "T[2, 3, 2, 5], T[3], T[3] {num_groups = 3, eps = 1e-3}",
        "T[3, 6], T[6] {num_groups = 2, eps = 1e-3}",
        "T[2, 4, 3] {num_groups = 1, eps = 1e-3}",
        "bf16[2, 4, 3], f32[4], f32[4] {num_groups = 2, eps = 1e-3}",
    ] },
}

/// The gradients of [`GROUP_NORM`] from its operand and the two statistics it gave: with
/// `x^ = (x - mean) * rstd` and `g = dy * weight`, `dx = rstd * (g - mean(g) - x^ * mean(g * x^))`
/// with the means over a group; `dweight` and `dbias` are `dy * x^` and `dy` summed for each
/// channel.
GROUP_NORM_BACKWARD = group_norm_backward(dy, x, mean, rstd, weight: optional; num_groups: Int) -> (dx, dweight, dbias) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let x = cx.operand(1);
        same_type(cx.must, cx.operand(0), x)?;
        let expected = statistics_type(x, cx.attrs)?;
        need_statistics(cx, &expected, ["mean", "rstd"])?;
        let dtype = of_channels(cx.must, x, x.shape[1], &[(cx.get(4), "weight")])?;
        let scale = TensorType { dtype, shape: Shape::new(&[x.shape[1]]) };
        Ok(Inferred::many([x.clone(), scale.clone(), scale]))
    },
    body:     composite(None, &backward),
    rounding: Rounding::result("each result"),
    domain:   Domain { dtypes: &[DType::F32, DType::F64], samples: &[
        "T[2, 4, 3], T[2, 4, 3], T[2, 2], T[2, 2] > 0, T[4] {num_groups = 2}",
        "T[2, 3, 5], T[2, 3, 5], T[2, 3], T[2, 3] > 0 {num_groups = 3}",
        "bf16[2, 4, 3], bf16[2, 4, 3], f32[2, 2], f32[2, 2] > 0, f32[4] {num_groups = 2}",
    ] },
}
}

/// The type of the statistics: one of each group of each example.
fn statistics_type(x: &TensorType, attrs: &Attrs) -> Result<TensorType, String> {
    infer::need_float(x)?;
    let groups = attrs.int("num_groups").unwrap_or(1);
    let [examples, _, ..] = x.shape[..] else {
        return Err(format!("takes examples of channels, found {x}"));
    };
    let count = infer::pinned(x, 1)?;
    if groups < 1 || count < 1 || count % groups != 0 {
        return Err(format!("{groups} groups do not divide the {count} channels of {x}"));
    }
    Ok(TensorType { dtype: x.dtype.compute(), shape: Shape::new(&[examples, Size::from(groups)]) })
}

/// Examples, groups, channels of a group, positions.
fn layout(x: &TensorType, groups: Size) -> Shape {
    let positions = x.shape[2..].iter().product();
    Shape::new(&[x.shape[0], groups, x.shape[1] / groups, positions])
}

/// Numbers of groups beside [`layout`].
fn of_groups<'t>(x: Var<'t>, shape: &Shape) -> Var<'t> {
    x.reshape_to(&Shape::from(crate::sizes![shape[0], shape[1], 1, 1]))
}

/// How many elements a group has.
fn count(shape: &Shape) -> Number {
    (shape[2] * shape[3]).into()
}

fn forward<'t>(cx: &ExpandCx<'_, 't>) -> Results<'t> {
    let groups = cx.results[1].shape[1];
    let shape = layout(&cx.args[0].ty(), groups);
    let rows = Shape::new(&[shape[0], shape[1], shape[2] * shape[3]]);
    let x = cx.args[0].reshape_to(&rows);
    let mean = x.mean([2].keep());
    let away = x.sub(mean);
    let variance = away.mul(away).mean([2].keep());
    let root = variance.add(cx.attrs.float("eps").unwrap_or(0.0)).rsqrt();
    // NaN if the variance is infinite: zeros would look like equal numbers.
    let rstd = root.add(variance.mul(0.0));
    // A row of one channel is finished where it was measured.
    let y = if shape[2] == 1 {
        let row = |v: Var<'t>| v.reshape_to(&Shape::from(crate::sizes![1, shape[1], 1]));
        let y = away.mul(rstd);
        let y = cx.get(1).map_or(y, |weight| y.mul(row(weight)));
        cx.get(2).map_or(y, |bias| y.add(row(bias)))
    } else {
        let x = cx.args[0].reshape_to(&channels(&shape));
        let [mean, rstd] = [mean, rstd].map(|v| of_channel(v, &shape));
        let y = x.sub(mean).mul(rstd);
        let y = cx.get(1).map_or(y, |weight| y.mul(beside(weight)));
        cx.get(2).map_or(y, |bias| y.add(beside(bias)))
    };
    [y, mean, rstd].iter().zip(cx.results).map(|(v, t)| v.reshape_to(&t.shape)).collect()
}

/// Examples, channels, positions.
fn channels(shape: &Shape) -> Shape {
    Shape::new(&[shape[0], shape[1] * shape[2], shape[3]])
}

/// Numbers of channels beside [`channels`].
fn beside(x: Var<'_>) -> Var<'_> {
    x.reshape_to(&Shape::from(crate::sizes![1, x.ty().numel(), 1]))
}

/// Numbers of groups for each of their channels, beside [`channels`].
fn of_channel<'t>(x: Var<'t>, shape: &Shape) -> Var<'t> {
    let each = x.reshape_to(&Shape::from(crate::sizes![shape[0], shape[1], 1]));
    let each = each.expand_to(&Shape::new(&shape[..3]));
    each.reshape_to(&Shape::from(crate::sizes![shape[0], shape[1] * shape[2], 1]))
}

fn backward<'t>(cx: &ExpandCx<'_, 't>) -> Results<'t> {
    let shape = layout(&cx.args[1].ty(), cx.args[2].size(1));
    let [_, groups, of_group, _] = shape[..] else { return Results::new() };
    let (dy, x) = (cx.args[0].reshape_to(&shape), cx.args[1].reshape_to(&shape));
    let normal = x.sub(of_groups(cx.args[2], &shape)).mul(of_groups(cx.args[3], &shape));
    // Of each channel of each example: what the other sums are made of.
    let (shift, slope) = (dy.sum(3), dy.mul(normal).sum(3));
    let in_group = |v: Var<'t>| {
        let row = |w: Var<'t>| w.reshape_to(&Shape::from(crate::sizes![1, groups, of_group]));
        let v = cx.get(4).map_or(v, |weight| v.mul(row(weight)));
        v.sum(2).div(count(&shape))
    };
    let [along, across, mean, rstd] =
        [in_group(shift), in_group(slope), cx.args[2], cx.args[3]].map(|v| of_channel(v, &shape));
    let (dy, x) =
        (cx.args[0].reshape_to(&channels(&shape)), cx.args[1].reshape_to(&channels(&shape)));
    let normal = x.sub(mean).mul(rstd);
    let dy = cx.get(4).map_or(dy, |weight| dy.mul(beside(weight)));
    let dx = dy.sub(along).sub(normal.mul(across)).mul(rstd);
    let (dweight, dbias) = (slope.sum(0), shift.sum(0));
    [dx, dweight, dbias].iter().zip(cx.results).map(|(v, t)| v.reshape_to(&t.shape)).collect()
}

fn gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (x, mean, rstd) = (cx.args[0], cx.outs[1], cx.outs[2]);
    let mut grads = gradients_of_norm(cx, |dy| {
        let groups = cx.attrs.int("num_groups").unwrap_or(1);
        dy.group_norm_backward(x, mean, rstd, cx.get(1), groups).results()
    });
    // The statistics are results too: gradients of gradients arrive here.
    let shape = layout(&x.ty(), mean.size(1));
    let wide = x.to(mean.dtype()).reshape_to(&shape);
    let of_mean = cx.dys[1].map(|d| of_groups(d, &shape).div(count(&shape)));
    let of_rstd = cx.dys[2].map(|d| {
        let cube = rstd.mul(rstd).mul(rstd);
        let slope = of_groups(d.mul(cube).neg(), &shape).div(count(&shape));
        wide.sub(of_groups(mean, &shape)).mul(slope)
    });
    add_parts(&mut grads, [of_mean, of_rstd], |part| {
        part.expand_to(&shape).reshape_to(&x.shape()).to(x.dtype())
    });
    grads
}
