//! Scatters as three plans: copy the base, combine it with the sources in order, and round what was
//! accumulated of low-precision floats.

use super::draft::Calls;
use super::facts::Facts;
use super::from_kernel::{elements_of, sources, unsupported};
use super::loops::padded;
use super::numbers::Numbers;
use super::{Draft, Place, Plan, Sink, Source, Stage};
use crate::error::Result;
use smallvec::SmallVec;
use tracecast_ir::kernel::{self as ir, Body, Combiner, Kernel, Scalar, ScalarOp};
use tracecast_ir::{DType, Size};

/// A scatter, ready to be run by the functions of its plans: copy the base, combine, and, where
/// 16-bit floats were accumulated, round.
#[derive(Debug)]
pub(crate) struct ScatterDispatch<C = Size> {
    /// Rows of sources.
    pub(crate) rows: C,
    /// Sources of a row.
    pub(crate) row: C,
    /// How far apart the positions of a row and everything else are in the output.
    apart: Apart,
    /// True if different positions of a row never meet in the output; not known where sizes are
    /// names.
    pub(crate) positions_independent: bool,
    /// Elements of the output.
    pub(crate) size: C,
    /// The operand that is copied first; zeros if there is none.
    pub(crate) base: Option<usize>,
    /// The operand that is written.
    pub(crate) output: usize,
    /// True for 16-bit floats that are accumulated in f32 and rounded at the end.
    pub(crate) low: bool,
    /// In cheap operations per source.
    pub(crate) cost: usize,
}

impl ScatterDispatch {
    /// For the sizes of a binding.
    ///
    /// # Errors
    /// If a name has no value, or a size is negative.
    pub(super) fn at(
        &self,
        sizes: &Numbers<'_>,
    ) -> std::result::Result<ScatterDispatch<usize>, String> {
        let ScatterDispatch { base, output, low, cost, .. } = *self;
        Ok(ScatterDispatch {
            rows: sizes.count(self.rows)?,
            row: sizes.count(self.row)?,
            positions_independent: self.apart.is_known(sizes)?,
            apart: Apart::default(),
            size: sizes.count(self.size)?,
            base,
            output,
            low,
            cost,
        })
    }
}

/// Strides in the output: of the row, and of everything else.
#[derive(Clone, Debug, Default)]
struct Apart {
    row: Size,
    step: Size,
    others: Vec<Size>,
}

/// The function that copies the base.
pub(crate) const COPY: usize = 0;
/// The function that combines the sources with what is there.
pub(crate) const COMBINE: usize = 1;
/// The function that rounds 16-bit results.
pub(crate) const ROUND: usize = 2;

/// The plans of a scatter, in the order above. Slots of the one that combines are the kernel's
/// inputs and outputs, and one for the accumulator.
///
/// # Errors
/// If there is no accumulator of that dtype.
pub(super) fn draft<'k>(kernel: &'k Kernel, s: &ir::Scatter, facts: Facts) -> Result<Draft<'k>> {
    let output = &kernel.outputs[0].ty;
    let (dtype, size) = (output.dtype, output.numel());
    let scalar =
        Scalar::of(dtype).ok_or_else(|| unsupported(kernel, &format!("a scatter of {dtype}")))?;
    let acc = accumulator(dtype, s.combiner);
    let mut plans = vec![copy(size, scalar, s.base.map(|_| dtype), acc), combine(kernel, s, acc)];
    if acc != dtype {
        plans.push(copy(size, scalar, Some(acc), dtype));
    }
    // Merging keeps the row-major order of the sources.
    let calls = Calls { merge_row: true, by_sixteens: true, as_planned: false };
    Ok(Draft::new(kernel, facts, plans, calls))
}

/// How a run divides a scatter.
pub(super) fn dispatch(draft: &Draft<'_>, s: &ir::Scatter) -> ScatterDispatch {
    let output = &draft.kernel.outputs[0].ty;
    let main = &draft.plans[COMBINE];
    ScatterDispatch {
        rows: main.rows(),
        row: main.row(),
        apart: apart(main),
        positions_independent: false,
        size: output.numel(),
        base: s.base,
        output: draft.kernel.inputs.len(),
        low: accumulator(output.dtype, s.combiner) != output.dtype,
        cost: main.cost(),
    }
}

/// The dtype that a scatter accumulates in: its own where nothing is rounded.
fn accumulator(dtype: DType, combiner: Combiner) -> DType {
    if combiner.accumulates() { dtype.compute() } else { dtype }
}

/// Combines the sources with what is there.
fn combine(kernel: &Kernel, s: &ir::Scatter, dtype: DType) -> Plan {
    let slot = kernel.inputs.len() + kernel.outputs.len();
    let mut extents = s.extents.clone();
    if extents.is_empty() {
        // One source, a row of its own.
        extents.push(Size::from(1));
    }
    let rank = extents.len();
    let elements = kernel.outputs[0].ty.numel();
    let (access, index) = (padded(&s.place, rank), s.index.clone());
    let (combiner, value) = (s.combiner, s.value);
    let combine = Sink::Combine { combiner, slot, dtype, access, index, elements, value };
    Plan {
        aligned: extents[rank - 1].number().is_some_and(|row| row % 16 == 0),
        loads: sources(&s.loads, rank, elements_of(kernel), |_| false),
        stages: vec![Stage::along_row(s.body.clone(), vec![combine])],
        ..Plan::new(extents, slot + 1)
    }
}

/// Slot 1 from slot 0, or from zeros.
fn copy(size: Size, scalar: Scalar, from: Option<DType>, to: DType) -> Plan {
    let mut body = Body::default();
    let value = match from {
        Some(_) => body.push(ScalarOp::Load(0), &[], scalar),
        None => body.push(ScalarOp::Const(0), &[], scalar),
    };
    let dtype = from.unwrap_or(to);
    let load = Source::new(0, dtype, Place::in_order(), size, true);
    let place = Place::in_order();
    let store = Sink::Store { slot: 1, dtype: to, place, value, after: SmallVec::new() };
    Plan::map(size, 2, vec![load], body, vec![store])
}

/// The strides of what is written.
fn apart(plan: &Plan) -> Apart {
    let Some(Sink::Combine { access, .. }) = plan.stages[0].sinks.first() else {
        return Apart::default();
    };
    let row = plan.row_axis();
    // Varying indices come from the same places: their strides count among the others.
    let others = access.strides[..row].iter().chain(&access.indirect).copied().collect();
    Apart { row: plan.row(), step: access.strides[row], others }
}

impl Apart {
    /// True if the row moves by less than everything else moves at least.
    fn is_known(&self, sizes: &Numbers<'_>) -> std::result::Result<bool, String> {
        let step = sizes.number(self.step)?.unsigned_abs();
        let others = sizes.numbers(&self.others)?;
        let common = others.iter().fold(0u64, |g, s| gcd(g, s.unsigned_abs()));
        let reach = step.saturating_mul(sizes.number(self.row)?.saturating_sub(1).max(0) as u64);
        Ok(step > 0 && (common == 0 || reach < common))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
