//! Runs contractions over positions, as those that the gradients of weights are: threads share channels, or rows where these are few.

use super::Invocation;
use super::contract::{grid, parts, source};
use super::images::{from_first, operand};
use super::max_abs::with_places;
use super::memory::{self, Address};
use super::sums::Sums;
use super::together::seen;
use crate::contract::{Channels, Cpu, Positions, Rooms, Seen, Source};
use crate::plan::contract::{self, BoundContract};
use crate::threads::{Team, part};
use std::ops::Range;
use tracecast_ir::DType;

type FactorSource = contract::FactorSource<i64>;
type Windows = contract::Windows<i64>;

/// Rows are cut at multiples of this: as many lanes as the widest vectors have.
const LANES: usize = 16;

/// What packing a number of the left operand costs, in products of a step, and filling one of an image.
const PACKING: f64 = 10.0;
const FILLING: f64 = 8.0;

/// A contraction over positions.
pub(super) struct OverPositions {
    channels: Channels,
    /// How the right operand is seen, and the left one if that is seen as well.
    right: Seen,
    left: Option<Seen>,
}

impl OverPositions {
    /// Of a contraction, if it is one.
    pub(super) fn of(contract: &BoundContract) -> Option<OverPositions> {
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
        Some(OverPositions { channels, left, right })
    }

    /// What contractions are, for operands whose first elements lie there.
    fn work<'a>(&'a self, acc: DType, cpu: &'a Cpu, [a, b]: [Source<'a>; 2]) -> Positions<'a> {
        Positions { cpu, acc, a, b, channels: &self.channels }
    }

    /// Into how many parts batches, channels and rows are cut.
    fn cut(&self, contract: &BoundContract, team: &Team) -> [usize; 3] {
        let batches = contract.batch.iter().product::<usize>();
        let parts = parts(contract, team);
        let groups = parts.min(batches);
        let FactorSource::Seen(Windows { dtype, round, .. }) = contract.factors[1] else {
            unreachable!("is seen through windows")
        };
        let Channels { count, taps, .. } = self.channels;
        let is_read = self.channels.are_read_in_place(dtype, round, contract.acc);
        // Rows of a part share the images of its channels, which are as much as a column each.
        let costs = [PACKING, if is_read { 0.0 } else { FILLING }].map(|cost| cost / taps as f64);
        let grid = grid([contract.m, count], [LANES, 1], costs, parts / groups);
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
            part(contract.m, LANES, of_rows, task % of_rows),
        ]
    }

    /// In how many parts, at most, and what any of them takes.
    pub(super) fn rooms(&self, contract: &BoundContract, cpu: &Cpu, team: &Team) -> (usize, Rooms) {
        let cut = self.cut(contract, team);
        let [left, right] = &contract.factors;
        let sources = [source(left, self.left.as_ref()), source(right, Some(&self.right))];
        let work = self.work(contract.acc, cpu, sources);
        let of = |task: usize| {
            let [_, channels, rows] = self.task(contract, cut, task);
            work.rooms([rows.len(), channels.len()], contract.k)
        };
        let tasks = cut.iter().product();
        (tasks, (0..tasks).map(of).fold(Rooms::default(), Rooms::max))
    }

    /// Runs it.
    pub(super) fn run(&self, contract: &BoundContract, invocation: &Invocation<'_>) {
        let operands = invocation.operands;
        let cpu = Cpu::with(invocation.target.instructions);
        let cut = self.cut(contract, invocation.team);
        let tasks = cut.iter().product();
        let factors = &contract.factors;
        let a = operand(&factors[0], self.left.as_ref(), operands);
        let b = operand(&factors[1], Some(&self.right), operands);
        let sums = Sums::of(contract, invocation);
        with_places(&contract.largest, tasks, std::slice::from_ref(operands), |largest| {
            invocation.team.each(tasks, |task| {
                let [batches, channels, rows] = self.task(contract, cut, task);
                let mut slots = operands.clone();
                slots.push(operands.get(0));
                largest.push(&mut slots, task, 0);
                for batch in batches {
                    let at = [0, 1].map(|i| from_first(&factors[i], &contract.batch, batch));
                    let sources = [a.source().moved(at[0]), b.source().moved(at[1])];
                    let work = self.work(contract.acc, &cpu, sources);
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
