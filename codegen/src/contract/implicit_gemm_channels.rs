//! Implicit GEMM over an image (padded copy of the input) with vectors along output channels.
//!
//! The image keeps positions in order at any stride. So no column past the end of a row is
//! computed. Sums come out column by column and are transposed before the epilogue.

use super::driver::Run;
use super::implicit_gemm::{BEHIND, Band, Correlation, Ready};
use super::micro::Engine;
use super::micro::gemm::{MOST as SPOTS, Spots, outer};
use super::operand::Scratch;
use super::pack::{strips, transpose_sums};
use super::sink::Sink;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

impl<E: Engine> Run<'_, Correlation<'_>, E> {
    /// Computes the rows of a batch, whole pairs of vectors, by the columns of a band.
    pub(super) fn sum_across(
        &self,
        of: Ready<E::Num>,
        batch: usize,
        band: &Band,
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let (rows, n, width) = (self.own_rows(), band.columns.len(), 2 * E::LANES);
        let beside: [isize; SPOTS] = std::array::from_fn(|i| (i * width) as isize);
        let sums = scratch.sums.room::<E::Num>(n * width);
        let dense = scratch.chains.room::<E::Num>(n * width + BEHIND);
        let (at, spots) = scratch.steps.split_at(self.k / E::DEPTH);
        for row in (0..rows.len()).step_by(width) {
            let mut before = 0;
            for block in at.chunks(CONTRACT_BLOCK / E::DEPTH) {
                let own = of.left.wrapping_add(before * rows.len() + row * block.len());
                for strip in strips(n, E::SPOTS) {
                    let spots = Spots {
                        image: of.image,
                        columns: &spots[strip.start..strip.start + strip.count],
                        at: block,
                        rows: own,
                        step: width,
                        from: std::ptr::null(),
                        out: sums.wrapping_add(strip.start * width),
                        places: &beside[..strip.count],
                        add: before > 0,
                        tiny: of.tiny,
                    };
                    // SAFETY: operands are ready; sums have room for all columns.
                    unsafe { outer::<E, _>([strip.count, 2], &spots) };
                }
                before += block.len();
            }
            // SAFETY: the sums of these rows, and room for them.
            unsafe { transpose_sums::<E>((sums, width), [width, n], dense) };
            let first = batch * self.rows + rows.start + row;
            sink(first..first + width, band.columns.clone(), dense.cast_const().cast());
        }
    }
}
