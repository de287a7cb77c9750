//! Scatters: the base is copied, sources are added in order, 16-bit results are rounded once at the end.

use super::nest::cost;
use super::{Plan, Sink, Source, from_kernel};
use crate::error::Result;
use smallvec::SmallVec;
use tracecast_ir::DType;
use tracecast_ir::kernel::{self as ir, Body, Kernel, Scalar, ScalarOp};

/// A scatter, ready to be run by the functions of its plans: copy the base, add, and, for 16-bit floats, round.
#[derive(Debug)]
pub(crate) struct ScatterDispatch {
    /// Rows of sources.
    pub(crate) rows: usize,
    /// Sources of a row.
    pub(crate) row: usize,
    /// True if different positions of a row never meet in the output.
    pub(crate) positions_apart: bool,
    /// Elements of the output.
    pub(crate) size: usize,
    /// The operand that is copied first; zeros if there is none.
    pub(crate) base: Option<usize>,
    /// The operand that is written.
    pub(crate) output: usize,
    /// True if the output is of 16-bit floats, which are accumulated in f32 and rounded at the end.
    pub(crate) half: bool,
    /// In cheap operations per source.
    pub(crate) cost: usize,
}

/// The plans of a scatter, in the order above.
pub(crate) fn draft(kernel: &Kernel, s: &ir::Scatter) -> Result<(Vec<Plan>, ScatterDispatch)> {
    let output = &kernel.outputs[0];
    let size = output.ty.numel();
    let (dtype, acc) = (output.ty.dtype, from_kernel::scatter_dtype(kernel));
    let scalar = Scalar::of(dtype)
        .ok_or_else(|| from_kernel::unsupported(kernel, &format!("a scatter of {dtype}")))?;
    let main = from_kernel::scatter(kernel, s)?;
    let half = dtype.is_low();
    let mut plans = vec![copy(size as i64, scalar, s.base.map(|_| dtype), acc)];
    let run = ScatterDispatch {
        rows: main.rows() as usize,
        row: main.row() as usize,
        positions_apart: positions_apart(&main),
        size,
        base: s.base,
        output: kernel.inputs.len(),
        half,
        cost: cost(&s.body),
    };
    plans.push(main);
    if half {
        plans.push(copy(size as i64, scalar, Some(acc), dtype));
    }
    Ok((plans, run))
}

/// Slot 1 from slot 0, or from zeros.
fn copy(size: i64, scalar: Scalar, from: Option<DType>, to: DType) -> Plan {
    let mut body = Body::default();
    let value = match from {
        Some(_) => body.push(ScalarOp::Load(0), &[], scalar),
        None => body.push(ScalarOp::Const(0), &[], scalar),
    };
    let dtype = from.unwrap_or(to);
    let load =
        Source { slot: 0, dtype, place: from_kernel::in_order(), elements: size, fixed: true };
    let store = Sink::Store {
        slot: 1,
        dtype: to,
        place: from_kernel::in_order(),
        value,
        after: SmallVec::new(),
    };
    from_kernel::flat(size, 2, vec![load], body, vec![store])
}

/// True if the row moves by less than everything else moves at least.
fn positions_apart(plan: &Plan) -> bool {
    let Some(Sink::Add { access, .. }) = plan.stages[0].sinks.first() else { return false };
    let row = plan.row_axis();
    let step = access.strides[row].unsigned_abs();
    let others = access.strides[..row].iter().chain(&access.indirect);
    let common = others.fold(0u64, |g, s| gcd(g, s.unsigned_abs()));
    let reach = step * plan.extents[row].saturating_sub(1).max(0) as u64;
    // Varying indices come from the same places: their strides count among the others.
    step > 0 && (common == 0 || reach < common)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
