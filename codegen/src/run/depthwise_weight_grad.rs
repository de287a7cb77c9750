//! Runs contractions of one row whose first axis of batches are the windows of a line, as the
//! gradients of depthwise weights are made of: threads share lines of batches.

use super::Invocation;
use super::epilogue::Sums;
use super::factors::{axis, from_first, operand, seen, source};
use super::max_abs::with_places;
use super::memory::{self, Address};
use super::thread_grid::parts;
use crate::contract::{Axis, LinesOfWindows, OverLines, Seen, Shared, Source, Workspace};
use crate::machine::{Cpu, Machine};
use crate::plan::contract::{self, BoundContract};
use crate::threads::part;
use std::ops::Range;
use tracecast_ir::DType;

type FactorSource = contract::FactorSource<i64>;

/// A contraction over lines of windows.
pub(crate) struct WindowLines {
    lines: LinesOfWindows,
    /// How the right operand is seen in the first batch, and the left one if that is seen as well.
    right: Seen,
    left: Option<Seen>,
}

impl WindowLines {
    /// Of a contraction, if it is one.
    pub(super) fn of(contract: &BoundContract) -> Option<WindowLines> {
        let BoundContract { m, n, k, ref batch, ref factors, ref columns, .. } = *contract;
        let [left, FactorSource::Seen(right)] = factors else { return None };
        let windows = *batch.first()?;
        if m != 1 || n * k == 0 || !columns.is_empty() {
            return None;
        }
        let (across, others) = right.batch.split_first()?;
        if others.iter().any(|axis| axis.bounded.iter().any(|step| *step != 0)) {
            return None;
        }
        let (stride, seen_left) = match left {
            FactorSource::Plain { batch, .. } => (*batch.first()?, None),
            FactorSource::Seen(left) if left.bounds.is_empty() => {
                (left.batch.first()?.stride, Some(seen(left, |_| 0)))
            }
            FactorSource::Seen(_) | FactorSource::Computed { .. } => return None,
        };
        let right = seen(right, |bound| right.bounds[bound][0]);
        let across = Axis { extent: windows, ..axis(across) };
        let left = source(left, seen_left.as_ref());
        let lines = LinesOfWindows::of(&left, &right, k, (across, stride as isize))?;
        Some(WindowLines { lines, right, left: seen_left })
    }

    /// What contractions are, for operands whose first elements lie there.
    fn work<'a>(&'a self, acc: DType, cpu: &'a Cpu, [a, b]: [Source<'a>; 2]) -> OverLines<'a> {
        OverLines { cpu, acc, a, b, lines: &self.lines }
    }

    /// How many lines of batches there are, and into how many parts they are cut.
    fn cut(contract: &BoundContract, machine: &Machine) -> [usize; 2] {
        let lines = contract.batch[1..].iter().product();
        [lines, parts(contract, machine).min(lines)]
    }

    /// In how many parts, at most, and what any of them takes.
    pub(super) fn workspace(&self, bound: &BoundContract, machine: &Machine) -> (usize, Workspace) {
        let [lines, parts] = WindowLines::cut(bound, machine);
        let [left, right] = &bound.factors;
        let sources = [source(left, self.left.as_ref()), source(right, Some(&self.right))];
        let work = self.work(bound.acc, &machine.cpu, sources);
        (parts, work.workspace(lines.div_ceil(parts.max(1))))
    }

    /// What is chosen, and how threads cut the run.
    pub(super) fn chosen(&self, contract: &BoundContract, machine: &Machine) -> Shared {
        let [left, right] = &contract.factors;
        let sources = [source(left, self.left.as_ref()), source(right, Some(&self.right))];
        let [_, parts] = WindowLines::cut(contract, machine);
        let chosen = self.work(contract.acc, &machine.cpu, sources).chosen();
        (chosen, [("batches", parts), ("rows", 1), ("columns", 1)])
    }

    /// Runs it.
    pub(super) fn run(&self, contract: &BoundContract, invocation: &Invocation<'_>) {
        let operands = invocation.operands;
        let cpu = &invocation.machine.cpu;
        let [lines, parts] = WindowLines::cut(contract, invocation.machine);
        let [left, right] = &contract.factors;
        let a = operand(left, self.left.as_ref(), operands);
        let b = operand(right, Some(&self.right), operands);
        let at =
            |batch: usize| [left, right].map(|factor| from_first(factor, &contract.batch, batch));
        let sums = Sums::of(contract, invocation);
        with_places(&contract.largest, parts, std::slice::from_ref(operands), |largest| {
            invocation.team.each(parts, |task| {
                let mut slots = operands.clone();
                slots.push(operands.get(0));
                largest.push(&mut slots, task, 0);
                let own = part(lines, 1, parts, task);
                let mut call = |windows: Range<usize>, own: Range<usize>, block: Address| {
                    let first = windows.start * lines;
                    let batches = first + own.start..first + own.end;
                    sums.finish(&mut slots, batches, 0..contract.n, block);
                };
                let work = self.work(contract.acc, cpu, [a.source(), b.source()]);
                memory::over_lines(&work, own, &at, &mut call);
            });
        });
    }
}
