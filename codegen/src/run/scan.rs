//! Runs scans: packs lines into panels block by block, scans there, and copies the results back.
//!
//! A position waits for the one before, and so a line alone would leave vectors idle. Sixteen lines
//! side by side fill them, and each has the order of its own. Where the axis is the last, lines are
//! transposed into a panel; contiguous lines are copied.

use super::memory::{Address, Rows, bytes, bytes_mut, copy_rows, over_tile, turn, with_scratch};
use super::{Invocation, Slots};
use crate::machine::InstructionSet;
use crate::plan::lines;
use crate::routines::{NarrowFloat, Tiles, advance_scan};
use crate::threads::part;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::line::{Layout, Scan, Scanner, panel_dtype};

/// Lines at the sizes of a binding.
type LinesDispatch = lines::LinesDispatch<usize>;

/// Lines of a panel.
const SIDE: usize = 16;

/// Lines of a transposed block: where their stride is a power of two, one set of the first-level
/// cache has room for them, but not for more.
const TRANSPOSED: usize = 8;

/// Fewer lines are scanned one by one.
const FEW: usize = 4;

/// Groups of lines that a thread takes together where they are contiguous, so that it reads some
/// cache lines of each position.
const TOGETHER: usize = 4;

/// Fewer lines are not taken together, so that every thread has some.
const MANY: usize = 16 * SIDE * TOGETHER;

/// Positions of a panel: elements of f32 take half of a small first-level cache with their results.
const POSITIONS: usize = 128;

/// Panels of a thread: two operands, the result, and 16-bit floats, unconverted.
const PANELS: usize = 4;

/// Runs it in `parts` parts.
pub(super) fn run(
    lines: &LinesDispatch,
    (scan, reverse): (Scan, bool),
    parts: usize,
    invocation: &Invocation<'_>,
) {
    let layout = lines.layout();
    invocation.team.each(parts, |i| {
        let units = part(units(layout), 1, parts, i);
        let instructions = invocation.machine.cpu.instructions;
        let run = Run { lines, layout, scan, reverse, instructions, operands: invocation.operands };
        match lines_of(layout) < FEW {
            true => run.units::<1>(units),
            false => run.units::<SIDE>(units),
        }
    });
}

/// Into how many parts a run may be cut.
pub(super) fn units(layout: Layout) -> usize {
    lines_of(layout).div_ceil(of_unit(layout))
}

/// The scratch that a thread needs.
pub(super) fn bytes_of_thread(layout: Layout) -> usize {
    PANELS * panel_bytes(if lines_of(layout) < FEW { 1 } else { SIDE })
}

fn panel_bytes(lines: usize) -> usize {
    lines * POSITIONS * 8
}

fn lines_of(layout: Layout) -> usize {
    layout.outer * layout.inner
}

/// The lines that one thread takes together.
fn of_unit(layout: Layout) -> usize {
    match lines_of(layout) {
        lines if lines < FEW => 1,
        lines if layout.inner >= SIDE * TOGETHER && lines >= MANY => SIDE * TOGETHER,
        _ => SIDE,
    }
}

/// A run, as each thread sees it.
#[derive(Clone, Copy)]
struct Run<'a> {
    lines: &'a LinesDispatch,
    layout: Layout,
    scan: Scan,
    reverse: bool,
    instructions: InstructionSet,
    operands: &'a Slots,
}

/// Memory of a thread: two inputs and the output of a panel, and one of 16-bit floats, unconverted.
#[derive(Clone, Copy)]
struct Panels {
    inputs: [Address; 2],
    output: Address,
    narrow: Address,
}

/// Neighbouring positions of neighbouring lines.
#[derive(Clone, Copy)]
struct Piece {
    first_line: usize,
    lines: usize,
    first: usize,
    positions: usize,
}

/// Which way a piece is copied.
#[derive(Clone, Copy)]
enum Way {
    /// From its operand to a panel.
    In,
    /// From a panel to its operand.
    Out,
}

impl Run<'_> {
    /// All positions of the lines of some units.
    fn units<const LINES: usize>(&self, units: Range<usize>) {
        let (each, all) = (of_unit(self.layout), lines_of(self.layout));
        let panel = panel_bytes(LINES);
        with_scratch(|scratch| {
            let memory = scratch.reserve(PANELS * panel);
            let [a, b, output, narrow] = [0, 1, 2, 3].map(|i| memory.offset((i * panel) as isize));
            let panels = Panels { inputs: [a, b], output, narrow };
            for unit in units {
                self.unit::<LINES>(unit * each..((unit + 1) * each).min(all), panels);
            }
        });
    }

    /// All positions of some lines.
    fn unit<const LINES: usize>(&self, lines: Range<usize>, panels: Panels) {
        let before = Scanner::<LINES>::new(self.scan, self.reverse, self.lines.dtype)
            .expect("it has been checked that there is such work");
        let mut scanners: [_; TOGETHER] = std::array::from_fn(|_| before.clone());
        let length = self.layout.length;
        let blocks = length.div_ceil(POSITIONS);
        for block in 0..blocks {
            let block = if self.reverse { blocks - 1 - block } else { block };
            let first = block * POSITIONS;
            let positions = POSITIONS.min(length - first);
            for (first_line, scanner) in lines.clone().step_by(LINES).zip(&mut scanners) {
                let lines = LINES.min(lines.end - first_line);
                let piece = Piece { first_line, lines, first, positions };
                self.piece(piece, scanner, panels);
            }
        }
    }

    /// Some positions of lines side by side.
    fn piece<const LINES: usize>(
        &self,
        piece: Piece,
        scanner: &mut Scanner<LINES>,
        panels: Panels,
    ) {
        let from = self.lines.dtype;
        let to = if self.scan.is_position() { DType::I64 } else { from };
        let tiles = Tiles::of(self.instructions);
        let elements = LINES * piece.positions;
        let size = |dtype| elements * panel_dtype(dtype).bytes();
        for (slot, panel) in (0..self.lines.inputs).zip(panels.inputs) {
            let side_by_side = |panel| Rows { first: panel, step: LINES * from.bytes() };
            match NarrowFloat::of(from) {
                None => self.carry(Way::In, slot, from.bytes(), piece, side_by_side(panel)),
                Some(narrow) => {
                    let panel_of_narrow = side_by_side(panels.narrow);
                    self.carry(Way::In, slot, from.bytes(), piece, panel_of_narrow);
                    over_tile(tiles.widen(narrow), panels.narrow, panel, elements);
                }
            }
        }
        let last = panels.inputs[self.lines.inputs - 1];
        let inputs = [bytes(panels.inputs[0], 0, size(from)), bytes(last, 0, size(from))];
        let output = bytes_mut(panels.output, 0, size(to));
        advance_scan(self.instructions, scanner, piece.first, &inputs, output);
        let result = match NarrowFloat::of(to) {
            None => panels.output,
            Some(narrow) => {
                over_tile(tiles.narrow(narrow), panels.output, panels.narrow, elements);
                panels.narrow
            }
        };
        let panel = Rows { first: result, step: LINES * to.bytes() };
        self.carry(Way::Out, self.lines.inputs, to.bytes(), piece, panel);
    }

    /// Copies a piece of an operand to a panel, or the results of one from a panel to their places.
    fn carry(&self, way: Way, slot: usize, bytes: usize, piece: Piece, panel: Rows) {
        let Piece { lines, positions, .. } = piece;
        let in_panel =
            |line: usize| Rows { first: panel.first.offset((line * bytes) as isize), ..panel };
        let is_transposed = self.layout.inner == 1 && panel.step > bytes;
        if is_transposed {
            let tiles = Tiles::of(self.instructions);
            for line in (0..lines).step_by(TRANSPOSED) {
                let rows = self.rows(slot, bytes, piece, line, self.layout.length);
                let count = TRANSPOSED.min(lines - line);
                match way {
                    Way::In => turn(tiles, bytes, rows, in_panel(line), count, positions),
                    Way::Out => turn(tiles, bytes, in_panel(line), rows, positions, count),
                }
            }
            return;
        }
        self.each_run(piece, |line, run| {
            let rows = self.rows(slot, bytes, piece, line, self.layout.inner);
            match way {
                Way::In => copy_rows(rows, in_panel(line), positions, run * bytes),
                Way::Out => copy_rows(in_panel(line), rows, positions, run * bytes),
            }
        });
    }

    /// Where the elements of a line of a piece lie in an operand, and those of other rows, a stride
    /// apart.
    fn rows(&self, slot: usize, bytes: usize, piece: Piece, line: usize, step: usize) -> Rows {
        let Layout { length, inner, .. } = self.layout;
        let line = piece.first_line + line;
        let first = (line / inner * length + piece.first) * inner + line % inner;
        let first = self.operands.get(slot).offset((first * bytes) as isize);
        Rows { first, step: step * bytes }
    }

    /// Calls `each` with the first of some lines of a piece that lie side by side in memory, and
    /// how many they are.
    fn each_run(&self, piece: Piece, mut each: impl FnMut(usize, usize)) {
        let mut line = 0;
        while line < piece.lines {
            let behind = (piece.first_line + line) % self.layout.inner;
            let run = (self.layout.inner - behind).min(piece.lines - line);
            each(line, run);
            line += run;
        }
    }
}
