//! Elements at positions, and tensors with some elements put in their places.

use crate::arguments::{Arguments, Bound};
use crate::calls::Called;
use tracecast_ir::ops::prelude::*;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        Ok(vec![match name {
            "scatter" => scatter(a)?,
            "scatter_reduce" => {
                let reduce = a.text(4, "reduce")?;
                let include_self = a.flag(5, "include_self")?.unwrap_or(true);
                let (index, src) = (a.tensor(2, "index")?, a.tensor(3, "src")?);
                x.scatter_reduce(index, src, a.int(1, "dim")?, reduce, include_self)
            }
            "index_reduce" => {
                let reduce = a.text(4, "reduce")?;
                let include_self = a.flag(5, "include_self")?.unwrap_or(true);
                let (index, source) = (a.tensor(2, "index")?, a.tensor(3, "source")?);
                x.index_reduce(index, source, a.int(1, "dim")?, reduce, include_self)
            }
            "index_fill" => {
                let (dim, index) = (a.int(1, "dim")?, a.tensor(2, "index")?);
                match a.tensor(3, "value") {
                    Ok(value) => x.index_fill_with(dim, index, value),
                    Err(_) => x.index_fill(dim, index, a.float(3, "value")?),
                }
            }
            "index_put" => {
                let indices = a.tensors(1, "indices")?;
                let (values, accumulate) = (a.tensor(2, "values")?, a.flag(3, "accumulate")?);
                x.index_put(&indices[..], values, [], accumulate.unwrap_or(false))
            }
            "put" => {
                let (index, source) = (a.tensor(1, "index")?, a.tensor(2, "source")?);
                x.put(index, source, a.flag(3, "accumulate")?.unwrap_or(false))
            }
            "embedding_bag" => embedding_bag(a)?,
            _ => x.masked_scatter(a.tensor(1, "mask")?, a.tensor(2, "source")?),
        }])
    };
    const NAMES: &[&str] = names! {
        "scatter" "scatter_reduce" "index_reduce" "index_fill" "index_put" "put" "masked_scatter"
        "embedding_bag"
    };
    NAMES.contains(&name).then(made)
}

/// A source or a number, put in its places or reduced there.
fn scatter<'t>(a: &Arguments<'_, 't>) -> Result<tracecast_ir::Var<'t>, String> {
    let (x, dim, index) = (a.x()?, a.int(1, "dim")?, a.tensor(2, "index")?);
    let src = match (a.get(3, "src"), a.get(3, "value")) {
        (Some(Bound::Tensor(src)), _) => *src,
        _ => return Ok(x.scatter_value(index, a.float(3, "value")?, dim)),
    };
    let reduce = match a.text(4, "reduce")? {
        None => return Ok(x.scatter(index, src, dim)),
        Some("add") => "sum",
        Some("multiply") => "prod",
        Some(other) => other,
    };
    Ok(x.scatter_reduce(index, src, dim, Some(reduce), true))
}

fn embedding_bag<'t>(a: &Arguments<'_, 't>) -> Result<tracecast_ir::Var<'t>, String> {
    let (weight, indices) = (a.tensor(0, "weight")?, a.tensor(1, "input")?);
    let offsets = a.opt_tensor(2, "offsets")?;
    let (most, order) = (a.opt_float(3, "max_norm")?, a.opt_float(4, "norm_type")?);
    let scale = a.flag(5, "scale_grad_by_freq")?.unwrap_or(false);
    let (mode, _) = (a.text(6, "mode")?, a.flag(7, "sparse")?);
    let weights = a.opt_tensor(8, "per_sample_weights")?;
    let last = a.flag(9, "include_last_offset")?.unwrap_or(false);
    let padding = a.opt_int(10, "padding_idx")?;
    let rows = weight.size(0).number().ok_or("a table with a known number of rows")?;
    let padding = padding.map(|row| if row < 0 { row + rows } else { row });
    let table = most.map_or(weight, |most| weight.limited(order.unwrap_or(2.0), most));
    Ok(table.embedding_bag(indices, offsets, weights, mode, last, padding, scale))
}
