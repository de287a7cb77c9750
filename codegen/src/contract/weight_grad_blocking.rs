//! Blocking of the weight gradient: tile, `k`-range with its images in cache, and a cost estimate.

use super::engines::with_engine;
use super::micro::Engine;
use super::weight_grad_part::Positions;
use super::weight_grad_right::{Channels, Stretch, examples_together};
use crate::machine::{Cpu, InstructionSet};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Most rows of a tile.
pub(super) const MOST_ROWS: usize = 128;
/// Bytes of sums and chains that are not split further.
pub(super) const FEW_SUMS: usize = 128 << 10;

/// Cost of packing an element of a row, in multiply-adds.
const PACKING: f64 = 3.0;
/// Chains that keep the multiply-add units busy.
const CHAINS: f64 = 8.0;

impl Positions<'_> {
    /// Estimated cost of a step of `[rows, columns]` in multiply-adds, with idle lanes and waits.
    pub(crate) fn cost(cpu: &Cpu, acc: DType, [rows, columns]: [usize; 2]) -> f64 {
        let [lanes, alone] = with_engine!(cpu, acc, false, E => [E::LANES, E::SPOTS_ALONE]);
        let vectors = rows.div_ceil(lanes);
        let waits = (vectors % 2) as f64 * (CHAINS / alone as f64 - 1.0).max(0.0);
        (vectors as f64 + waits) * (lanes * columns) as f64 + PACKING * rows as f64
    }
}

/// Blocking of a thread's work.
pub(super) struct Cut {
    /// Rows and channels of a tile.
    pub(super) rows: usize,
    pub(super) channels: usize,
    /// Examples per `k`-range. No pair of steps spans two ranges.
    pub(super) examples: usize,
    apart: usize,
    /// Steps of a panel that stay in L1, and steps packed per pass: part of a block, or blocks.
    pub(super) steps: usize,
    pub(super) packed: usize,
    /// Most columns of a register tile.
    pub(super) strip: usize,
    /// Column stride of the sums.
    pub(super) ld: usize,
}

impl Cut {
    /// Blocking of the work.
    pub(super) fn of<E: Engine>(work: &Positions<'_>) -> Cut {
        let ([rows, channels], each) = ([work.rows.len(), work.part.len()], work.each());
        let size = size_of::<E::Num>();
        let Channels { taps, examples, .. } = *work.channels;
        let caches = &work.cpu.caches;
        let rows = rows.div_ceil(rows.div_ceil(MOST_ROWS)).next_multiple_of(E::WIDTH).min(rows);
        let ld = rows.next_multiple_of(E::WIDTH);
        // Chains and sums stay in L2.
        let channels = (FEW_SUMS.max(caches.l2 / 4) / (2 * taps * ld * size)).clamp(1, channels);
        // No pair spans two groups of examples.
        let apart = if each.is_multiple_of(E::DEPTH) { 1 } else { E::DEPTH };
        let examples = examples_together(each, examples).next_multiple_of(apart).min(examples);
        let steps = E::DEPTH * (caches.l1 / 2 / (E::WIDTH * size)).next_multiple_of(64);
        let blocks = E::DEPTH * (caches.l2 / 4 / (E::WIDTH * size)) / CONTRACT_BLOCK;
        let packed = blocks.max(1) * CONTRACT_BLOCK;
        // Panels that two strips of columns use, or few windows, are multiplied while in L1.
        let near = 1 << (caches.l1 / 3 / (E::WIDTH * size)).clamp(32, CONTRACT_BLOCK).ilog2();
        let strip = if rows <= E::LANES { E::SPOTS_ALONE } else { E::SPOTS };
        let is_short = channels * taps <= 2 * strip || work.channels.is_whole;
        let is_short = is_short && E::DEPTH == 1;
        let [steps, packed] = if is_short { [near; 2] } else { [steps, packed] };
        Cut { rows, channels, examples, apart, steps, packed, strip, ld }
    }

    /// The `k`-range of the first step, up to the end of `steps`. An element holds `depth` steps.
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
