//! Largest values of a run: every task keeps its own in a cache line of its own, and the largest of
//! them goes to the output at the end.

use super::Slots;
use super::memory::{Address, clear, combine, copy_number, with_shared};
use crate::plan::max_abs::Largest;
use tracecast_ir::kernel::{Reduction, Scalar};

/// The bytes of a value.
const NUMBER: usize = 8;

/// The places of all tasks.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    first: Address,
    /// Bytes from a task to the next: no two share a cache line.
    line: usize,
    /// Values of a segment.
    values: usize,
}

impl Places {
    /// Appends the places of a task, for a segment.
    pub(crate) fn push(&self, slots: &mut Slots, task: usize, segment: usize) {
        for i in 0..self.values {
            slots.push(self.of(task, segment * self.values + i));
        }
    }

    fn of(&self, task: usize, value: usize) -> Address {
        self.first.offset((task * self.line + value * NUMBER) as isize)
    }
}

/// Bytes from a task to the next.
fn line(values: usize) -> usize {
    (NUMBER * values).next_multiple_of(64)
}

/// The bytes of the places of `tasks` tasks.
pub(crate) fn bytes(all: &[Largest], tasks: usize, segments: usize) -> usize {
    if all.is_empty() { 0 } else { tasks * (line(all.len() * segments) + NUMBER) }
}

/// Runs tasks whose functions take such places, for segments whose slots are given.
pub(crate) fn with_places(
    all: &[Largest],
    tasks: usize,
    segments: &[Slots],
    run: impl FnOnce(Places),
) {
    let values = all.len();
    let line = line(values * segments.len());
    with_shared(bytes(all, tasks, segments.len()), |first| {
        clear(first, tasks * line);
        let places = Places { first, line, values };
        run(places);
        let results = first.offset((tasks * line) as isize);
        for (segment, slots) in segments.iter().enumerate() {
            for (i, Largest { scalar, output }) in all.iter().enumerate() {
                let size = if *scalar == Scalar::F64 { 8 } else { 4 };
                for task in 0..tasks {
                    let from = places.of(task, segment * values + i);
                    copy_number(*scalar, from, results.offset((task * size) as isize));
                }
                combine(Reduction::Max, *scalar, results, tasks);
                copy_number(*scalar, results, slots.get(*output));
            }
        }
    });
}
