//! Runs contractions: cuts them into parts for the threads, and hands each part to the precompiled `contract` with its factors and epilogue.

use super::columns::{Accumulators, with_accumulators};
use super::max_abs::{Places, with_places};
use super::memory::{self, Address, Block, Fill, Operand, block_address, keep, with_scratch};
use super::packed_weights::{PackedOperand, Packing};
use super::{Invocation, Slots};
use crate::contract::{Cpu, PIECE, Panels, Prefetch};
use crate::machine::InstructionSet;
use crate::plan::contract::{self, BoundContract};
use crate::threads::{Team, part};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU16, Ordering};

type FactorSource = contract::FactorSource<i64>;
type EpilogueOperand = contract::EpilogueOperand<i64>;

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

/// Runs it; with its right operand packed if an earlier run has kept it.
pub(super) fn run(
    contract: &BoundContract,
    invocation: &Invocation<'_>,
    kept: Option<&PackedOperand>,
) {
    let operands = invocation.operands;
    let cut = cut(contract, invocation.team, kept.is_some());
    let run = ContractRun { contract, invocation, kept };
    with_places(&contract.largest, cut.tasks(), std::slice::from_ref(operands), |largest| {
        if contract.columns.is_empty() {
            return run.tasks(cut, None, largest);
        }
        with_accumulators(&contract.columns, invocation, |accumulators| {
            run.tasks(cut, Some(accumulators), largest);
        });
    });
}

/// Into how many parts a run is cut, at most.
pub(super) fn parts(contract: &BoundContract, team: &Team) -> usize {
    let elements = contract.batch.iter().product::<usize>() * contract.m * contract.n;
    team.parts(elements * contract.cost().max(1), usize::MAX)
}

/// How a contraction keeps its right operand from run to run, if that is made of these operands alone and worth it.
pub(super) fn packing(
    contract: &BoundContract,
    instructions: InstructionSet,
    lasting: &[usize],
) -> Option<Packing> {
    let few_rows = (1..ROWS_WITHOUT_KEEPING).contains(&contract.m);
    let batches: usize = contract.batch.iter().product();
    if !few_rows || contract.k == 0 || batches == 0 {
        return None;
    }
    let (inputs, same, place) = match &contract.factors[1] {
        FactorSource::Plain { input, batch, offset, row, col, .. } => {
            let extents = contract.batch.iter().map(|extent| *extent as i64);
            let place = [*offset, *row, *col, contract.n as i64];
            let place = place.into_iter().chain(batch.iter().copied());
            let same = batch.iter().all(|stride| *stride == 0);
            let extents = extents.filter(|_| !same);
            (vec![*input], same, Some(place.chain(extents).collect()))
        }
        FactorSource::Computed { inputs, .. } => (inputs.clone(), false, None),
    };
    let lasts = !inputs.is_empty() && inputs.iter().all(|input| lasting.contains(input));
    let values = [&contract.factors[0], &contract.factors[1]].map(FactorSource::values);
    let panels =
        Panels::new(&Cpu::with(instructions), contract.acc, values, [contract.k, contract.n]);
    // A few columns are soon packed, and would take more memory than they do.
    let fills = panels.width() < 2 * contract.n;
    let batches = if same { 1 } else { batches };
    (lasts && fills).then_some(Packing { panels, batches, inputs, place })
}

/// Packs all of the right operand. Returns the least of its numbers.
pub(super) fn pack(
    contract: &BoundContract,
    invocation: &Invocation<'_>,
    to: &PackedOperand,
) -> u16 {
    let run = ContractRun { contract, invocation, kept: None };
    let cpu = Cpu::with(invocation.target.instructions);
    let pieces = contract.n.div_ceil(PIECE);
    let least = AtomicU16::new(u16::MAX);
    invocation.team.each(to.batches() * pieces, |task| {
        let (batch, piece) = (task / pieces, task % pieces);
        let columns = piece * PIECE..contract.n.min((piece + 1) * PIECE);
        run.with_factors(batch, |[_, b]| {
            let found = keep(&cpu, to.panels(), columns, &b, to.place(batch));
            least.fetch_min(found, Ordering::Relaxed);
        });
    });
    least.into_inner()
}

/// How a run is cut: no two parts share an accumulator of a column.
fn cut(contract: &BoundContract, team: &Team, is_kept: bool) -> Cut {
    let batches: usize = contract.batch.iter().product();
    let parts = parts(contract, team);
    let unit = contract.unit();
    let apart = batches <= 1 || contract.m.is_multiple_of(unit);
    let groups = if apart { parts.min(batches).max(1) } else { 1 };
    let rows = if apart { unit.next_multiple_of(UNITS[0]) } else { contract.m.max(1) };
    let (columns, preparing) = if is_kept { (PIECE, READING) } else { (UNITS[1], PREPARING) };
    let units = [rows, columns];
    let parts = parts.div_ceil(groups);
    let grid = grid([contract.m, contract.n], units, [PREPARING, preparing], parts);
    Cut { groups, grid, units }
}

/// A run of a contraction.
#[derive(Clone, Copy)]
struct ContractRun<'a> {
    contract: &'a BoundContract,
    invocation: &'a Invocation<'a>,
    /// The right operand, if it is packed.
    kept: Option<&'a PackedOperand>,
}

impl ContractRun<'_> {
    /// Runs every part.
    fn tasks(&self, cut: Cut, accumulators: Option<Accumulators<'_>>, largest: Places) {
        let BoundContract { m, n, k, .. } = *self.contract;
        let batches: usize = self.contract.batch.iter().product();
        if batches * m * n == 0 {
            return;
        }
        let [down, across] = cut.grid;
        self.invocation.team.each(cut.tasks(), |task| {
            let (i, group) = (task % (down * across), task / (down * across));
            let rows = part(m, cut.units[0], down, i / across);
            let cols = part(n, cut.units[1], across, i % across);
            let mut slots = self.with_block_slot();
            if let Some(accumulators) = accumulators {
                accumulators.push(&mut slots);
            }
            largest.push(&mut slots, task, 0);
            for batch in part(batches, 1, cut.groups, group) {
                self.block(batch, Block { rows: rows.clone(), cols: cols.clone(), k }, &mut slots);
            }
        });
    }

    /// The kernel's operands, and a slot for a block of sums or of a factor, which comes next.
    fn with_block_slot(&self) -> Slots {
        let operands = self.invocation.operands;
        let mut slots = operands.clone();
        slots.push(operands.get(0));
        slots
    }

    /// A block of a batch, whose sums the epilogue gets with these slots.
    fn block(&self, batch: usize, block: Block, slots: &mut Slots) {
        let (contract, sums_at) = (self.contract, self.invocation.operands.len());
        let mut finish = |row: usize, rows: usize, col: usize, cols: usize, sums: Address| {
            slots.set(sums_at, sums);
            let row = batch * contract.m + row;
            let (rows, positions) = (row..row + rows, col..col + cols);
            with_scratch(|scratch| {
                self.invocation.call(contract.epilogue, slots, rows, positions, scratch);
            });
        };
        let cpu = Cpu::with(self.invocation.target.instructions);
        let prefetched = self.prefetched(&cpu, batch);
        self.with_factors(batch, |factors| {
            memory::contract(&cpu, contract.acc, block, factors, &prefetched, &mut finish);
        });
    }

    /// What the epilogue of a batch is going to write and read, if it is so much that it lies in far caches, and not so much that results go
    /// past them: small results are near still from the last run, where asking for them only costs.
    fn prefetched(&self, cpu: &Cpu, batch: usize) -> SmallVec<[Prefetch; 4]> {
        let caches = cpu.caches;
        if !(caches.far_from()..caches.passed_from()).contains(&self.contract.traffic) {
            return SmallVec::new();
        }
        let operands = self.invocation.operands;
        let one = |near: &EpilogueOperand| {
            near.prefetched(operands, |strides| self.in_batch(batch, strides))
        };
        self.contract.epilogue_operands.iter().map(one).collect()
    }

    /// Where a batch begins, for strides along the batch axes.
    fn in_batch(&self, batch: usize, strides: &[i64]) -> i64 {
        let mut rest = batch;
        let mut element = 0;
        for (extent, stride) in self.contract.batch.iter().zip(strides).rev() {
            element += (rest % extent) as i64 * stride;
            rest /= extent;
        }
        element
    }

    /// Hands on the factors of a batch.
    fn with_factors(&self, batch: usize, run: impl FnOnce([Operand<'_>; 2])) {
        let BoundContract { factors: [left, right], m, k, .. } = self.contract;
        let slots = self.with_block_slot();
        let (fill_left, fill_right) =
            (self.fill(left, batch * m, &slots), self.fill(right, batch * k, &slots));
        let a = self.operand(left, batch, &fill_left);
        let b = match self.kept {
            Some(kept) => kept.operand(batch),
            None => self.operand(right, batch, &fill_right),
        };
        run([a, b]);
    }

    /// Computes blocks of a factor, whose rows are counted from that one on.
    fn fill(
        &self,
        factor: &FactorSource,
        first: usize,
        slots: &Slots,
    ) -> impl Fn(usize, usize, usize, usize, *mut u8) + Sync {
        let function = match factor {
            FactorSource::Computed { code, .. } => Some(*code),
            FactorSource::Plain { .. } => None,
        };
        let block_at = self.invocation.operands.len();
        move |row: usize, rows: usize, col: usize, cols: usize, to: *mut u8| {
            let Some(function) = function.filter(|_| rows > 0 && cols > 0) else { return };
            let mut slots = slots.clone();
            slots.set(block_at, block_address(to));
            let (rows, positions) = (first + row..first + row + rows, col..col + cols);
            with_scratch(|scratch| {
                self.invocation.call(function, &slots, rows, positions, scratch);
            });
        }
    }

    fn operand<'a>(&self, factor: &FactorSource, batch: usize, fill: &'a Fill<'a>) -> Operand<'a> {
        let (input, dtype, round, offset, strides, row, col) = match factor {
            FactorSource::Computed { dtype, .. } => return Operand::Computed(fill, *dtype),
            FactorSource::Plain { input, dtype, round, offset, batch, row, col } => {
                (input, dtype, round, offset, batch, row, col)
            }
        };
        let element = offset + self.in_batch(batch, strides);
        let base = self.invocation.operands.get(*input);
        let base = base.offset(element as isize * dtype.bytes() as isize);
        let (row, col) = (*row as isize, *col as isize);
        Operand::Matrix { base, dtype: *dtype, round: *round, row, col }
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
