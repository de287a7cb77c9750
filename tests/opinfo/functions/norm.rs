//! Norms of channels, with the running statistics that they write.

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Size, TensorType, Var};

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || match name {
        "group_norm" => {
            let (groups, eps) = (a.int(1, "num_groups")?, a.opt_float(4, "eps")?.unwrap_or(1e-5));
            let [weight, bias] = scales(a, [2, 3])?;
            Ok(vec![a.x()?.group_norm(weight, bias, groups, eps)])
        }
        "native_group_norm" => {
            let ([weight, bias], groups) = (scales(a, [1, 2])?, a.int(6, "group")?);
            for (at, name) in [(3, "N"), (4, "C"), (5, "HxW")] {
                a.int(at, name)?;
            }
            Ok(a.x()?.native_group_norm(weight, bias, groups, a.float(7, "eps")?))
        }
        "local_response_norm" => {
            let float =
                |at, name, absent| Ok::<f64, String>(a.opt_float(at, name)?.unwrap_or(absent));
            let (size, alpha) = (a.int(1, "size")?, float(2, "alpha", 1e-4)?);
            let (beta, k) = (float(3, "beta", 0.75)?, float(4, "k", 1.0)?);
            Ok(vec![a.x()?.local_response_norm(size, alpha, beta, k)])
        }
        "instance_norm" => of_instances(a),
        "native_batch_norm" => of_batch(a, [3, 4, 1, 2]),
        _ => of_batch(a, [1, 2, 3, 4]),
    };
    const NAMES: &[&str] = names! {
        "batch_norm" "native_batch_norm" "group_norm" "native_group_norm" "instance_norm"
        "local_response_norm"
    };
    NAMES.contains(&name).then(made)
}

fn scales<'t>(a: &Arguments<'_, 't>, at: [usize; 2]) -> Result<[Option<Var<'t>>; 2], String> {
    Ok([a.opt_tensor(at[0], "weight")?, a.opt_tensor(at[1], "bias")?])
}

fn running<'t>(a: &Arguments<'_, 't>, at: [usize; 2]) -> Result<[Option<Var<'t>>; 2], String> {
    Ok([a.opt_tensor(at[0], "running_mean")?, a.opt_tensor(at[1], "running_var")?])
}

/// With the running statistics that the call writes behind the results.
fn with_written<'t>(
    a: &Arguments<'_, 't>,
    results: Vec<Var<'t>>,
    old: [Option<Var<'t>>; 2],
    [mean, variance]: [Var<'t>; 2],
    count: Size,
) -> Called<'t> {
    let momentum = a.opt_float(6, "momentum")?.unwrap_or(0.1);
    if a.case.written.is_empty() {
        return Ok(results);
    }
    let share = a.t.full(TensorType::scalar(DType::F64), momentum);
    let new = [mean, variance.unbiased(count)];
    let moved = old.into_iter().zip(new).filter_map(|(old, new)| Some(old?.moved(new, share)));
    Ok(results.into_iter().chain(moved).collect())
}

fn of_batch<'t>(a: &Arguments<'_, 't>, at: [usize; 4]) -> Called<'t> {
    let (x, old) = (a.x()?, running(a, [at[0], at[1]])?);
    let [weight, bias] = scales(a, [at[2], at[3]])?;
    let training = a.flag(5, "training")?.unwrap_or(false);
    let eps = a.opt_float(7, "eps")?.unwrap_or(1e-5);
    let is_native = a.case.op.starts_with("native");
    let y = x.batch_norm(weight, bias, old[0], old[1], training, eps);
    let [first, mean, variance] = y.results()[..] else { return Ok(vec![y]) };
    let results = if is_native {
        x.native_batch_norm([weight, bias], old, training, eps)
    } else {
        vec![first]
    };
    with_written(a, results, old, [mean, variance], x.ty().numel() / mean.ty().numel())
}

fn of_instances<'t>(a: &Arguments<'_, 't>) -> Called<'t> {
    let (x, old, [weight, bias]) = (a.x()?, running(a, [1, 2])?, scales(a, [3, 4])?);
    let of_input = a.flag(5, "use_input_stats")?.unwrap_or(true);
    let eps = a.opt_float(7, "eps")?.unwrap_or(1e-5);
    let given = old[0].zip(old[1]).map(|(mean, variance)| [mean, variance]);
    let given = given.filter(|_| !of_input);
    let results = x.instance_norm(weight, bias, given, eps);
    let [y, mean, variance] = results[..] else { return Ok(results) };
    let count = x.shape()[2..].iter().product();
    with_written(a, vec![y], old, [mean, variance], count)
}
