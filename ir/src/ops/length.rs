//! Norms of vectors, and tensors brought to a length: `linalg_vector_norm`, `dist`, `cdist`,
//! `cosine_similarity`, `rms_norm`, `renorm`.

use super::elementwise::Elementwise;
use super::infer;
use super::power::Powers;
use super::reduce::{Reductions, reduced, spread};
use crate::op::{Domain, FLOATS, Facts, GradCx, Grads, Inferred, Rounding, composite, rule};
use crate::{DType, IntoDims, Shape, TensorType, Var};
use smallvec::smallvec;

const ROUNDED: Rounding = Rounding::result("the result; each gradient once");

crate::ops! { trait Lengths;

/// The norm of the elements over the axes `dim` (all of them if empty): the `ord`-th root of the
/// sum of their sizes to the power of `ord`, which is 2 if absent; of infinity the largest size, of
/// minus infinity the smallest, of 0 the count of what is not zero:
/// [`torch.linalg.vector_norm`](https://docs.pytorch.org/docs/stable/generated/torch.linalg.vector_norm.html).
LINALG_VECTOR_NORM = vector_norm as "linalg_vector_norm"(x; [dim: Ints, keepdim: Bool, dtype: OptDType], ord: OptFloat) -> (y) {
    infer:    &|cx| {
        let x = cx.operand(0);
        infer::need_float(x)?;
        let dtype = cx.attrs.dtype("dtype").unwrap_or(x.dtype);
        if !dtype.is_float() {
            return Err(format!("`dtype` is {dtype}, expected floating point"));
        }
        if DType::promote(x.dtype, dtype) != Some(dtype) {
            return Err(format!("`dtype` is {dtype}, which does not hold every number of {x}"));
        }
        let p = cx.attrs.float("ord").unwrap_or(2.0);
        if p == f64::INFINITY || p < 0.0 {
            let axes = x.shape.axes(cx.attrs.ints("dim"))?;
            if !axes.iter().all(|&a| cx.must.hold(x.shape[a].at_least(1))) {
                return Err(format!("{x} has no norm of order {p} along an axis of size 0"));
            }
        }
        reduced(cx, dtype)
    },
    body:     composite(Some(rule(&norm_gradient)), &|cx| {
        let (x, p) = (cx.args[0].to(cx.results[0].dtype.compute()), cx.attrs.float("ord").unwrap_or(2.0));
        smallvec![norm(x, p, cx.attrs.ints("dim")).reshape_to(&cx.results[0].shape)]
    }),
    rounding: Rounding::result("the result; each step of the gradient"),
    facts:    Facts::new(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] != 0 {dim = []}", "T[3, 5] != 0 {dim = [1], keepdim = true, ord = 3.0}", "T[3, 5] != 0 {dim = [0], ord = 1.5}", "T[3, 5] != 0 {dim = [0], ord = 1.0}"] },
}

/// The norm of order `p` of the difference:
/// [`torch.dist`](https://docs.pytorch.org/docs/stable/generated/torch.dist.html).
DIST = dist(x, other; p: OptFloat) -> (y) {
    infer:    &|cx| {
        let mut inferred = infer::promoted(cx)?;
        infer::need_float(&inferred.results[0])?;
        inferred.results[0].shape = Shape::scalar();
        Ok(inferred)
    },
    body:     composite(None, &|cx| smallvec![cx.args[0].sub(cx.args[1]).vector_norm((), cx.attrs.float("p"))]),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[5] {p = 2.0}"] },
}

/// The distances of each row of one matrix from each row of another, in the norm of order `p`, for
/// each matrix of a batch:
/// [`torch.cdist`](https://docs.pytorch.org/docs/stable/generated/torch.cdist.html).
CDIST = cdist(x1, x2; p: OptFloat) -> (y) {
    infer:    &|cx| {
        let (x, other) = (cx.operand(0), cx.operand(1));
        infer::need_float(x)?;
        let ([outer @ .., rows, width], [more @ .., columns, own]) = (&x.shape[..], &other.shape[..]) else {
            return Err(format!("takes matrices, found {x} and {other}"));
        };
        if x.dtype != other.dtype || !cx.must.equal(*width, *own) {
            return Err(format!("the rows of {x} and {other} differ"));
        }
        let batch = infer::broadcast(cx.must, &Shape::new(outer), &Shape::new(more))?;
        let shape = batch.iter().chain([rows, columns]).copied().collect();
        Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
    },
    body:     composite(None, &|cx| {
        let gap = cx.args[0].unsqueeze(-2).sub(cx.args[1].unsqueeze(-3));
        smallvec![gap.vector_norm(-1, cx.attrs.float("p"))]
    }),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[4, 5]", "T[2, 3, 5], T[4, 5] {p = 1.0}"] },
}

/// The cosine of the angle between vectors along an axis, which is 1 if absent, with norms of at
/// least `eps`:
/// [`torch.nn.functional.cosine_similarity`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cosine_similarity.html).
COSINE_SIMILARITY = cosine_similarity(x1, x2; dim: OptInt, eps: OptFloat) -> (y) {
    infer:    &|cx| {
        let mut inferred = infer::float_arithmetic(cx)?;
        let y = &mut inferred.results[0];
        let axis = y.shape.axis(cx.attrs.int("dim").unwrap_or(1))?;
        y.shape = (0..y.shape.rank()).filter(|i| *i != axis).map(|i| y.shape[i]).collect();
        Ok(inferred)
    },
    body:     composite(None, &|cx| {
        let (dim, eps) = (cx.attrs.int("dim").unwrap_or(1), cx.attrs.float("eps").unwrap_or(1e-8));
        let unit = |i: usize| {
            let length = cx.args[i].vector_norm([dim].keep(), None);
            cx.args[i].div(length.clamp_to(Some(eps), None))
        };
        smallvec![unit(0).mul(unit(1)).sum(dim)]
    }),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] != 0, T[3, 5] != 0", "T[5, 3] != 0, T[5, 3] != 0 {dim = 0}"] },
}

/// `x / sqrt(mean(x²) + eps) * weight` over the last axes, those of `normalized_shape`; `eps` is
/// the step of f32 at 1 if absent, that of f64 for f64:
/// [`torch.nn.functional.rms_norm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html).
RMS_NORM = rms_norm(x, weight: optional; normalized_shape: Sizes, eps: OptFloat) -> (y) {
    infer:    &|cx| {
        let x = cx.operand(0);
        infer::need_float(x)?;
        let last = infer::sizes(cx.must, &cx.attrs.sizes("normalized_shape"))?;
        let outer = x.shape.rank().checked_sub(last.rank()).filter(|_| last.rank() > 0);
        if !outer.is_some_and(|outer| cx.must.alike(&x.shape[outer..], &last)) {
            return Err(format!("`normalized_shape` is {last}, expected the last axes of {x}"));
        }
        if let Some(weight) = cx.get(1).filter(|w| w.dtype != x.dtype || !cx.must.alike(&w.shape, &last)) {
            return Err(format!("`weight` is {weight}, expected {}", TensorType { dtype: x.dtype, shape: last }));
        }
        infer::same(cx)
    },
    body:     composite(None, &|cx| {
        let (x, axes) = (cx.args[0], cx.attrs.sizes("normalized_shape").len() as i64);
        let dim: Vec<i64> = (-axes..0).collect();
        let eps = cx.attrs.float("eps").unwrap_or(step_at_one(cx.results[0].dtype.compute()));
        let scale = x.mul(x).mean((&dim).keep()).add(eps).rsqrt();
        let y = x.mul(scale);
        smallvec![cx.get(1).map_or(y, |weight| y.mul(weight))]
    }),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 7], T[7] {normalized_shape = [7], eps = 1e-5}", "T[2, 3, 5] {normalized_shape = [3, 5]}"] },
}

/// The slices along axis `dim`, those with a norm of order `p` above `maxnorm` shortened to it:
/// [`torch.renorm`](https://docs.pytorch.org/docs/stable/generated/torch.renorm.html).
RENORM = renorm(x; p: Float, dim: Int, maxnorm: Float) -> (y) {
    infer:    &|cx| {
        let x = cx.operand(0);
        infer::need_float(x)?;
        if x.shape.rank() < 2 {
            return Err(format!("takes at least two axes, found {x}"));
        }
        x.shape.axis(cx.attrs.int("dim").expect("required"))?;
        let [p, most] = ["p", "maxnorm"].map(|name| cx.attrs.float(name).expect("required"));
        if p.is_nan() || p <= 0.0 || most.is_nan() || most < 0.0 {
            return Err(format!("`p` is {p} and `maxnorm` {most}, expected above 0 and at least 0"));
        }
        infer::same(cx)
    },
    body:     composite(None, &|cx| {
        let (x, get) = (cx.args[0], |name| cx.attrs.float(name).expect("required"));
        let axis = x.shape().axis(cx.attrs.int("dim").expect("required")).expect("checked when recorded");
        let others: Vec<i64> = (0..x.rank()).filter(|i| *i != axis).map(|i| i as i64).collect();
        let length = x.vector_norm((&others).keep(), get("p"));
        let factor = cx.tracer.full(length.ty(), get("maxnorm")).div(length.add(1e-7));
        let factor = length.gt(get("maxnorm")).choose(factor, cx.tracer.ones_like(length));
        smallvec![x.mul(factor)]
    }),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] != 0 {p = 2.0, dim = 0, maxnorm = 0.5}"] },
}
}

/// The distance from 1 to the next number of a dtype.
fn step_at_one(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

/// The norm, in f32 or f64, without the reduced axes.
fn norm<'t>(x: Var<'t>, p: f64, dim: &[i64]) -> Var<'t> {
    let sum = |x: Var<'t>| x.sum(dim);
    let size = x.abs();
    match p {
        f64::INFINITY => size.amax(dim),
        f64::NEG_INFINITY => size.neg().amax(dim).neg(),
        0.0 => sum(x.ne(0.0).to(x.dtype())),
        1.0 => sum(size),
        2.0 => sum(x.mul(x)).sqrt(),
        p => sum(size.pow(p)).pow(1.0 / p),
    }
}

/// The gradient that PyTorch gives: zero where a norm is.
fn norm_gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (from, p) = (cx.args[0].dtype(), cx.attrs.float("ord").unwrap_or(2.0));
    let x = cx.args[0].to(cx.out().dtype());
    let (shape, dim) = (x.shape(), cx.attrs.ints("dim"));
    let spread = |y: Var<'t>| spread(y, shape.clone(), dim);
    let (y, dy) = (spread(cx.out()), spread(cx.dy()));
    let zero = cx.tracer.zeros_like(x);
    let unless_zero = |of: Var<'t>, v: Var<'t>| of.eq(0.0).choose(zero, v);
    let power = |x: Var<'t>, p: f64| x.pow(p);
    let dx = if p == 0.0 {
        zero
    } else if p == 1.0 {
        dy.mul(x.sign())
    } else if p == 2.0 {
        unless_zero(y, dy.mul(x.div(y)))
    } else if p.is_infinite() {
        let taken = x.abs().eq(y).to(x.dtype());
        let count = spread(taken.sum(dim).reshape_to(&cx.out().shape()));
        x.sign().mul(taken.mul(dy.div(count)))
    } else if p < 1.0 {
        let scaled = unless_zero(x, x.sign().mul(power(x.abs(), p - 1.0)));
        scaled.mul(dy.mul(power(y, 1.0 - p)))
    } else {
        let scaled = if p < 2.0 {
            x.sign().mul(power(x.abs(), p - 1.0))
        } else {
            x.mul(power(x.abs(), p - 2.0))
        };
        scaled.mul(unless_zero(y, dy.div(power(y, p - 1.0))))
    };
    smallvec![Some(dx.to(from))]
}
