//! What numbers are, and numbers cut or replaced.

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::Var;
use tracecast_ir::ops::prelude::*;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    unary(name, a).or_else(|| rounded(name, a)).or_else(|| bounded(name, a))
}

fn unary<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let f: fn(Var<'t>) -> Var<'t> = match name {
        "sign" | "sgn" => Var::sign,
        "isnan" => Var::isnan,
        "isinf" => Var::isinf,
        "isfinite" => Var::isfinite,
        "isposinf" => |x| x.is_infinity(false),
        "isneginf" => |x| x.is_infinity(true),
        "isreal" => |x| x.eq(x).logical_or(x.ne(x)),
        "signbit" => Var::signbit,
        "ceil" => Var::ceil,
        "trunc" => Var::trunc,
        "frac" => Var::frac,
        "square" => Var::square,
        "deg2rad" => Var::deg2rad,
        "rad2deg" => Var::rad2deg,
        "round" if a.case.aten.as_deref() == Some("round") => Var::round,
        _ => return None,
    };
    Some(a.x().map(|x| vec![f(x)]))
}

/// With places behind the point.
fn rounded<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || Ok(vec![a.x()?.round_places(a.opt_int(1, "decimals")?.unwrap_or(0))]);
    (name == "round").then(made)
}

fn bounded<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        let bound = |at, name| match (a.opt_tensor(at, name), a.opt_float(at, name)) {
            (Ok(bound), _) => Ok(bound),
            (_, Ok(number)) => Ok(number.map(|v| x.beside(v).1)),
            (Err(why), _) => Err(why),
        };
        Ok(vec![match name {
            "nan_to_num" => {
                let (posinf, neginf) = (a.opt_float(2, "posinf")?, a.opt_float(3, "neginf")?);
                x.nan_to_num(a.opt_float(1, "nan")?, posinf, neginf)
            }
            "clamp" => match (a.opt_float(1, "min"), a.opt_float(2, "max")) {
                (Ok(least), Ok(most)) => x.clamp_to(least, most),
                _ => x.clamp(bound(1, "min")?, bound(2, "max")?),
            },
            "clamp_min" => match a.tensor(1, "min") {
                Ok(least) => x.maximum(least),
                Err(_) => x.clamp(bound(1, "min")?, None),
            },
            "clamp_max" => match a.tensor(1, "max") {
                Ok(most) => x.minimum(most),
                Err(_) => x.clamp(None, bound(1, "max")?),
            },
            _ => match a.opt_float(2, "value") {
                Ok(Some(value)) => x.masked_fill(a.tensor(1, "mask")?, value),
                _ => x.masked_fill(a.tensor(1, "mask")?, a.tensor(2, "value")?),
            },
        }])
    };
    let names = ["nan_to_num", "clamp", "clamp_min", "clamp_max", "masked_fill"];
    names.contains(&name).then(made)
}
