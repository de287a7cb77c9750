//! Losses whose arguments PyTorch takes otherwise.

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::ops::prelude::*;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        let reduction = a.text(usize::MAX, "reduction")?;
        Ok(vec![match name {
            "poisson_nll_loss" => {
                let (log_input, full) = (a.flag(2, "log_input")?, a.flag(3, "full")?);
                let target = a.tensor(1, "target")?;
                let eps = a.opt_float(5, "eps")?;
                let (log_input, full) = (log_input.unwrap_or(true), full.unwrap_or(false));
                x.poisson_nll_loss(target, log_input, full, eps, reduction)
            }
            "kl_div" => {
                let target = a.tensor(1, "target")?;
                let of_log = a.flag(5, "log_target")?.unwrap_or(false);
                if reduction == Some("batchmean") {
                    let total = x.kl_div(target, Some("sum"), of_log);
                    total.div(x.size(0).get() as f64)
                } else {
                    x.kl_div(target, reduction, of_log)
                }
            }
            "gaussian_nll_loss" => {
                let variance = match a.tensor(2, "var") {
                    Ok(variance) => variance,
                    Err(_) => x.tracer().full(x.ty(), a.float(2, "var")?),
                };
                let (full, eps) = (a.flag(3, "full")?.unwrap_or(false), a.opt_float(4, "eps")?);
                let target = a.tensor(1, "target")?;
                x.gaussian_nll_loss(target, variance, full, eps.unwrap_or(1e-6), reduction)
            }
            _ => {
                let weight = a.opt_tensor(2, "weight")?;
                x.multilabel_soft_margin_loss(a.tensor(1, "target")?, weight, reduction)
            }
        }])
    };
    let names = ["poisson_nll_loss", "kl_div", "gaussian_nll_loss", "multilabel_soft_margin_loss"];
    names.contains(&name).then(made)
}
