//! Implicit GEMM that stores from registers: vectors fill rows of windows or all columns.
//!
//! So no sum is moved, and none is computed past the end of a row.

use super::driver::Run;
use super::image::Image;
use super::implicit_gemm::{Band, Correlation, PIECE, Ready};
use super::micro::Engine;
use super::micro::gemm::{Sums, Taps, outer, place};
use super::pack::strips;
use super::prefetch::prefetch_bytes;
use super::sink::Stored;
use crate::routines::{NarrowFloat, Tiles};
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Rows of a result that the CPU prefetches by itself: prefetching them costs more than it saves.
const FEW_ROWS: usize = 16;

impl Correlation<'_> {
    /// True if sums can be stored directly: whole vectors, several rows, and `k` in one pass.
    pub(super) fn is_direct<E: Engine>(&self, image: &Image) -> bool {
        let fits = self.k <= CONTRACT_BLOCK && self.k / E::DEPTH <= PIECE;
        let fits = fits && self.rows > 1 && self.beside.is_none() && self.across.is_none();
        fits && image.has_whole_vectors(E::LANES)
    }
}

impl<E: Engine> Run<'_, Correlation<'_>, E> {
    /// Computes all rows of a batch by the columns of a band, and stores them. `line` holds
    /// a row of windows or a contiguous piece if a second pass rounds the sums.
    pub(super) fn store_lines(
        &self,
        batch: usize,
        band: &Band,
        Stored { first, ld, dtype }: Stored,
        of: Ready<E::Num>,
        (at, line): (&[isize], *mut E::Num),
    ) {
        let bytes = dtype.bytes();
        let rounded = E::ROUNDS && dtype == DType::BF16;
        let narrow = NarrowFloat::of(dtype).filter(|_| !rounded);
        let narrow = narrow.map(|narrow| Tiles::of(self.cpu.instructions).narrow(narrow));
        // Each strip of rows reads a piece's data again: it stays in half of L1.
        let numbers = self.cpu.caches.l1 / 2 / size_of::<E::Num>();
        let vectors = (numbers / at.len() / E::LANES).max(self.widest::<E>());
        let parts = strips(self.rows, E::ROWS);
        let mut column = band.columns.start;
        band.image.each_piece(vectors * E::LANES, |start, across| {
            let columns = strips(across / E::LANES, self.widest::<E>());
            let first = first.wrapping_add((batch * self.rows * ld + column) * bytes);
            let row_at = |row: usize| first.wrapping_add(row * ld * bytes);
            for part in parts.clone() {
                let rows = part.start..part.start + part.count;
                // A store reads its cache line first, and lines of a large result are far.
                for row in rows.clone().filter(|_| self.rows > FEW_ROWS) {
                    prefetch_bytes(row_at(row), across * bytes);
                }
                let a = of.left.wrapping_add(part.start * at.len());
                let (out, ld) = match narrow.is_some() {
                    true => (line, across),
                    false => (row_at(part.start).cast::<E::Num>(), ld),
                };
                for vectors in columns.clone() {
                    let first = vectors.start * E::LANES;
                    let taps = Taps {
                        a,
                        step: part.count as isize,
                        b: of.image.wrapping_add(start + first),
                        at,
                        sums: Sums {
                            from: std::ptr::null(),
                            from_ld: 0,
                            out: place(out, first, rounded),
                            ld,
                            add: false,
                            rounded,
                            tiny: of.tiny,
                        },
                    };
                    // SAFETY: the operands are ready, and what `Run` promises; a line or a piece
                    // holds whole vectors.
                    unsafe { outer::<E, _>([part.count, vectors.count], &taps) };
                }
                let Some(narrow) = narrow else { continue };
                for (i, row) in rows.enumerate() {
                    let sums = line.wrapping_add(i * across).cast_const().cast();
                    // SAFETY: the sums of a line, and the places for them.
                    unsafe { narrow(sums, row_at(row), across) };
                }
            }
            column += across;
        });
    }
}
