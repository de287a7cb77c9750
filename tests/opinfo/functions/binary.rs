//! Functions of two tensors, or of a tensor and a number.

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Var, functions as f};

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    scaled(name, a).or_else(|| chosen(name, a)).or_else(|| with_numbers(name, a))
}

/// Sums with `alpha`, quotients with `rounding_mode`.
fn scaled<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let alpha = a.opt_float(2, "alpha").ok().flatten();
    let made = || {
        let x = a.x()?;
        Ok(vec![match (name, alpha) {
            ("add", Some(alpha)) => x.add_scaled(a.tensor(1, "other")?, alpha),
            ("sub", Some(alpha)) => x.add_scaled(a.tensor(1, "other")?, -alpha),
            ("rsub", Some(alpha)) => a.tensor(1, "other")?.add_scaled(x, -alpha),
            ("rsub", None) => match a.tensor(1, "other") {
                Ok(other) => other.sub(x),
                Err(_) => x.rsub(a.float(1, "other")?),
            },
            _ => match (a.text(2, "rounding_mode")?, a.opt_tensor(1, "other")) {
                (Some("floor"), Ok(Some(other))) => x.floor_divide(other),
                (Some("trunc"), Ok(Some(other))) => x.divided_towards_zero(other),
                (Some("trunc"), _) => x.divided_towards_zero(a.float(1, "other")?),
                (Some(_), _) => x.floor_divide(a.float(1, "other")?),
                (None, Ok(Some(other))) => x.div(other),
                (None, _) => x.div(a.float(1, "other")?),
            },
        }])
    };
    let is_scaled = matches!(name, "add" | "sub") && alpha.is_some();
    (is_scaled || matches!(name, "rsub" | "div" | "true_divide")).then(made)
}

fn chosen<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let f: fn(Var<'t>, Var<'t>) -> Var<'t> = match name {
        "logical_xor" => Var::logical_xor,
        "fmax" => Var::fmax,
        "fmin" => Var::fmin,
        "lcm" => Var::lcm,
        "ldexp" => Var::ldexp,
        _ => return None,
    };
    let made = || Ok(vec![f(a.x()?, a.tensor(1, "other")?)]);
    Some(made())
}

/// Functions that PyTorch also takes a number for, on either side.
fn with_numbers<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let second = match name {
        "heaviside" => "values",
        "pow" | "float_power" => "exponent",
        "special.xlog1py"
        | "copysign"
        | "xlogy"
        | "bitwise_and"
        | "bitwise_or"
        | "bitwise_xor"
        | "bitwise_left_shift"
        | "bitwise_right_shift"
        | "fmod"
        | "remainder"
        | "floor_divide" => "other",
        "isclose" | "allclose" | "equal" => "other",
        _ => return None,
    };
    let made = || {
        let (x, y) = match (a.x(), a.tensor(1, second)) {
            (Ok(x), Ok(y)) => (x, y),
            (Ok(x), Err(why)) => {
                let number = a.float(1, second).map_err(|_| why)?;
                let behind = number_behind(name, x, number);
                return Ok(vec![behind.ok_or_else(|| format!("takes a tensor `{second}`"))?]);
            }
            (Err(_), Ok(y)) => {
                let front = number_in_front(name, a.float(0, "self")?, y);
                return Ok(vec![front.ok_or("takes a tensor in front")?]);
            }
            (Err(why), Err(_)) => return Err(why),
        };
        Ok(vec![match name {
            "heaviside" => x.heaviside(y),
            "pow" => x.pow(y),
            "float_power" => x.float_power(y),
            "copysign" => x.copysign(y),
            "xlogy" => x.xlogy(y),
            "special.xlog1py" => x.xlog1py(y),
            "bitwise_and" => x.bitwise_and(y),
            "bitwise_or" => x.bitwise_or(y),
            "bitwise_xor" => x.bitwise_xor(y),
            "bitwise_left_shift" => x.bitwise_left_shift(y),
            "bitwise_right_shift" => x.bitwise_right_shift(y),
            "fmod" => x.fmod(y),
            "remainder" => x.remainder(y),
            "floor_divide" => x.floor_divide(y),
            "equal" => x.equal(y),
            _ => {
                let rtol = a.opt_float(2, "rtol")?.unwrap_or(1e-5);
                let atol = a.opt_float(3, "atol")?.unwrap_or(1e-8);
                let close = x.isclose(y, rtol, atol, a.flag(4, "equal_nan")?.unwrap_or(false));
                if name == "allclose" { close.all_hold() } else { close }
            }
        }])
    };
    Some(made())
}

fn number_behind<'t>(name: &str, x: Var<'t>, number: f64) -> Option<Var<'t>> {
    Some(match name {
        "pow" => x.pow(number),
        "fmod" => x.fmod(number),
        "remainder" => x.remainder(number),
        "floor_divide" => x.floor_divide(number),
        "float_power" => x.float_power(number),
        "copysign" => x.copysign(number),
        "xlogy" => x.xlogy(number),
        "special.xlog1py" => x.xlog1py(number),
        "bitwise_and" => x & number,
        "bitwise_or" => x | number,
        "bitwise_xor" => x ^ number,
        "bitwise_left_shift" => x << number,
        "bitwise_right_shift" => x >> number,
        _ => return None,
    })
}

fn number_in_front<'t>(name: &str, number: f64, x: Var<'t>) -> Option<Var<'t>> {
    Some(match name {
        "pow" => f::pow(number, x),
        "remainder" => number % x,
        "floor_divide" => f::floor_divide(number, x),
        "float_power" => f::float_power(number, x),
        "xlogy" => f::xlogy(number, x),
        "special.xlog1py" => f::xlog1py(number, x),
        "bitwise_and" => x & number,
        "bitwise_or" => x | number,
        "bitwise_xor" => x ^ number,
        "bitwise_left_shift" => f::bitwise_left_shift(number, x),
        "bitwise_right_shift" => f::bitwise_right_shift(number, x),
        _ => return None,
    })
}
