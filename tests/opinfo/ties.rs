//! Which of equal elements an index points at is nobody's promise: it must point at an equal one.

use crate::arguments::integers;
use crate::cases::{Arg, Case};
use tracecast_ir::DType;
use tracecast_ir::eval::Value;

/// Operators whose last result says where elements were found along `dim`.
const FINDERS: &[&str] = &["argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"];

/// True if both are positions along the dimension of such an operator, and at each place those of equal elements.
pub(crate) fn points_at_equal(case: &Case, found: &Value, wanted: &Value) -> bool {
    let is_finder = FINDERS.contains(&case.op.as_str()) && found.ty.dtype == DType::I64;
    let Some(Arg::Tensor(x)) = case.args.first().map(|arg| &arg.is) else { return false };
    if !is_finder || x.ty.dtype == DType::I64 && case.out.len() == 1 && case.op != "argsort" {
        return false;
    }
    let sizes = x.ty.shape.numbers();
    if sizes.is_empty() {
        return false;
    }
    let named = |arg: &&crate::cases::Argument| arg.name.as_deref() == Some("dim");
    let dim = case.args.iter().find(named).and_then(|arg| integers(&arg.is)?.first().copied());
    let dim = dim.unwrap_or(-1).rem_euclid(sizes.len() as i64) as usize;
    let inner: usize = sizes[dim + 1..].iter().product();
    // Along the dimension the result may have fewer positions, or none of its own.
    let outer: usize = sizes[..dim].iter().product();
    let count = found.ty.numel().get();
    if outer * inner == 0 || !count.is_multiple_of(outer * inner) {
        return false;
    }
    let along = count / (outer * inner);
    let (numbers, found, wanted) = (x.to_f64s(), found.to_f64s(), wanted.to_f64s());
    (0..count).all(|i| {
        let (before, behind) = (i / (along * inner), i % inner);
        let at = |index: f64| numbers.get((before * sizes[dim] + index as usize) * inner + behind);
        match (at(found[i]), at(wanted[i])) {
            (Some(a), Some(b)) => a == b || a.is_nan() && b.is_nan(),
            _ => false,
        }
    })
}
