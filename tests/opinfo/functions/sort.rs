//! Sorting and searching.

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Var};

/// A place that no argument has: it is given by name alone.
const NAMED: usize = usize::MAX;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    ordered(name, a).or_else(|| searched(name, a))
}

/// Every sort here is stable, and what is largest comes in order.
fn ordered<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        let dim = |at| Ok::<i64, String>(a.opt_int(at, "dim")?.unwrap_or(-1));
        let flag = |at, name| a.flag(at, name);
        let (values, indices) = match name {
            "sort" | "argsort" => {
                let _ = flag(NAMED, "stable")?;
                let (dim, descending) = (dim(1)?, flag(2, "descending")?.unwrap_or(false));
                if name == "argsort" {
                    return Ok(vec![x.argsort(dim, descending)]);
                }
                x.sort(dim, descending)
            }
            "topk" => {
                let _ = flag(4, "sorted")?;
                let smallest = !flag(3, "largest")?.unwrap_or(true);
                x.topk(a.int(1, "k")?, dim(2)?, smallest)
            }
            _ => x.kthvalue(a.int(1, "k")?, (dim(2)?).kept(flag(3, "keepdim")?.unwrap_or(false))),
        };
        Ok(vec![values, indices])
    };
    ["sort", "argsort", "topk", "kthvalue"].contains(&name).then(made)
}

fn searched<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        if name == "isin" {
            let _ = a.flag(NAMED, "assume_unique")?;
            let invert = a.flag(NAMED, "invert")?.unwrap_or(false);
            let is_in = match a.tensor(1, "test_elements") {
                Ok(others) => x.isin(others, invert),
                Err(_) => x.isin(a.float(1, "test_elements")?, invert),
            };
            return Ok(vec![is_in]);
        }
        let right =
            a.flag(NAMED, "right")?.unwrap_or(false) || a.text(NAMED, "side")? == Some("right");
        let narrow = a.flag(NAMED, "out_int32")?.unwrap_or(false);
        let places: Var<'t> = match name {
            "bucketize" => x.bucketize(a.tensor(1, "boundaries")?, right),
            _ => {
                let sorter = a.opt_tensor(NAMED, "sorter")?;
                match a.tensor(1, "self") {
                    Ok(values) => x.searchsorted(values, sorter, right),
                    Err(_) => x.searchsorted(a.float(1, "self")?, sorter, right),
                }
            }
        };
        Ok(vec![if narrow { places.to(DType::I32) } else { places }])
    };
    ["isin", "bucketize", "searchsorted"].contains(&name).then(made)
}
