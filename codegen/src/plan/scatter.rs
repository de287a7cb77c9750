//! Scatters as three plans: copy the base, add the sources in order, and round the sums where the output is of low-precision floats.

use super::from_kernel::{elements_of, number, padded, sources, unsupported};
use super::{Calls, Draft, Place, Plan, Sink, Source, Stage};
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
    pub(crate) positions_independent: bool,
    /// Elements of the output.
    pub(crate) size: usize,
    /// The operand that is copied first; zeros if there is none.
    pub(crate) base: Option<usize>,
    /// The operand that is written.
    pub(crate) output: usize,
    /// True if the output is of 16-bit floats, which are accumulated in f32 and rounded at the end.
    pub(crate) low: bool,
    /// In cheap operations per source.
    pub(crate) cost: usize,
}

/// The function that copies the base.
pub(crate) const COPY: usize = 0;
/// The function that adds the sources.
pub(crate) const ADD: usize = 1;
/// The function that rounds 16-bit results.
pub(crate) const ROUND: usize = 2;

/// The plans of a scatter, in the order above. Slots of the one that adds are the kernel's inputs and outputs, and one for the
/// accumulator.
///
/// # Errors
/// If there is no accumulator of that dtype.
pub(super) fn draft<'k>(kernel: &'k Kernel, s: &ir::Scatter) -> Result<Draft<'k>> {
    let output = &kernel.outputs[0].ty;
    let (dtype, size) = (output.dtype, output.numel().get() as i64);
    let scalar =
        Scalar::of(dtype).ok_or_else(|| unsupported(kernel, &format!("a scatter of {dtype}")))?;
    if dtype == DType::Bool {
        return Err(unsupported(kernel, "a scatter of truth values"));
    }
    let acc = accumulator(dtype);
    let mut plans = vec![copy(size, scalar, s.base.map(|_| dtype), acc), add(kernel, s, acc)];
    if acc != dtype {
        plans.push(copy(size, scalar, Some(acc), dtype));
    }
    // Merging keeps the row-major order of the sources.
    let calls = Calls { merge_row: true, by_sixteens: true, as_planned: false };
    Ok(Draft::new(kernel, plans, calls))
}

/// How a run divides a scatter.
pub(super) fn dispatch(draft: Draft<'_>, s: &ir::Scatter) -> (Vec<Plan>, ScatterDispatch) {
    let output = &draft.kernel.outputs[0].ty;
    let main = &draft.plans[ADD];
    let dispatch = ScatterDispatch {
        rows: main.rows() as usize,
        row: main.row() as usize,
        positions_independent: positions_independent(main),
        size: output.numel().get(),
        base: s.base,
        output: draft.kernel.inputs.len(),
        low: accumulator(output.dtype) != output.dtype,
        cost: main.cost(),
    };
    (draft.plans, dispatch)
}

/// The dtype that a scatter accumulates in.
fn accumulator(dtype: DType) -> DType {
    dtype.compute()
}

/// Adds the sources.
fn add(kernel: &Kernel, s: &ir::Scatter, dtype: DType) -> Plan {
    let slot = kernel.inputs.len() + kernel.outputs.len();
    let mut extents: Vec<i64> = s.extents.iter().map(|e| number(*e)).collect();
    if extents.is_empty() {
        // One source, a row of its own.
        extents.push(1);
    }
    let rank = extents.len();
    let elements = kernel.outputs[0].ty.numel().get() as i64;
    let (access, index) = (padded(&s.place, rank), s.index.clone());
    let add = Sink::Add { slot, dtype, access, index, elements, value: s.value };
    Plan {
        aligned: extents[rank - 1] % 16 == 0,
        loads: sources(&s.loads, rank, elements_of(kernel), |_| false),
        stages: vec![Stage::along_row(s.body.clone(), vec![add])],
        ..Plan::new(extents, slot + 1)
    }
}

/// Slot 1 from slot 0, or from zeros.
fn copy(size: i64, scalar: Scalar, from: Option<DType>, to: DType) -> Plan {
    let mut body = Body::default();
    let value = match from {
        Some(_) => body.push(ScalarOp::Load(0), &[], scalar),
        None => body.push(ScalarOp::Const(0), &[], scalar),
    };
    let dtype = from.unwrap_or(to);
    let load = Source { slot: 0, dtype, place: Place::in_order(), elements: size, read_only: true };
    let place = Place::in_order();
    let store = Sink::Store { slot: 1, dtype: to, place, value, after: SmallVec::new() };
    Plan::map(size, 2, vec![load], body, vec![store])
}

/// True if the row moves by less than everything else moves at least.
pub(super) fn positions_independent(plan: &Plan) -> bool {
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
