//! Runs nests: splits rows and positions among threads.

use super::Slots;
use super::columns::with_accumulators;
use super::max_abs::{Places, with_places};
use super::memory::{call, with_scratch};
use crate::code::link::Code;
use crate::plan::nest::{NestDispatch, Split};
use crate::threads::{Team, part};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Positions of a map are split at multiples of this: cache lines of every dtype.
const POSITIONS: usize = 64;

impl NestDispatch {
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
        match (&self.split_row, self.split) {
            (Some(row), _) => row.parts(team),
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
        if let Some(row) = &self.split_row {
            return row.run(code, team, &with(&segments[0], places, 0, 0), status);
        }
        if self.columns.is_empty() {
            return self.main(&code[0], team, segments, places, status);
        }
        with_accumulators(&self.columns, code, team, operands, status, |accumulators| {
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
                            call(code, &slots, rows.clone(), positions, scratch, status);
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
                        call(code, &slots, 0..self.rows, positions, scratch, status);
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
        with_scratch(|scratch| call(code, slots, rows.clone(), positions, scratch, status));
    });
}
