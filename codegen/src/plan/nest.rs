//! Nests as plans, and how the threads may split their rows and positions. `run::nest` splits them.

use super::columns::{BoundColumn, Column, common_unit};
use super::draft::Calls;
use super::facts::Facts;
use super::from_kernel::{fresh, sink, sources, unsupported};
use super::max_abs::Largest;
use super::numbers::Numbers;
use super::split_row::SplitRow;
use super::{Draft, Plan, Stage, strided};
use crate::error;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::Arc;
use tracecast_ir::Size;
use tracecast_ir::kernel::{self as ir, Kernel, Over};

/// A nest, ready to be run by the functions of its plans.
#[derive(Debug)]
pub(crate) struct NestDispatch {
    /// Rows of the main plan.
    pub(crate) rows: Size,
    /// The operands of each segment.
    pub(crate) segments: Arc<[Vec<usize>]>,
    /// The length of the row of each segment.
    pub(crate) lengths: Vec<Size>,
    /// In cheap operations per position.
    pub(crate) cost: usize,
    /// True if all that happens at a position is one stage there.
    pub(crate) positions_independent: bool,
    /// The most positions of a call.
    pub(crate) call: usize,
    /// What it reduces down the columns.
    pub(crate) columns: Vec<Column>,
    /// The largest values that it finds.
    pub(crate) largest: Vec<Largest>,
    /// Instead of all that: one long row.
    pub(crate) split_row: Option<SplitRow>,
}

impl NestDispatch {
    /// For the sizes of a binding.
    ///
    /// # Errors
    /// If a name has no value, or a size is negative.
    pub(super) fn at(&self, sizes: &Numbers<'_>) -> Result<BoundNest, String> {
        let split_row = self.split_row.as_ref().map(|row| row.at(sizes)).transpose()?.flatten();
        let rows = sizes.count(self.rows)?;
        let lengths = self.lengths.iter().map(|length| sizes.count(*length));
        let lengths = lengths.collect::<Result<SmallVec<[usize; 1]>, String>>()?;
        let columns = self.columns.iter().map(|c| c.at(sizes));
        let columns = columns.collect::<Result<Vec<BoundColumn>, String>>()?;
        Ok(BoundNest {
            rows,
            segments: self.segments.clone(),
            positions: lengths.iter().sum(),
            lengths,
            cost: self.cost,
            split: split(rows, self.positions_independent, &columns),
            call: self.call,
            columns,
            largest: self.largest.clone(),
            split_row,
        })
    }
}

/// A nest at the sizes of a binding.
#[derive(Debug)]
pub(crate) struct BoundNest {
    /// Rows of the main plan.
    pub(crate) rows: usize,
    /// The operands of each segment.
    pub(crate) segments: Arc<[Vec<usize>]>,
    /// The length of the row of each segment.
    pub(crate) lengths: SmallVec<[usize; 1]>,
    /// Positions of all segments.
    pub(crate) positions: usize,
    /// In cheap operations per position.
    pub(crate) cost: usize,
    /// How the threads may share it without meeting at an accumulator.
    pub(crate) split: Split,
    /// The most positions of a call.
    pub(crate) call: usize,
    /// What it reduces down the columns.
    pub(crate) columns: Vec<BoundColumn>,
    /// The largest values that it finds.
    pub(crate) largest: Vec<Largest>,
    /// Instead of all that: one long row.
    pub(crate) split_row: Option<SplitRow<usize>>,
}

/// See [`BoundNest::split`].
fn split(rows: usize, positions_independent: bool, columns: &[BoundColumn]) -> Split {
    match common_unit(columns) {
        Some(unit) if !positions_independent || rows >= 8 * unit => Split::Rows(unit),
        Some(unit) if columns.is_empty() && rows > 1 => Split::Rows(unit),
        _ if positions_independent => Split::Positions,
        unit => Split::Rows(unit.unwrap_or(rows.max(1))),
    }
}

/// How the threads share a nest.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Split {
    /// Every thread takes some positions of all rows.
    Positions,
    /// Every thread takes all positions of some rows, in multiples of this.
    Rows(usize),
}

/// A nest as a plan. Slots are the input slots, the output slots, one for the accumulators of each
/// column, and one for each largest value so far.
///
/// # Errors
/// If it has no row.
pub(super) fn draft<'k>(
    kernel: &'k Kernel,
    nest: &ir::Nest,
    facts: Facts,
) -> error::Result<Draft<'k>> {
    let first = &nest.segments[0];
    let rank = first.extents.len();
    if rank == 0 {
        return Err(unsupported(kernel, "a nest without a row"));
    }
    let mut extents = first.extents.clone();
    extents[rank - 1] = longest(nest);
    let updated: HashSet<usize> = kernel.outputs.iter().filter_map(|o| o.update).collect();
    let written = |slot: usize| {
        nest.segments.iter().any(|s| s.inputs.get(slot).is_some_and(|i| updated.contains(i)))
    };
    let elements = |slot: usize| {
        let inputs = nest.segments.iter().filter_map(|s| kernel.inputs.get(*s.inputs.get(slot)?));
        least(inputs.map(|t| t.numel()))
    };
    let plan = Plan {
        aligned: nest.segments.iter().all(|s| facts.proves(s.extents[rank - 1].multiple_of(16))),
        tensors: tensors(nest),
        fresh: fresh(kernel, &nest.loads, Some(first)),
        loads: sources(&nest.loads, rank, elements, written),
        buffers: nest.buffers.clone(),
        ..Plan::new(extents, first.inputs.len() + first.outputs.len())
    };
    let calls =
        Calls { merge_row: nest.is_map(), by_sixteens: nest.segments.len() == 1, as_planned: true };
    let mut draft =
        Draft { registers: nest.registers.len(), ..Draft::new(kernel, facts, vec![plan], calls) };
    for stage in &nest.stages {
        let sinks = stage.sinks.iter().map(|s| sink(&mut draft, Some(first), &stage.body, s));
        let stage = Stage {
            once: stage.over == Over::Once,
            first: false,
            body: stage.body.clone(),
            sinks: sinks.collect::<error::Result<_>>()?,
        };
        draft.plans[0].stages.push(stage);
    }
    Ok(draft)
}

/// The lengths of the rows of segments; numbers if there are several.
fn lengths(nest: &ir::Nest) -> impl Iterator<Item = Size> {
    nest.segments.iter().filter_map(|s| s.extents.last().copied())
}

/// The longest row.
fn longest(nest: &ir::Nest) -> Size {
    let longest = lengths(nest).max_by_key(|length| length.number().unwrap_or(i64::MAX));
    longest.unwrap_or_default()
}

/// The least of some sizes, which are numbers if there are several.
fn least(sizes: impl Iterator<Item = Size>) -> Size {
    sizes.min_by_key(|size| size.number().unwrap_or(i64::MAX)).unwrap_or_default()
}

/// See [`Plan::tensors`].
fn tensors(nest: &ir::Nest) -> usize {
    if nest.segments.len() == 1 {
        return 1;
    }
    let all: i64 = lengths(nest).filter_map(Size::number).sum();
    let longest = longest(nest).number().unwrap_or(1).max(1);
    usize::try_from((all + longest - 1) / longest).map_or(1, |tensors| tensors.max(1))
}

/// How a run divides a nest.
pub(super) fn dispatch(draft: &Draft<'_>, nest: &ir::Nest) -> NestDispatch {
    let main = &draft.plans[0];
    let inputs = draft.kernel.inputs.len();
    let slots = |s: &ir::Segment| -> Vec<usize> {
        s.inputs.iter().copied().chain(s.outputs.iter().map(|o| inputs + o)).collect()
    };
    let length = |s: &ir::Segment| match nest.segments.len() {
        1 => main.row(),
        _ => s.extents[s.extents.len() - 1],
    };
    NestDispatch {
        rows: main.rows(),
        segments: nest.segments.iter().map(slots).collect(),
        lengths: nest.segments.iter().map(length).collect(),
        cost: main.cost(),
        positions_independent: draft.positions_independent(),
        call: call(draft) as usize,
        columns: draft.columns.clone(),
        largest: draft.largest.clone(),
        split_row: draft.split_row.clone(),
    }
}

/// The most positions of a call.
pub(super) fn call(draft: &Draft<'_>) -> i64 {
    match draft.positions_independent() && !draft.plans[0].strided.is_empty() {
        true => strided::POSITIONS,
        false => i64::MAX,
    }
}
