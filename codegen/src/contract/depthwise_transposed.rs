//! Transposed depthwise convolutions on one thread, over a padded copy of each channel.
//!
//! Even and odd columns of a row see contiguous elements, so they are computed apart and stored
//! interleaved. Vectors write past the end of a row; the next row overwrites that.

use super::driver::Run;
#[cfg(target_arch = "x86_64")]
use super::micro::SHORT;
use super::micro::alternating::{self, Alternating, Kind, MOST_VECTORS, Places};
use super::micro::{Elementwise, Engine};
use super::operand::Scratch;
use super::schedule::{Chosen, Layout, Load, Pass, Schedule};
use super::sink::Sink;
use super::transposed::Transposed;
use super::workspace::Workspace;
use crate::machine::{Cpu, InstructionSet};
use tracecast_ir::DType;

/// Elements that vectors may read or write past a row.
const BEHIND: usize = 64;

impl Transposed<'_> {
    /// The CPU, without its widest vectors if rows leave half of them empty.
    pub(super) fn cpu_for_lines(&self) -> Cpu {
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

    /// Even columns of a row.
    fn columns(&self) -> usize {
        self.to[1].div_ceil(2)
    }

    /// Schedule of [`Run::run_lines`].
    pub(super) fn chosen_lines<E: Engine>(&self) -> Chosen {
        let weight = if self.has_numbers() { Load::InPlace } else { Load::Packed };
        let schedule = Schedule::Depthwise(Pass::Transposed, Layout::Padded);
        let tile = Some([1, 2 * MOST_VECTORS * E::LANES]);
        Chosen { tile, ..Chosen::new(schedule, [weight, Load::Padded]) }
    }

    /// Workspace of [`Run::run_lines`].
    pub(super) fn workspace_lines<E: Engine>(&self) -> Workspace {
        let [height, width] = self.to;
        let sums = match self.is_stored::<E>() {
            // Of the last rows.
            true => width,
            false => height.saturating_mul(width),
        };
        Workspace {
            left: self.window().saturating_add(BEHIND),
            right: self.image::<E>().room(),
            sums: sums.saturating_add(2 * BEHIND),
            ..Workspace::default()
        }
    }
}

impl<E: Engine> Run<'_, Transposed<'_>, E> {
    /// Computes groups of one plane, line by line.
    pub(super) fn run_lines(&self, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let (image, taps) = (self.image::<E>(), self.window());
        let to = scratch.right.zeroed::<E::Num>(image.room());
        let inside = image.inside(to.cast_const());
        let ([height, width], bytes) = (self.to, self.dtype.bytes());
        let whole = 2 * self.columns().next_multiple_of(E::LANES);
        let lines = self.lines_from::<E>(inside, image.pitch, 0);
        for plane in self.groups.clone() {
            // SAFETY: the room of the image.
            unsafe { self.fill(&image, plane, to) };
            let window = self.elements(self.operands[1], plane % self.period * taps);
            let mut weights = window.base.cast();
            if !self.has_numbers() {
                let to = scratch.left.room::<E::Num>(taps + BEHIND);
                // SAFETY: the window is readable, and there is room for it.
                unsafe { E::pack(&window.lines(1, 0), taps, 1, to, taps) };
                weights = to.cast_const();
            }
            if !self.is_stored::<E>() {
                let sums = scratch.sums.room::<E::Num>(height * width + 2 * BEHIND).cast();
                // SAFETY: what is written past a row is overwritten by the next one, or is slack.
                unsafe { sum::<E>(Alternating { weights, sums, ..lines }, self.columns()) };
                sink(plane..plane + 1, 0..height, sums.cast_const().cast());
                continue;
            }
            let sums = self.sums.wrapping_add(plane * height * width * bytes);
            // Rows after which enough sums follow for vectors to write past the row.
            let end = (self.groups.end - plane) * height * width;
            let followed = (0..height).rev().find(|line| line * width + whole <= end);
            let followed = followed.map_or(0, |line| line + 1);
            let all = Alternating { weights, sums, lines: followed, ..lines };
            // SAFETY: what is written past a row is overwritten by the next one.
            unsafe { sum::<E>(all, self.columns()) };
            for line in followed..height {
                let room = scratch.sums.room::<E::Num>(width + 2 * BEHIND).cast::<u8>();
                let one = self.lines_from::<E>(inside, image.pitch, line);
                let one = Alternating { weights, sums: room, lines: 1, ..one };
                // SAFETY: the room of a row.
                unsafe { sum::<E>(one, self.columns()) };
                let to = sums.wrapping_add(line * width * bytes);
                // SAFETY: a row of the result.
                unsafe { std::ptr::copy_nonoverlapping(room, to, width * bytes) };
            }
        }
    }
}

impl Transposed<'_> {
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
        unsafe { alternating::sum::<E::Singly>(some, &Alternating { from, sums, ..lines }) };
    }
}
