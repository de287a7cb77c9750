//! Transposed depthwise convolutions on one thread, over a padded copy of each channel.
//!
//! Even and odd columns of a row see contiguous elements, so they are computed apart and stored
//! interleaved. Vectors write past the end of a row; the next row overwrites that.

use super::driver::{OnEngine, Run};
use super::framed::Framed;
#[cfg(target_arch = "x86_64")]
use super::micro::SHORT;
use super::micro::alternating::{Alternating, Kind, MOST_VECTORS, Places, Vectors};
use super::micro::{Elementwise, Engine};
use super::operand::Scratch;
use super::pack::{Elements, Lines};
use super::schedule::{Chosen, Layout, Load, Pass, Schedule};
use super::sink::Sink;
use super::workspace::Workspace;
use crate::machine::{Cpu, InstructionSet};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::Moves;

/// Elements that vectors may read or write past a row.
const BEHIND: usize = 64;

/// Some planes of transposed depthwise convolutions.
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
    /// The first plane and the first channel's window, and the sums if an engine stores them.
    pub(crate) operands: [*const u8; 2],
    pub(crate) sums: *mut u8,
    /// The planes to compute.
    pub(crate) planes: Range<usize>,
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

    /// Taps of a window.
    fn window(&self) -> usize {
        self.moves[0].positions.saturating_mul(self.moves[1].positions)
    }
}

impl OnEngine for Transposed<'_> {
    fn on(&self) -> (Cpu, DType, bool) {
        (self.cpu(), self.acc(), false)
    }

    fn ranges(&self) -> [&Range<usize>; 2] {
        [&self.planes; 2]
    }

    fn chosen_with<E: Engine>(&self) -> Chosen {
        let weight = if self.has_numbers() { Load::InPlace } else { Load::Packed };
        let schedule = Schedule::Depthwise(Pass::Transposed, Layout::Padded);
        let tile = Some([1, 2 * MOST_VECTORS * E::LANES]);
        Chosen { tile, ..Chosen::new(schedule, [weight, Load::Padded]) }
    }

    fn workspace_with<E: Engine>(&self) -> Workspace {
        let [height, width] = self.to;
        let sums = match self.is_stored::<E>() {
            // Of the last rows.
            true => width,
            false => height.saturating_mul(width),
        };
        Workspace {
            left: self.window().saturating_add(BEHIND),
            right: self.framed().room(),
            sums: sums.saturating_add(2 * BEHIND),
            ..Workspace::default()
        }
    }

    fn run_with<E: Engine>(run: Run<'_, Self, E>, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let [x, weight] = run.operands;
        let (framed, taps) = (run.framed(), run.window());
        let image = scratch.right.zeroed::<E::Num>(framed.room());
        let inside = framed.inside(image);
        let ([rows, columns], [height, width]) = (run.from, run.to);
        let bytes = run.dtype.bytes();
        let whole = 2 * run.columns().next_multiple_of(E::LANES);
        let lines = run.lines_from::<E>(inside, framed.pitch, 0);
        for plane in run.planes.clone() {
            let base = x.wrapping_add(plane * rows * columns * bytes);
            let from = Elements { base, dtype: run.dtype, round: None };
            // SAFETY: the operand is readable; the image has room for the plane.
            unsafe { framed.fill::<E>(from, [1, rows, columns], image) };
            let window = weight.wrapping_add(plane % run.channels * taps * bytes);
            let mut weights = window.cast();
            if !run.has_numbers() {
                let to = scratch.left.room::<E::Num>(taps + BEHIND);
                let (dtype, across) = (run.dtype, 1);
                let lines = Lines { base: window, dtype, round: None, across, along: 0 };
                // SAFETY: the window is readable, and there is room for it.
                unsafe { E::pack(&lines, taps, 1, to, taps) };
                weights = to.cast_const();
            }
            if !run.is_stored::<E>() {
                let sums = scratch.sums.room::<E::Num>(height * width + 2 * BEHIND).cast();
                // SAFETY: what is written past a row is overwritten by the next one, or is slack.
                unsafe { sum::<E>(Alternating { weights, sums, ..lines }, run.columns()) };
                sink(plane..plane + 1, 0..run.to[0], sums.cast_const().cast());
                continue;
            }
            let sums = run.sums.wrapping_add(plane * height * width * bytes);
            // Rows after which enough sums follow for vectors to write past the row.
            let end = (run.planes.end - plane) * height * width;
            let followed = (0..height).rev().find(|line| line * width + whole <= end);
            let followed = followed.map_or(0, |line| line + 1);
            let all = Alternating { weights, sums, lines: followed, ..lines };
            // SAFETY: what is written past a row is overwritten by the next one.
            unsafe { sum::<E>(all, run.columns()) };
            for line in followed..height {
                let room = scratch.sums.room::<E::Num>(width + 2 * BEHIND).cast::<u8>();
                let one = run.lines_from::<E>(inside, framed.pitch, line);
                let one = Alternating { weights, sums: room, lines: 1, ..one };
                // SAFETY: the room of a row.
                unsafe { sum::<E>(one, run.columns()) };
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
        unsafe { E::Singly::run(Vectors::<E::Singly>(some, &Alternating { from, sums, ..lines })) };
    }
}
