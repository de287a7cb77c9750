//! Packs patches straight into panels (implicit im2col), a vector of columns together.
//!
//! Columns of a vector, of stride one or two, are a few pieces of runs. Which lanes are in bounds
//! depends on the position in the window alone. So masks are made once, and a channel takes a
//! masked load a piece.

use super::super::im2col::{Piece, Runs, Seen};
use super::super::micro::{Engine, Microkernel};
use super::panels;
use super::vectors::{Lanes, Numbers, first};
use std::marker::PhantomData;
use std::ops::Range;

/// Vectors of a panel.
const VECTORS: usize = 2;

/// Packs columns of windows: of stride one or two, as [`Seen::column_step`] says.
///
/// # Safety
///
/// The CPU must be the engine's. Data in bounds must be readable, of these numbers' dtype, and
/// whole panels writable.
pub(super) unsafe fn pack<E: Engine, N: Numbers>(
    seen: &Seen,
    base: *const u8,
    (columns, steps): (Range<usize>, Range<usize>),
    runs: &mut Runs,
    dst: *mut u32,
) -> u16 {
    let of = Windows { seen, base, columns, steps, runs, dst, kind: PhantomData::<N> };
    // SAFETY: the caller's contract.
    unsafe { E::run(of) }
}

/// Columns and steps of a view, and the panels that they are packed into.
struct Windows<'a, N> {
    seen: &'a Seen,
    base: *const u8,
    columns: Range<usize>,
    steps: Range<usize>,
    runs: &'a mut Runs,
    dst: *mut u32,
    kind: PhantomData<N>,
}

impl<N: Numbers> Microkernel for Windows<'_, N> {
    type Out = u16;

    /// Packs panel by panel.
    #[inline(always)]
    unsafe fn run(self) -> u16 {
        let Windows { seen, base, columns, steps, runs, dst, .. } = self;
        runs.place(&seen.rows, steps.clone());
        runs.cut(&seen.columns, columns.clone());
        let mut least = N::Vector::zero();
        let depth = steps.len().div_ceil(N::STEPS);
        let is_dense = seen.column_step() == Some(1);
        let mut run = 0;
        for part in panels(columns.len(), VECTORS * N::Vector::LANES) {
            let columns = part.start..part.start + part.count;
            run = runs.cut_pieces(run, columns, N::Vector::LANES);
            let period = runs.find_masks(seen);
            let to = dst.wrapping_add(part.start * depth);
            if is_dense {
                // SAFETY: the caller vouches for what is in bounds and for the panel.
                least = unsafe { panel::<N, 1>(base, runs, period, steps.len(), to, least) };
            } else {
                // SAFETY: as above.
                least = unsafe { panel::<N, 2>(base, runs, period, steps.len(), to, least) };
            }
        }
        N::least(least)
    }
}

/// Packs the panel whose pieces have been found, of stride `S`.
///
/// # Safety
///
/// The CPU must have the vector. Elements that masks name must be readable, and the panel writable.
#[inline(always)]
unsafe fn panel<N: Numbers, const S: usize>(
    base: *const u8,
    runs: &Runs,
    period: usize,
    steps: usize,
    dst: *mut u32,
    mut least: N::Vector,
) -> N::Vector {
    let (pieces, masks) = (&runs.pieces[..], &runs.masks[..]);
    let (bytes, whole) = (N::BYTES as isize, first(N::Vector::LANES) as u16);
    // Pieces of the first vector come first.
    let border = pieces.iter().take_while(|piece| piece.vector == 0).count();
    // The masks of a step and of the one after it.
    let (mut now, mut next) = (0, wrapped(1, period));
    for p in (0..steps).step_by(N::STEPS) {
        let row = base.wrapping_offset(runs.outer[p].offset * bytes);
        let (after, has_after) = match runs.outer.get(p + 1) {
            Some(after) if N::STEPS == 2 => (base.wrapping_offset(after.offset * bytes), true),
            _ => (row, false),
        };
        let of_step = |step: usize| &masks[step * pieces.len()..][..pieces.len()];
        let (own, others) = (of_step(now), of_step(next));
        let to = dst.wrapping_add(p / N::STEPS * VECTORS * N::Vector::LANES);
        let vectors = [0..border, border..pieces.len()];
        for (i, of_vector) in vectors.into_iter().enumerate() {
            let mut numbers = N::Vector::zero();
            let masks = own[of_vector.clone()].iter().zip(&others[of_vector.clone()]);
            for (piece, (mask, other)) in pieces[of_vector].iter().zip(masks) {
                let at = piece.place.offset * bytes;
                let places = [row, after].map(|row| row.wrapping_offset(at));
                let masks = [*mask, if has_after { *other } else { 0 }];
                // SAFETY: masks name elements that are there.
                numbers = numbers.or(unsafe { N::across::<S>(places, masks) });
            }
            least = N::smaller(least, numbers);
            // SAFETY: the panel has room for these vectors in each step.
            unsafe { numbers.store(to.wrapping_add(i * N::Vector::LANES), whole) };
        }
        now = wrapped(now + N::STEPS, period);
        next = wrapped(now + 1, period);
    }
    least
}

/// `number % period`, for numbers of a few periods at most.
#[inline(always)]
fn wrapped(mut number: usize, period: usize) -> usize {
    while number >= period {
        number -= period;
    }
    number
}

impl Runs {
    /// Finds the pieces of a panel of vectors of `lanes` from a run on; returns the run where the
    /// next panel begins.
    fn cut_pieces(&mut self, from: usize, columns: Range<usize>, lanes: usize) -> usize {
        self.pieces.clear();
        let mut run = from;
        while let Some(now) = self.inner.get(run) {
            let (start, end) =
                (now.first.max(columns.start), (now.first + now.count).min(columns.end));
            let mut at = start;
            while at < end {
                let vector = (at - columns.start) / lanes;
                let first = columns.start + vector * lanes;
                let stop = end.min(first + lanes);
                let bits = |count: usize| (1u32 << count) - 1;
                let lanes = (bits(stop - first) & !bits(at - first)) as u16;
                let back = first as isize - now.first as isize;
                self.pieces.push(Piece {
                    vector,
                    place: now.place.moved(&self.along, back),
                    lanes,
                });
                at = stop;
            }
            if now.first + now.count > columns.end {
                break;
            }
            run += 1;
        }
        run
    }

    /// Masks the lanes of each piece in bounds, step by step; returns the period of the masks.
    fn find_masks(&mut self, seen: &Seen) -> usize {
        let period = seen.period().min(self.outer.len()).max(1);
        self.masks.clear();
        for outer in &self.outer[..period] {
            for piece in &self.pieces {
                self.masks.push(piece.lanes & seen.lanes(outer, &piece.place, &self.along));
            }
        }
        period
    }
}
