//! Pooling, which gives indices where they are asked for.

use crate::arguments::{Arguments, Bound, integers};
use crate::calls::Called;
use crate::cases::Arg;
use tracecast_ir::ops::prelude::*;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let name = name.strip_suffix("_with_indices").unwrap_or(name);
    let (kind, axes) = name.split_at_checked(name.len().saturating_sub(2))?;
    let axes = axes.strip_suffix('d')?.parse::<usize>().ok()?;
    match kind {
        "max_pool" => Some(largest(a, axes)),
        "avg_pool" => Some(mean(a, axes)),
        "adaptive_max_pool" | "adaptive_avg_pool" => Some(adaptive(kind, a, axes)),
        _ => None,
    }
}

fn largest<'t>(a: &Arguments<'_, 't>, axes: usize) -> Called<'t> {
    let (x, kernel) = (a.x()?, a.ints(1, "kernel_size")?);
    let stride = a.opt_ints(2, "stride")?.unwrap_or_default();
    let padding = a.opt_ints(3, "padding")?.unwrap_or_default();
    let dilation = a.opt_ints(4, "dilation")?.unwrap_or_default();
    let ceil = a.flag(5, "ceil_mode")?.unwrap_or(false);
    let has_indices = a.flag(6, "return_indices")?.unwrap_or(false);
    let y = match axes {
        1 => x.max_pool1d(&kernel, &stride, &padding, &dilation, ceil),
        2 => x.max_pool2d(&kernel, &stride, &padding, &dilation, ceil),
        _ => x.max_pool3d(&kernel, &stride, &padding, &dilation, ceil),
    };
    Ok(y.results().into_iter().take(if has_indices { 2 } else { 1 }).collect())
}

fn mean<'t>(a: &Arguments<'_, 't>, axes: usize) -> Called<'t> {
    let (x, kernel) = (a.x()?, a.ints(1, "kernel_size")?);
    let stride = a.opt_ints(2, "stride")?.unwrap_or_default();
    let padding = a.opt_ints(3, "padding")?.unwrap_or_default();
    let ceil = a.flag(4, "ceil_mode")?.unwrap_or(false);
    let counts = a.flag(5, "count_include_pad")?.unwrap_or(true);
    let divisor = a.opt_int(6, "divisor_override")?;
    Ok(vec![match axes {
        1 => x.avg_pool1d(&kernel, &stride, &padding, ceil, counts),
        2 => x.avg_pool2d(&kernel, &stride, &padding, ceil, counts, divisor),
        _ => x.avg_pool3d(&kernel, &stride, &padding, ceil, counts, divisor),
    }])
}

/// Sizes of the result, of which some may be those of the operand.
fn adaptive<'t>(kind: &str, a: &Arguments<'_, 't>, axes: usize) -> Called<'t> {
    let x = a.x()?;
    let first = x.rank().checked_sub(axes).ok_or("takes channels with positions")?;
    let to = match a.get(1, "output_size") {
        Some(Bound::Plain(Arg::List(list) | Arg::Tuple(list))) => {
            let size = |(i, size): (usize, &Arg)| match size {
                Arg::None => x.shape().get(first + i).and_then(|n| n.number()),
                size => integers(size).map(|size| size[0]),
            };
            list.iter().enumerate().map(size).collect::<Option<Vec<i64>>>().ok_or("no sizes")?
        }
        Some(Bound::Plain(arg)) => integers(arg).ok_or("no sizes")?,
        _ => return Err("takes `output_size`".to_owned()),
    };
    let has_indices = a.flag(2, "return_indices")?.unwrap_or(false);
    let y = match (kind, axes) {
        ("adaptive_max_pool", 1) => x.adaptive_max_pool1d(&to),
        ("adaptive_max_pool", 2) => x.adaptive_max_pool2d(&to),
        ("adaptive_max_pool", _) => x.adaptive_max_pool3d(&to),
        (_, 1) => x.adaptive_avg_pool1d(&to),
        (_, 2) => x.adaptive_avg_pool2d(&to),
        _ => x.adaptive_avg_pool3d(&to),
    };
    Ok(y.results().into_iter().take(if has_indices { 2 } else { 1 }).collect())
}
