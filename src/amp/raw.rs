//! The two ops below PyTorch's scaler, over eager tensors and in place; and the reciprocal of a
//! scale.

use crate::Trace;
use crate::amp::{ScalerError, own};
use crate::eager::DeviceTensor;
use crate::error::Result;
use tracecast_ir::ops::amp::LossScaling;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::{DType, Shape, Var};
use tracecast_runtime::ScaleUpdate;

/// Multiplies gradients by `inv_scale`, and sets `found_inf` to 1 if any element of them was not
/// finite before; it is never set to 0. All gradients are done by one program.
///
/// The product is made in f32 for 16-bit gradients, in f64 for f64. An overflow of the product is
/// not reported.
///
/// # Errors
/// If `found_inf` or `inv_scale` is not one f32, a gradient is not of a float dtype, or they live
/// on several devices.
pub fn amp_foreach_non_finite_check_and_unscale(
    grads: &[&DeviceTensor],
    found_inf: &DeviceTensor,
    inv_scale: &DeviceTensor,
) -> Result<()> {
    let Some(first) = grads.first() else { return Ok(()) };
    need_one("found_inf", found_inf, DType::F32)?;
    let inverse = inverse_of(grads, inv_scale)?;
    let mut operands = vec![found_inf, &inverse];
    operands.extend(grads);
    first.eager().run("amp_foreach_non_finite_check_and_unscale", &operands, |t, x| {
        let found = x[0];
        if let Some(any) = unscaled(t, x[1], &x[2..]) {
            let old = scalar(found);
            let new = any.ne(0.0).choose(t.ones_like(old), old);
            t.update(found, new.reshape_to(&found.shape()));
        }
        Vec::new()
    })?;
    Ok(())
}

/// The same; the flag is a result, 1 or 0. If the program fails there is none, and nobody takes
/// gradients that are still scaled for good ones.
///
/// # Errors
/// As [`amp_foreach_non_finite_check_and_unscale`].
pub(super) fn check_and_unscale(
    grads: &[&DeviceTensor],
    inv_scale: &DeviceTensor,
) -> Result<Option<DeviceTensor>> {
    let Some(first) = grads.first() else { return Ok(None) };
    let inverse = inverse_of(grads, inv_scale)?;
    let mut operands = vec![&inverse];
    operands.extend(grads);
    let found = first.eager().run("amp check and unscale", &operands, |t, x| {
        let any = unscaled(t, x[0], &x[1..]);
        any.map(|any| any.ne(0.0).choose(t.ones_like(any), t.zeros_like(any))).into_iter().collect()
    })?;
    Ok(found.into_iter().next())
}

/// The factor, if it and these gradients are as they have to be.
fn inverse_of(grads: &[&DeviceTensor], inv_scale: &DeviceTensor) -> Result<DeviceTensor> {
    need_one("inv_scale", inv_scale, DType::F32)?;
    if let Some(other) = grads.iter().find(|grad| !grad.dtype().is_float()) {
        return Err(ScalerError::Gradient(other.ty().to_string()).into());
    }
    // A factor that is an operand itself is free of the rule that a gradient depends on what scaled
    // it.
    Ok(match inv_scale.ty().shape.rank() {
        0 => inv_scale.clone(),
        _ => inv_scale.eager().tensor(inv_scale.to_host()?.reshape(Shape::scalar())?),
    })
}

/// Records the product of each gradient and the factor; a number other than zero if any was not
/// finite.
fn unscaled<'t>(t: &'t Trace, inverse: Var<'t>, grads: &[Var<'t>]) -> Option<Var<'t>> {
    let mut products: Vec<(Var<'_>, Var<'_>)> = Vec::new();
    let mut any = None;
    for &grad in grads {
        let known = products.iter().position(|(known, _)| known.id() == grad.id());
        let current = known.map_or(grad, |at| products[at].1);
        let [flag, product] = own::check_and_unscale(t, current, inverse);
        any = Some(any.map_or(flag, |so_far: Var<'_>| so_far.maximum(flag)));
        match known {
            Some(at) => products[at].1 = product,
            None => products.push((grad, product)),
        }
    }
    for (grad, product) in products {
        t.update(grad, product);
    }
    any
}

/// Replaces a scale and its growth tracker by the next ones: see the op `update_scale`.
///
/// # Errors
/// If `scale` or `found_inf` is not one f32, `growth_tracker` is not one i32 (or of the dtype in
/// which the [device](tracecast_runtime::ScalerRecorder) counts), or they live on several devices.
pub fn amp_update_scale(
    scale: &DeviceTensor,
    growth_tracker: &DeviceTensor,
    found_inf: &DeviceTensor,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: i64,
) -> Result<()> {
    let counts = scale.eager().tracker()?.unwrap_or(DType::I32);
    need_one("growth_tracker", growth_tracker, counts)?;
    need_one("current_scale", scale, DType::F32)?;
    need_one("found_inf", found_inf, DType::F32)?;
    let label = format!("amp_update_scale {growth_factor} {backoff_factor} {growth_interval}");
    scale.eager().run(&label, &[scale, growth_tracker, found_inf], |t, x| {
        let found = scalar(x[2]);
        let now = ScaleUpdate {
            scale: scalar(x[0]),
            tracker: scalar(x[1]),
            found_inf: found,
            growth_factor,
            backoff_factor,
            growth_interval,
        };
        let [next, count] = own::update_scale(t, now);
        t.update(x[0], next.reshape_to(&x[0].shape()));
        t.update(x[1], count.reshape_to(&x[1].shape()));
        Vec::new()
    })?;
    Ok(())
}

/// One over a scale: the f32 nearest to the quotient in f64.
///
/// # Errors
/// If the scale is not one f32, or its device fails.
pub fn reciprocal_scale(scale: &DeviceTensor) -> Result<DeviceTensor> {
    need_one("scale", scale, DType::F32)?;
    let inverse = scale
        .eager()
        .run("reciprocal_scale", &[scale], |_, x| vec![scalar(x[0]).reciprocal_scale()])?;
    Ok(inverse[0].clone())
}

fn need_one(operand: &'static str, tensor: &DeviceTensor, dtype: DType) -> Result<()> {
    if tensor.dtype() == dtype && tensor.ty().numel() == 1 {
        return Ok(());
    }
    let found = tensor.ty().to_string();
    Err(ScalerError::Operand { operand, expected: dtype.name(), found }.into())
}

/// The same number without axes.
fn scalar(x: Var<'_>) -> Var<'_> {
    if x.rank() == 0 { x } else { x.reshape_to(&Shape::scalar()) }
}
