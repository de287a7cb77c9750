//! Packs patches straight into panels with AVX2 (implicit im2col), eight columns at a time.
//!
//! Columns of a run have stride one or two: eight in bounds take one load, or two and a
//! deinterleave. At the edges f32 take masked loads, and 16-bit floats scalar ones.

use super::super::prefetch::prefetch_l1;
use super::super::windows::{Runs, Seen};
use super::x86::{Bf16, F16, F32, Octet, RoundedToBf16, RoundedToF16};
use super::{Elements, panels};
use core::arch::x86_64 as x86;
use std::ops::Range;
use tracecast_ir::DType;

/// Columns of a panel: two vectors.
const WIDTH: usize = 16;
/// Numbers of a vector.
const LANES: usize = 8;

/// True if [`pack_f32`] packs such columns of such elements.
pub(in crate::contract) fn is_packed(seen: &Seen, from: &Elements) -> bool {
    seen.column_step().is_some() && from.become_f32()
}

/// Packs columns into panels of f32; returns `None` unless [`is_packed`].
///
/// # Safety
///
/// The CPU must have AVX2 and F16C. Data in bounds must be readable, whole panels writable.
pub(in crate::contract) unsafe fn pack_f32(
    seen: &Seen,
    from: Elements,
    block: (Range<usize>, Range<usize>),
    runs: &mut Runs,
    dst: *mut f32,
) -> Option<u16> {
    if !is_packed(seen, &from) {
        return None;
    }
    let run = match (from.dtype, from.round) {
        (DType::F32, None) => pack::<F32>,
        (DType::BF16, None) => pack::<Bf16>,
        (DType::F16, None) => pack::<F16>,
        (DType::F32, Some(DType::BF16)) => pack::<RoundedToBf16>,
        (DType::F32, Some(DType::F16)) => pack::<RoundedToF16>,
        _ => return None,
    };
    // SAFETY: the caller's contract.
    unsafe { run(seen, from.base, block, runs, dst) }
    Some(u16::MAX)
}

/// Packs panel by panel.
///
/// # Safety
///
/// The CPU must have AVX2 and F16C. Data in bounds must be readable, of the octets' dtype, and
/// whole panels writable.
#[target_feature(enable = "avx2,f16c")]
unsafe fn pack<O: Octet>(
    seen: &Seen,
    base: *const u8,
    (columns, steps): (Range<usize>, Range<usize>),
    runs: &mut Runs,
    dst: *mut f32,
) {
    runs.place_steps(seen, steps.clone());
    runs.cut_columns(seen, columns.clone());
    let is_dense = seen.column_step() == Some(1);
    let mut run = 0;
    for part in panels(columns.len(), WIDTH) {
        run = runs.cut_pieces(run, part.start..part.start + part.count);
        let period = runs.find_masks(seen);
        let to = dst.wrapping_add(part.start * steps.len());
        let is_whole = runs.pieces.len() == 1 && runs.masks.iter().all(|mask| *mask == u16::MAX);
        let pack = match (is_dense, is_whole) {
            (true, true) => whole::<O, 1>,
            (false, true) => whole::<O, 2>,
            (true, false) => pieces::<O, 1>,
            (false, false) => pieces::<O, 2>,
        };
        // SAFETY: the caller vouches for what is in bounds and for the panel; one that is whole is
        // one piece, all of it in bounds.
        unsafe { pack(base, runs, period, to) }
    }
}

/// Packs a panel whose columns are one piece of stride `S`, in bounds in every step.
///
/// # Safety
///
/// The CPU must have AVX2 and F16C. The piece must be readable in each step, and the panel
/// writable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn whole<O: Octet, const S: usize>(base: *const u8, runs: &Runs, _: usize, dst: *mut f32) {
    let Some(piece) = runs.pieces.first() else { return };
    let mut to = dst;
    for outer in &runs.outer {
        let at = (outer.offset + piece.place.offset) * O::BYTES as isize;
        let at = base.wrapping_offset(at);
        let beside = at.wrapping_add(LANES * S * O::BYTES);
        prefetch_l1(beside.wrapping_add(LANES * S * O::BYTES));
        // SAFETY: eight elements that are there.
        let low = unsafe { eight::<O, S>(at) };
        // SAFETY: as above.
        let high = unsafe { eight::<O, S>(beside) };
        // SAFETY: the panel has room for two vectors in each step.
        unsafe { x86::_mm256_storeu_ps(to, low) };
        // SAFETY: as above.
        unsafe { x86::_mm256_storeu_ps(to.wrapping_add(LANES), high) };
        to = to.wrapping_add(WIDTH);
    }
}

/// Packs the panel whose pieces have been found, of stride `S`.
///
/// # Safety
///
/// The CPU must have AVX2 and F16C. Elements that masks name must be readable, and the panel
/// writable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn pieces<O: Octet, const S: usize>(
    base: *const u8,
    runs: &Runs,
    period: usize,
    dst: *mut f32,
) {
    let pieces = &runs.pieces[..];
    let (mut now, mut to) = (0, dst);
    for outer in &runs.outer {
        let row = base.wrapping_offset(outer.offset * O::BYTES as isize);
        let masks = &runs.masks[now * pieces.len()..][..pieces.len()];
        let (mut low, mut high) = (x86::_mm256_setzero_ps(), x86::_mm256_setzero_ps());
        for (piece, mask) in pieces.iter().zip(masks) {
            let at = row.wrapping_offset(piece.place.offset * O::BYTES as isize);
            let beside = at.wrapping_add(LANES * S * O::BYTES);
            let [first, second] = mask.to_le_bytes();
            // SAFETY: masks name elements that are there.
            low = x86::_mm256_or_ps(low, unsafe { some::<O, S>(at, first) });
            // SAFETY: as above.
            high = x86::_mm256_or_ps(high, unsafe { some::<O, S>(beside, second) });
        }
        // SAFETY: the panel has room for two vectors in each step.
        unsafe { x86::_mm256_storeu_ps(to, low) };
        // SAFETY: as above.
        unsafe { x86::_mm256_storeu_ps(to.wrapping_add(LANES), high) };
        to = to.wrapping_add(WIDTH);
        now = if now + 1 == period { 0 } else { now + 1 };
    }
}

/// Loads the elements of stride `S` whose bit is set, zeros elsewhere.
///
/// # Safety
///
/// They must be readable, and the CPU have AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn some<O: Octet, const S: usize>(p: *const u8, lanes: u8) -> x86::__m256 {
    match lanes {
        0 => x86::_mm256_setzero_ps(),
        // SAFETY: all eight are there.
        u8::MAX => unsafe { eight::<O, S>(p) },
        // SAFETY: the caller's contract.
        _ => unsafe { O::some::<S>(p, lanes) },
    }
}

/// Loads eight elements of stride `S`, one or two.
///
/// # Safety
///
/// They must be readable, with those in between, and the CPU have AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn eight<O: Octet, const S: usize>(p: *const u8) -> x86::__m256 {
    // SAFETY: the caller's contract.
    let low = unsafe { O::load(p) };
    if S == 1 {
        return low;
    }
    // From the last of the eight elements that `low` has on: nothing behind the fifteenth is read.
    // SAFETY: the caller's contract.
    let high = unsafe { O::load(p.wrapping_add((LANES - 1) * O::BYTES)) };
    let both = x86::_mm256_shuffle_ps::<0b11_01_10_00>(low, high);
    let both = x86::_mm256_permute4x64_pd::<0b11_01_10_00>(x86::_mm256_castps_pd(both));
    x86::_mm256_castpd_ps(both)
}
