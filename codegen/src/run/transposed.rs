//! Runs transposed convolutions: each thread takes some groups, or some planes of the result.

use super::Invocation;
use super::memory::{self, Address, Rows, copy_rows, narrow_rows};
use crate::contract::{Phases, Shared, Transposed, Workspace};
use crate::machine::{Cpu, Machine};
use crate::plan::transposed::TransposedDispatch as Dispatch;
use crate::routines::{NarrowFloat, Tiles};
use crate::threads::part;
use std::ops::Range;

/// A transposed convolution at the sizes of a binding.
pub(super) type TransposedDispatch = Dispatch<usize>;

/// Multiply-adds that count as one cheap operation.
const PER_OPERATION: usize = 8;

/// Runs it.
pub(super) fn run(of: &TransposedDispatch, invocation: &Invocation<'_>) {
    let (machine, cpu) = (invocation.machine, &invocation.machine.cpu);
    let [x, weight, result] =
        [0, of.inputs - 1, of.inputs].map(|slot| invocation.operands.get(slot));
    let narrow = NarrowFloat::of(of.dtype).map(|narrow| Tiles::of(cpu.instructions).narrow(narrow));
    let ([height, width], bytes) = (of.to, of.dtype.bytes());
    // Sums of some planes and rows go to the result.
    let store = |planes: Range<usize>, rows: Range<usize>, sums: Address| {
        let (count, sum) = (rows.len() * width, narrow.map_or(bytes, |_| size_of::<f32>()));
        let first = (planes.start * height + rows.start) * width * bytes;
        let from = Rows { first: sums, step: count * sum };
        let to = Rows { first: result.offset(first as isize), step: height * width * bytes };
        match narrow {
            Some(narrow) => narrow_rows(narrow, from, to, planes.len(), count),
            None => copy_rows(from, to, planes.len(), count * bytes),
        }
    };
    let cut = cut(of, machine);
    invocation.team.each(cut.iter().product(), |task| {
        let (groups, planes) = self::task(of, cpu, cut, task);
        match depthwise(of, cpu) {
            Some(work) => {
                memory::transposed(&work, [x, weight, result], groups, &mut { store });
            }
            None => {
                let work = phases(of, cpu);
                memory::phases(&work, [x, weight], (groups, planes), &mut { store });
            }
        }
    });
}

/// The work for any groups, of one plane each.
fn depthwise<'a>(of: &TransposedDispatch, cpu: &'a Cpu) -> Option<Transposed<'a>> {
    let Dispatch { dtype, period, planes, from, to, moves, .. } = *of;
    (planes == [1, 1]).then_some(Transposed { cpu, dtype, channels: period, from, to, moves })
}

/// The work for any groups of several planes.
fn phases<'a>(of: &TransposedDispatch, cpu: &'a Cpu) -> Phases<'a> {
    let Dispatch { dtype, period, planes, from, to, moves, .. } = *of;
    Phases { cpu, dtype, period, planes, from, to, moves }
}

/// Into how many parts groups and planes of the result are cut.
fn cut(of: &TransposedDispatch, machine: &Machine) -> [usize; 2] {
    let parts = parts(of, machine);
    if of.planes == [1, 1] {
        return [parts, 1];
    }
    let work = phases(of, &machine.cpu);
    let strips = of.planes[1].div_ceil(work.unit()).max(1);
    let groups = if work.by_planes(of.groups) && strips >= parts { 1 } else { parts };
    let groups = groups.min(of.groups).max(1);
    [groups, (parts / groups).min(strips)]
}

/// The groups and the planes of the result of a task.
fn task(
    of: &TransposedDispatch,
    cpu: &Cpu,
    [groups, planes]: [usize; 2],
    task: usize,
) -> (Range<usize>, Range<usize>) {
    let unit = if planes == 1 { 1 } else { phases(of, cpu).unit() };
    let planes_of = part(of.planes[1], unit, planes, task % planes);
    (part(of.groups, 1, groups, task / planes), planes_of)
}

/// What each thread takes.
pub(super) fn workspace(of: &TransposedDispatch, cpu: &Cpu) -> Workspace {
    depthwise(of, cpu).map_or_else(|| phases(of, cpu).workspace(), |work| work.workspace())
}

/// What is chosen for the first task, and how threads cut the run.
pub(super) fn chosen(of: &TransposedDispatch, machine: &Machine) -> Shared {
    let (cpu, cut) = (&machine.cpu, cut(of, machine));
    let (groups, _) = task(of, cpu, cut, 0);
    let chosen = depthwise(of, cpu)
        .map_or_else(|| phases(of, cpu).chosen(groups.len()), |work| work.chosen());
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
