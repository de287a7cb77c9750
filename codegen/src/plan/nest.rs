//! Nests as plans, and how the threads may split their rows and positions. `run::nest` splits them.

use super::columns::{Column, common_unit};
use super::from_kernel::{fresh, number, sink, sources, unsupported};
use super::max_abs::Largest;
use super::split_row::SplitRow;
use super::{Calls, Draft, Plan, Sink, Stage, strided};
use crate::error::Result;
use std::collections::HashSet;
use tracecast_ir::kernel::{self as ir, Kernel, Over};

/// A nest, ready to be run by the functions of its plans.
#[derive(Debug)]
pub(crate) struct NestDispatch {
    /// Rows of the main plan.
    pub(crate) rows: usize,
    /// The operands of each segment, and the length of its row.
    pub(crate) segments: Vec<(Vec<usize>, usize)>,
    /// Positions of all segments.
    pub(crate) positions: usize,
    /// In cheap operations per position.
    pub(crate) cost: usize,
    /// How threads share it.
    pub(crate) split: Split,
    /// The most positions of a call.
    pub(crate) call: usize,
    /// What it reduces down the columns.
    pub(crate) columns: Vec<Column>,
    /// The largest values that it finds.
    pub(crate) largest: Vec<Largest>,
    /// Instead of all that: one long row.
    pub(crate) split_row: Option<SplitRow>,
}

/// How the threads share a nest.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Split {
    /// Every thread takes some positions of all rows.
    Positions,
    /// Every thread takes all positions of some rows, in multiples of this.
    Rows(usize),
}

/// A nest as a plan. Slots are the input slots, the output slots, one for the accumulators of each column, and one for each largest value
/// so far.
///
/// # Errors
/// If it has no row.
pub(super) fn draft<'k>(kernel: &'k Kernel, nest: &ir::Nest) -> Result<Draft<'k>> {
    let first = &nest.segments[0];
    let rank = first.extents.len();
    if rank == 0 {
        return Err(unsupported(kernel, "a nest without a row"));
    }
    let mut extents: Vec<i64> = first.extents.iter().map(|e| number(*e)).collect();
    let rows = nest.segments.iter().filter_map(|s| s.extents.last());
    let longest = rows.map(|row| number(*row)).max().unwrap_or(0);
    extents[rank - 1] = longest;
    let updated: HashSet<usize> = kernel.outputs.iter().filter_map(|o| o.update).collect();
    let written = |slot: usize| {
        nest.segments.iter().any(|s| s.inputs.get(slot).is_some_and(|i| updated.contains(i)))
    };
    let elements = |slot: usize| {
        let inputs = nest.segments.iter().filter_map(|s| kernel.inputs.get(*s.inputs.get(slot)?));
        inputs.map(|t| t.numel().get() as i64).min().unwrap_or(0)
    };
    let plan = Plan {
        aligned: nest.segments.iter().all(|s| number(s.extents[rank - 1]) % 16 == 0),
        tensors: tensors(nest, longest),
        fresh: fresh(kernel, &nest.loads, Some(first)),
        loads: sources(&nest.loads, rank, elements, written),
        buffers: nest.buffers.clone(),
        ..Plan::new(extents, first.inputs.len() + first.outputs.len())
    };
    let calls =
        Calls { merge_row: nest.is_map(), by_sixteens: nest.segments.len() == 1, as_planned: true };
    let mut draft =
        Draft { registers: nest.registers.len(), ..Draft::new(kernel, vec![plan], calls) };
    for stage in &nest.stages {
        let sinks = stage.sinks.iter().map(|s| sink(&mut draft, Some(first), &stage.body, s));
        let stage = Stage {
            once: stage.over == Over::Once,
            first: false,
            body: stage.body.clone(),
            sinks: sinks.collect::<Result<_>>()?,
        };
        draft.plans[0].stages.push(stage);
    }
    Ok(draft)
}

/// See [`Plan::tensors`].
fn tensors(nest: &ir::Nest, longest: i64) -> i64 {
    let all: usize = nest.segments.iter().filter_map(|s| s.extents.last()).map(|n| n.get()).sum();
    all.div_ceil(longest.max(1) as usize).max(1) as i64
}

/// How a run divides a nest.
pub(super) fn dispatch(draft: Draft<'_>, nest: &ir::Nest) -> (Vec<Plan>, NestDispatch) {
    let (split, main) = (split(&draft), &draft.plans[0]);
    let inputs = draft.kernel.inputs.len();
    let segment = |s: &ir::Segment| {
        let slots = s.inputs.iter().copied().chain(s.outputs.iter().map(|o| inputs + o)).collect();
        let length = match nest.segments.len() {
            1 => main.row() as usize,
            _ => s.extents[s.extents.len() - 1].get(),
        };
        (slots, length)
    };
    let segments: Vec<(Vec<usize>, usize)> = nest.segments.iter().map(segment).collect();
    let dispatch = NestDispatch {
        rows: main.rows() as usize,
        positions: segments.iter().map(|s| s.1).sum(),
        segments,
        cost: main.cost(),
        split,
        call: call(&draft) as usize,
        columns: draft.columns,
        largest: draft.largest,
        split_row: draft.split_row,
    };
    (draft.plans, dispatch)
}

/// The most positions of a call.
pub(super) fn call(draft: &Draft<'_>) -> i64 {
    match positions_independent(draft) && !draft.plans[0].strided.is_empty() {
        true => strided::POSITIONS,
        false => i64::MAX,
    }
}

/// True if all that happens at a position is one stage there. Registers beyond those of the kernel are of largest values, which every task
/// has of its own; the stage that takes them comes last.
pub(super) fn positions_independent(draft: &Draft<'_>) -> bool {
    let stages = &draft.plans[0].stages;
    let of_largest =
        |s: &Sink| matches!(s, Sink::Reduce { register, .. } if *register >= draft.registers);
    let any = stages.iter().any(|s| s.sinks.iter().any(of_largest));
    let single = stages.len() == 1 + usize::from(any) && !stages[0].once;
    let reduces = |s: &Sink| matches!(s, Sink::Reduce { .. } | Sink::Keep { .. }) && !of_largest(s);
    single && !stages[0].sinks.iter().any(reduces)
}

/// How the threads may share a nest without meeting at an accumulator.
pub(super) fn split(draft: &Draft<'_>) -> Split {
    let (columns, rows) = (&draft.columns, draft.plans[0].rows());
    let positions_independent = positions_independent(draft);
    match common_unit(columns) {
        Some(unit) if !positions_independent || rows >= 8 * unit => Split::Rows(unit as usize),
        Some(unit) if columns.is_empty() && rows > 1 => Split::Rows(unit as usize),
        _ if positions_independent => Split::Positions,
        unit => Split::Rows(unit.unwrap_or(rows.max(1)) as usize),
    }
}
