//! `layer_norm` and its gradient.

use super::activation::same_type;
use super::batch_norm::{add_parts, gradients_of_norm, need_statistics};
use crate::op::{
    Dispatch, Domain, ExpandCx, FLOATS, GradCx, Grads, InferCx, Inferred, Rounding, composite, rule,
};
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::ops::reduce::Reductions;
use crate::{Attrs, DType, IntoDims, Must, Shape, Size, TensorType, Var};

crate::ops! { trait Norms;

/// `(x - mean) * rstd * weight + bias` over the last axes, those of `normalized_shape`, with
/// `rstd = 1 / sqrt(variance + eps)`; and the mean and `rstd`, in f32 for 16-bit floats.
///
/// The variance is that of the population. `weight` and `bias` have the shape `normalized_shape`
/// and the dtype of `x`, or f32 beside 16-bit floats.
LAYER_NORM = layer_norm(x, weight: optional, bias: optional; normalized_shape: Sizes, eps: Float) -> (y, mean, rstd) {
    infer:    &|cx| {
        let x = cx.operand(0);
        let statistics = statistics(cx.must, x, cx.attrs)?;
        scales(cx, &[(1, "weight"), (2, "bias")])?;
        Ok(Inferred::many([x.clone(), statistics.clone(), statistics]))
    },
    body:     composite(Some(rule(&gradient)), &forward),
    rounding: Rounding::result("`y` once; each gradient once"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 7], T[7], T[7] {normalized_shape = [7], eps = 1e-5}", "T[3, 7] {normalized_shape = [7], eps = 1e-5}", "T[2, 3, 5], T[3, 5], T[3, 5] {normalized_shape = [3, 5], eps = 1e-3}", "T[4, 33], T[33] {normalized_shape = [33], eps = 1e-5}", "bf16[3, 7], f32[7], f32[7] {normalized_shape = [7], eps = 1e-5}"] },
}

/// The gradients of [`LAYER_NORM`] from its operand and the two statistics it gave: with
/// `x^ = (x - mean) * rstd` and `g = dy * weight`, `dx = rstd * (g - mean(g) - x^ * mean(g * x^))`;
/// `dweight` and `dbias` are `dy * x^` and `dy` summed over the other axes.
LAYER_NORM_BACKWARD = layer_norm_backward(dy, x, mean, rstd, weight: optional; normalized_shape: Sizes) -> (dx, dweight, dbias) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let x = cx.operand(1);
        same_type(cx.must, cx.operand(0), x)?;
        let expected = statistics(cx.must, x, cx.attrs)?;
        need_statistics(cx, &expected, ["mean", "rstd"])?;
        scales(cx, &[(4, "weight")])?;
        let dtype = cx.get(4).map_or(x.dtype, |w| w.dtype);
        let scale = TensorType { dtype, shape: infer::sizes(cx.must, &cx.attrs.sizes("normalized_shape"))? };
        Ok(Inferred::many([x.clone(), scale.clone(), scale]))
    },
    body:     composite(None, &backward),
    rounding: Rounding::result("each result"),
    domain:   Domain { dtypes: &[DType::F32, DType::F64], samples: &["T[3, 7], T[3, 7], T[3, 1], T[3, 1] > 0, T[7] {normalized_shape = [7]}", "T[2, 3, 5], T[2, 3, 5], T[2, 1, 1], T[2, 1, 1] > 0 {normalized_shape = [3, 5]}", "bf16[3, 7], bf16[3, 7], f32[3, 1], f32[3, 1] > 0, bf16[7] {normalized_shape = [7]}", "f16[3, 7], f16[3, 7], f32[3, 1], f32[3, 1] > 0, f32[7] {normalized_shape = [7]}"] },
}
}

/// The type of the mean, with sizes of 1 for the normalised axes.
fn statistics(must: &Must<'_>, x: &TensorType, attrs: &Attrs) -> Result<TensorType, String> {
    infer::need_float(x)?;
    let last = infer::sizes(must, &attrs.sizes("normalized_shape"))?;
    let mine = x.shape.len().checked_sub(last.rank()).map(|outer| &x.shape[outer..]);
    if last.rank() == 0 || !mine.is_some_and(|mine| must.alike(mine, &last)) {
        return Err(format!("`normalized_shape` is {last}, expected the last axes of {x}"));
    }
    let outer = x.shape.rank() - last.rank();
    let one = Size::from(1);
    let sizes = x.shape.iter().enumerate().map(|(i, &n)| if i < outer { n } else { one });
    let shape = sizes.collect();
    Ok(TensorType { dtype: x.dtype.compute(), shape })
}

/// Fails unless the operands that are present have the normalised shape and a fitting dtype.
fn scales(cx: &InferCx<'_>, operands: &[(usize, &str)]) -> Result<(), String> {
    let x = if cx.groups.len() == 5 { cx.operand(1) } else { cx.operand(0) };
    let shape = infer::sizes(cx.must, &cx.attrs.sizes("normalized_shape"))?;
    let mut dtype: Option<DType> = None;
    for (i, name) in operands {
        let Some(t) = cx.get(*i) else { continue };
        let fits = t.dtype == x.dtype || x.dtype.is_low() && t.dtype == DType::F32;
        if !cx.must.alike(&t.shape, &shape) || !fits || *dtype.get_or_insert(t.dtype) != t.dtype {
            let expected = TensorType { dtype: dtype.filter(|_| fits).unwrap_or(x.dtype), shape };
            return Err(format!("`{name}` is {t}, expected {expected}"));
        }
    }
    Ok(())
}

/// The other axes as one and the normalised axes as one.
fn rows(x: &TensorType, attrs: &Attrs) -> Shape {
    let last = attrs.sizes("normalized_shape");
    let outer = x.shape.rank() - last.len();
    Shape::new(&[x.shape[..outer].iter().product::<Size>(), last.iter().product()])
}

/// One number for each position of a row.
fn one_row(x: Var<'_>) -> Var<'_> {
    x.reshape_to(&Shape::from(crate::sizes![1, x.ty().numel()]))
}

fn forward<'t>(cx: &ExpandCx<'_, 't>) -> crate::Results<'t> {
    let x = cx.args[0].reshape_to(&rows(&cx.args[0].ty(), cx.attrs));
    let mean = x.mean([1].keep());
    let centred = x.sub(mean);
    let variance = centred.mul(centred).mean([1].keep());
    let root = variance.add(cx.attrs.float("eps").expect("required")).rsqrt();
    // NaN if the variance is infinite: zeros would look like equal numbers.
    let rstd = root.add(variance.mul(0.0));
    let mut y = centred.mul(rstd);
    if let Some(weight) = cx.get(1) {
        y = y.mul(one_row(weight));
    }
    if let Some(bias) = cx.get(2) {
        y = y.add(one_row(bias));
    }
    [y, mean, rstd].iter().zip(cx.results).map(|(v, t)| v.reshape_to(&t.shape)).collect()
}

fn backward<'t>(cx: &ExpandCx<'_, 't>) -> crate::Results<'t> {
    let shape = rows(&cx.args[1].ty(), cx.attrs);
    let one = Shape::from(crate::sizes![shape[0], 1]);
    let (dy, x) = (cx.args[0].reshape_to(&shape), cx.args[1].reshape_to(&shape));
    let (mean, rstd) = (cx.args[2].reshape_to(&one), cx.args[3].reshape_to(&one));
    let normal = x.sub(mean).mul(rstd);
    let g = cx.get(4).map_or(dy, |weight| dy.mul(one_row(weight)));
    let along = g.mul(normal).mean([1].keep());
    let dx = g.sub(g.mean([1].keep())).sub(normal.mul(along)).mul(rstd);
    let dweight = dy.mul(normal).sum(0);
    let dbias = dy.sum(0);
    [dx, dweight, dbias].iter().zip(cx.results).map(|(v, t)| v.reshape_to(&t.shape)).collect()
}

fn gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (x, mean, rstd) = (cx.args[0], cx.outs[1], cx.outs[2]);
    let mut grads = gradients_of_norm(cx, |dy| {
        let shape = cx.attrs.sizes("normalized_shape");
        dy.layer_norm_backward(x, mean, rstd, cx.get(1), &shape).results()
    });
    // The statistics are results too: gradients of gradients arrive here.
    let n = rows(&x.ty(), cx.attrs)[1];
    let wide = x.to(mean.dtype());
    let through_mean = cx.dys[1].map(|d| d.div(n));
    let through_rstd = cx.dys[2].map(|d| {
        let cube = rstd.mul(rstd).mul(rstd);
        wide.sub(mean).mul(d.mul(cube).div(-n))
    });
    add_parts(&mut grads, [through_mean, through_rstd], |part| {
        part.expand_to(&x.shape()).to(x.dtype())
    });
    grads
}
