//! Packs patches straight into panels with AVX-512 (implicit im2col), sixteen columns at a time.
//!
//! Sixteen columns, of stride one or two, are a few pieces of runs. Which lanes are in bounds
//! depends on the position in the window alone. So masks are made once, and a channel takes a
//! masked load a piece.

use super::super::windows::{MOST_PIECES, Piece, Runs, Seen};
use super::loads::{Bf16, F16, F32, Numbers, One, RoundedToBf16, RoundedToF16, Two, least_of};
use super::{Elements, panels};
use core::arch::x86_64 as x86;
use std::ops::Range;
use tracecast_ir::DType;

/// Columns of a panel: two vectors.
const WIDTH: usize = MOST_PIECES;
/// As many columns as a vector has lanes.
const LANES: usize = 16;

/// True if [`pack_f32`] packs such columns of such elements.
pub(in crate::contract) fn is_packed_to_f32(seen: &Seen, from: &Elements) -> bool {
    seen.column_step().is_some() && from.become_f32()
}

/// Packs columns into panels of f32; returns `None` unless [`is_packed_to_f32`].
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Data in bounds must be readable, whole panels writable.
pub(in crate::contract) unsafe fn pack_f32(
    seen: &Seen,
    from: Elements,
    block: (Range<usize>, Range<usize>),
    runs: &mut Runs,
    dst: *mut f32,
) -> Option<u16> {
    if !is_packed_to_f32(seen, &from) {
        return None;
    }
    let to = dst.cast();
    let run = match (from.dtype, from.round) {
        (DType::F32, None) => pack::<One<F32>>,
        (DType::BF16, None) => pack::<One<Bf16>>,
        (DType::F16, None) => pack::<One<F16>>,
        (DType::F32, Some(DType::BF16)) => pack::<One<RoundedToBf16>>,
        (DType::F32, Some(DType::F16)) => pack::<One<RoundedToF16>>,
        _ => return None,
    };
    // SAFETY: the caller's contract.
    unsafe { run(seen, from.base, block, runs, to) };
    Some(u16::MAX)
}

/// True if [`pack_pairs`] packs such columns.
pub(in crate::contract) fn is_packed_to_pairs(seen: &Seen) -> bool {
    seen.column_step().is_some()
}

/// The same into pairs of bf16, of elements with values of bf16; returns their least magnitude.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Data in bounds must be readable, whole panels writable.
pub(in crate::contract) unsafe fn pack_pairs(
    seen: &Seen,
    from: Elements,
    block: (Range<usize>, Range<usize>),
    runs: &mut Runs,
    dst: *mut f32,
) -> Option<u16> {
    if !is_packed_to_pairs(seen) {
        return None;
    }
    let to = dst.cast();
    let is_bf16 = from.dtype == DType::BF16;
    let pack = if is_bf16 { pack::<Two<Bf16>> } else { pack::<Two<RoundedToBf16>> };
    // SAFETY: the caller vouches for the CPU, what is in bounds and the panels.
    Some(unsafe { pack(seen, from.base, block, runs, to) })
}

/// Packs panel by panel.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Data in bounds must be readable, of these numbers' dtype,
/// and whole panels writable.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack<N: Numbers>(
    seen: &Seen,
    base: *const u8,
    (columns, steps): (Range<usize>, Range<usize>),
    runs: &mut Runs,
    dst: *mut u32,
) -> u16 {
    runs.place_steps(seen, steps.clone());
    runs.cut_columns(seen, columns.clone());
    let mut least = x86::_mm512_set1_epi16(-1);
    let depth = steps.len().div_ceil(N::STEPS);
    let is_dense = seen.column_step() == Some(1);
    let mut run = 0;
    for part in panels(columns.len(), WIDTH) {
        run = runs.cut_pieces(run, part.start..part.start + part.count);
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
    least_of(least)
}

/// Packs the panel whose pieces have been found, of stride `S`.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Elements that masks name must be readable, and the panel
/// writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn panel<N: Numbers, const S: usize>(
    base: *const u8,
    runs: &Runs,
    period: usize,
    steps: usize,
    dst: *mut u32,
    mut least: x86::__m512i,
) -> x86::__m512i {
    let (pieces, masks) = (&runs.pieces[..], &runs.masks[..]);
    let bytes = N::BYTES as isize;
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
        let to = dst.wrapping_add(p / N::STEPS * WIDTH);
        for (i, of_vector) in [0..border, border..pieces.len()].into_iter().enumerate() {
            let mut numbers = x86::_mm512_setzero_si512();
            let masks = own[of_vector.clone()].iter().zip(&others[of_vector.clone()]);
            for (piece, (mask, other)) in pieces[of_vector].iter().zip(masks) {
                let at = piece.place.offset * bytes;
                let there = if has_after { *other } else { 0 };
                let (row, after) = (row.wrapping_offset(at), after.wrapping_offset(at));
                // SAFETY: masks name elements that are there.
                let some = unsafe { N::across::<S>(row, *mask, after, there) };
                numbers = x86::_mm512_or_si512(numbers, some);
            }
            least = N::smaller(least, numbers);
            // SAFETY: the panel has room for two vectors in each step.
            unsafe { x86::_mm512_storeu_si512(to.wrapping_add(i * LANES).cast(), numbers) };
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
    /// Finds the pieces of a panel from a run on; returns the run where the next panel begins.
    pub(super) fn cut_pieces(&mut self, from: usize, columns: Range<usize>) -> usize {
        self.pieces.clear();
        let mut run = from;
        while let Some(now) = self.inner.get(run) {
            let (start, end) =
                (now.first.max(columns.start), (now.first + now.count).min(columns.end));
            let mut at = start;
            while at < end {
                let vector = (at - columns.start) / LANES;
                let first = columns.start + vector * LANES;
                let stop = end.min(first + LANES);
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
    pub(super) fn find_masks(&mut self, seen: &Seen) -> usize {
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
