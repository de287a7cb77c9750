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
            "any" => x.any((&dim).kept(keepdim)),
            "all" => x.all((&dim).kept(keepdim)),
            "count_nonzero" => x.count_nonzero(&dim),
            "nanmean" => x.nanmean((&dim).kept(keepdim).dtype(a.dtype(NAMED, "dtype")?)),
            _ => {
                let (least, most) = x.aminmax(dim.first().copied().kept(keepdim));
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
            ("max", Some(dim)) => x.max(dim.kept(keepdim)),
            ("min", Some(dim)) => x.min(dim.kept(keepdim)),
            ("median", Some(dim)) => x.median(dim.kept(keepdim)),
            ("nanmedian", Some(dim)) => x.nanmedian(dim.kept(keepdim)),
            ("mode", dim) => x.mode(dim.unwrap_or(-1).kept(keepdim)),
            ("max", None) => return Ok(vec![x.amax(())]),
            ("min", None) => return Ok(vec![x.amin(())]),
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
            "var" => vec![x.var((&dim).kept(keepdim), correction)],
            "std" => vec![x.std((&dim).kept(keepdim), correction)],
            _ => {
                let dims = (&dim).kept(keepdim);
                let (first, mean) = match name {
                    "var_mean" => x.var_mean(dims, correction),
                    _ => x.std_mean(dims, correction),
                };
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
    Ok(vec![x.quantile(q, dim.kept(a.flag(3, "keepdim")?.unwrap_or(false)), how)])
}
