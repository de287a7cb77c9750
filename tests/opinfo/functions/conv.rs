//! Convolutions, whose padding may be a word, and windows as columns.

use crate::arguments::{Arguments, Bound};
use crate::calls::Called;
use crate::cases::Arg;
use tracecast_ir::ops::prelude::*;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || match name {
        "unfold" | "im2col" => columns(a),
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => transposed(name, a),
        _ => plain(name, a),
    };
    const NAMES: &[&str] = names! {
        "conv1d" "conv2d" "conv3d" "conv_transpose1d" "conv_transpose2d" "conv_transpose3d" "im2col"
    };
    let is_columns = name == "unfold" && a.case.id.starts_with("nn.functional.unfold/");
    (is_columns || NAMES.contains(&name)).then(made)
}

fn plain<'t>(name: &str, a: &Arguments<'_, 't>) -> Called<'t> {
    let (x, weight, bias) = (a.x()?, a.tensor(1, "weight")?, a.opt_tensor(2, "bias")?);
    let word = match a.get(4, "padding") {
        Some(Bound::Plain(Arg::Text(word))) => Some(word.as_str()),
        _ => None,
    };
    let stride = a.opt_ints(3, "stride")?.unwrap_or_default();
    let padding = if word.is_some() { None } else { a.opt_ints(4, "padding")? };
    let padding = padding.unwrap_or_default();
    let dilation = a.opt_ints(5, "dilation")?.unwrap_or_default();
    let groups = a.opt_int(6, "groups")?;
    let same = word == Some("same");
    Ok(vec![match name {
        "conv1d" => x.conv1d(weight, bias, &stride, &padding, &dilation, groups, same),
        "conv2d" => x.conv2d(weight, bias, &stride, &padding, &dilation, groups, same),
        _ => x.conv3d(weight, bias, &stride, &padding, &dilation, groups, same),
    }])
}

fn transposed<'t>(name: &str, a: &Arguments<'_, 't>) -> Called<'t> {
    let (x, weight, bias) = (a.x()?, a.tensor(1, "weight")?, a.opt_tensor(2, "bias")?);
    let stride = a.opt_ints(3, "stride")?.unwrap_or_default();
    let padding = a.opt_ints(4, "padding")?.unwrap_or_default();
    let beyond = a.opt_ints(5, "output_padding")?.unwrap_or_default();
    let groups = a.opt_int(6, "groups")?;
    let dilation = a.opt_ints(7, "dilation")?.unwrap_or_default();
    Ok(vec![match name {
        "conv_transpose1d" => {
            x.conv_transpose1d(weight, bias, &stride, &padding, &beyond, groups, &dilation)
        }
        "conv_transpose2d" => {
            x.conv_transpose2d(weight, bias, &stride, &padding, &beyond, groups, &dilation)
        }
        _ => x.conv_transpose3d(weight, bias, &stride, &padding, &beyond, groups, &dilation),
    }])
}

fn columns<'t>(a: &Arguments<'_, 't>) -> Called<'t> {
    let (x, size) = (a.x()?, a.ints(1, "kernel_size")?);
    let dilation = a.opt_ints(2, "dilation")?.unwrap_or_else(|| vec![1]);
    let padding = a.opt_ints(3, "padding")?.unwrap_or_else(|| vec![0]);
    let stride = a.opt_ints(4, "stride")?.unwrap_or_else(|| vec![1]);
    Ok(vec![x.im2col(&size, &dilation, &padding, &stride)])
}
