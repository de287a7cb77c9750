//! Runs transposed convolutions: each thread takes some groups, or some planes of the result.

use super::epilogue::Stored;
use super::memory::{block_address, product};
use super::{Invocation, Slots};
use crate::contract::{Driver, Shared, Transposed, Workspace};
use crate::machine::{Cpu, Machine};
use crate::plan::transposed::TransposedDispatch as Dispatch;
use crate::threads;
use std::ops::Range;

/// A transposed convolution at the sizes of a binding.
pub(super) type TransposedDispatch = Dispatch<usize>;

/// Multiply-adds that count as one cheap operation.
const PER_OPERATION: usize = 8;

/// Runs it.
pub(super) fn run(of: &TransposedDispatch, invocation: &Invocation<'_>) {
    let (machine, cpu) = (invocation.machine, &invocation.machine.cpu);
    let result = invocation.operands.get(of.inputs);
    let ([height, width], stored) = (of.to, Stored::at(result, of.dtype, cpu));
    // Sums of some planes and rows go to the result.
    let store = |planes: Range<usize>, rows: Range<usize>, sums: *const u8| {
        let columns = rows.start * width..rows.end * width;
        stored.put(height * width, planes, columns, block_address(sums));
    };
    let cut = cut(of, machine);
    invocation.team.each(cut.iter().product(), |task| {
        let part = part(of, cpu, Some(invocation.operands), task_of(of, cpu, cut, task));
        product(&part, &mut { store });
    });
}

/// The part of some groups and planes of the result. Addresses are null without operands.
fn part<'a>(
    of: &TransposedDispatch,
    cpu: &'a Cpu,
    slots: Option<&Slots>,
    [groups, part]: [Range<usize>; 2],
) -> Transposed<'a> {
    let Dispatch { dtype, period, planes, from, to, moves, .. } = *of;
    let address = |slot| slots.map_or(std::ptr::null_mut(), |slots| slots.get(slot).pointer());
    let operands = [0, of.inputs - 1].map(|slot| address(slot).cast_const());
    let sums = address(of.inputs);
    Transposed { cpu, dtype, period, planes, from, to, moves, operands, sums, groups, part }
}

/// Into how many parts groups and planes of the result are cut.
fn cut(of: &TransposedDispatch, machine: &Machine) -> [usize; 2] {
    let parts = parts(of, machine);
    if of.planes == [1, 1] {
        return [parts, 1];
    }
    let work = part(of, &machine.cpu, None, [0..0, 0..0]);
    let strips = of.planes[1].div_ceil(work.unit()).max(1);
    let groups = if work.by_planes(of.groups) && strips >= parts { 1 } else { parts };
    let groups = groups.min(of.groups).max(1);
    [groups, (parts / groups).min(strips)]
}

/// The groups and the planes of the result of a task.
fn task_of(
    of: &TransposedDispatch,
    cpu: &Cpu,
    [groups, planes]: [usize; 2],
    task: usize,
) -> [Range<usize>; 2] {
    let unit = if planes == 1 { 1 } else { part(of, cpu, None, [0..0, 0..0]).unit() };
    let groups = threads::part(of.groups, 1, groups, task / planes);
    [groups, threads::part(of.planes[1], unit, planes, task % planes)]
}

/// What each thread takes.
pub(super) fn workspace(of: &TransposedDispatch, cpu: &Cpu) -> Workspace {
    part(of, cpu, None, [0..of.groups, 0..of.planes[1]]).workspace()
}

/// What is chosen for the first task, and how threads cut the run.
pub(super) fn chosen(of: &TransposedDispatch, machine: &Machine) -> Shared {
    let (cpu, cut) = (&machine.cpu, cut(of, machine));
    let chosen = part(of, cpu, None, task_of(of, cpu, cut, 0)).chosen();
    (chosen, [("groups", cut[0]), ("channels", cut[1]), ("rows", 1)])
}

/// Into how many parts a run is cut, at most.
pub(super) fn parts(of: &TransposedDispatch, machine: &Machine) -> usize {
    let window: usize = of.moves.iter().map(|moves| moves.positions).product();
    let ([rows, columns], [height, width]) = (of.from, of.to);
    let sums = rows * columns * window * of.planes[0] / PER_OPERATION + height * width;
    let most = of.groups * if of.planes == [1, 1] { 1 } else { of.planes[1] };
    machine.parts(of.groups * of.planes[1] * sums, most)
}
