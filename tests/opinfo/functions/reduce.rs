//! Reductions with other arguments than PyTorch's.

use crate::arguments::{Arguments, Bound};
use crate::calls::Called;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{TensorType, Var};

/// A place that no argument has: it is given by name alone.
const NAMED: usize = usize::MAX;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    over_axes(name, a).or_else(|| found(name, a)).or_else(|| spread(name, a))
}

fn over_axes<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        let dim = a.opt_ints(1, "dim")?.unwrap_or_default();
        let keepdim = a.flag(2, "keepdim")?.unwrap_or(false);
        Ok(vec![match name {
            "any" => x.any(&dim, keepdim),
            "all" => x.all(&dim, keepdim),
            "count_nonzero" => x.count_nonzero(&dim),
            "nanmean" => x.nanmean(&dim, keepdim, a.dtype(NAMED, "dtype")?),
            _ => {
                let (least, most) = x.aminmax(dim.first().copied(), keepdim);
                return Ok(vec![least, most]);
            }
        }])
    };
    ["any", "all", "count_nonzero", "nanmean", "aminmax"].contains(&name).then(made)
}

/// An element with its position, or of all elements the element alone.
fn found<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        let keepdim = a.flag(2, "keepdim")?.unwrap_or(false);
        let dim = a.opt_int(1, "dim")?;
        let (values, indices) = match (name, dim) {
            ("max", Some(dim)) => x.max(dim, keepdim),
            ("min", Some(dim)) => x.min(dim, keepdim),
            ("median", Some(dim)) => x.median(dim, keepdim),
            ("nanmedian", Some(dim)) => x.nanmedian(dim, keepdim),
            ("mode", dim) => x.mode(dim.unwrap_or(-1), keepdim),
            ("max", None) => return Ok(vec![x.amax(&[], false)]),
            ("min", None) => return Ok(vec![x.amin(&[], false)]),
            ("median", None) => return Ok(vec![x.median_of_all()]),
            _ => return Ok(vec![x.nanmedian_of_all()]),
        };
        Ok(vec![values, indices])
    };
    ["max", "min", "mode", "median", "nanmedian"].contains(&name).then(made)
}

fn spread<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        if name == "quantile" {
            return quantile(x, a);
        }
        let dim = a.opt_ints(NAMED, "dim")?.unwrap_or_default();
        let keepdim = a.flag(NAMED, "keepdim")?.unwrap_or(false);
        let correction = match a.flag(NAMED, "unbiased")? {
            Some(unbiased) => Some(f64::from(u8::from(unbiased))),
            None => a.opt_float(NAMED, "correction")?,
        };
        Ok(match name {
            "var" => vec![x.var(&dim, correction, keepdim)],
            "std" => vec![x.std(&dim, correction, keepdim)],
            _ => {
                let both = if name == "var_mean" { Var::var_mean } else { Var::std_mean };
                let (first, mean) = both(x, &dim, correction, keepdim);
                vec![first, mean]
            }
        })
    };
    ["var", "std", "var_mean", "std_mean", "quantile"].contains(&name).then(made)
}

fn quantile<'t>(x: Var<'t>, a: &Arguments<'_, 't>) -> Called<'t> {
    let q = match a.get(1, "q") {
        Some(Bound::Tensor(q)) => *q,
        _ => a.t.full(TensorType::scalar(x.dtype()), a.float(1, "q")?),
    };
    let (dim, how) = (a.opt_int(2, "dim")?, a.text(NAMED, "interpolation")?);
    Ok(vec![x.quantile(q, dim, a.flag(3, "keepdim")?.unwrap_or(false), how)])
}
