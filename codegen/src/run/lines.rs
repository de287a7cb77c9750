//! Runs orders: each thread takes the lines of some positions before the axis. Scans are run by
//! `scan`.

use super::memory::{Address, bytes, bytes_mut, with_room, words_mut};
use super::{Invocation, Slots, scan};
use crate::machine::Machine;
use crate::plan::lines;
use crate::threads::part;
use tracecast_ir::DType;
use tracecast_ir::kernel::line::{Layout, Work};

/// Lines at the sizes of a binding.
pub(super) type LinesDispatch = lines::LinesDispatch<usize>;

/// Runs it.
pub(super) fn run(lines: &LinesDispatch, invocation: &Invocation<'_>) {
    let parts = parts(lines, invocation.machine);
    if let Work::Scan { scan, reverse } = lines.work {
        return scan::run(lines, (scan, reverse), parts, invocation);
    }
    with_room(invocation.room, bytes_of(lines, invocation.machine), |memory| {
        invocation.team.each(parts, |i| {
            let of = part(lines.layout().outer, 1, parts, i);
            let words = memory.offset((i * part_bytes(lines)) as isize);
            order(lines, invocation.operands, of.start, of.len(), words);
        });
    });
}

/// The bytes of the words of all parts.
pub(super) fn bytes_of(lines: &LinesDispatch, machine: &Machine) -> usize {
    parts(lines, machine).saturating_mul(part_bytes(lines))
}

/// The bytes of the words of a part, in whole cache lines.
fn part_bytes(lines: &LinesDispatch) -> usize {
    let bytes = lines.words().saturating_mul(size_of::<u64>());
    bytes.checked_next_multiple_of(64).unwrap_or(usize::MAX)
}

/// The bytes of each thread that runs it.
pub(super) fn bytes_of_thread(lines: &LinesDispatch) -> usize {
    match lines.work {
        Work::Scan { .. } => scan::bytes_of_thread(lines.layout()),
        Work::Order { .. } => 0,
    }
}

/// Into how many parts a run is cut.
pub(super) fn parts(lines: &LinesDispatch, machine: &Machine) -> usize {
    let layout = lines.layout();
    let elements = layout.outer * layout.length * layout.inner;
    match lines.work {
        Work::Scan { .. } => machine.parts(elements * 4, scan::units(layout)),
        Work::Order { .. } => {
            let each = 8 * layout.length.max(2).ilog2() as usize;
            machine.parts(elements * each, layout.outer)
        }
    }
}

/// Orders the lines of some positions before the axis.
fn order(lines: &LinesDispatch, operands: &Slots, first: usize, outer: usize, words: Address) {
    let Layout { length, inner, kept, .. } = lines.layout();
    if outer * length * inner == 0 {
        return;
    }
    let read = length * inner * lines.dtype.bytes();
    let written = kept * inner * DType::I64.bytes();
    let input = bytes(operands.get(0), first * read, outer * read);
    let output = bytes_mut(operands.get(lines.inputs), first * written, outer * written);
    let layout = Layout { outer, length, inner, kept };
    let words = words_mut(words, lines.words());
    lines.work.run(lines.dtype, layout, &[input], output, words).expect(
        "the sizes are those of the kernel, and it has been checked that there is such work",
    );
}
