//! Contractions over images whose sums are stored where they belong, where vectors fill lines of columns, or all columns, which lie side by side: no sum is moved,
//! and none is computed in vain at the end of a line.

use super::correlate::{Band, Correlation, PIECE, Ready, Stored};
use super::image::Image;
use super::micro::taps::Taps;
use super::micro::{self, Engine};
use super::pack::strips;
use super::prefetch::ask_bytes;
use crate::routines::{NarrowFloat, Tiles};
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Rows of a result that the CPU foresees by itself: asking for where their sums go takes longer than it saves.
const FEW_ROWS: usize = 16;

/// What it takes to store sums directly.
#[derive(Clone, Copy)]
pub(super) struct Direct<'a, T> {
    pub(super) left: Ready<T>,
    pub(super) image: *const T,
    /// Where each step begins in the image.
    pub(super) at: &'a [isize],
    /// Room for the sums of a line, or of a piece of columns side by side, in all rows, where they are rounded in a pass of their own.
    pub(super) line: *mut T,
}

impl Correlation<'_> {
    /// True if sums that nothing else becomes of are stored directly: vectors fill lines or all columns, and all steps are summed at once.
    pub(super) fn is_direct<E: Engine>(&self, image: &Image) -> bool {
        let fits = self.k <= CONTRACT_BLOCK && self.k / E::DEPTH <= PIECE;
        let fits = fits && self.rows > 1 && self.beside.is_none() && self.across.is_none();
        fits && image.has_whole_vectors(E::LANES)
    }

    /// Sums all rows of a batch by the columns of a band, and stores them.
    ///
    /// # Safety
    ///
    /// As `Correlation::sum`; what sums are stored to must be writable for these.
    pub(super) unsafe fn store_lines<E: Engine>(
        &self,
        batch: usize,
        band: &Band<'_>,
        to: Stored,
        of: Direct<'_, E::Num>,
    ) {
        let Direct { left, image, at, line } = of;
        let Stored { first, ld, dtype } = to;
        let bytes = dtype.bytes();
        let rounded = E::ROUNDS && dtype == DType::BF16;
        let narrow = NarrowFloat::of(dtype).filter(|_| !rounded);
        let narrow = narrow.map(|narrow| Tiles::of(self.cpu.instructions).narrow(narrow));
        // What all steps read of a piece is read again by each strip of rows, and stays in half of the first-level cache.
        let numbers = self.cpu.caches.l1 / 2 / size_of::<E::Num>();
        let vectors = (numbers / at.len() / E::LANES).max(self.widest::<E>());
        let parts = strips(self.rows, E::ROWS);
        let mut column = band.columns.start;
        band.image.each_piece(vectors * E::LANES, |start, across| {
            let columns = strips(across / E::LANES, self.widest::<E>());
            let first = first.wrapping_add((batch * self.rows * ld + column) * bytes);
            let place = |row: usize| first.wrapping_add(row * ld * bytes);
            for part in parts.clone() {
                let rows = part.start..part.start + part.count;
                // A store reads its line first, and lines of a large result of many rows are far.
                for row in rows.clone().filter(|_| self.rows > FEW_ROWS) {
                    ask_bytes(place(row), across * bytes);
                }
                let a = left.base.wrapping_add(part.start * at.len());
                let (out, ld) = match narrow.is_some() {
                    true => (line, across),
                    false => (place(part.start).cast::<E::Num>(), ld),
                };
                for vectors in columns.clone() {
                    let first = vectors.start * E::LANES;
                    let taps = Taps {
                        a,
                        step: part.count as isize,
                        b: image.wrapping_add(start + first),
                        at,
                        from: std::ptr::null(),
                        from_ld: 0,
                        out: micro::place(out, first, rounded),
                        ld,
                        add: false,
                        rounded,
                        tiny: left.tiny,
                    };
                    // SAFETY: the caller's contract: a line or a piece holds whole vectors.
                    unsafe { E::taps(part.count, vectors.count, &taps) };
                }
                let Some(narrow) = narrow else { continue };
                for (i, row) in rows.enumerate() {
                    let sums = line.wrapping_add(i * across).cast_const().cast();
                    // SAFETY: the sums of a line, and the places for them.
                    unsafe { narrow(sums, place(row), across) };
                }
            }
            column += across;
        });
    }
}
