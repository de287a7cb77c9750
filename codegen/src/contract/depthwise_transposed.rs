//! Transposed depthwise convolutions on one thread, over a padded copy of each channel.
//!
//! Even and odd columns of a row see contiguous elements, so they are computed apart and stored
//! interleaved. Vectors write past the end of a row; the next row overwrites that.

use super::engines::with_engine;
#[cfg(target_arch = "x86_64")]
use super::micro::SHORT;
use super::micro::alternating::{Alternating, Kind, MOST_VECTORS, Places, Vectors};
use super::micro::{Elementwise, Engine};
use super::operand::Scratch;
use super::pack::Lines;
use super::schedule::{Chosen, Layout, Load, Pass, Schedule};
use super::sink::Sink;
use super::workspace::Workspace;
use crate::machine::{Cpu, InstructionSet};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::Moves;

/// Elements that vectors may read or write past a row.
const BEHIND: usize = 64;

/// Transposed depthwise convolutions.
#[derive(Clone, Copy)]
pub(crate) struct Transposed<'a> {
    pub(crate) cpu: &'a Cpu,
    /// Dtype of the elements.
    pub(crate) dtype: DType,
    /// Planes after which windows repeat.
    pub(crate) channels: usize,
    /// Rows and columns of a plane of the input, and of the result.
    pub(crate) from: [usize; 2],
    pub(crate) to: [usize; 2],
    /// How windows move: at stride 2 along columns.
    pub(crate) moves: [Moves; 2],
}

/// Addresses of the first plane, the first channel's window, and the sums if an engine stores them.
#[derive(Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) x: *const u8,
    pub(crate) weight: *const u8,
    pub(crate) sums: *mut u8,
}

/// Padded copy of a plane.
#[derive(Clone, Copy)]
pub(super) struct Framed {
    /// Rows and columns of zeros before the plane.
    before: [usize; 2],
    /// All rows, and their stride. Zeros after a row are those before the next one.
    rows: usize,
    pub(super) pitch: usize,
}

impl Framed {
    /// Padded copy for an input and a result of these rows and columns.
    pub(super) fn of(from: [usize; 2], to: [usize; 2], moves: [Moves; 2]) -> Framed {
        // Padding before the first and after the last element of an axis.
        let around = |axis: usize| {
            let Moves { positions, stride, low } = moves[axis];
            // Windows that see the first and the last element.
            let (first, last) = (low / stride, (to[axis].max(1) - 1).saturating_add(low) / stride);
            let back = (positions - 1) / stride;
            [back.saturating_sub(first), (last + 1).saturating_sub(from[axis])]
        };
        let ([above, below], [left, right]) = (around(0), around(1));
        Framed {
            before: [above, left.max(right)],
            rows: from[0].saturating_add(above).saturating_add(below),
            pitch: from[1].saturating_add(left.max(right)),
        }
    }

    /// Elements of a plane, with those read or written past it.
    pub(super) fn room(&self) -> usize {
        self.plane().saturating_add(self.before[1] + BEHIND)
    }

    /// Stride between planes that follow each other.
    pub(super) fn plane(&self) -> usize {
        self.rows.saturating_mul(self.pitch)
    }

    /// Address of the plane's first element.
    pub(super) fn inside<T>(&self, image: *const T) -> *const T {
        image.wrapping_add(self.before[0] * self.pitch + self.before[1])
    }
}

impl Transposed<'_> {
    fn acc(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// The CPU, without its widest vectors if rows leave half of them empty.
    fn cpu(&self) -> Cpu {
        match self.cpu.instructions {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 if self.columns() <= SHORT => {
                Cpu { instructions: InstructionSet::Avx2, ..*self.cpu }
            }
            _ => *self.cpu,
        }
    }

    /// True if elements have the accumulator's dtype.
    fn has_numbers(&self) -> bool {
        self.dtype == self.acc()
    }

    /// True if an engine stores the sums, rounded or not; else they go to a [`Sink`].
    fn is_stored<E: Engine>(&self) -> bool {
        self.has_numbers() || E::Singly::ALTERNATES_BF16 && self.dtype == DType::BF16
    }

    fn framed(&self) -> Framed {
        Framed::of(self.from, self.to, self.moves)
    }

    /// Even columns of a row.
    fn columns(&self) -> usize {
        self.to[1].div_ceil(2)
    }

    /// Its workspace.
    pub(crate) fn workspace(&self) -> Workspace {
        let cpu = self.cpu();
        with_engine!(cpu, self.acc(), false, E => self.workspace_with::<E>())
    }

    /// The schedule.
    pub(crate) fn chosen(&self) -> Chosen {
        let cpu = self.cpu();
        let lanes = with_engine!(cpu, self.acc(), false, E => <E as Engine>::LANES);
        let weight = if self.has_numbers() { Load::InPlace } else { Load::Packed };
        let schedule = Schedule::Depthwise(Pass::Transposed, Layout::Padded);
        let tile = Some([1, 2 * MOST_VECTORS * lanes]);
        Chosen { tile, ..Chosen::new(schedule, [weight, Load::Padded]) }
    }

    fn workspace_with<E: Engine>(&self) -> Workspace {
        let bytes = |numbers: usize| numbers.saturating_mul(size_of::<E::Num>());
        let [height, width] = self.to;
        let sums = match self.is_stored::<E>() {
            // Of the last rows.
            true => width,
            false => height.saturating_mul(width),
        };
        Workspace {
            left: bytes(self.window().saturating_add(BEHIND)),
            right: bytes(self.framed().room()),
            sums: bytes(sums.saturating_add(2 * BEHIND)),
            ..Workspace::default()
        }
    }

    /// Taps of a window.
    fn window(&self) -> usize {
        self.moves[0].positions.saturating_mul(self.moves[1].positions)
    }

    /// Computes some planes.
    ///
    /// # Safety
    ///
    /// `cpu` must be this CPU. Operands must be readable and the destination writable for them.
    pub(crate) unsafe fn run(
        &self,
        placed: Placed,
        planes: Range<usize>,
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        scratch.held_to(
            || self.workspace(),
            |scratch| {
                let cpu = self.cpu();
                with_engine!(cpu, self.acc(), false, E => {
                    // SAFETY: the caller's contract.
                    unsafe { self.run_with::<E>(placed, planes, scratch, sink) }
                });
            },
        );
    }

    /// # Safety
    ///
    /// The CPU must be the engine's. Operands must be readable for these planes, and places of sums
    /// writable.
    unsafe fn run_with<E: Engine>(
        &self,
        placed: Placed,
        planes: Range<usize>,
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let (framed, window) = (self.framed(), self.window());
        let image = scratch.right.zeroed::<E::Num>(framed.room());
        let inside = framed.inside(image).cast_mut();
        let ([rows, columns], [height, width]) = (self.from, self.to);
        let bytes = self.dtype.bytes();
        let whole = 2 * self.columns().next_multiple_of(E::LANES);
        let lines = self.lines_from::<E>(inside.cast_const(), framed.pitch, 0);
        for plane in planes.clone() {
            let x = placed.x.wrapping_add(plane * rows * columns * bytes);
            // SAFETY: the caller's contract; the image has room for the plane.
            unsafe { self.copy::<E>(x, [rows, columns], (inside, framed.pitch)) };
            let window = placed.weight.wrapping_add(plane % self.channels * window * bytes);
            let weights = match self.has_numbers() {
                true => window.cast(),
                // SAFETY: the caller's contract.
                false => unsafe { self.widened::<E>(window, scratch) },
            };
            if !self.is_stored::<E>() {
                let sums = scratch.sums.room::<E::Num>(height * width + 2 * BEHIND).cast();
                // SAFETY: what is written past a row is overwritten by the next one, or is slack.
                unsafe { sum::<E>(Alternating { weights, sums, ..lines }, self.columns()) };
                sink(plane..plane + 1, 0..self.to[0], sums.cast_const().cast());
                continue;
            }
            let sums = placed.sums.wrapping_add(plane * height * width * bytes);
            // Rows after which enough sums follow for vectors to write past the row.
            let end = (planes.end - plane) * height * width;
            let followed = (0..height).rev().find(|line| line * width + whole <= end);
            let followed = followed.map_or(0, |line| line + 1);
            let all = Alternating { weights, sums, lines: followed, ..lines };
            // SAFETY: what is written past a row is overwritten by the next one.
            unsafe { sum::<E>(all, self.columns()) };
            for line in followed..height {
                let room = scratch.sums.room::<E::Num>(width + 2 * BEHIND).cast::<u8>();
                let one = self.lines_from::<E>(inside.cast_const(), framed.pitch, line);
                let one = Alternating { weights, sums: room, lines: 1, ..one };
                // SAFETY: the room of a row.
                unsafe { sum::<E>(one, self.columns()) };
                let to = sums.wrapping_add(line * width * bytes);
                // SAFETY: a row of the result.
                unsafe { std::ptr::copy_nonoverlapping(room, to, width * bytes) };
            }
        }
    }

    /// Copies a plane to its place in the padded copy, widened.
    ///
    /// # Safety
    ///
    /// It must be readable, and its place writable.
    unsafe fn copy<E: Engine>(
        &self,
        x: *const u8,
        [rows, columns]: [usize; 2],
        (to, pitch): (*mut E::Num, usize),
    ) {
        // Rows of one element become lines of one step.
        let some = if columns == 1 { 1 } else { rows };
        for row in (0..rows).step_by(some.max(1)) {
            let base = x.wrapping_add(row * columns * self.dtype.bytes());
            let to = to.wrapping_add(row * pitch);
            // SAFETY: the caller's contract. What is written past a row is zero or overwritten.
            unsafe { E::pack(&self.rows(base, columns), columns, some, to, pitch) };
        }
    }

    /// The window of a channel, widened.
    ///
    /// # Safety
    ///
    /// It must be readable.
    unsafe fn widened<E: Engine>(&self, window: *const u8, scratch: &mut Scratch) -> *const E::Num {
        let count = self.window();
        let to = scratch.left.room::<E::Num>(count + BEHIND);
        // SAFETY: the caller's contract, and there is room for it.
        unsafe { E::pack(&self.rows(window, count), count, 1, to, count) };
        to.cast_const()
    }

    /// Elements row by row.
    fn rows(&self, base: *const u8, columns: usize) -> Lines {
        Lines { base, dtype: self.dtype, round: None, across: 1, along: columns as isize }
    }

    /// Sums of a plane from a row on. Weights and sums have no address yet.
    fn lines_from<E: Engine>(
        &self,
        inside: *const E::Num,
        pitch: usize,
        line: usize,
    ) -> Alternating<E::Num> {
        let [down, across] = self.moves;
        let (_, window, _) = down.met(line);
        let odd_first = across.low % 2 == 1;
        let rest = across.positions - usize::from(odd_first);
        let first = (window * pitch).wrapping_add(across.low.div_ceil(2));
        let kinds = [line, line + 1].map(|line| {
            let (first, window, rows) = down.met(line);
            let (_, behind, _) = down.met(line + 1);
            Kind { rows, weights: first * across.positions, next: (behind - window) * pitch }
        });
        Alternating {
            from: inside.wrapping_add(first),
            pitch,
            places: Places { odd_first, both: rest / 2, even_last: rest % 2 == 1 },
            weights: std::ptr::null(),
            weights_row: down.stride * across.positions,
            lines: self.to[0] - line,
            kinds,
            sums: std::ptr::null_mut(),
            width: self.to[1],
            rounds: self.is_stored::<E>() && !self.has_numbers(),
        }
    }
}

/// Computes rows of even columns, and of the odd ones after them.
///
/// # Safety
///
/// The CPU must be the engine's. What whole vectors of columns read must be readable, and their
/// sums writable; the next row overwrites what is past a row.
unsafe fn sum<E: Engine>(lines: Alternating<E::Num>, columns: usize) {
    let vectors = columns.div_ceil(E::LANES);
    // The last columns come first: those before them overwrite what is written past the row before.
    let together = <E::Singly as Elementwise>::ALTERNATING;
    for first in (0..vectors).step_by(together).rev() {
        let at = first * E::LANES;
        let from = lines.from.wrapping_add(at);
        let sums = lines.sums.wrapping_add(lines.bytes(2 * at));
        let some = (vectors - first).min(together);
        // SAFETY: the caller's contract.
        unsafe { E::Singly::run(Vectors::<E::Singly>(some, &Alternating { from, sums, ..lines })) };
    }
}
