//! Random numbers. The seed is an argument here: any will do, since their types alone are compared.

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, TensorType};

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    const NAMES: &[&str] = names! {
        "dropout" "dropout2d" "bernoulli" "normal" "uniform" "rand_like" "randn" "randn_like"
        "randint" "randint_like" "exponential" "alpha_dropout" "multinomial"
    };
    NAMES.contains(&name).then(|| drawn(name, a))
}

fn drawn<'t>(name: &str, a: &Arguments<'_, 't>) -> Called<'t> {
    let rng = a.t.constant(DType::I64, &[2], &[1.0, 2.0]);
    let dtype = |or: DType| Ok::<DType, String>(a.dtype(usize::MAX, "dtype")?.unwrap_or(or));
    let like = || {
        let x = a.x()?;
        Ok::<_, String>(a.t.full(x.ty().with_dtype(dtype(x.dtype())?), 0.0))
    };
    let of = |size: Vec<i64>, dtype| a.t.full(TensorType::new(dtype, &size[..]), 0.0);
    let _ = a.flag(usize::MAX, "requires_grad")?;
    Ok(vec![match name {
        "multinomial" => {
            let replacement = a.flag(2, "replacement")?.unwrap_or(false);
            a.x()?.multinomial(rng, a.int(1, "num_samples")?, replacement, 0)
        }
        "dropout" | "dropout2d" | "alpha_dropout" => {
            let (x, p) = (a.x()?, a.opt_float(1, "p")?.unwrap_or(0.5));
            if a.flag(2, "training")? == Some(false) {
                x
            } else if name == "alpha_dropout" {
                x.alpha_dropout(rng, p, 0)
            } else if name == "dropout" {
                x.dropout(rng, p, 0)
            } else {
                x.feature_dropout(rng, p, 0)
            }
        }
        "bernoulli" => a.x()?.bernoulli_each(rng, 0),
        "uniform" => a.x()?.uniform(rng, a.float(1, "from")?, a.float(2, "to")?, 0),
        "exponential" => a.x()?.exponential(rng, a.float(1, "lambd")?, 0),
        "rand_like" => like()?.uniform(rng, 0.0, 1.0, 0),
        "randn_like" => like()?.normal(rng, 0.0, 1.0, 0),
        "randn" => of(a.ints(0, "size")?, dtype(DType::F32)?).normal(rng, 0.0, 1.0, 0),
        "randint" => {
            let x = of(a.ints(2, "size")?, dtype(DType::I64)?);
            x.randint(rng, a.opt_int(0, "low")?.unwrap_or(0), a.int(1, "high")?, 0)
        }
        "randint_like" => {
            let low = a.opt_int(1, "low")?.unwrap_or(0);
            like()?.randint(rng, low, a.int(2, "high")?, 0)
        }
        _ if a.list.len() == 3 && a.x().is_ok() => {
            a.x()?.normal(rng, a.float(1, "mean")?, a.float(2, "std")?, 0)
        }
        _ => match (a.tensor(0, "mean"), a.tensor(1, "std")) {
            (Err(_), Err(_)) => {
                let x = of(a.ints(2, "size")?, dtype(DType::F32)?);
                x.normal(rng, a.float(0, "mean")?, a.float(1, "std")?, 0)
            }
            (mean, std) => {
                let x = mean.clone().or_else(|_| std.clone())?;
                let unit = x.normal(rng, 0.0, 1.0, 0);
                let unit = match &std {
                    Ok(std) => unit.mul(*std),
                    Err(_) => unit.mul(a.float(1, "std")?),
                };
                match mean {
                    Ok(mean) => unit.add(mean),
                    Err(_) => unit.add(a.float(0, "mean")?),
                }
            }
        },
    }])
}
