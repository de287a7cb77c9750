//! Runs scans and orders: each thread takes the lines of some positions before the axis.

use super::memory::{bytes, bytes_mut};
use super::{Invocation, Slots};
use crate::plan::lines;
use crate::threads::{Team, part};
use tracecast_ir::DType;
use tracecast_ir::kernel::line::{Layout, Work};

/// Lines at the sizes of a binding.
type LinesDispatch = lines::LinesDispatch<usize>;

/// Runs it.
pub(super) fn run(lines: &LinesDispatch, invocation: &Invocation<'_>) {
    let Layout { outer, .. } = lines.layout();
    let parts = parts(lines, invocation.team);
    invocation.team.each(parts, |i| {
        let of = part(outer, 1, parts, i);
        run_part(lines, invocation.operands, of.start, of.len());
    });
}

/// Into how many parts a run is cut.
pub(super) fn parts(lines: &LinesDispatch, team: &Team) -> usize {
    let Layout { outer, length, inner, .. } = lines.layout();
    let each = match lines.work {
        Work::Scan { .. } => 4,
        Work::Order { .. } => 8 * length.max(2).ilog2() as usize,
    };
    team.parts(outer * length * inner * each, outer)
}

/// The lines of some positions before the axis.
fn run_part(lines: &LinesDispatch, operands: &Slots, first: usize, outer: usize) {
    let Layout { length, inner, kept, .. } = lines.layout();
    if outer * length * inner == 0 {
        return;
    }
    let to = if lines.work.is_position() { DType::I64 } else { lines.dtype };
    let read = length * inner * lines.dtype.bytes();
    let written = kept * inner * to.bytes();
    let input = |slot: usize| bytes(operands.get(slot), first * read, outer * read);
    let inputs = [input(0), input(lines.inputs - 1)];
    let output = bytes_mut(operands.get(lines.inputs), first * written, outer * written);
    let layout = Layout { outer, length, inner, kept };
    let of = lines.work.operands(&inputs);
    let done = of.and_then(|of| lines.work.run(lines.dtype, layout, &of, output));
    done.expect(
        "the sizes are those of the kernel, and it has been checked that there is such work",
    );
}
