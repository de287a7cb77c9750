//! Runs contractions over positions, as those that the gradients of weights are: threads share
//! channels, rows, or steps where sums are few.

use super::Invocation;
use super::epilogue::Sums;
use super::factors::{from_first, operand, seen, source};
use super::max_abs::with_places;
use super::memory::{self, Address, with_room};
use super::thread_grid::{grid, parts};
use crate::contract::{
    Channels, Positions, Seen, Shared, Source, Workspace, can_be_shared, shared_bytes,
};
use crate::machine::{Cpu, Machine};
use crate::plan::contract::{self, BoundContract};
use crate::threads::part;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

type FactorSource = contract::FactorSource<i64>;
type Windows = contract::Windows<i64>;

/// Rows are cut at multiples of this: as many lanes as the widest vectors have.
const LANES: usize = 16;

/// What packing a number of the left operand costs, in products of a step, and filling one of an
/// image.
const PACKING: f64 = 10.0;
const FILLING: f64 = 8.0;

/// Factors are traded if that takes no more than so much of the time.
const WORTH: f64 = 0.97;

/// Threads share steps if each has this number of blocks of them at least, and the sums of all of
/// these take no more bytes than that.
const SOME_BLOCKS: usize = 4;
const FEW_BYTES: usize = 1 << 20;

/// A contraction over positions.
pub(crate) struct OverPositions {
    channels: Channels,
    /// How the right operand is seen, and the left one if that is seen as well.
    right: Seen,
    left: Option<Seen>,
    /// Its rows and columns: those of the result, or the reverse where factors are traded.
    sizes: [usize; 2],
    is_traded: bool,
}

impl OverPositions {
    /// Of a contraction, if it is one.
    pub(super) fn of(contract: &BoundContract, cpu: &Cpu) -> Option<OverPositions> {
        let BoundContract { m, n, k, ref batch, ref factors, ref columns, .. } = *contract;
        let [left, FactorSource::Seen(windows)] = factors else { return None };
        let moves = windows.batch.iter().any(|axis| axis.bounded.iter().any(|step| *step != 0));
        let batches = batch.iter().product::<usize>();
        if m * n * k * batches == 0 || !columns.is_empty() || moves {
            return None;
        }
        let left = match left {
            FactorSource::Plain { .. } => None,
            FactorSource::Seen(left) if left.bounds.is_empty() => Some(seen(left, |_| 0)),
            FactorSource::Seen(_) | FactorSource::Computed { .. } => return None,
        };
        let right = seen(windows, |bound| windows.bounds[bound][0]);
        let channels = Channels::of(&right, [m, k])?;
        let own = OverPositions { channels, right, left, sizes: [m, n], is_traded: false };
        Some(own.traded(contract, cpu).unwrap_or(own))
    }

    /// The same with its factors traded, if that is worth it: of two factors that are read in
    /// place, either may be packed instead.
    fn traded(&self, contract: &BoundContract, cpu: &Cpu) -> Option<OverPositions> {
        let [m, n] = self.sizes;
        let cost = |sizes: [usize; 2]| Positions::cost(cpu, contract.acc, sizes);
        if cost([n, m]) > WORTH * cost([m, n]) {
            return None;
        }
        let right = self.left.as_ref()?.turned();
        let channels = Channels::of(&right, [n, contract.k])?;
        let is_read = |(channels, factor): (&Channels, &FactorSource)| match factor {
            FactorSource::Seen(Windows { dtype, round, .. }) => {
                channels.are_read_in_place(*dtype, *round, contract.acc)
                    && channels.are_side_by_side()
            }
            FactorSource::Plain { .. } | FactorSource::Computed { .. } => false,
        };
        let left = Some(self.right.turned());
        let both = [&channels, &self.channels].into_iter().zip(&contract.factors).all(is_read);
        both.then(|| OverPositions { channels, right, left, sizes: [n, m], is_traded: true })
    }

    /// The left factor and the right one.
    fn factors<'a>(&self, contract: &'a BoundContract) -> [&'a FactorSource; 2] {
        let [left, right] = &contract.factors;
        if self.is_traded { [right, left] } else { [left, right] }
    }

    /// What contractions are, for operands whose first elements lie there.
    fn work<'a>(&'a self, acc: DType, cpu: &'a Cpu, [a, b]: [Source<'a>; 2]) -> Positions<'a> {
        Positions { cpu, acc, a, b, channels: &self.channels, is_traded: self.is_traded }
    }

    /// The blocks of the first part and the parts in all, if threads share steps: then none of them
    /// makes operands ready that another one does as well. The sums of blocks behind the first part
    /// are kept until they are added up in order.
    fn shares(&self, contract: &BoundContract, machine: &Machine) -> Option<(usize, usize)> {
        let (parts, blocks) = (parts(contract, machine), contract.k.div_ceil(CONTRACT_BLOCK));
        let is_one = contract.batch.iter().product::<usize>() == 1;
        let first = part(blocks, 1, parts, 0).len();
        let few = can_be_shared(self.sizes, contract.acc);
        let fits = parts > 1 && is_one && few && blocks >= SOME_BLOCKS * parts;
        let few = fits && self.shared_bytes(contract, blocks - first) <= FEW_BYTES;
        few.then_some((first, parts))
    }

    /// What the sums take of the blocks behind the first part.
    fn shared_bytes(&self, contract: &BoundContract, blocks: usize) -> usize {
        shared_bytes(self.sizes, contract.acc, blocks)
    }

    /// Runs it where threads share steps.
    fn run_shared(
        &self,
        contract: &BoundContract,
        invocation: &Invocation<'_>,
        (first, parts): (usize, usize),
    ) {
        let ([m, _], k) = (self.sizes, contract.k);
        let operands = invocation.operands;
        let cpu = &invocation.machine.cpu;
        let [left, right] = self.factors(contract);
        let a = operand(left, self.left.as_ref(), operands);
        let b = operand(right, Some(&self.right), operands);
        let blocks = k.div_ceil(CONTRACT_BLOCK);
        let bytes = self.shared_bytes(contract, blocks - first);
        with_room(invocation.room, bytes, |kept| {
            invocation.team.each(parts, |task| {
                let own = part(blocks, 1, parts, task);
                let steps = own.start * CONTRACT_BLOCK..k.min(own.end * CONTRACT_BLOCK);
                let work = self.work(contract.acc, cpu, [a.source(), b.source()]);
                memory::share_positions(&work, [m, k], steps, (kept, first));
            });
            let work = self.work(contract.acc, cpu, [a.source(), b.source()]);
            let sums = Sums::of(contract, invocation);
            with_places(&contract.largest, 1, std::slice::from_ref(operands), |largest| {
                let mut slots = operands.clone();
                slots.push(operands.get(0));
                largest.push(&mut slots, 0, 0);
                let mut call = |rows: Range<usize>, columns: Range<usize>, block: Address| {
                    sums.finish(&mut slots, rows, columns, block);
                };
                memory::merge_positions(&work, [m, k], (kept, first), &mut call);
            });
        });
    }

    /// Into how many parts batches, channels and rows are cut.
    fn cut(&self, contract: &BoundContract, machine: &Machine) -> [usize; 3] {
        let batches = contract.batch.iter().product::<usize>();
        let parts = parts(contract, machine);
        let groups = parts.min(batches);
        let FactorSource::Seen(Windows { dtype, round, .. }) = *self.factors(contract)[1] else {
            unreachable!("is seen through windows")
        };
        let Channels { count, taps, .. } = self.channels;
        let is_read = self.channels.are_read_in_place(dtype, round, contract.acc);
        // Rows of a part share the images of its channels, which are as much as a column each.
        let costs = [PACKING, if is_read { 0.0 } else { FILLING }].map(|cost| cost / taps as f64);
        let grid = grid([self.sizes[0], count], [LANES, 1], costs, parts / groups);
        [groups, grid[1], grid[0]]
    }

    /// The batches, channels and rows of a task.
    fn task(
        &self,
        contract: &BoundContract,
        [groups, of_channels, of_rows]: [usize; 3],
        task: usize,
    ) -> [Range<usize>; 3] {
        let batches = contract.batch.iter().product();
        let each = of_channels * of_rows;
        [
            part(batches, 1, groups, task / each),
            part(self.channels.count, 1, of_channels, task % each / of_rows),
            part(self.sizes[0], LANES, of_rows, task % of_rows),
        ]
    }

    /// In how many parts, at most, and what any of them takes.
    pub(super) fn workspace(&self, bound: &BoundContract, machine: &Machine) -> (usize, Workspace) {
        let [left, right] = self.factors(bound);
        let sources = [source(left, self.left.as_ref()), source(right, Some(&self.right))];
        let work = self.work(bound.acc, &machine.cpu, sources);
        if let Some((_, parts)) = self.shares(bound, machine) {
            return (parts, work.workspace([self.sizes[0], self.channels.count], bound.k));
        }
        let cut = self.cut(bound, machine);
        let of = |task: usize| {
            let [_, channels, rows] = self.task(bound, cut, task);
            work.workspace([rows.len(), channels.len()], bound.k)
        };
        let tasks = cut.iter().product();
        (tasks, (0..tasks).map(of).fold(Workspace::default(), Workspace::max))
    }

    /// What is chosen for the first task, and how threads cut the run.
    pub(super) fn chosen(&self, contract: &BoundContract, machine: &Machine) -> Shared {
        let [left, right] = self.factors(contract);
        let sources = [source(left, self.left.as_ref()), source(right, Some(&self.right))];
        let work = self.work(contract.acc, &machine.cpu, sources);
        if let Some((_, parts)) = self.shares(contract, machine) {
            let counts = [self.sizes[0], self.channels.count];
            let chosen = work.chosen(counts, contract.k, parts);
            return (chosen, [("k", parts), ("channels", 1), ("rows", 1)]);
        }
        let cut = self.cut(contract, machine);
        let [_, channels, rows] = self.task(contract, cut, 0);
        let chosen = work.chosen([rows.len(), channels.len()], contract.k, 1);
        (chosen, [("batches", cut[0]), ("channels", cut[1]), ("rows", cut[2])])
    }

    /// Runs it.
    pub(super) fn run(&self, contract: &BoundContract, invocation: &Invocation<'_>) {
        if let Some(shares) = self.shares(contract, invocation.machine) {
            return self.run_shared(contract, invocation, shares);
        }
        let operands = invocation.operands;
        let cpu = &invocation.machine.cpu;
        let cut = self.cut(contract, invocation.machine);
        let tasks = cut.iter().product();
        let factors = self.factors(contract);
        let a = operand(factors[0], self.left.as_ref(), operands);
        let b = operand(factors[1], Some(&self.right), operands);
        let sums = Sums::of(contract, invocation);
        with_places(&contract.largest, tasks, std::slice::from_ref(operands), |largest| {
            invocation.team.each(tasks, |task| {
                let [batches, channels, rows] = self.task(contract, cut, task);
                let mut slots = operands.clone();
                slots.push(operands.get(0));
                largest.push(&mut slots, task, 0);
                for batch in batches {
                    let at = [0, 1].map(|i| from_first(factors[i], &contract.batch, batch));
                    let sources = [a.source().moved(at[0]), b.source().moved(at[1])];
                    let work = self.work(contract.acc, cpu, sources);
                    let mut call = |rows: Range<usize>, columns: Range<usize>, block: Address| {
                        let rows = batch * contract.m + rows.start..batch * contract.m + rows.end;
                        sums.finish(&mut slots, rows, columns, block);
                    };
                    let part = (rows.clone(), channels.clone());
                    memory::over_positions(&work, part, contract.k, &mut call);
                }
            });
        });
    }
}

/// The bytes that threads share during a run.
pub(super) fn bytes(contract: &BoundContract, machine: &Machine) -> usize {
    let Some(positions) = OverPositions::of(contract, &machine.cpu) else { return 0 };
    let Some((first, _)) = positions.shares(contract, machine) else { return 0 };
    positions.shared_bytes(contract, contract.k.div_ceil(CONTRACT_BLOCK) - first)
}
