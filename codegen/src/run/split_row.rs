//! Runs a reduction of one long row: every thread takes some of its chunks, whose results are combined in order.

use super::Slots;
use super::memory::{call, combine, with_scratch, with_shared};
use crate::code::link::Code;
use crate::plan::split_row::SplitRow;
use crate::threads::{Team, part};
use std::sync::atomic::AtomicU64;
use tracecast_ir::kernel::ROW_CHUNK;

/// The bytes of a chunk's result.
const RESULT: usize = 8;

impl SplitRow {
    /// Into how many parts a run is cut.
    pub(crate) fn parts(&self, team: &Team) -> usize {
        team.parts(self.row * self.cost, self.row.div_ceil(ROW_CHUNK))
    }

    /// Runs it with the functions of its plans.
    pub(crate) fn run(&self, code: &[Code], team: &Team, operands: &Slots, status: &AtomicU64) {
        let chunks = self.row.div_ceil(ROW_CHUNK);
        with_shared(self.reductions.len() * chunks * RESULT, |memory| {
            let results = |i: usize, chunk: usize| {
                let size = self.reductions[i].1.dtype().bytes();
                memory.offset((i * chunks * RESULT + chunk * size) as isize)
            };
            let slots = |chunk: usize| {
                let mut slots = operands.clone();
                (0..self.reductions.len()).for_each(|i| slots.push(results(i, chunk)));
                slots
            };
            let parts = self.parts(team);
            team.each(parts, |i| {
                with_scratch(|scratch| {
                    for chunk in part(chunks, 1, parts, i) {
                        let from = chunk * ROW_CHUNK;
                        let positions = from..(from + ROW_CHUNK).min(self.row);
                        call(&code[0], &slots(chunk), 0..1, positions, scratch, status);
                    }
                });
            });
            for (i, (reduction, scalar)) in self.reductions.iter().enumerate() {
                combine(*reduction, *scalar, results(i, 0), chunks);
            }
            with_scratch(|scratch| {
                call(&code[self.finish], &slots(0), 0..1, 0..1, scratch, status)
            });
        });
    }
}
