//! Runs contractions: cuts them into parts for the threads, and hands each part to the precompiled
//! `contract` with its factors and epilogue.

use super::batches::Together;
use super::columns::{Accumulators, with_accumulators};
use super::convolution::{Bound, Convolution};
use super::depthwise_weight_grad::WindowLines;
use super::epilogue::Sums;
use super::factors::{from_first, in_batch, seen, source};
use super::implicit_gemm::Images;
use super::max_abs::{Places, with_places};
use super::memory::{block_address, keep, product, with_scratch};
use super::packed_weights::{PackedOperand, Packing, Place};
use super::thread_grid::{Cut, cut};
use super::weight_grad::OverPositions;
use super::{Invocation, Slots};
use crate::contract::without::{Choice, is_without};
use crate::contract::{
    Driver as _, FillFn, PIECE, Panels, Prefetch, Product, Seen, Shared, Source, Workspace,
    workspace_to_keep,
};
use crate::machine::{Cpu, Machine};
use crate::plan::contract::{self, BoundContract};
use crate::threads::part;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

type FactorSource = contract::FactorSource<i64>;
type Windows = contract::Windows<i64>;
type EpilogueOperand = contract::EpilogueOperand<i64>;

/// From this number of rows on packing takes less than a tenth of the time.
const ROWS_WITHOUT_KEEPING: usize = 128;

/// The driver of a convolution.
pub(crate) type Driver = Box<dyn Convolution>;

/// The first driver that takes a contraction: of weight gradients along lines, of other weight
/// gradients, of convolutions. `None` for a product of matrices.
pub(super) fn driver(contract: &BoundContract, cpu: &Cpu) -> Option<Driver> {
    if is_without(Choice::Drivers) {
        return None;
    }
    let lines = WindowLines::of(contract).map(|own| Box::new(own) as Driver);
    let positions = || OverPositions::of(contract, cpu).map(|own| Box::new(own) as Driver);
    let images = || Images::of(contract, cpu).map(|own| Box::new(own) as Driver);
    lines.or_else(positions).or_else(images)
}

/// The bytes that threads share during a run of a driver of convolutions.
pub(super) fn shared_bytes(contract: &BoundContract, machine: &Machine) -> usize {
    let of = Bound { contract, machine, operands: None };
    driver(contract, &machine.cpu).map_or(0, |own| own.shared_bytes(&of))
}

/// Runs it; with its right operand packed if an earlier run has kept it.
pub(super) fn run(
    contract: &BoundContract,
    invocation: &Invocation<'_>,
    driver: Option<&Driver>,
    kept: Option<&PackedOperand>,
) {
    let (operands, machine) = (invocation.operands, invocation.machine);
    if let Some(own) = driver {
        return own.run(&Bound { contract, machine, operands: Some(operands) }, invocation);
    }
    let together = match kept {
        Some(_) => Together::none(contract),
        None => Together::of(contract, &machine.cpu),
    };
    let cut = cut(contract, machine, &together, kept.is_some());
    let run = ContractRun { contract, invocation, kept, together: &together };
    with_places(&contract.largest, cut.tasks(), std::slice::from_ref(operands), |largest| {
        if contract.columns.is_empty() {
            return run.tasks(cut, None, largest);
        }
        with_accumulators(&contract.columns, invocation, |accumulators| {
            run.tasks(cut, Some(accumulators), largest);
        });
    });
}

/// Into how many parts a run is cut, at most, and what packing in any of them takes.
pub(super) fn workspace(
    contract: &BoundContract,
    machine: &Machine,
    packing: Option<&Packing>,
) -> (usize, Workspace) {
    let cpu = &machine.cpu;
    if let Some(own) = driver(contract, cpu) {
        return own.workspace(&Bound { contract, machine, operands: None });
    }
    let of_part = |together: &Together, [a, b]: [Source<'_>; 2]| {
        let cut = cut(contract, machine, together, matches!(b, Source::Packed { .. }));
        let [down, across] = cut.grid;
        let of = |i: usize| {
            let rows = part(contract.m, cut.units[0], down, i / across).len();
            let cols = part(together.columns(), cut.units[1], across, i % across).len();
            Product::new(cpu, contract.acc, [0..rows, 0..cols], contract.k, [a, b]).workspace()
        };
        (cut.tasks(), (0..down * across).map(of).fold(Workspace::default(), Workspace::max))
    };
    let together = Together::of(contract, cpu);
    let (tasks, all) = with_sources(contract, &together, |sources| of_part(&together, sources));
    let Some(packing) = packing else { return (tasks, all) };
    // The first runs are those without panels. What packs all of them takes a part's room as well.
    let to_keep = workspace_to_keep(cpu, &packing.panels);
    let kept = Source::Packed { base: std::ptr::null(), panels: packing.panels, least: u16::MAX };
    let none = Together::none(contract);
    let (tasks_with, all_with) = with_sources(contract, &none, |[a, _]| of_part(&none, [a, kept]));
    (tasks.max(tasks_with), all.max(all_with).max(to_keep))
}

/// The schedule of the first part, and the thread grid.
pub(super) fn chosen(contract: &BoundContract, machine: &Machine) -> Option<Shared> {
    if let Some(own) = driver(contract, &machine.cpu) {
        return own.chosen(&Bound { contract, machine, operands: None });
    }
    let together = Together::of(contract, &machine.cpu);
    let Cut { groups, grid: [down, across], units } = cut(contract, machine, &together, false);
    let rows = part(contract.m, units[0], down, 0).len();
    let columns = part(together.columns(), units[1], across, 0).len();
    let ranges = [0..rows, 0..columns];
    let chosen = with_sources(contract, &together, |factors| {
        Product::new(&machine.cpu, contract.acc, ranges, contract.k, factors).chosen()
    });
    Some((chosen, [("batches", groups), ("rows", down), ("columns", across)]))
}

/// Calls `with` with both factors of batches that are multiplied together. Their addresses are
/// null: a choice depends on shapes alone.
fn with_sources<T>(
    contract: &BoundContract,
    together: &Together,
    with: impl FnOnce([Source<'_>; 2]) -> T,
) -> T {
    let [left, right] = &contract.factors;
    let left_seen = match left {
        FactorSource::Seen(windows) => Some(seen(windows, |_| 0)),
        FactorSource::Plain { .. } | FactorSource::Computed { .. } => None,
    };
    let right_seen = together.right(right, contract.k).map(|windows| seen(&windows, |_| 0));
    with([source(left, left_seen.as_ref(), None), source(right, right_seen.as_ref(), None)])
}

/// How a contraction keeps its right operand from run to run, if that is made of these operands
/// alone and worth it.
pub(super) fn packing(contract: &BoundContract, cpu: &Cpu, lasting: &[usize]) -> Option<Packing> {
    let few_rows = (1..ROWS_WITHOUT_KEEPING).contains(&contract.m);
    let batches: usize = contract.batch.iter().product();
    if !few_rows || contract.k == 0 || batches == 0 {
        return None;
    }
    let (inputs, same, place) = match &contract.factors[1] {
        FactorSource::Plain { input, dtype, round, batch, offset, row, col } => {
            let extents = contract.batch.iter().map(|extent| *extent as i64);
            let place = [*offset, *row, *col, contract.n as i64];
            let place = place.into_iter().chain(batch.iter().copied());
            let same = batch.iter().all(|stride| *stride == 0);
            let extents = extents.filter(|_| !same);
            let numbers = place.chain(extents).collect();
            (vec![*input], same, Some(Place { dtype: *dtype, round: *round, numbers }))
        }
        FactorSource::Computed { inputs, .. } => (inputs.clone(), false, None),
        // What windows see is packed in every run: it is no weight.
        FactorSource::Seen(_) => return None,
    };
    let lasts = !inputs.is_empty() && inputs.iter().all(|input| lasting.contains(input));
    let values = [&contract.factors[0], &contract.factors[1]].map(FactorSource::values);
    let panels = Panels::new(cpu, contract.acc, values, [contract.k, contract.n]);
    // A few columns are soon packed, and would take more memory than they do.
    let fills = panels.width < 2 * contract.n;
    let batches = if same { 1 } else { batches };
    (lasts && fills).then_some(Packing { panels, batches, inputs, place })
}

/// Packs all of the right operand. Returns the least of its numbers.
pub(super) fn pack(
    contract: &BoundContract,
    invocation: &Invocation<'_>,
    to: &PackedOperand,
) -> u16 {
    let together = Together::none(contract);
    let run = ContractRun { contract, invocation, kept: None, together: &together };
    let cpu = &invocation.machine.cpu;
    let pieces = contract.n.div_ceil(PIECE);
    let least = AtomicU16::new(u16::MAX);
    invocation.team.each(to.batches * pieces, |task| {
        let (batch, piece) = (task / pieces, task % pieces);
        let columns = piece * PIECE..contract.n.min((piece + 1) * PIECE);
        run.with_factors(batch, |[_, b]| {
            let found = keep(cpu, &to.panels, columns, &b, to.place(batch));
            least.fetch_min(found, Ordering::Relaxed);
        });
    });
    least.into_inner()
}

/// A run of a contraction.
#[derive(Clone, Copy)]
struct ContractRun<'a> {
    contract: &'a BoundContract,
    invocation: &'a Invocation<'a>,
    /// The right operand, if it is packed.
    kept: Option<&'a PackedOperand>,
    /// Which batches are gone over together.
    together: &'a Together,
}

impl ContractRun<'_> {
    /// Runs every part.
    fn tasks(&self, cut: Cut, accumulators: Option<Accumulators<'_>>, largest: Places) {
        let m = self.contract.m;
        let (batches, n) = (self.together.batches, self.together.columns());
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
                let batch = self.together.batch(batch, 0);
                self.block(batch, [rows.clone(), cols.clone()], &mut slots);
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

    /// A block of a batch, or of those that go together with it, whose sums the epilogue gets with
    /// these slots.
    fn block(&self, batch: usize, ranges: [Range<usize>; 2], slots: &mut Slots) {
        let (contract, sums) = (self.contract, Sums::of(self.contract, self.invocation));
        let mut call = |batch: usize, rows: Range<usize>, cols: Range<usize>, block: *const u8| {
            let rows = batch * contract.m + rows.start..batch * contract.m + rows.end;
            sums.finish(slots, rows, cols, block_address(block));
        };
        let mut finish = |rows: Range<usize>, cols: Range<usize>, sums: *const u8| {
            if self.together.count == 1 {
                return call(batch, rows, cols, sums);
            }
            for (i, row) in rows.enumerate() {
                self.together.cut(cols.start, cols.len(), |one, col, width, before| {
                    let at = (i * cols.len() + before) * contract.acc.bytes();
                    let batch = batch + self.together.batch(0, one);
                    call(batch, row..row + 1, col..col + width, sums.wrapping_add(at));
                });
            }
        };
        let cpu = &self.invocation.machine.cpu;
        let is_single = self.together.count == 1;
        let prefetched = if is_single { self.prefetched(cpu, batch) } else { SmallVec::new() };
        let stored = sums.stored(batch * contract.m).filter(|_| is_single);
        self.with_factors(batch, |factors| {
            let mut part = Product::new(cpu, contract.acc, ranges, contract.k, factors);
            (part.prefetched, part.stored) = (&prefetched, stored);
            product(&part, &mut finish);
        });
    }

    /// What the epilogue of a batch is going to write and read, if it is so much that it lies in
    /// far caches, and not so much that results go past them: small results are near still from the
    /// last run, where asking for them only costs.
    fn prefetched(&self, cpu: &Cpu, batch: usize) -> SmallVec<[Prefetch; 4]> {
        let caches = cpu.caches;
        if !(caches.far_from()..caches.passed_from()).contains(&self.contract.traffic) {
            return SmallVec::new();
        }
        let operands = self.invocation.operands;
        let one = |near: &EpilogueOperand| {
            near.prefetched(
                operands,
                in_batch(&self.contract.batch, batch, |axis| near.batch[axis]),
            )
        };
        self.contract.epilogue_operands.iter().map(one).collect()
    }

    /// Hands on the factors of a batch, or of the batches that go together with it.
    fn with_factors(&self, batch: usize, run: impl FnOnce([Source<'_>; 2])) {
        let BoundContract { factors: [left, right], m, n, k, .. } = self.contract;
        let slots = self.with_block_slot();
        let fill_left = self.fill(left, [batch * m, *k], &slots);
        let fill_right = self.fill(right, [batch * k, *n], &slots);
        let left_seen = match left {
            FactorSource::Seen(windows) => Some(self.seen(windows, batch)),
            FactorSource::Plain { .. } | FactorSource::Computed { .. } => None,
        };
        let right_seen = self.together.right(right, *k);
        let right_seen = right_seen.map(|windows| self.seen(&windows, batch));
        let a = self.source(left, left_seen.as_ref(), batch, &fill_left);
        let b = match self.kept {
            Some(kept) => kept.operand(batch),
            None => self.source(right, right_seen.as_ref(), batch, &fill_right),
        };
        run([a, b]);
    }

    /// A factor of a batch.
    fn source<'a>(
        &self,
        factor: &FactorSource,
        seen: Option<&'a Seen>,
        batch: usize,
        fill: &'a FillFn<'a>,
    ) -> Source<'a> {
        match source(factor, seen, Some(self.invocation.operands)) {
            Source::Fill { dtype, .. } => Source::Fill { fill, dtype },
            first => first.moved(from_first(factor, &self.contract.batch, batch)),
        }
    }

    /// Where the elements of a factor lie that is seen through windows.
    fn seen(&self, windows: &Windows, batch: usize) -> Seen {
        seen(windows, |bound| {
            let stride = |axis: usize| windows.batch[axis].bounded[bound];
            windows.bounds[bound][0] + in_batch(&self.contract.batch, batch, stride)
        })
    }

    /// Computes blocks of a factor, whose rows are counted from that one on, with their number of
    /// columns.
    fn fill(
        &self,
        factor: &FactorSource,
        [first, width]: [usize; 2],
        slots: &Slots,
    ) -> impl Fn(usize, usize, usize, usize, *mut u8) + Sync {
        let function = match factor {
            FactorSource::Computed { code, dtype, row, .. } => {
                Some((*code, dtype.bytes(), row.map(|row| row as usize)))
            }
            FactorSource::Plain { .. } | FactorSource::Seen(_) => None,
        };
        let block_at = self.invocation.operands.len();
        move |row: usize, rows: usize, col: usize, cols: usize, to: *mut u8| {
            let Some((code, bytes, own)) = function.filter(|_| rows > 0 && cols > 0) else {
                return;
            };
            let mut slots = slots.clone();
            let mut call = |at: usize, rows: Range<usize>, positions: Range<usize>| {
                slots.set(block_at, block_address(to.wrapping_add(at * bytes)));
                with_scratch(|scratch| {
                    self.invocation.call(code, &slots, rows, positions, scratch);
                });
            };
            let Some(own) = own else {
                return call(0, first + row..first + row + rows, col..col + cols);
            };
            // As many of the function's rows as a row of the factor has, from one to the next.
            let each = width / own;
            for i in 0..rows {
                let mut at = col;
                while at < col + cols {
                    let (begin, from) = ((first + row + i) * each + at / own, at % own);
                    let whole = if from == 0 { (col + cols - at) / own } else { 0 };
                    let (count, positions) = match whole {
                        0 => (1, from..own.min(from + col + cols - at)),
                        whole => (whole, 0..own),
                    };
                    call(i * cols + at - col, begin..begin + count, positions.clone());
                    at += count * positions.len();
                }
            }
        }
    }
}
