//! Runs nests: splits rows and positions among threads.

use super::columns::with_accumulators;
use super::invocation::{Invocation, POSITIONS};
use super::max_abs::{Places, with_places};
use super::memory::with_scratch;
use super::{Slots, split_row};
use crate::machine::Machine;
use crate::plan::nest::{BoundNest, Split};
use crate::threads::part;
use std::borrow::Cow;
use std::ops::Range;

/// The function of the nest itself.
const MAIN: usize = 0;

/// Runs it.
#[inline]
pub(super) fn run(nest: &BoundNest, invocation: &Invocation<'_>) {
    let segments = invocation.prepared;
    let run = |places| NestRun { nest, invocation, segments, places }.with_columns();
    if nest.largest.is_empty() {
        return run(None);
    }
    with_places(&nest.largest, parts(nest, invocation.machine), segments, |places| {
        run(Some(places))
    });
}

/// The addresses for each segment, from those of the kernel's operands.
pub(super) fn prepare(nest: &BoundNest, operands: &Slots, segments: &mut Vec<Slots>) {
    segments.resize_with(nest.segments.len(), Slots::default);
    for (segment, slots) in segments.iter_mut().zip(&*nest.segments) {
        segment.select(operands, slots.iter().copied());
    }
}

/// Into how many parts a run is cut.
#[inline]
pub(super) fn parts(nest: &BoundNest, machine: &Machine) -> usize {
    let work = nest.rows * nest.positions * nest.cost;
    match (&nest.split_row, nest.split) {
        (Some(row), _) => split_row::parts(row, machine),
        (None, Split::Positions) => machine.parts(work, nest.positions.div_ceil(POSITIONS)),
        (None, Split::Rows(unit)) => machine.parts(work, nest.rows.div_ceil(unit)),
    }
}

/// A run of a nest.
#[derive(Clone, Copy)]
struct NestRun<'a> {
    nest: &'a BoundNest,
    invocation: &'a Invocation<'a>,
    /// The addresses for each segment.
    segments: &'a [Slots],
    /// Where tasks have their largest values, if there are any.
    places: Option<Places>,
}

impl NestRun<'_> {
    /// Runs it with the accumulators of its columns.
    fn with_columns(&self) {
        if let Some(row) = &self.nest.split_row {
            return split_row::run(row, self.invocation, &self.slots(0, 0));
        }
        if self.nest.columns.is_empty() {
            return self.main();
        }
        with_accumulators(&self.nest.columns, self.invocation, |accumulators| {
            let mut slots = self.segments[0].clone();
            accumulators.push(&mut slots);
            NestRun { segments: std::slice::from_ref(&slots), ..*self }.main();
        });
    }

    fn main(&self) {
        let NestRun { nest, invocation, .. } = self;
        if nest.rows == 0 {
            return;
        }
        let tasks = parts(nest, invocation.machine);
        match nest.split {
            Split::Positions => invocation.team.each(tasks, |task| {
                self.positions(task, part(nest.positions, POSITIONS, tasks, task));
            }),
            Split::Rows(unit) => {
                let length = nest.lengths[0];
                invocation.team.each(tasks, |task| {
                    let rows = part(nest.rows, unit, tasks, task);
                    let slots = self.slots(task, 0);
                    with_scratch(|scratch| {
                        for positions in self.calls(0..length) {
                            invocation.call(MAIN, &slots, rows.clone(), positions, scratch);
                        }
                    });
                });
            }
        }
    }

    /// The calls for a range of positions.
    fn calls(&self, positions: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (Range { start, end }, most) = (positions, self.nest.call);
        // An empty range is a call as well: its rows may have results all the same.
        let count = (end - start).div_ceil(most).max(1);
        (0..count).map(move |i| {
            let from = start + i * most;
            from..end.min(from.saturating_add(most))
        })
    }

    /// A task's range of the positions of all segments, one after another.
    fn positions(&self, task: usize, range: Range<usize>) {
        with_scratch(|scratch| {
            let mut first = 0;
            for (segment, length) in self.nest.lengths.iter().enumerate() {
                let from = range.start.clamp(first, first + length) - first;
                let to = range.end.clamp(first, first + length) - first;
                first += length;
                if from < to {
                    let slots = self.slots(task, segment);
                    for positions in self.calls(from..to) {
                        self.invocation.call(MAIN, &slots, 0..self.nest.rows, positions, scratch);
                    }
                }
            }
        });
    }

    /// The slots of a segment, and a task's places for its largest values.
    fn slots(&self, task: usize, segment: usize) -> Cow<'_, Slots> {
        let slots = &self.segments[segment];
        let Some(places) = self.places else { return Cow::Borrowed(slots) };
        let mut slots = slots.clone();
        places.push(&mut slots, task, segment);
        Cow::Owned(slots)
    }
}
