//! Runs contractions: cuts them into parts for the threads; the precompiled routine does the rest.

use super::Slots;
use super::columns::{Accumulators, with_accumulators};
use super::max_abs::{Places, with_places};
use super::memory::{
    Address, Block, Fill, Operand, block_address, call, contract, keep, with_scratch,
};
use super::packed_weights::{Keeping, Packed};
use crate::code::link::Code;
use crate::contract::{Ahead, Cpu, PIECE, Panels};
use crate::plan::contract::Near;
use crate::plan::contract::{ContractDispatch, FactorSource};
use crate::routines::Tiles;
use crate::threads::{Team, part};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Rows and columns are cut at multiples of these.
const UNITS: [usize; 2] = [2, 32];

/// What preparing an element of an operand costs, in elements of the result for one step of `k`.
const PREPARING: f64 = 12.0;

/// The same for an element that is packed already and only read.
const READING: f64 = 6.0;

/// From so many rows on packing takes less than a tenth of the time.
const ROWS_WITHOUT_KEEPING: usize = 128;

/// Into how many parts to cut rows and columns, at multiples of these units, for at most that many parts in all: those whose largest
/// part costs least. Every part prepares its rows of the left operand and its columns of the right one, at these costs.
fn grid([m, n]: [usize; 2], units: [usize; 2], preparing: [f64; 2], parts: usize) -> [usize; 2] {
    let [units_down, units_across] = [m.div_ceil(units[0]), n.div_ceil(units[1])];
    let cost = |down: usize| {
        let across = (parts / down).min(units_across).max(1);
        let rows = (units_down.div_ceil(down) * units[0]).min(m) as f64;
        let cols = (units_across.div_ceil(across) * units[1]).min(n) as f64;
        (rows * cols + preparing[0] * rows + preparing[1] * cols, [down, across])
    };
    let all = (1..=parts.clamp(1, units_down.max(1))).map(cost);
    all.min_by(|a, b| a.0.total_cmp(&b.0)).map_or([1, 1], |(_, grid)| grid)
}

/// The parts of a run.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Groups of batches.
    groups: usize,
    /// Parts of the rows and of the columns of each batch.
    grid: [usize; 2],
    /// Rows and columns are cut at multiples of these.
    units: [usize; 2],
}

impl Cut {
    fn tasks(&self) -> usize {
        self.groups * self.grid[0] * self.grid[1]
    }
}

impl ContractDispatch {
    /// Into how many parts a run is cut, at most.
    pub(crate) fn parts(&self, team: &Team) -> usize {
        let elements = self.batch.iter().product::<usize>() * self.m * self.n;
        team.parts(elements * self.cost.max(1), usize::MAX)
    }

    /// How it keeps its right operand from run to run, if that is made of these operands alone and worth it.
    pub(crate) fn keeping(&self, tiles: &Tiles, lasting: &[usize]) -> Option<Keeping> {
        let few_rows = (1..ROWS_WITHOUT_KEEPING).contains(&self.m);
        let batches: usize = self.batch.iter().product();
        if !few_rows || self.k == 0 || batches == 0 {
            return None;
        }
        let (inputs, same) = match &self.factors[1] {
            FactorSource::Plain { input, batch, .. } => {
                (vec![*input], batch.iter().all(|stride| *stride == 0))
            }
            FactorSource::Computed { inputs, .. } => (inputs.clone(), false),
        };
        let lasts = !inputs.is_empty() && inputs.iter().all(|input| lasting.contains(input));
        let values = [&self.factors[0], &self.factors[1]].map(FactorSource::values);
        let panels = Panels::new(&Cpu::of(tiles), self.acc, values, [self.k, self.n]);
        // A few columns are soon packed, and would take more memory than they do.
        let fills = panels.width() < 2 * self.n;
        let batches = if same { 1 } else { batches };
        (lasts && fills).then_some(Keeping { panels, batches, inputs })
    }

    /// Packs all of the right operand. Returns the least of its numbers.
    pub(crate) fn pack(
        &self,
        code: &[Code],
        team: &Team,
        tiles: &Tiles,
        operands: &Slots,
        to: &Packed,
        status: &AtomicU64,
    ) -> u16 {
        let pieces = self.n.div_ceil(PIECE);
        let least = AtomicU16::new(u16::MAX);
        team.each(to.batches() * pieces, |task| {
            let (batch, piece) = (task / pieces, task % pieces);
            let columns = piece * PIECE..self.n.min((piece + 1) * PIECE);
            self.with_operands(code, operands, batch, None, status, |[_, b]| {
                let place = to.place(batch);
                let found = keep(tiles, to.panels(), columns, &b, place);
                least.fetch_min(found, Ordering::Relaxed);
            });
        });
        least.into_inner()
    }

    /// Runs it; with its right operand packed if an earlier run has kept it.
    pub(crate) fn run(
        &self,
        code: &[Code],
        team: &Team,
        tiles: &Tiles,
        operands: &Slots,
        kept: Option<&Packed>,
        status: &AtomicU64,
    ) {
        let cut = self.cut(team, kept.is_some());
        let tasks = cut.tasks();
        let work = (cut, kept);
        with_places(&self.largest, tasks, std::slice::from_ref(operands), |places| {
            if self.columns.is_empty() {
                return self.tasks(code, team, tiles, (operands, None, places), work, status);
            }
            with_accumulators(&self.columns, code, team, operands, status, |columns| {
                self.tasks(code, team, tiles, (operands, Some(columns), places), work, status);
            });
        });
    }

    /// How a run is cut: no two parts share an accumulator of a column.
    fn cut(&self, team: &Team, is_kept: bool) -> Cut {
        let batches: usize = self.batch.iter().product();
        let parts = self.parts(team);
        let apart = batches <= 1 || self.m.is_multiple_of(self.unit);
        let groups = if apart { parts.min(batches).max(1) } else { 1 };
        let rows = if apart { self.unit.next_multiple_of(UNITS[0]) } else { self.m.max(1) };
        let (columns, preparing) = if is_kept { (PIECE, READING) } else { (UNITS[1], PREPARING) };
        let units = [rows, columns];
        let parts = parts.div_ceil(groups);
        let grid = grid([self.m, self.n], units, [PREPARING, preparing], parts);
        Cut { groups, grid, units }
    }

    /// Runs every part.
    fn tasks(
        &self,
        code: &[Code],
        team: &Team,
        tiles: &Tiles,
        (operands, columns, places): (&Slots, Option<Accumulators<'_>>, Places),
        (cut, kept): (Cut, Option<&Packed>),
        status: &AtomicU64,
    ) {
        let batches: usize = self.batch.iter().product();
        if batches * self.m * self.n == 0 {
            return;
        }
        let [down, across] = cut.grid;
        team.each(cut.tasks(), |task| {
            let (i, group) = (task % (down * across), task / (down * across));
            let rows = part(self.m, cut.units[0], down, i / across);
            let cols = part(self.n, cut.units[1], across, i % across);
            for batch in part(batches, 1, cut.groups, group) {
                let block = Block { rows: rows.clone(), cols: cols.clone(), k: self.k };
                let work = (batch, block, kept);
                self.block(code, tiles, (operands, columns, places, task), work, status);
            }
        });
    }

    fn block(
        &self,
        code: &[Code],
        tiles: &Tiles,
        (operands, columns, places, task): (&Slots, Option<Accumulators<'_>>, Places, usize),
        (batch, block, kept): (usize, Block, Option<&Packed>),
        status: &AtomicU64,
    ) {
        let last = operands.len();
        let mut slots = operands.clone();
        slots.push(operands.get(0));
        if let Some(columns) = columns {
            columns.push(&mut slots);
        }
        places.push(&mut slots, task, 0);
        let epilogue = &code[self.epilogue];
        let mut finish = |row: usize, rows: usize, col: usize, cols: usize, sums: Address| {
            slots.set(last, sums);
            let row = batch * self.m + row;
            with_scratch(|scratch| {
                call(epilogue, &slots, row..row + rows, col..col + cols, scratch, status)
            });
        };
        let ahead = self.ahead(tiles, operands, batch);
        self.with_operands(code, operands, batch, kept, status, |factors| {
            contract(tiles, self.acc, block, factors, &ahead, &mut finish);
        });
    }

    /// What the epilogue of a batch is going to write and read, if it is so much that it lies in far caches, and not so much that results go
    /// past them: small results are near still from the last run, where asking for them only costs.
    fn ahead(&self, tiles: &Tiles, operands: &Slots, batch: usize) -> SmallVec<[Ahead; 4]> {
        let caches = Cpu::of(tiles).caches;
        if !(caches.far_from()..caches.passed_from()).contains(&self.traffic) {
            return SmallVec::new();
        }
        let one = |near: &Near| near.ahead(operands, |strides| self.in_batch(batch, strides));
        self.near.iter().map(one).collect()
    }

    /// Where a batch begins, for strides along the batch axes.
    fn in_batch(&self, batch: usize, strides: &[i64]) -> i64 {
        let mut rest = batch;
        let mut element = 0;
        for (extent, stride) in self.batch.iter().zip(strides).rev() {
            element += (rest % extent) as i64 * stride;
            rest /= extent;
        }
        element
    }

    /// Hands on the operands of a batch.
    fn with_operands(
        &self,
        code: &[Code],
        operands: &Slots,
        batch: usize,
        kept: Option<&Packed>,
        status: &AtomicU64,
        run: impl FnOnce([Operand<'_>; 2]),
    ) {
        let last = operands.len();
        let mut slots = operands.clone();
        slots.push(operands.get(0));
        let fill = |f: &FactorSource, height: usize| {
            let code = match f {
                FactorSource::Computed { code: i, .. } => Some(&code[*i]),
                FactorSource::Plain { .. } => None,
            };
            let slots = slots.clone();
            move |row: usize, rows: usize, col: usize, cols: usize, to: *mut u8| {
                let Some(code) = code.filter(|_| rows > 0 && cols > 0) else { return };
                let first = batch * height + row;
                let mut slots = slots.clone();
                slots.set(last, block_address(to));
                with_scratch(|scratch| {
                    call(code, &slots, first..first + rows, col..col + cols, scratch, status)
                });
            }
        };
        let (left, right) = (fill(&self.factors[0], self.m), fill(&self.factors[1], self.k));
        let a = self.operand(&self.factors[0], operands, batch, &left);
        let b = match kept {
            Some(kept) => kept.operand(batch),
            None => self.operand(&self.factors[1], operands, batch, &right),
        };
        run([a, b]);
    }

    fn operand<'a>(
        &self,
        factor: &FactorSource,
        operands: &Slots,
        batch: usize,
        fill: &'a Fill<'a>,
    ) -> Operand<'a> {
        let (input, dtype, round, offset, strides, row, col) = match factor {
            FactorSource::Computed { dtype, .. } => return Operand::Computed(fill, *dtype),
            FactorSource::Plain { input, dtype, round, offset, batch, row, col } => {
                (input, dtype, round, offset, batch, row, col)
            }
        };
        let element = offset + self.in_batch(batch, strides);
        let base = operands.get(*input).offset(element as isize * dtype.bytes() as isize);
        Operand::Matrix { base, dtype: *dtype, round: *round, row: *row, col: *col }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_are_both_cut() {
        let cut = |m, n, parts| grid([m, n], UNITS, [PREPARING; 2], parts);
        assert_eq!(cut(1024, 1024, 1), [1, 1]);
        assert_eq!(cut(1024, 1024, 4), [2, 2]);
        assert_eq!(cut(4096, 64, 4), [4, 1]);
        assert_eq!(cut(3, 4096, 4), [1, 4]);
        assert_eq!(cut(2048, 512, 16), [8, 2]);
        // Too little to cut.
        assert_eq!(cut(1, 32, 8), [1, 1]);
        for (m, n, parts) in [(7, 100, 3), (100, 7, 5), (1000, 1000, 7)] {
            let [down, across] = cut(m, n, parts);
            assert!(down * across <= parts);
        }
    }

    #[test]
    fn rows_that_share_a_column_stay_together() {
        let cut = |m, n, parts| grid([m, n], [256, UNITS[1]], [PREPARING; 2], parts);
        assert_eq!(cut(256, 1024, 2), [1, 2]);
        assert_eq!(cut(4096, 64, 4), [4, 1]);
        assert_eq!(cut(300, 32, 8), [2, 1]);
    }
}
