//! Implicit GEMM over an image (padded copy of the input) with vectors along output channels.
//!
//! The image keeps positions in order at any stride. So no column past the end of a row is
//! computed. Sums come out column by column and are transposed before the epilogue.

use super::driver::Run;
use super::groups;
use super::image::{Beside, Image};
use super::implicit_gemm::Correlation;
use super::micro::Engine;
use super::micro::gemm::{MOST as SPOTS, Spots, outer};
use super::operand::{Operand, Scratch};
use super::pack::{room, strips, turn_sums};
use super::sink::Sink;
use super::subnormal::may_be_subnormal;
use super::workspace::Workspace;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Elements that packing may write past its end; see [`Engine::pack`].
const BEHIND: usize = 16;

impl Correlation<'_> {
    /// An image with positions in order instead of split by phase; in pairs if bf16 are.
    fn place_by_place(&self, image: &Image) -> Image {
        let places = image.place_by_place();
        if self.pairs { places.in_pairs() } else { places }
    }

    /// Most windows along the first axis whose image and sums fit in half of L2.
    pub(super) fn most_across<E: Engine>(&self, whole: &Image) -> usize {
        let [all, each] = whole.windows();
        let numbers = self.place_by_place(whole).room() / all + 2 * E::LANES * each;
        (self.cpu.caches.l2 / 2 / (numbers * size_of::<E::Num>()).max(1)).clamp(1, all)
    }

    /// Workspace of [`Run::run_across`].
    pub(super) fn workspace_across<E: Engine>(&self, [first, end]: [usize; 2]) -> Workspace {
        let (whole, rows, batches) = (self.image(None), end - first, self.batches.len());
        let count = self.windows.len().min(self.most_across::<E>(&whole));
        let image = self.place_by_place(&self.image(Some(0..count)));
        let [_, each] = whole.windows();
        let columns = count.saturating_mul(each);
        let (a, width) = (Operand { source: self.a, columns: false }, 2 * E::LANES);
        let block = self.k.min(CONTRACT_BLOCK);
        let packed = room::<E>(rows, 1, self.k);
        Workspace {
            left: packed.saturating_mul(self.period.min(batches)),
            right: image.most_room(),
            filled: a.filled(rows, block).max(image.line()),
            chains: columns.saturating_mul(width).saturating_add(BEHIND),
            sums: columns.saturating_mul(width),
            listed: a.listed(rows, block),
            steps: self.k.saturating_add(columns),
        }
    }
}

impl<E: Engine> Run<'_, Correlation<'_>, E> {
    /// Computes some rows, whole pairs of vectors, in bands of windows.
    pub(super) fn run_across(
        &self,
        [first, end]: [usize; 2],
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let (rows, batches) = (first..end, self.batches.clone());
        let whole = self.image(None);
        let [_, each] = whole.windows();
        let (m, width) = (rows.len(), 2 * E::LANES);
        let slots = self.period.min(batches.len());
        let beside: [isize; SPOTS] = std::array::from_fn(|i| (i * width) as isize);
        let size = room::<E>(m, 1, self.k);
        let packed = scratch.left.room::<E::Num>(size * slots);
        let mut least = u16::MAX;
        for (nth, windows) in groups(&self.windows, self.most_across::<E>(&whole)).enumerate() {
            let of = self.image(Some(windows.clone()));
            let image = self.place_by_place(&of);
            let columns = windows.start * each..windows.end * each;
            let n = columns.len();
            let numbers = self.k / E::DEPTH;
            image.offsets(numbers, &mut scratch.steps);
            image.each_window(&of, |at| scratch.steps.push(at as isize));
            let to = scratch.right.zeroed::<E::Num>(image.room());
            for (i, batch) in batches.clone().enumerate() {
                let [left, right] = (self.at)(batch);
                let own = packed.wrapping_add(i % self.period * size);
                if nth == 0 && i < slots {
                    // SAFETY: what `Run` promises; `own` has room for one packed left operand.
                    least = least
                        .min(unsafe { self.pack::<E>(left, rows.clone(), width, own, scratch) });
                }
                // SAFETY: `to` holds the image.
                let least_right = unsafe { self.fill(&image, right, (to, Beside::ALONE), scratch) };
                let tiny = may_be_subnormal(least, least_right);
                let sums = scratch.sums.room::<E::Num>(n * width);
                let dense = scratch.chains.room::<E::Num>(n * width + BEHIND);
                let (at, spots) = scratch.steps.split_at(numbers);
                for row in (0..m).step_by(width) {
                    let mut before = 0;
                    for block in at.chunks(CONTRACT_BLOCK / E::DEPTH) {
                        let strip_of_rows = own.wrapping_add(before * m + row * block.len());
                        for strip in strips(n, E::SPOTS) {
                            let spots = Spots {
                                image: to.cast_const(),
                                columns: &spots[strip.start..strip.start + strip.count],
                                at: block,
                                rows: strip_of_rows,
                                step: width,
                                from: std::ptr::null(),
                                out: sums.wrapping_add(strip.start * width),
                                places: &beside[..strip.count],
                                add: before > 0,
                                tiny,
                            };
                            // SAFETY: operands are ready; sums have room for all columns.
                            unsafe { outer::<E, _>([strip.count, 2], &spots) };
                        }
                        before += block.len();
                    }
                    // SAFETY: the sums of these rows, and room for them.
                    unsafe { turn_sums::<E>((sums, width), [width, n], dense) };
                    let first = batch * self.rows + rows.start + row;
                    sink(first..first + width, columns.clone(), dense.cast_const().cast());
                }
            }
        }
    }
}
