//! Contractions over positions, as weight gradients: threads share channels, rows, or `k` where
//! sums are few.

use super::Invocation;
use super::convolution::{Bound, Convolution, Take};
use super::factors::seen;
use super::memory::{product, with_room};
use super::thread_grid::{grid, parts};
use crate::contract::{Channels, Positions, Seen, Split, can_be_shared, shared_bytes};
use crate::machine::Cpu;
use crate::plan::contract::{self, BoundContract};
use crate::threads::part;
use std::ops::Range;
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

    /// The blocks of the first part and the parts in all, if threads share steps: then none of them
    /// makes operands ready that another one does as well. The sums of blocks behind the first part
    /// are kept until they are added up in order.
    fn shares(&self, of: &Bound<'_>) -> Option<(usize, usize)> {
        let Bound { contract, machine, .. } = *of;
        let (parts, blocks) = (parts(contract, machine), contract.k.div_ceil(CONTRACT_BLOCK));
        let is_one = contract.batch.iter().product::<usize>() == 1;
        let first = part(blocks, 1, parts, 0).len();
        let few = can_be_shared(self.sizes, contract.acc);
        let fits = parts > 1 && is_one && few && blocks >= SOME_BLOCKS * parts;
        let few = fits && shared_bytes(self.sizes, contract.acc, blocks - first) <= FEW_BYTES;
        few.then_some((first, parts))
    }

    /// Passes on a part: its batches, channels and rows, and what of `k` if threads share that.
    fn pass(
        &self,
        of: &Bound<'_>,
        [batches, part, rows]: [Range<usize>; 3],
        split: Option<Split>,
        take: &mut Take<'_>,
    ) {
        let BoundContract { acc, m, k, .. } = *of.contract;
        let factors @ [left, right] = self.factors(of.contract);
        take(&Positions {
            cpu: &of.machine.cpu,
            acc,
            a: of.source(left, self.left.as_ref()),
            b: of.source(right, Some(&self.right)),
            at: &of.offsets(factors),
            channels: &self.channels,
            is_traded: self.is_traded,
            batches,
            rows,
            part,
            m,
            k,
            split,
        });
    }

    /// Passes on all rows and channels of some blocks of `k`, whose sums are kept there.
    fn pass_blocks(
        &self,
        of: &Bound<'_>,
        blocks: Range<usize>,
        (sums, first, threads): (*mut u8, usize, usize),
        take: &mut Take<'_>,
    ) {
        let steps = blocks.start * CONTRACT_BLOCK..of.contract.k.min(blocks.end * CONTRACT_BLOCK);
        let split = Split { steps, sums, first, threads };
        self.pass(of, [0..1, 0..self.channels.count, 0..self.sizes[0]], Some(split), take);
    }
}

impl Convolution for OverPositions {
    fn grid(&self, of: &Bound<'_>) -> [(&'static str, usize); 3] {
        let Bound { contract, machine, .. } = *of;
        if let Some((_, parts)) = self.shares(of) {
            return [("k", parts), ("channels", 1), ("rows", 1)];
        }
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
        let [rows, channels] = grid([self.sizes[0], count], [LANES, 1], costs, parts / groups);
        [("batches", groups), ("channels", channels), ("rows", rows)]
    }

    fn part(
        &self,
        of: &Bound<'_>,
        [groups, of_channels, of_rows]: [usize; 3],
        task: usize,
        take: &mut Take<'_>,
    ) {
        if let Some((first, threads)) = self.shares(of) {
            let blocks = part(of.contract.k.div_ceil(CONTRACT_BLOCK), 1, threads, task);
            return self.pass_blocks(of, blocks, (std::ptr::null_mut(), first, threads), take);
        }
        let each = of_channels * of_rows;
        let batches = part(of.contract.batch.iter().product(), 1, groups, task / each);
        let channels = part(self.channels.count, 1, of_channels, task % each / of_rows);
        let rows = part(self.sizes[0], LANES, of_rows, task % of_rows);
        self.pass(of, [batches, channels, rows], None, take);
    }

    /// The sums of the blocks behind the first part.
    fn shared_bytes(&self, of: &Bound<'_>) -> usize {
        let Some((first, _)) = self.shares(of) else { return 0 };
        let blocks = of.contract.k.div_ceil(CONTRACT_BLOCK) - first;
        shared_bytes(self.sizes, of.contract.acc, blocks)
    }

    fn run(&self, of: &Bound<'_>, invocation: &Invocation<'_>) {
        let Some((first, threads)) = self.shares(of) else {
            let grid = self.grid(of).map(|(_, parts)| parts);
            let part = |task: usize, take: &mut Take<'_>| self.part(of, grid, task, take);
            return of.run_parts(invocation, grid.iter().product(), part);
        };
        let blocks = of.contract.k.div_ceil(CONTRACT_BLOCK);
        with_room(invocation.room, self.shared_bytes(of), |kept| {
            invocation.team.each(threads, |task| {
                let (own, kept) = (part(blocks, 1, threads, task), kept.pointer());
                self.pass_blocks(of, own, (kept, first, threads), &mut |part| {
                    product(part, &mut |_, _, _| {});
                });
            });
            of.run_parts(invocation, 1, |_, take| {
                self.pass_blocks(of, 0..0, (kept.pointer(), first, threads), take);
            });
        });
    }
}
