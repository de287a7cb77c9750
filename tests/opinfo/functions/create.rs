//! Tensors made of numbers, and random ones.

use crate::arguments::Arguments;
use crate::calls::Called;
use crate::cases::Arg;
use tracecast_ir::{DType, TensorType, Var};

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    filled(name, a).or_else(|| spaced(name, a))
}

/// The dtype of a number without one of its own.
fn dtype_of(arg: Option<&Arg>) -> DType {
    match arg {
        Some(Arg::Bool(_)) => DType::Bool,
        Some(Arg::Int(_)) => DType::I64,
        _ => DType::F32,
    }
}

fn filled<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let value = |at, name| a.float(at, name);
    let dtype = |or: DType| Ok::<DType, String>(a.dtype(usize::MAX, "dtype")?.unwrap_or(or));
    let made = || {
        let _ = a.flag(usize::MAX, "requires_grad")?;
        let (ty, value) = match name {
            "full" => {
                let dtype = dtype(dtype_of(a.plain(1, "fill_value")))?;
                (TensorType::new(dtype, &a.ints(0, "size")?[..]), value(1, "fill_value")?)
            }
            "ones" | "zeros" => (
                TensorType::new(dtype(DType::F32)?, &a.ints(0, "size")?[..]),
                f64::from(u8::from(name == "ones")),
            ),
            "scalar_tensor" => (TensorType::scalar(dtype(DType::F32)?), value(0, "s")?),
            "full_like" => {
                (a.x()?.ty().with_dtype(dtype(a.x()?.dtype())?), value(1, "fill_value")?)
            }
            "ones_like" => (a.x()?.ty().with_dtype(dtype(a.x()?.dtype())?), 1.0),
            "zeros_like" => (a.x()?.ty().with_dtype(dtype(a.x()?.dtype())?), 0.0),
            "new_full" => {
                let ty = TensorType::new(dtype(a.x()?.dtype())?, &a.ints(1, "size")?[..]);
                (ty, value(2, "fill_value")?)
            }
            _ => {
                let ty = TensorType::new(dtype(a.x()?.dtype())?, &a.ints(1, "size")?[..]);
                (ty, f64::from(u8::from(name == "new_ones")))
            }
        };
        Ok(vec![a.t.full(ty, value)])
    };
    const NAMES: &[&str] = names! {
        "full" "ones" "zeros" "scalar_tensor" "full_like" "ones_like" "zeros_like" "new_full"
        "new_ones" "new_zeros"
    };
    NAMES.contains(&name).then(made)
}

fn spaced<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let bound = |at, name| -> Result<Var<'t>, String> {
        a.tensor(at, name).or_else(|_| Ok(a.t.scalar(a.float(at, name)?)))
    };
    let dtype = |or: DType| Ok::<DType, String>(a.dtype(usize::MAX, "dtype")?.unwrap_or(or));
    let made = || {
        let _ = a.flag(usize::MAX, "requires_grad")?;
        Ok(vec![match name {
            "arange" => {
                let (start, end) = (a.plain(0, "start"), a.plain(1, "end"));
                let is_whole = |arg: Option<&Arg>| matches!(arg, None | Some(Arg::Int(_)));
                let whole = is_whole(start) && is_whole(end) && is_whole(a.plain(2, "step"));
                let dtype = dtype(if whole { DType::I64 } else { DType::F32 })?;
                let step = a.opt_float(2, "step")?.unwrap_or(1.0);
                match a.opt_float(1, "end")? {
                    Some(end) if start.is_some() => {
                        a.t.arange(a.float(0, "start")?, end, step, dtype)
                    }
                    end => a.t.arange(0.0, end.map_or_else(|| a.float(0, "end"), Ok)?, step, dtype),
                }
            }
            "eye" => {
                let n = a.int(0, "n")?;
                a.t.eye(n, a.opt_int(1, "m")?.unwrap_or(n), dtype(DType::F32)?)
            }
            "linspace" => {
                let steps = a.int(2, "steps")?;
                a.t.linspace(bound(0, "start")?, bound(1, "end")?, steps, dtype(DType::F32)?)
            }
            "logspace" => {
                let (steps, base) = (a.int(2, "steps")?, a.opt_float(3, "base")?.unwrap_or(10.0));
                a.t.logspace(bound(0, "start")?, bound(1, "end")?, steps, base, dtype(DType::F32)?)
            }
            _ => {
                let dtype = dtype(DType::I64)?;
                let (rows, columns) = (a.int(0, "row")?, a.int(1, "col")?);
                let offset = a.opt_int(2, "offset")?.unwrap_or(0);
                a.t.triangle_indices(rows, columns, offset, name == "tril_indices").to(dtype)
            }
        }])
    };
    let names = ["arange", "eye", "linspace", "logspace", "tril_indices", "triu_indices"];
    names.contains(&name).then(made)
}
