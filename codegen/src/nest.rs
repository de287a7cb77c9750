//! Nests: what their functions are, and how a run splits rows and positions among threads.

use crate::apart;
use crate::column::{Column, ColumnsRun, common_unit};
use crate::error::Result;
use crate::flat::{self, FlatRun};
use crate::form::{self, Largest};
use crate::jit::{Code, Slots, with_scratch};
use crate::largest::{Places, with_places};
use crate::plan::{Plan, Sink};
use crate::team::{Team, part};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use tracecast_ir::kernel::{self as ir, Body, Kernel, ScalarOp};

/// Positions of a map are split at multiples of this: cache lines of every dtype.
const POSITIONS: usize = 64;

/// A nest, ready to be run by the functions of its plans.
#[derive(Debug)]
pub(crate) struct NestRun {
    rows: usize,
    /// The operands of each segment, and the length of its row.
    segments: Vec<(Vec<usize>, usize)>,
    /// Positions of all segments.
    positions: usize,
    /// In cheap operations per position.
    cost: usize,
    split: Split,
    /// The most positions of a call.
    call: usize,
    columns: ColumnsRun,
    largest: Vec<Largest>,
    /// Instead of all that: one long row.
    flat: Option<FlatRun>,
}

#[derive(Clone, Copy, Debug)]
enum Split {
    /// Every thread takes some positions of all rows.
    Positions,
    /// Every thread takes all positions of some rows, in multiples of this.
    Rows(usize),
}

/// The plans of a nest, the main one first.
pub(crate) fn draft(kernel: &Kernel, nest: &ir::Nest) -> Result<(Vec<Plan>, NestRun)> {
    let (mut plan, columns, largest) = form::nest(kernel, nest)?;
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
    apart::bring(&mut plan, positions_apart);
    let call = if positions_apart && !plan.apart.is_empty() { apart::POSITIONS } else { i64::MAX };
    let cost = plan.stages.iter().map(|s| cost(&s.body)).sum();
    let positions = segments.iter().map(|s| s.1).sum();
    let mut run = NestRun {
        rows,
        segments,
        positions,
        cost,
        split,
        call: call as usize,
        columns: ColumnsRun::default(),
        largest,
        flat: None,
    };
    if columns.is_empty()
        && run.segments.len() == 1
        && !matches!(split, Split::Positions)
        && let Some((plans, flat)) = flat::cut(&plan, cost)
    {
        run.flat = Some(flat);
        return Ok((plans.into(), run));
    }
    let mut plans = vec![plan];
    let outputs = |column: &Column| run.segments[0].0[column.output];
    run.columns = ColumnsRun::draft(columns, outputs, &mut plans);
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

impl NestRun {
    /// The addresses for each segment, from those of the kernel's operands.
    pub(crate) fn prepare(&self, operands: &Slots, segments: &mut Vec<Slots>) {
        segments.resize_with(self.segments.len(), Slots::default);
        for (segment, (slots, _)) in segments.iter_mut().zip(&self.segments) {
            segment.select(operands, slots.iter().copied());
        }
    }

    /// Into how many parts a run is cut.
    pub(crate) fn parts(&self, team: &Team) -> usize {
        let work = self.rows * self.positions * self.cost;
        match (&self.flat, self.split) {
            (Some(flat), _) => flat.parts(team),
            (None, Split::Positions) => team.parts(work, self.positions.div_ceil(POSITIONS)),
            (None, Split::Rows(unit)) => team.parts(work, self.rows.div_ceil(unit)),
        }
    }

    /// Runs it.
    pub(crate) fn run(
        &self,
        code: &[Code],
        team: &Team,
        operands: &Slots,
        segments: &[Slots],
        status: &AtomicU64,
    ) {
        if self.largest.is_empty() {
            return self.with_columns(code, team, operands, segments, None, status);
        }
        with_places(&self.largest, self.parts(team), segments, |places| {
            self.with_columns(code, team, operands, segments, Some(places), status);
        });
    }

    /// Runs it with the accumulators of its columns.
    fn with_columns(
        &self,
        code: &[Code],
        team: &Team,
        operands: &Slots,
        segments: &[Slots],
        places: Option<Places>,
        status: &AtomicU64,
    ) {
        if let Some(flat) = &self.flat {
            return flat.run(code, team, &with(&segments[0], places, 0, 0), status);
        }
        if self.columns.is_empty() {
            return self.main(&code[0], team, segments, places, status);
        }
        self.columns.with(code, team, operands, status, |accumulators| {
            let mut slots = segments[0].clone();
            accumulators.push(&mut slots);
            self.main(&code[0], team, std::slice::from_ref(&slots), places, status);
        });
    }

    fn main(
        &self,
        code: &Code,
        team: &Team,
        segments: &[Slots],
        places: Option<Places>,
        status: &AtomicU64,
    ) {
        if self.rows == 0 {
            return;
        }
        let tasks = self.parts(team);
        match self.split {
            Split::Positions => team.each(tasks, |i| {
                let range = part(self.positions, POSITIONS, tasks, i);
                self.positions(code, segments, (places, i), range, status);
            }),
            Split::Rows(unit) => {
                let length = self.segments[0].1;
                team.each(tasks, |i| {
                    let rows = part(self.rows, unit, tasks, i);
                    let slots = with(&segments[0], places, i, 0);
                    with_scratch(|scratch| {
                        for positions in self.calls(0..length) {
                            code.call(&slots, rows.clone(), positions, scratch, status);
                        }
                    });
                });
            }
        }
    }

    /// The calls for a range of positions.
    fn calls(&self, positions: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let Range { start, end } = positions;
        // An empty range is a call as well: its rows may have results all the same.
        let count = (end - start).div_ceil(self.call).max(1);
        (0..count).map(move |i| {
            let from = start + i * self.call;
            from..end.min(from.saturating_add(self.call))
        })
    }

    /// A range of the positions of all segments, one after another.
    fn positions(
        &self,
        code: &Code,
        segments: &[Slots],
        (places, task): (Option<Places>, usize),
        range: Range<usize>,
        status: &AtomicU64,
    ) {
        with_scratch(|scratch| {
            let mut first = 0;
            for (segment, ((_, length), slots)) in self.segments.iter().zip(segments).enumerate() {
                let from = range.start.clamp(first, first + length) - first;
                let to = range.end.clamp(first, first + length) - first;
                first += length;
                if from < to {
                    let slots = with(slots, places, task, segment);
                    for positions in self.calls(from..to) {
                        code.call(&slots, 0..self.rows, positions, scratch, status);
                    }
                }
            }
        });
    }
}

/// The slots of a segment, and a task's places for its largest values.
fn with(slots: &Slots, places: Option<Places>, task: usize, segment: usize) -> Cow<'_, Slots> {
    let Some(places) = places else { return Cow::Borrowed(slots) };
    let mut slots = slots.clone();
    places.push(&mut slots, task, segment);
    Cow::Owned(slots)
}

/// All positions of some rows of a plan whose positions are independent.
pub(crate) fn over_positions(
    code: &Code,
    team: &Team,
    slots: &Slots,
    rows: Range<usize>,
    length: usize,
    status: &AtomicU64,
) {
    if rows.is_empty() || length == 0 {
        return;
    }
    let parts = team.parts(rows.len() * length, length.div_ceil(POSITIONS));
    team.each(parts, |i| {
        let positions = part(length, POSITIONS, parts, i);
        with_scratch(|scratch| code.call(slots, rows.clone(), positions, scratch, status));
    });
}
