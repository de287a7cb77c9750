//! How contractions over positions are cut: rows and channels that are summed together, the steps whose images are there at a time, and about how long that takes.

use super::channels::Channels;
use super::micro::Engine;
use super::positions::Positions;
use super::with_engine;
use crate::machine::{Cpu, InstructionSet};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Rows that are summed together, at most.
pub(super) const MOST_ROWS: usize = 128;
/// Examples whose images lie one behind the other have so many positions together, if there are as many.
const POSITIONS: usize = 1024;
/// Sums and chains of so many bytes are not cut further.
pub(super) const FEW_SUMS: usize = 128 << 10;

/// What packing a number of a row costs, in products.
const PACKING: f64 = 3.0;
/// So many chains keep the CPU busy.
const CHAINS: f64 = 8.0;

impl Positions<'_> {
    /// About how long a step of so many rows and columns takes, in products: those of lanes without a row as well, and of a vector that has too few chains alone.
    pub(crate) fn cost(cpu: &Cpu, acc: DType, [rows, columns]: [usize; 2]) -> f64 {
        let [lanes, alone] = with_engine!(cpu, acc, false, E => [E::LANES, E::SPOTS_ALONE]);
        let vectors = rows.div_ceil(lanes);
        let waits = (vectors % 2) as f64 * (CHAINS / alone as f64 - 1.0).max(0.0);
        (vectors as f64 + waits) * (lanes * columns) as f64 + PACKING * rows as f64
    }
}

/// How many examples of so many steps each, and so many in all, are there at a time.
pub(super) fn examples_together(each: usize, all: usize) -> usize {
    (POSITIONS / each).max(1).min(all)
}

/// How the work of a thread is cut.
pub(super) struct Cut {
    /// Rows that are summed together, and channels.
    pub(super) rows: usize,
    pub(super) channels: usize,
    /// Examples whose images are there at a time, all of a number's steps among them.
    pub(super) examples: usize,
    apart: usize,
    /// Steps of a panel that stay in the first-level cache, and those that are packed at once: a part of a block, or whole ones.
    pub(super) steps: usize,
    pub(super) packed: usize,
    /// The most columns that are summed together.
    pub(super) strip: usize,
    /// A panel is used once: all columns are summed together.
    pub(super) is_once: bool,
    /// From a column of the sums to the next.
    pub(super) ld: usize,
}

impl Cut {
    /// For some rows and channels of steps so many for each example.
    pub(super) fn of<E: Engine>(
        work: &Positions<'_>,
        [rows, channels]: [usize; 2],
        each: usize,
    ) -> Cut {
        let size = size_of::<E::Num>();
        let Channels { taps, examples, .. } = *work.channels;
        let caches = &work.cpu.caches;
        let rows = rows.div_ceil(rows.div_ceil(MOST_ROWS)).next_multiple_of(E::WIDTH).min(rows);
        let ld = rows.next_multiple_of(E::WIDTH);
        // Chains and sums stay in the second-level cache.
        let channels = (FEW_SUMS.max(caches.l2 / 4) / (2 * taps * ld * size)).clamp(1, channels);
        // No pair is of two groups.
        let apart = if each.is_multiple_of(E::DEPTH) { 1 } else { E::DEPTH };
        let examples = examples_together(each, examples).next_multiple_of(apart).min(examples);
        let steps = E::DEPTH * (caches.l1 / 2 / (E::WIDTH * size)).next_multiple_of(64);
        let blocks = E::DEPTH * (caches.l2 / 4 / (E::WIDTH * size)) / CONTRACT_BLOCK;
        let packed = blocks.max(1) * CONTRACT_BLOCK;
        // A panel that is used once, or without windows little, is multiplied while it is in the first-level cache.
        let near = 1 << (caches.l1 / 3 / (E::WIDTH * size)).clamp(32, CONTRACT_BLOCK).ilog2();
        let strip = if rows <= E::LANES { E::SPOTS_ALONE.max(3 * E::THREES) } else { E::SPOTS };
        let is_once = channels * taps <= strip && E::DEPTH == 1;
        let is_short = is_once || work.channels.is_whole && E::DEPTH == 1;
        let [steps, packed] = if is_short { [near; 2] } else { [steps, packed] };
        Cut { rows, channels, examples, apart, steps, packed, strip, is_once, ld }
    }

    /// The stretch that a step is in, if there are more up to an end. Numbers hold so many steps.
    pub(super) fn stretch(
        &self,
        channels: &Channels,
        steps: &Range<usize>,
        depth: usize,
        each: usize,
    ) -> Stretch {
        let [lines, line] = channels.lines();
        let first = steps.start / each;
        if self.examples > 1 {
            let first = first / self.apart * self.apart;
            let end = steps.end.div_ceil(each).next_multiple_of(self.apart).min(channels.examples);
            return Stretch { examples: first..end.min(first + self.examples), lines: 0..lines };
        }
        let place = |step: usize| (step - first * each).min(each);
        let start = place(steps.start) / line / depth * depth;
        let end = place(steps.end).div_ceil(line).next_multiple_of(depth).min(lines);
        Stretch { examples: first..first + 1, lines: start..end }
    }
}

/// Steps one after another whose image is there at a time: those of some examples, or of some lines of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) examples: Range<usize>,
    pub(super) lines: Range<usize>,
}

impl Stretch {
    /// So many examples from the first on, or lines.
    pub(super) fn of(examples: usize, lines: usize) -> Stretch {
        Stretch { examples: 0..examples, lines: 0..lines }
    }

    /// Its steps, if an example has so many, and a line has so many of these.
    pub(super) fn steps(&self, each: usize, line: usize) -> Range<usize> {
        let last = self.examples.end.saturating_sub(1);
        self.examples.start * each + self.lines.start * line..last * each + self.lines.end * line
    }
}
