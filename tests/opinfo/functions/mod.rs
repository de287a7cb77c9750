//! Calls whose form here is another one than PyTorch's: functions made of ops, and ops with other
//! arguments.

mod activation;
mod attention;
mod binary;
mod conv;
mod create;
mod index;
mod loss;
mod norm;
mod number;
mod pool;
mod product;
mod random;
mod reduce;
mod resize;
mod sort;
mod view;

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::DType;
use tracecast_ir::ops::prelude::*;

/// The results, if `name` is one of those.
pub(crate) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    casts(name, a)
        .or_else(|| arithmetic(name, a))
        .or_else(|| activation::call(name, a))
        .or_else(|| attention::call(name, a))
        .or_else(|| binary::call(name, a))
        .or_else(|| conv::call(name, a))
        .or_else(|| product::call(name, a))
        .or_else(|| random::call(name, a))
        .or_else(|| loss::call(name, a))
        .or_else(|| norm::call(name, a))
        .or_else(|| pool::call(name, a))
        .or_else(|| resize::call(name, a))
        .or_else(|| create::call(name, a))
        .or_else(|| index::call(name, a))
        .or_else(|| number::call(name, a))
        .or_else(|| reduce::call(name, a))
        .or_else(|| sort::call(name, a))
        .or_else(|| view::call(name, a))
}

/// The dtype that a method such as `half` casts to, if `name` is one.
pub(crate) fn cast_dtype(name: &str) -> Option<DType> {
    Some(match name {
        "float" => DType::F32,
        "double" => DType::F64,
        "half" => DType::F16,
        "bfloat16" => DType::BF16,
        "int" => DType::I32,
        "long" => DType::I64,
        "byte" => DType::U8,
        "bool" => DType::Bool,
        _ => return None,
    })
}

/// Casts. Their arguments about the memory format have no counterpart.
fn casts<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    cast_dtype(name).map(|to| a.x().map(|x| vec![x.cast(to)]))
}

fn arithmetic<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let aten = a.case.aten.as_deref().unwrap_or_default();
    let results = || {
        let x = a.x()?;
        Ok(vec![match name {
            "fill" => a.t.full(x.ty(), a.float(1, "value")?),
            "max" => x.maximum(a.tensor(1, "other")?),
            "min" => x.minimum(a.tensor(1, "other")?),
            "nll_loss" | "cross_entropy" => return classes(name, a),
            "layer_norm" => return layer_norm(a),
            "rms_norm" => {
                let (shape, weight) = (a.ints(1, "normalized_shape")?, a.opt_tensor(2, "weight")?);
                x.rms_norm(weight, &shape, a.opt_float(3, "eps")?)
            }
            "where" => return choice(a),
            "addcmul" => {
                let value = a.opt_float(3, "value")?.unwrap_or(1.0);
                x.addcmul(a.tensor(1, "tensor1")?, a.tensor(2, "tensor2")?, value)
            }
            "addcdiv" => {
                let value = a.opt_float(3, "value")?.unwrap_or(1.0);
                x.addcdiv(a.tensor(1, "tensor1")?, a.tensor(2, "tensor2")?, value)
            }
            "lerp" => match a.tensor(2, "weight") {
                Ok(weight) => x.lerp_by(a.tensor(1, "end")?, weight),
                Err(_) => x.lerp(a.tensor(1, "end")?, a.float(2, "weight")?),
            },
            _ => unreachable!("listed below"),
        }])
    };
    let is_listed = matches!(
        name,
        "fill"
            | "where"
            | "nll_loss"
            | "cross_entropy"
            | "layer_norm"
            | "rms_norm"
            | "addcmul"
            | "addcdiv"
            | "lerp"
    ) || matches!(aten, "max.other" | "min.other");
    is_listed.then(results)
}

/// A number may stand beside a tensor, and promotes.
fn choice<'t>(a: &Arguments<'_, 't>) -> Called<'t> {
    let condition = a.tensor(0, "condition")?;
    let (x, y) = (a.tensor(1, "self"), a.tensor(2, "other"));
    let (x, y) = match (x, y) {
        (Ok(x), Ok(y)) => (x, y),
        (Ok(x), Err(_)) => return Ok(vec![condition.choose(x, a.float(2, "other")?)]),
        (Err(_), Ok(y)) => return Ok(vec![condition.choose(a.float(1, "self")?, y)]),
        (Err(_), Err(why)) => match (a.plain(1, "self"), a.plain(2, "other")) {
            (Some(x), Some(y)) => (a.scalar(x)?, a.scalar(y)?),
            _ => return Err(why),
        },
    };
    Ok(vec![condition.choose(x, y)])
}

/// The losses of classes, without the weights they were averaged by.
fn classes<'t>(name: &str, a: &Arguments<'_, 't>) -> Called<'t> {
    let (x, target) = (a.x()?, a.tensor(1, "target")?);
    let (weight, reduction) = (a.opt_tensor(2, "weight")?, a.text(9, "reduction")?);
    let ignored = a.opt_int(9, "ignore_index")?;
    let loss = match name {
        "nll_loss" => x.nll_loss(target, weight, reduction, ignored),
        _ => {
            let smoothing = a.opt_float(9, "label_smoothing")?;
            x.cross_entropy_loss(target, weight, reduction, ignored, smoothing)
        }
    };
    Ok(vec![loss])
}

fn layer_norm<'t>(a: &Arguments<'_, 't>) -> Called<'t> {
    let (x, shape) = (a.x()?, a.ints(1, "normalized_shape")?);
    let (weight, bias) = (a.opt_tensor(2, "weight")?, a.opt_tensor(3, "bias")?);
    Ok(vec![x.layer_norm(weight, bias, &shape, a.opt_float(4, "eps")?.unwrap_or(1e-5))])
}
