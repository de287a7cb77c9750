//! What a loss scale needs: gradients divided by it and checked, and its next value. No policy ever
//! casts these.

use super::cast::Cast;
use super::elementwise::Elementwise;
use super::infer;
use super::reduce::Reductions;
use crate::kernel::ScalarOp;
use crate::op::{
    Dispatch, Domain, FLOATS, Facts, Grad, InferCx, Inferred, Intrinsic, Rounding, composite,
    composite_own, core, map, rule,
};
use crate::{DType, TensorType, Var};
use smallvec::smallvec;

crate::ops! { trait LossScaling;

/// A gradient times the one f32 `inv`, computed in f32 for 16-bit floats and in f64 for f64.
UNSCALE = unscale(g, inv) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        infer::need_float(cx.operand(0))?;
        one(cx, 1, DType::F32)?;
        infer::same(cx)
    },
    body:     composite(None, &|cx| smallvec![scaled(cx.args[0], cx.args[1])]),
    rounding: Rounding::RESULT,
    facts:    Facts::new().intrinsic(Intrinsic::Unscale).takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], f32[] > 0", "T[], f32[] > 0"] },
}

/// 1.0 if any element is infinite or NaN, else 0.0.
NONFINITE = nonfinite(g) -> (found) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        infer::need_float(cx.operand(0))?;
        need_elements(cx)?;
        Ok(Inferred::one(TensorType::scalar(DType::F32)))
    },
    body:     composite(Some(Grad::Zero), &|cx| smallvec![found(cx.args[0])]),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().intrinsic(Intrinsic::NonFinite),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[]", "T[0]"] },
}

/// A gradient times the one f32 `inv`, and 1.0 if any element was infinite or NaN before, else 0.0.
///
/// An overflow of the product itself is not reported, as in PyTorch's
/// `_amp_foreach_non_finite_check_and_unscale_`.
UNSCALE_CHECK = unscale_check(g, inv) -> (y, found) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        infer::need_float(cx.operand(0))?;
        one(cx, 1, DType::F32)?;
        need_elements(cx)?;
        Ok(Inferred::many([cx.operand(0).clone(), TensorType::scalar(DType::F32)]))
    },
    body:     composite(None, &|cx| {
        let (g, inv) = (cx.args[0], cx.args[1]);
        // The product first: the check then joins the kernel that makes it.
        let product = g.unscaled(inv.to(g.dtype()).expand_to(&g.shape()));
        smallvec![product, found(g)]
    }),
    rounding: Rounding::result("the product"),
    facts:    Facts::new().intrinsic(Intrinsic::UnscaleCheck),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], f32[] > 0", "T[0], f32[] > 0"] },
}

/// The product that `unscale_check` gives: as `mul`, but made where the gradient is checked, and
/// stored there. No kernel that reads it computes it again.
UNSCALED = unscaled(g, inv) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        infer::need_float(cx.operand(0))?;
        infer::arithmetic(cx)
    },
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().mul(cx.args[1])), Some(cx.dy().mul(cx.args[0]))]),
        map(&|cx, x| cx.body.binary(ScalarOp::Mul, x[0], x[1])),
    ),
    rounding: Rounding::result("the result; each gradient"),
    facts:    Facts::new().intrinsic(Intrinsic::Unscaled).takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]"] },
}

/// The next loss scale and growth tracker, as PyTorch's `_amp_update_scale_`.
///
/// If `found` is not zero (NaN counts), the scale is multiplied by `backoff_factor` and the tracker
/// becomes 0. Else the tracker grows by one; where it then equals `growth_interval`, it becomes 0
/// and the scale is multiplied by `growth_factor`, unless that is not finite. The products are made
/// in f64 and rounded to f32.
UPDATE_SCALE = update_scale(scale, tracker, found; growth_factor: Float, backoff_factor: Float, growth_interval: Int) -> (next, count) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        for (i, dtype) in [DType::F32, DType::I32, DType::F32].into_iter().enumerate() {
            one(cx, i, dtype)?;
        }
        Ok(Inferred::many([cx.operand(0).clone(), cx.operand(1).clone()]))
    },
    body:     composite_own(Some(Grad::Zero), &|cx| {
        let (scale, tracker, found) = (cx.args[0], cx.args[1], cx.args[2]);
        let times = |factor: &str| scale.to(DType::F64).mul(cx.attrs.float(factor).expect("required")).to(DType::F32);
        let interval = cx.attrs.int("growth_interval").expect("required");
        let overflow = found.ne(0.0);
        let (grown, count) = (times("growth_factor"), tracker.add(1.0));
        // A count of 32 bits never reaches a longer interval.
        let due = match i32::try_from(interval) {
            Ok(interval) => count.eq(f64::from(interval)),
            Err(_) => count.ne(count),
        };
        let kept = due.logical_and(finite(grown)).choose(grown, scale);
        let zero = cx.tracer.zeros_like(tracker);
        let next = overflow.choose(times("backoff_factor"), kept);
        smallvec![next, overflow.logical_or(due).choose(zero, count)]
    }),
    rounding: Rounding::result("the scale, from f64"),
    facts:    Facts::new().intrinsic(Intrinsic::ScaleUpdate),
    domain:   Domain { dtypes: &[DType::F32], samples: &["T[] > 0, i32[] in 0 9, T[] in 0 1 {growth_factor = 2.0, backoff_factor = 0.5, growth_interval = 7}"] },
}

/// One over a loss scale: the f32 nearest to the quotient in f64.
RECIPROCAL_SCALE = reciprocal_scale(scale) -> (inv) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        one(cx, 0, DType::F32)?;
        infer::same(cx)
    },
    body:     composite_own(Some(Grad::Zero), &|cx| {
        let wide = cx.args[0].cast(DType::F64);
        smallvec![cx.tracer.ones_like(wide).div(wide).cast(DType::F32)]
    }),
    rounding: Rounding::result("the result, from f64"),
    facts:    Facts::new().intrinsic(Intrinsic::ScaleInverse),
    domain:   Domain { dtypes: &[DType::F32], samples: &["T[] > 0"] },
}
}

/// The check takes a largest element.
fn need_elements(cx: &InferCx<'_>) -> Result<(), String> {
    let axes: Vec<usize> = (0..cx.operand(0).shape.rank()).collect();
    infer::need_elements(cx.must, cx.operand(0), &axes)
}

/// Fails unless operand `i` is one number of that dtype.
fn one(cx: &InferCx<'_>, i: usize, dtype: DType) -> Result<(), String> {
    let (found, expected) = (cx.operand(i), TensorType::scalar(dtype));
    if *found == expected {
        Ok(())
    } else {
        Err(format!("operand {i} is {found}, expected {expected}"))
    }
}

fn scaled<'t>(g: Var<'t>, inv: Var<'t>) -> Var<'t> {
    g.mul(inv.to(g.dtype()))
}

fn finite(x: Var<'_>) -> Var<'_> {
    x.abs().lt(f64::INFINITY)
}

fn found(g: Var<'_>) -> Var<'_> {
    if g.ty().numel() == 0 {
        return g.tracer().full(TensorType::scalar(DType::F32), 0.0);
    }
    finite(g).logical_not().cast(DType::F32).amax(())
}
