//! Runs scatters: copies the base, adds the sources in order, rounds 16-bit results at the end.

use super::Slots;
use super::memory::{call, with_scratch, with_shared};
use super::nest::over_positions;
use crate::code::link::Code;
use crate::plan::scatter::ScatterDispatch;
use crate::threads::{Team, part};
use std::sync::atomic::AtomicU64;
use tracecast_ir::DType;

impl ScatterDispatch {
    /// Into how many parts a run is cut.
    pub(crate) fn parts(&self, team: &Team) -> usize {
        let most = if self.positions_apart { self.row.div_ceil(16) } else { 1 };
        team.parts(self.rows * self.row * self.cost, most)
    }

    /// Runs it.
    pub(crate) fn run(&self, code: &[Code], team: &Team, operands: &Slots, status: &AtomicU64) {
        let bytes = if self.half { self.size * DType::F32.bytes() } else { 0 };
        with_shared(bytes, |memory| {
            let output = operands.get(self.output);
            let acc = if self.half { memory } else { output };
            let base = self.base.map_or(output, |b| operands.get(b));
            let pair = |a, b| {
                let mut slots = Slots::default();
                slots.push(a);
                slots.push(b);
                slots
            };
            if self.base.is_none() || base != acc {
                over_positions(&code[0], team, &pair(base, acc), 0..1, self.size, status);
            }
            let mut slots = operands.clone();
            slots.push(acc);
            if self.rows > 0 && self.row > 0 {
                self.add(&code[1], team, &slots, status);
            }
            if self.half {
                over_positions(&code[2], team, &pair(acc, output), 0..1, self.size, status);
            }
        });
    }

    fn add(&self, code: &Code, team: &Team, slots: &Slots, status: &AtomicU64) {
        let parts = self.parts(team);
        team.each(parts, |i| {
            let positions = part(self.row, 16, parts, i);
            with_scratch(|scratch| call(code, slots, 0..self.rows, positions, scratch, status));
        });
    }
}
