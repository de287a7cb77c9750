//! Arithmetic of two tensors, or of a tensor and a number, with choices and bounds.

use super::table;
use crate::argument::Operand;
use tracecast_ir::Var;
use tracecast_ir::functions as f;
use tracecast_ir::ops::prelude::*;

table! {
    "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor" =>
        (x: tensor, y: operand, alpha: float) scaled(x, y, alpha);
    "add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor" =>
        (x: tensor, y: operand, alpha: float) scaled(x, y, alpha);
    "sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor" =>
        (x: tensor, y: operand, alpha: float) if alpha == 1.0 { x.sub(y) } else { x.add_scaled(y, -alpha) };
    "sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor" =>
        (x: tensor, y: operand, alpha: float) if alpha == 1.0 { x.sub(y) } else { x.add_scaled(y, -alpha) };
    "rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor" =>
        (x: tensor, y: tensor, alpha: float) if alpha == 1.0 { y.sub(x) } else { y.add_scaled(x, -alpha) };
    "rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor" =>
        (x: tensor, y: number, alpha: float) if alpha == 1.0 { x.neg().add(y) } else { y.beside(x).add_scaled(x, -alpha) };
    "mul.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.mul(y);
    "mul.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.mul(y);
    "div.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.div(y);
    "div.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.div(y);
    "true_divide.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.div(y);
    "div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor" =>
        (x: tensor, y: operand, mode: some_text) rounded(x, y, mode.as_deref());
    "div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor" =>
        (x: tensor, y: operand, mode: some_text) rounded(x, y, mode.as_deref());
    "floor_divide(Tensor self, Tensor other) -> Tensor" =>
        (x: tensor, y: operand) x.floor_divide(y);
    "floor_divide.Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.floor_divide(y);
    "fmod.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.fmod(y);
    "fmod.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.fmod(y);
    "remainder.Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.remainder(y);
    "remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor" =>
        (x: operand, y: tensor) f::remainder(x, y);
    "remainder.Tensor(Tensor self, Tensor other) -> Tensor" =>
        (x: tensor, y: operand) x.remainder(y);
    "pow.Scalar(Scalar self, Tensor exponent) -> Tensor" => (x: operand, y: tensor) f::pow(x, y);
    "pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor" => (x: tensor, y: operand) x.pow(y);
    "pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor" => (x: tensor, y: operand) x.pow(y);
    "float_power.Scalar(Scalar self, Tensor exponent) -> Tensor" =>
        (x: operand, y: tensor) f::float_power(x, y);
    "float_power.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor" =>
        (x: tensor, y: operand) x.float_power(y);
    "float_power.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor" =>
        (x: tensor, y: operand) x.float_power(y);
    "xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.xlogy(y);
    "xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor" =>
        (x: operand, y: tensor) f::xlogy(x, y);
    "xlogy.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.xlogy(y);
    "special_xlog1py(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.xlog1py(y);
    "special_xlog1py.other_scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.xlog1py(y);
    "special_xlog1py.self_scalar(Scalar self, Tensor other) -> Tensor" =>
        (x: operand, y: tensor) f::xlog1py(x, y);
    "bitwise_and.Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_and(y);
    "bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_and(y);
    "__and__.Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_and(y);
    "__and__.Tensor(Tensor self, Tensor other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_and(y);
    "bitwise_or.Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_or(y);
    "bitwise_or.Tensor(Tensor self, Tensor other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_or(y);
    "__or__.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.bitwise_or(y);
    "__or__.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.bitwise_or(y);
    "bitwise_xor.Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_xor(y);
    "bitwise_xor.Tensor(Tensor self, Tensor other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_xor(y);
    "__xor__.Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_xor(y);
    "__xor__.Tensor(Tensor self, Tensor other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_xor(y);
    "bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_left_shift(y);
    "bitwise_left_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_left_shift(y);
    "__lshift__.Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_left_shift(y);
    "bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_right_shift(y);
    "bitwise_right_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_right_shift(y);
    "__rshift__.Scalar(Tensor self, Scalar other) -> Tensor" =>
        (x: tensor, y: operand) x.bitwise_right_shift(y);
    "gcd(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.gcd(y);
    "lcm(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.lcm(y);
    "logical_and(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.logical_and(y);
    "logical_or(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.logical_or(y);
    "logical_xor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.logical_xor(y);
    "maximum(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.maximum(y);
    "max.other(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.maximum(y);
    "minimum(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.minimum(y);
    "min.other(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.minimum(y);
    "fmax(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.fmax(y);
    "fmin(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.fmin(y);
    "copysign.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.copysign(y);
    "copysign.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.copysign(y);
    "atan2(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.atan2(y);
    "hypot(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.hypot(y);
    "heaviside(Tensor self, Tensor values) -> Tensor" => (x: tensor, y: tensor) x.heaviside(y);
    "ldexp.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.ldexp(y);
    "logaddexp(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.logaddexp(y);
    "logaddexp2(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.logaddexp2(y);
    "nextafter(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.nextafter(y);
    "addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor" =>
        (x: tensor, a: tensor, b: tensor, value: float) x.addcdiv(a, b, value);
    "addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor" =>
        (x: tensor, a: tensor, b: tensor, value: float) x.addcmul(a, b, value);
    "lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor" =>
        (x: tensor, end: tensor, weight: float) x.lerp(end, weight);
    "lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor" =>
        (x: tensor, end: tensor, weight: tensor) x.lerp_by(end, weight);
    "clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor" =>
        (x: tensor, least: some_float, most: some_float) x.clamp_to(least, most);
    "clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor" =>
        (x: tensor, least: some_tensor, most: some_tensor) x.clamp(least, most);
    "clamp_max(Tensor self, Scalar max) -> Tensor" =>
        (x: tensor, most: number) x.clamp(None, Some(most.beside(x)));
    "clamp_max.Tensor(Tensor self, Tensor max) -> Tensor" =>
        (x: tensor, most: tensor) x.minimum(most);
    "clamp_min(Tensor self, Scalar min) -> Tensor" =>
        (x: tensor, least: number) x.clamp(Some(least.beside(x)), None);
    "clamp_min.Tensor(Tensor self, Tensor min) -> Tensor" =>
        (x: tensor, least: tensor) x.maximum(least);
    "where.self(Tensor condition, Tensor self, Tensor other) -> Tensor" =>
        (c: tensor, x: operand, y: operand) choose(c, x, y);
    "where.Scalar(Tensor condition, Scalar self, Scalar other) -> Tensor" =>
        (c: tensor, x: tensor, y: tensor) c.choose(x, y);
    "where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor" =>
        (c: tensor, x: operand, y: operand) choose(c, x, y);
    "where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor" =>
        (c: tensor, x: operand, y: operand) choose(c, x, y);
    "masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor" =>
        (x: tensor, mask: tensor, value: operand) x.masked_fill(mask, value.within(x.dtype()));
    "masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor" =>
        (x: tensor, mask: tensor, value: tensor) x.masked_fill(mask, value);
}

fn scaled<'t>(x: Var<'t>, y: Operand<'t>, alpha: f64) -> Var<'t> {
    if alpha == 1.0 { x.add(y) } else { x.add_scaled(y, alpha) }
}

fn rounded<'t>(x: Var<'t>, y: Operand<'t>, mode: Option<&str>) -> Var<'t> {
    match mode {
        Some("floor") => x.floor_divide(y),
        Some("trunc") => x.divided_towards_zero(y),
        Some(other) => x.tracer().fail("div", format!("there is no `rounding_mode` {other:?}")),
        None => x.div(y),
    }
}

/// Numbers stand beside a tensor.
fn choose<'t>(c: Var<'t>, x: Operand<'t>, y: Operand<'t>) -> Var<'t> {
    match (x, y) {
        (Operand::Tensor(x), y) => c.choose(x, y.within(x.dtype())),
        (x, Operand::Tensor(y)) => c.choose(x.within(y.dtype()), y),
        _ => c.tracer().fail("where", "takes a tensor among the two it chooses from"),
    }
}
