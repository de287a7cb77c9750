//! Products, and norms.

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::functions as f;
use tracecast_ir::ops::prelude::*;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    products(name, a).or_else(|| norms(name, a))
}

fn products<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        if matches!(name, "einsum" | "linalg.multi_dot") {
            let xs = a.tensors(0, "tensors")?;
            return Ok(vec![match a.text(1, "equation")? {
                Some(equation) => f::einsum(equation, &xs),
                None => f::multi_dot(&xs),
            }]);
        }
        let x = a.x()?;
        Ok(vec![match name {
            "outer" => x.outer(a.tensor(1, "vec2")?),
            "inner" => x.inner(a.tensor(1, "other")?),
            "kron" => x.kron(a.tensor(1, "other")?),
            "cross" => {
                let other = a.tensor(1, "other")?;
                let first = (0..x.rank()).find(|i| x.size(*i) == 3 && other.size(*i) == 3);
                x.cross(other, a.opt_int(2, "dim")?.unwrap_or(first.unwrap_or(0) as i64))
            }
            "linalg.cross" => x.cross(a.tensor(1, "other")?, a.opt_int(2, "dim")?.unwrap_or(-1)),
            "linalg.matrix_power" => x.matrix_power(a.int(1, "n")?),
            "tensordot" => {
                let (mine, theirs) = a.pair_of_ints(2, "dims")?.unwrap_or_default();
                x.tensordot(a.tensor(1, "b")?, &mine, &theirs)
            }
            "bilinear" => {
                let (other, weight) = (a.tensor(1, "input2")?, a.tensor(2, "weight")?);
                x.bilinear(other, weight, a.opt_tensor(3, "bias")?)
            }
            _ => return Err(String::new()),
        }])
    };
    const NAMES: &[&str] = names! {
        "einsum" "linalg.multi_dot" "outer" "inner" "kron" "cross" "linalg.cross"
        "linalg.matrix_power" "tensordot" "bilinear"
    };
    NAMES.contains(&name).then(made)
}

fn norms<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        let x = a.x()?;
        Ok(vec![match name {
            "cdist" => {
                let _ = a.text(3, "compute_mode")?;
                x.cdist(a.tensor(1, "x2")?, a.opt_float(2, "p")?)
            }
            "pairwise_distance" => {
                let (p, eps) = (a.opt_float(2, "p")?, a.opt_float(3, "eps")?);
                let keepdim = a.flag(4, "keepdim")?.unwrap_or(false);
                x.pairwise_distance(
                    a.tensor(1, "x2")?,
                    p.unwrap_or(2.0),
                    eps.unwrap_or(1e-6),
                    keepdim,
                )
            }
            "normalize" => {
                let (p, dim) = (a.opt_float(1, "p")?, a.opt_int(2, "dim")?);
                let eps = a.opt_float(3, "eps")?.unwrap_or(1e-12);
                x.normalize(p.unwrap_or(2.0), dim.unwrap_or(1), eps)
            }
            "native_layer_norm" => {
                let (weight, bias) = (a.opt_tensor(2, "weight")?, a.opt_tensor(3, "bias")?);
                let (shape, eps) = (a.ints(1, "normalized_shape")?, a.float(4, "eps")?);
                return Ok(x.native_layer_norm(&shape, weight, bias, eps));
            }
            "trace" => x.trace(),
            "diff" => {
                let (n, dim) = (a.opt_int(1, "n")?, a.opt_int(2, "dim")?);
                let (before, behind) = (a.opt_tensor(3, "prepend")?, a.opt_tensor(4, "append")?);
                f::diff(x, n.unwrap_or(1), dim.unwrap_or(-1), before, behind)
            }
            _ => norm(name, a)?,
        }])
    };
    const NAMES: &[&str] = names! {
        "cdist" "pairwise_distance" "normalize" "native_layer_norm" "trace" "diff" "norm"
        "linalg.norm" "linalg.matrix_norm"
    };
    NAMES.contains(&name).then(made)
}

/// Norms of vectors or of matrices, as the order and the axes say.
fn norm<'t>(name: &str, a: &Arguments<'_, 't>) -> Result<tracecast_ir::Var<'t>, String> {
    let x = a.x()?;
    let order = if name == "norm" { "p" } else { "ord" };
    let words = a.text(1, order).ok().flatten();
    let number = if words.is_some() { None } else { a.opt_float(1, order)? };
    if words == Some("nuc") {
        return Err("no singular values".to_owned());
    }
    let dim = a.opt_ints(2, "dim")?;
    let keepdim = a.flag(3, "keepdim")?.unwrap_or(false);
    let dtype = a.dtype(4, "dtype")?;
    let is_given = words.is_some() || number.is_some();
    let matrix = match (name, &dim) {
        ("linalg.matrix_norm", None) => Some([-2, -1]),
        ("norm", _) => None,
        ("linalg.norm", None) if is_given && x.rank() == 2 => Some([0, 1]),
        ("linalg.norm" | "linalg.matrix_norm", Some(dim)) if is_given && dim.len() == 2 => {
            Some([dim[0], dim[1]])
        }
        _ => None,
    };
    if let Some(matrix) = matrix {
        if number.is_some_and(|n| n.abs() == 2.0) {
            return Err("no singular values".to_owned());
        }
        return Ok(x.matrix_norm(matrix.kept(keepdim), number));
    }
    Ok(x.vector_norm((&dim.unwrap_or_default()).kept(keepdim).dtype(dtype), number))
}
