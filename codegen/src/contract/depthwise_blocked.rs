//! Depthwise convolutions across channels: each lane of a vector holds one batch (a channel).
//!
//! The image keeps positions in order, all lanes of a position together. So strided windows are
//! read in place, no column is wasted, and no vector is cut at the end of a row.

use super::driver::Run;
use super::groups;
use super::image::Image;
use super::implicit_gemm::{Correlation, SideBySide};
use super::micro::elementwise::{How, Lanes, Line, TAPS};
use super::micro::{Elementwise, Engine};
use super::operand::{Operand, Scratch};
use super::pack::{room, strips, transpose_sums};
use super::sink::{Sink, Stored};
use super::workspace::Workspace;
use std::ops::Range;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Least windows along the first axis per band: a band copies the border of its neighbours.
const SOME: usize = 4;
/// The same of engines that fill no caches.
const FEW: usize = 2;
/// Elements that packing may write past its end; see [`Engine::pack`].
const BEHIND: usize = 8;

/// A band of windows: its image, strides and counts.
struct Band {
    /// Image with positions in order.
    image: Image,
    /// Strides between rows of windows along each axis, and between windows, in positions.
    steps: [usize; 3],
    /// Windows along each axis.
    counts: [usize; 3],
}

impl Band {
    fn of(image: &Image) -> Band {
        let places = image.place_by_place();
        Band { steps: places.window_steps(image), counts: image.counts(), image: places }
    }
}

impl Correlation<'_> {
    /// Workspace of [`Run::run_lines`].
    pub(super) fn workspace_lines<E: Engine>(&self, side: SideBySide) -> Workspace {
        let count = self.windows.len().min(self.most_lines::<E>(&self.image(None)));
        let Band { image: places, counts, .. } = Band::of(&self.image(Some(0..count)));
        let columns: usize = counts.iter().product();
        let a = Operand { source: self.a, columns: false };
        let [kept, _] = self.kept::<E>(side);
        Workspace {
            left: room::<E>(E::LANES, 1, self.k).saturating_mul(kept),
            right: places.most_room().saturating_mul(E::LANES),
            filled: a.filled(E::LANES, self.k).max(places.lines_beside(E::LANES)),
            chains: columns.saturating_mul(E::LANES).saturating_add(E::LANES),
            sums: columns.saturating_mul(E::LANES),
            listed: a.listed(E::LANES, self.k),
            steps: self.k,
        }
    }

    /// Vectors of left operands kept packed, and the batch from which on all of them are.
    fn kept<E: Engine>(&self, side: SideBySide) -> [usize; 2] {
        let batches = &self.batches;
        let is_again = side.count == self.period && batches.len() > self.period;
        if !(E::Singly::FILLS_CACHES && is_again) {
            return [1, batches.end];
        }
        // Earlier batches than the first whole period may be in other vectors.
        let first = batches.start.next_multiple_of(side.count);
        [side.count.div_ceil(E::LANES), first + side.count]
    }

    /// Most windows along the first axis whose image and sums fit in L1, for a vector of batches.
    pub(super) fn most_lines<E: Engine>(&self, whole: &Image) -> usize {
        let [all, each] = whole.windows();
        if !E::Singly::FILLS_CACHES {
            return FEW.min(all);
        }
        let numbers = whole.place_by_place().room() / all + each;
        let bytes = numbers.saturating_mul(E::LANES * size_of::<E::Num>()).max(1);
        (self.cpu.caches.l1 / bytes).clamp(SOME.min(all), all)
    }
}

impl<E: Engine> Run<'_, Correlation<'_>, E> {
    /// Packs the left operands of `count` batches, one per lane, for some steps of `k`, to one of
    /// some slots.
    pub(super) fn lanes_of(
        &self,
        from: isize,
        count: usize,
        steps: Range<usize>,
        [slot, slots]: [usize; 2],
        scratch: &mut Scratch,
    ) -> *const E::Num {
        let (depth, size) = (steps.len(), room::<E>(E::LANES, 1, steps.len()));
        let to = scratch.left.room::<E::Num>(size * slots).wrapping_add(slot * size);
        let operand = Operand { source: self.a.moved(from), columns: false };
        let (filled, runs) = (&mut scratch.filled, &mut scratch.runs);
        // SAFETY: the operand is readable.
        let lines = unsafe { operand.lines::<E>(0..count, steps, filled, runs) };
        // SAFETY: as above; there is room for all steps.
        unsafe { E::pack(&lines, count, depth, to, E::LANES) };
        to.cast_const()
    }

    /// Computes the batches, a vector of them per pass, in bands of windows.
    pub(super) fn run_lines(&self, side: SideBySide, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let (whole, batches) = (self.image(None), &self.batches);
        let [_, each] = whole.windows();
        let (size, [kept, packed]) = (room::<E>(E::LANES, 1, self.k), self.kept::<E>(side));
        for windows in groups(&self.windows, self.most_lines::<E>(&whole)) {
            let columns = windows.start * each..windows.end * each;
            let band = Band::of(&self.image(Some(windows)));
            let to = scratch.right.zeroed::<E::Num>(band.image.room() * E::LANES);
            band.image.offsets(self.k, &mut scratch.steps);
            scratch.steps.iter_mut().for_each(|at| *at *= E::LANES as isize);
            let mut batch = batches.start;
            while batch < batches.end {
                let beside = side.vector(batch, batches.end, E::LANES);
                let count = beside.count;
                let [left, right] = (self.at)(batch);
                let place = batch % side.count / E::LANES % kept;
                let a = if batch < packed {
                    self.lanes_of(left, count, 0..self.k, [place, kept], scratch)
                } else {
                    let all = scratch.left.room::<E::Num>(size * kept).cast_const();
                    all.wrapping_add(place * size)
                };
                // SAFETY: `to` holds the image of a vector of batches.
                unsafe { self.fill(&band.image, right, (to, beside), scratch) };
                let sums = scratch.sums.room::<E::Num>(columns.len() * E::LANES);
                // SAFETY: the operands are ready, and there is room for all sums.
                unsafe { lines::<E>(&band, a, to, &scratch.steps, sums) };
                // Packing writes past the sums of these batches; the next ones overwrite that.
                let (next, each) = (batch + count, columns.len());
                let is_followed = (batches.end - next) * each >= BEHIND;
                let stored =
                    self.stored_as_they_are().filter(|stored| stored.ld == each && is_followed);
                let dense = match stored {
                    Some(Stored { first, .. }) => first.cast::<E::Num>().wrapping_add(batch * each),
                    None => scratch.chains.room::<E::Num>((each + 1) * E::LANES),
                };
                // SAFETY: the sums of all columns, and room for them and some more.
                unsafe { transpose_sums::<E>((sums, E::LANES), [count, each], dense) };
                if stored.is_none() {
                    sink(batch..next, columns.clone(), dense.cast_const().cast());
                }
                batch = next;
            }
        }
    }
}

/// Computes all columns of a band.
///
/// # Safety
///
/// The CPU must be the engine's. The image must be readable for all columns, `a` for all steps, and
/// sums writable for all columns.
unsafe fn lines<E: Engine>(
    band: &Band,
    a: *const E::Num,
    image: *const E::Num,
    at: &[isize],
    sums: *mut E::Num,
) {
    let [far, near, across] = band.steps.map(|places| places * E::LANES);
    let [outer, middle, inner] = band.counts;
    let tap = tap_stride(at, across as isize);
    for (i, at) in at.chunks(CONTRACT_BLOCK).enumerate() {
        let a = a.wrapping_add(i * CONTRACT_BLOCK * E::LANES);
        for line in 0..outer * middle {
            let first = image.wrapping_add(line / middle * far + line % middle * near);
            let sums = sums.wrapping_add(line * inner * E::LANES);
            for part in strips(inner, E::Singly::LINE) {
                let b = first.wrapping_add(part.start * across);
                let sums = sums.wrapping_add(part.start * E::LANES);
                let how = if i > 0 { How::Adds } else { How::Replaces };
                let line = Lanes { a, b, line: 0, across, at, tap, sums, how };
                // SAFETY: the caller's contract, for these columns.
                unsafe { E::Singly::run(Line::<E::Singly>(part.count, &line)) };
            }
        }
    }
}

/// Stride between taps, for [`Lanes::tap`]: `across` or its negative if `k` is one block of kernel
/// rows of [`TAPS`] with that stride. Zero else.
fn tap_stride(at: &[isize], across: isize) -> isize {
    let are_apart = |step: &isize| {
        let is_row = |row: &[isize]| row.windows(2).all(|pair| pair[1] - pair[0] == *step);
        at.len().is_multiple_of(TAPS) && at.chunks(TAPS).all(is_row) && at.len() <= CONTRACT_BLOCK
    };
    [across, -across].into_iter().find(are_apart).unwrap_or(0)
}
