//! Contractions that drivers of convolutions compute: each states its parts once, from which its
//! workspace, its schedule and its runs derive.

use super::epilogue::Sums;
use super::factors::{from_first, source};
use super::max_abs::with_places;
use super::memory::{block_address, product};
use super::{Invocation, Slots};
use crate::contract::{self as products, Seen, Shared, Source, Workspace};
use crate::machine::Machine;
use crate::plan::contract::{BoundContract, FactorSource};
use std::ops::Range;

/// A contraction at the sizes of a binding, and where its operands are during a run.
#[derive(Clone, Copy)]
pub(crate) struct Bound<'a> {
    pub(super) contract: &'a BoundContract,
    pub(super) machine: &'a Machine,
    pub(super) operands: Option<&'a Slots>,
}

/// Takes the part of a task.
pub(crate) type Take<'a> = dyn FnMut(&dyn products::Driver) + 'a;

/// A contraction with a driver of its own.
pub(crate) trait Convolution: Send + Sync {
    /// The thread grid: the axes, and the number of parts of each.
    fn grid(&self, of: &Bound<'_>) -> [(&'static str, usize); 3];

    /// Passes on the part of a task.
    fn part(&self, of: &Bound<'_>, grid: [usize; 3], task: usize, take: &mut Take<'_>);

    /// The bytes that threads share during a run.
    fn shared_bytes(&self, _of: &Bound<'_>) -> usize {
        0
    }

    /// Runs it.
    fn run(&self, of: &Bound<'_>, invocation: &Invocation<'_>) {
        let grid = self.grid(of).map(|(_, parts)| parts);
        let part = |task: usize, take: &mut Take<'_>| self.part(of, grid, task, take);
        of.run_parts(invocation, grid.iter().product(), part);
    }
}

impl dyn Convolution {
    /// The number of parts, and the most workspace that any of them takes.
    pub(super) fn workspace(&self, of: &Bound<'_>) -> (usize, Workspace) {
        let grid = self.grid(of).map(|(_, parts)| parts);
        let (tasks, mut most) = (grid.iter().product(), Workspace::default());
        for task in 0..tasks {
            self.part(of, grid, task, &mut |part| most = most.max(part.workspace()));
        }
        (tasks, most)
    }

    /// The schedule of the first part, and the thread grid.
    pub(super) fn chosen(&self, of: &Bound<'_>) -> Option<Shared> {
        let (grid, mut chosen) = (self.grid(of), None);
        let parts = grid.map(|(_, parts)| parts);
        self.part(of, parts, 0, &mut |part| chosen = Some(part.chosen()));
        Some((chosen?, grid))
    }
}

impl<'a> Bound<'a> {
    /// A factor in the first batch.
    pub(super) fn source<'s>(
        &self,
        factor: &FactorSource<i64>,
        seen: Option<&'s Seen>,
    ) -> Source<'s> {
        source(factor, seen, self.operands)
    }

    /// Offsets of the factors of a batch from those of the first one, in elements.
    pub(super) fn offsets(
        &self,
        factors: [&'a FactorSource<i64>; 2],
    ) -> impl Fn(usize) -> [isize; 2] + use<'a> {
        let batch_axes = &self.contract.batch;
        move |batch| factors.map(|factor| from_first(factor, batch_axes, batch))
    }

    /// Runs some tasks, which pass on their parts.
    pub(super) fn run_parts(
        &self,
        invocation: &Invocation<'_>,
        tasks: usize,
        part: impl Fn(usize, &mut Take<'_>) + Sync,
    ) {
        let operands = invocation.operands;
        let sums = Sums::of(self.contract, invocation);
        with_places(&self.contract.largest, tasks, std::slice::from_ref(operands), |largest| {
            invocation.team.each(tasks, |task| {
                let mut slots = operands.clone();
                slots.push(operands.get(0));
                largest.push(&mut slots, task, 0);
                let mut sink = |rows: Range<usize>, columns: Range<usize>, block: *const u8| {
                    sums.finish(&mut slots, rows, columns, block_address(block));
                };
                part(task, &mut |part| product(part, &mut sink));
            });
        });
    }
}
