//! Views, joins, parts, and positions.

use crate::arguments::{Arguments, Bound, integers, number as number_of};
use crate::calls::Called;
use crate::cases::Arg;
use tracecast_ir::DType;
use tracecast_ir::functions as f;
use tracecast_ir::functions::{PadMode, Pick};
use tracecast_ir::ops::prelude::*;

/// What stands in brackets.
fn picked<'t>(a: &Arguments<'_, 't>) -> Called<'t> {
    let x = a.tensor(0, "self")?;
    let index = if a.list.len() == 2 { a.get(1, a.list[1].name.unwrap_or("index")) } else { None };
    let each = match index {
        None => vec![Pick::New],
        Some(Bound::Plain(Arg::Tuple(list))) => {
            list.iter().map(|arg| pick(a, &Bound::Plain(arg))).collect::<Result<_, _>>()?
        }
        Some(Bound::List(list)) if a.case.args[1].is.is_tuple() => {
            list.iter().map(|bound| pick(a, bound)).collect::<Result<_, _>>()?
        }
        Some(bound) => vec![pick(a, bound)?],
    };
    Ok(vec![x.pick(&each)])
}

/// An index; a list is a tensor of positions.
fn pick<'t>(a: &Arguments<'_, 't>, bound: &Bound<'_, 't>) -> Result<Pick<'t>, String> {
    let number = |bound: &Bound<'_, 't>| match bound {
        Bound::Plain(Arg::None) => Ok(None),
        Bound::Plain(Arg::Int(n)) => Ok(Some(*n)),
        _ => Err("takes integers as bounds".to_owned()),
    };
    Ok(match bound {
        Bound::Tensor(v) => Pick::Of(*v),
        Bound::Plain(Arg::Int(at)) => Pick::At(*at),
        Bound::Plain(Arg::None) => Pick::New,
        Bound::Plain(Arg::Ellipsis) => Pick::Rest,
        Bound::Plain(Arg::Slice(list)) => {
            let each = list.iter().map(|arg| number(&Bound::Plain(arg)));
            let each = each.collect::<Result<Vec<_>, _>>()?;
            Pick::Range(each[0], each[1], each[2].unwrap_or(1))
        }
        Bound::Slice(list) => {
            let each = list.iter().map(number).collect::<Result<Vec<_>, _>>()?;
            Pick::Range(each[0], each[1], each[2].unwrap_or(1))
        }
        Bound::Plain(Arg::List(list)) if list.iter().any(|arg| matches!(arg, Arg::Bool(_))) => {
            let mask: Option<Vec<f64>> = list.iter().map(number_of).collect();
            let mask = mask.ok_or("takes truth values")?;
            Pick::Of(a.t.constant(DType::Bool, &[mask.len()], &mask))
        }
        Bound::Plain(arg) => {
            let places = integers(arg).ok_or("takes integers")?;
            let places: Vec<f64> = places.iter().map(|n| *n as f64).collect();
            Pick::Of(a.t.constant(DType::I64, &[places.len()], &places))
        }
        Bound::List(_) => return Err("takes no lists of tensors".to_owned()),
    })
}

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    if name == "__getitem__" {
        return Some(picked(a));
    }
    shapes(name, a)
        .or_else(|| parts(name, a))
        .or_else(|| joins(name, a))
        .or_else(|| matrices(name, a))
        .or_else(|| positions(name, a))
}

fn shapes<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        Ok(vec![match name {
            "view" | "reshape" => {
                x.reshape(&a.sizes(1, if name == "view" { "size" } else { "shape" })?)
            }
            "view_as" | "reshape_as" => x.reshape_as(a.tensor(1, "other")?),
            "permute" => x.permute(&a.sizes(1, "dims")?),
            "transpose" => x.transpose(a.int(1, "dim0")?, a.int(2, "dim1")?),
            "t" if x.rank() > 2 => x.tracer().fail("t", "takes a matrix"),
            "t" | "T" => x.permute((0..x.rank() as i64).rev().collect::<Vec<_>>()),
            "mT" => x.m_t(),
            "movedim" => x.movedim(&a.ints(1, "source")?, &a.ints(2, "destination")?),
            "squeeze" if matches!(a.ints(1, "dim").as_deref(), Ok([])) => x,
            "squeeze" => x.squeeze(&a.opt_ints(1, "dim")?.unwrap_or_default()),
            "unsqueeze" => x.unsqueeze(a.int(1, "dim")?),
            "expand" | "broadcast_to" => x.expand(&a.sizes(1, "size")?),
            "expand_as" => x.expand_as(a.tensor(1, "other")?),
            "flatten" => {
                let (start, end) = (a.opt_int(1, "start_dim")?, a.opt_int(2, "end_dim")?);
                x.flatten(start.unwrap_or(0), end.unwrap_or(-1))
            }
            "unflatten" => x.unflatten(a.int(1, "dim")?, &a.ints(2, "sizes")?),
            "ravel" => x.ravel(),
            "contiguous" | "clone" | "positive" => x,
            "atleast_1d" => x.at_least(1),
            "atleast_2d" => x.at_least(2),
            "atleast_3d" => x.at_least(3),
            "repeat" => x.repeat(&a.sizes(1, "repeats")?),
            "tile" => x.tile(&a.sizes(1, "dims")?),
            "repeat_interleave" if a.tensor(1, "repeats").is_ok() => {
                let _ = (a.opt_int(2, "dim")?, a.opt_int(3, "output_size")?);
                x.repeat_interleave_by(a.tensor(1, "repeats")?)
            }
            "repeat_interleave" => x.repeat_interleave(a.int(1, "repeats")?, a.opt_int(2, "dim")?),
            "sum_to_size" => x.sum_to_size(&a.sizes(1, "size")?),
            "flip" => x.flip(&a.sizes(1, "dims")?),
            "fliplr" => x.fliplr(),
            "flipud" => x.flipud(),
            "roll" => x.roll(&a.ints(1, "shifts")?, &a.opt_ints(2, "dims")?.unwrap_or_default()),
            "rot90" => {
                let dims = a.opt_ints(2, "dims")?.unwrap_or_else(|| vec![0, 1]);
                x.rot90(a.opt_int(1, "k")?.unwrap_or(1), &dims)
            }
            "constant_pad_nd" => {
                let value = a.opt_float(2, "value")?.unwrap_or(0.0);
                x.pad_last(&a.ints(1, "pad")?, PadMode::Constant(value))
            }
            "pad" => {
                let value = a.opt_float(3, "value")?;
                let mode = match a.text(2, "mode")?.unwrap_or("constant") {
                    "constant" => PadMode::Constant(value.unwrap_or(0.0)),
                    "reflect" => PadMode::Reflect,
                    "replicate" => PadMode::Replicate,
                    _ => PadMode::Circular,
                };
                x.pad_last(&a.ints(1, "pad")?, mode)
            }
            _ => return Err(String::new()),
        }])
    };
    const NAMES: &[&str] = names! {
        "view" "reshape" "view_as" "reshape_as" "permute" "transpose" "t" "T" "mT" "movedim"
        "squeeze" "unsqueeze" "expand" "broadcast_to" "expand_as" "flatten" "unflatten" "ravel"
        "contiguous" "clone" "positive" "atleast_1d" "atleast_2d" "atleast_3d" "repeat" "tile"
        "repeat_interleave" "sum_to_size" "flip" "fliplr" "flipud" "roll" "rot90" "constant_pad_nd"
        "pad"
    };
    NAMES.contains(&name).then(made)
}

fn parts<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let dim = |at| Ok::<i64, String>(a.opt_int(at, "dim")?.unwrap_or(0));
    let made = || {
        let x = a.x()?;
        let split = match name {
            "hsplit" => Some(i64::from(x.rank() > 1)),
            "vsplit" => Some(0),
            "dsplit" => Some(2),
            _ => None,
        };
        if let Some(axis) = split {
            if let Some(sections) = a.opt_int(1, "sections").ok().flatten() {
                return Ok(match name {
                    "hsplit" => x.hsplit(sections),
                    "vsplit" => x.vsplit(sections),
                    _ => x.dsplit(sections),
                });
            }
            return Ok(x.split_at(&a.ints(1, "indices")?, axis));
        }
        Ok(match name {
            "split" | "unsafe_split" | "split_with_sizes" => {
                let named = ["split_size_or_sections", "split_size", "split_sizes"];
                let arg = named.iter().find_map(|name| a.plain(1, name)).ok_or("takes sizes")?;
                match arg {
                    Arg::Int(each) => x.split(*each, dim(2)?),
                    other => x.split_with_sizes(&integers(other).ok_or("takes integers")?, dim(2)?),
                }
            }
            "chunk" | "unsafe_chunk" => x.chunk(a.int(1, "chunks")?, dim(2)?),
            "unbind" => x.unbind(dim(1)?),
            "tensor_split" => match (a.opt_int(1, "sections"), a.plain(1, "indices")) {
                (Ok(Some(sections)), _) => x.tensor_split(sections, dim(2)?),
                (_, Some(list)) => x.split_at(&integers(list).ok_or("takes integers")?, dim(2)?),
                _ => {
                    let by = a.tensor(1, "tensor_indices_or_sections")?;
                    let _ = (by, dim(2)?);
                    let why = "the shapes of the results depends on the data: give numbers";
                    vec![x.tracer().fail("tensor_split", why)]
                }
            },
            _ => return Err(String::new()),
        })
    };
    const NAMES: &[&str] = names! {
        "hsplit" "vsplit" "dsplit" "split" "unsafe_split" "split_with_sizes" "chunk" "unsafe_chunk"
        "unbind" "tensor_split"
    };
    NAMES.contains(&name).then(made)
}

fn joins<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        if matches!(name, "broadcast_tensors" | "meshgrid" | "block_diag") {
            let xs = a.all_tensors()?;
            return Ok(match name {
                "broadcast_tensors" => f::broadcast_tensors(&xs),
                "block_diag" => vec![f::block_diag(&xs)],
                _ => f::meshgrid(&xs, a.text(usize::MAX, "indexing")? == Some("xy")),
            });
        }
        let xs = a.tensors(0, "tensors")?;
        if xs.is_empty() {
            let _ = a.opt_int(1, "dim")?;
            return Ok(vec![a.t.fail(name, "takes at least one tensor")]);
        }
        Ok(vec![match name {
            "stack" => f::stack(&xs, a.opt_int(1, "dim")?.unwrap_or(0)),
            "cat" => cat(&xs, a.opt_int(1, "dim")?.unwrap_or(0)),
            "hstack" => f::hstack(&xs),
            "vstack" => f::vstack(&xs),
            "dstack" => f::dstack(&xs),
            _ => f::column_stack(&xs),
        }])
    };
    const NAMES: &[&str] = names! {
        "broadcast_tensors" "meshgrid" "block_diag" "stack" "cat" "hstack" "vstack" "dstack"
        "column_stack"
    };
    NAMES.contains(&name).then(made)
}

fn matrices<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let int = |at, name, or| Ok::<i64, String>(a.opt_int(at, name)?.unwrap_or(or));
    let made = || {
        let x = a.tensor(0, if name == "linalg.diagonal" { "A" } else { "self" })?;
        Ok(vec![match name {
            "diagonal" => x.diagonal(int(1, "offset", 0)?, int(2, "dim1", 0)?, int(3, "dim2", 1)?),
            "linalg.diagonal" => {
                x.diagonal(int(9, "offset", 0)?, int(9, "dim1", -2)?, int(9, "dim2", -1)?)
            }
            "diag_embed" => {
                x.diag_embed(int(1, "offset", 0)?, int(2, "dim1", -2)?, int(3, "dim2", -1)?)
            }
            "diag" => x.diag(int(1, "diagonal", 0)?),
            "diagflat" => x.diagflat(int(1, "offset", 0)?),
            "tril" => x.tril(int(1, "diagonal", 0)?),
            "triu" => x.triu(int(1, "diagonal", 0)?),
            "diagonal_scatter" => {
                let (offset, dim1) = (int(2, "offset", 0)?, int(3, "dim1", 0)?);
                x.diagonal_scatter(a.tensor(1, "src")?, offset, dim1, int(4, "dim2", 1)?)
            }
            _ => return Err(String::new()),
        }])
    };
    const NAMES: &[&str] = names! {
        "diagonal" "linalg.diagonal" "diag_embed" "diag" "diagflat" "tril" "triu" "diagonal_scatter"
    };
    NAMES.contains(&name).then(made)
}

fn positions<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        Ok(vec![match name {
            "select" => x.select(a.int(1, "dim")?, a.int(2, "index")?),
            "narrow" => {
                let (dim, length) = (a.int(1, "dim")?, a.int(3, "length")?);
                match a.tensor(2, "start") {
                    Ok(start) => x.narrow_at(dim, start, length),
                    Err(_) => x.narrow(dim, a.int(2, "start")?, length),
                }
            }
            "slice" => {
                let (start, end) = (a.opt_int(2, "start")?, a.opt_int(3, "end")?);
                let dim = a.opt_int(1, "dim")?.unwrap_or(0);
                x.slice_of(dim, start, end, a.opt_int(4, "step")?.unwrap_or(1))
            }
            "unfold" => x.unfold(a.int(1, "dimension")?, a.int(2, "size")?, a.int(3, "step")?),
            "index_select" => x.index_select(a.int(1, "dim")?, a.tensor(2, "index")?),
            "take" => x.take(a.tensor(1, "index")?),
            "take_along_dim" => x.take_along_dim(a.tensor(1, "indices")?, a.opt_int(2, "dim")?),
            "select_scatter" => {
                x.select_scatter(a.tensor(1, "src")?, a.int(2, "dim")?, a.int(3, "index")?)
            }
            "slice_scatter" => {
                let (start, end) = (a.opt_int(3, "start")?, a.opt_int(4, "end")?);
                let (dim, step) = (a.opt_int(2, "dim")?, a.opt_int(5, "step")?);
                let src = a.tensor(1, "src")?;
                x.slice_scatter(src, dim.unwrap_or(0), start, end, step.unwrap_or(1))
            }
            "as_strided" => {
                let offset = a.opt_int(3, "storage_offset")?.unwrap_or(0);
                x.as_strided(&a.ints(1, "size")?, &a.ints(2, "stride")?, offset)
            }
            "one_hot" => x.one_hot_rows(a.opt_int(1, "num_classes")?.unwrap_or(-1)),
            "embedding" => {
                let (weight, indices) = (a.tensor(0, "weight")?, a.tensor(1, "input")?);
                let padding = a.opt_int(2, "padding_idx")?;
                let (most, order) = (a.opt_float(3, "max_norm")?, a.opt_float(4, "norm_type")?);
                let scale = a.flag(5, "scale_grad_by_freq")?.unwrap_or(false);
                let _ = a.flag(6, "sparse")?;
                let limited = |most| weight.limited(order.unwrap_or(2.0), most);
                most.map_or(weight, limited).embedding_with(indices, padding, scale)
            }
            "nonzero" => {
                let _ = a.flag(1, "as_tuple")?;
                x.nonzero()
            }
            "argwhere" => x.argwhere(),
            "masked_select" => x.masked_select(a.tensor(1, "mask")?),
            _ => return Err(String::new()),
        }])
    };
    const NAMES: &[&str] = names! {
        "select" "narrow" "slice" "unfold" "index_select" "take" "take_along_dim" "select_scatter"
        "slice_scatter" "as_strided" "nonzero" "one_hot" "embedding" "argwhere" "masked_select"
    };
    NAMES.contains(&name).then(made)
}
