//! Nests: what their functions are, and how rows and positions may be split among threads.

use super::columns::{Column, ColumnsDispatch, common_unit};
use super::max_abs::Largest;
use super::split_row::{self, SplitRow};
use super::{Plan, Sink, from_kernel, strided};
use crate::error::Result;
use tracecast_ir::kernel::{self as ir, Body, Kernel, ScalarOp};

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
    pub(crate) columns: ColumnsDispatch,
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

/// The plans of a nest, the main one first.
pub(crate) fn draft(kernel: &Kernel, nest: &ir::Nest) -> Result<(Vec<Plan>, NestDispatch)> {
    let (mut plan, columns, largest) = from_kernel::nest(kernel, nest)?;
    let inputs = kernel.inputs.len();
    let segments: Vec<(Vec<usize>, usize)> = nest
        .segments
        .iter()
        .map(|s| {
            let slots =
                s.inputs.iter().copied().chain(s.outputs.iter().map(|o| inputs + o)).collect();
            let length = if nest.segments.len() == 1 {
                plan.row()
            } else {
                s.extents[s.extents.len() - 1] as i64
            };
            (slots, length as usize)
        })
        .collect();
    let rows = plan.rows() as usize;
    let positions_apart = positions_apart(&plan, nest.registers.len());
    let split = split(&columns, rows, positions_apart);
    strided::bring(&mut plan, positions_apart);
    let call =
        if positions_apart && !plan.apart.is_empty() { strided::POSITIONS } else { i64::MAX };
    let cost = plan.stages.iter().map(|s| cost(&s.body)).sum();
    let positions = segments.iter().map(|s| s.1).sum();
    let mut run = NestDispatch {
        rows,
        segments,
        positions,
        cost,
        split,
        call: call as usize,
        columns: ColumnsDispatch::default(),
        largest,
        split_row: None,
    };
    if columns.is_empty()
        && run.segments.len() == 1
        && !matches!(split, Split::Positions)
        && let Some((plans, split_row)) = split_row::cut(&plan, cost)
    {
        run.split_row = Some(split_row);
        return Ok((plans.into(), run));
    }
    let mut plans = vec![plan];
    let outputs = |column: &Column| run.segments[0].0[column.output];
    run.columns = ColumnsDispatch::draft(columns, outputs, &mut plans);
    Ok((plans, run))
}

/// True if all that happens at a position is one stage there. Registers from `registers` on are of largest values, which every task has of
/// its own; the stage that takes them comes last.
fn positions_apart(plan: &Plan, registers: usize) -> bool {
    let of_largest =
        |s: &Sink| matches!(s, Sink::Reduce { register, .. } if *register >= registers);
    let any = plan.stages.iter().any(|s| s.sinks.iter().any(of_largest));
    let single = plan.stages.len() == 1 + usize::from(any) && !plan.stages[0].once;
    let reduces = |s: &Sink| matches!(s, Sink::Reduce { .. } | Sink::Keep { .. }) && !of_largest(s);
    single && !plan.stages[0].sinks.iter().any(reduces)
}

/// How the threads may share a nest without meeting at an accumulator.
fn split(columns: &[Column], rows: usize, positions_apart: bool) -> Split {
    match common_unit(columns) {
        Some(unit) if !positions_apart || rows as i64 >= 8 * unit => Split::Rows(unit as usize),
        Some(unit) if columns.is_empty() && rows > 1 => Split::Rows(unit as usize),
        _ if positions_apart => Split::Positions,
        unit => Split::Rows(unit.map_or(rows.max(1), |u| u as usize)),
    }
}

/// About how many cheap operations a body is.
pub(crate) fn cost(body: &Body) -> usize {
    let one = |op: &ScalarOp| match op {
        ScalarOp::Call(_) => 8,
        ScalarOp::Random { .. } => 6,
        ScalarOp::Div | ScalarOp::Rem | ScalarOp::Sqrt => 3,
        _ => 1,
    };
    let sum: usize = body.insts.iter().map(|i| one(&i.op)).sum();
    (sum / 4).max(1)
}
