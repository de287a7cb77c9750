//! Transposes cached lines with AVX-512, in squares of sixteen lines by a vector of elements. The
//! last square overlaps the one before it, so all are whole and stay in bounds.

use super::Lines;
use super::avx512::transpose;
use super::loads::first;
use crate::routines::nearest_bf16;
use core::arch::x86_64 as x86;
use tracecast_ir::DType;

/// Lines of a square, and f32 of a vector; there are twice as many bf16.
const SIDE: usize = 16;

/// True if whole squares cover `count` lines of `k` steps.
pub(in crate::contract) fn are_whole(lines: &Lines, [count, k]: [usize; 2]) -> bool {
    let side = match lines.dtype {
        DType::F32 => SIDE,
        DType::BF16 => 2 * SIDE,
        _ => return false,
    };
    lines.along == 1 && lines.round.is_none() && count >= SIDE && k >= side
}

/// Packs whole squares as [`Engine::pack`](super::super::micro::Engine::pack) does.
///
/// # Safety
///
/// The CPU must have AVX-512F. Lines must be readable, [`are_whole`] of them, `ld` at least
/// `count`, and `dst` writable for `k * ld` numbers.
pub(in crate::contract) unsafe fn pack(
    lines: &Lines,
    count: usize,
    k: usize,
    dst: *mut f32,
    ld: usize,
) {
    let run = match lines.dtype {
        DType::BF16 => turn::<2>,
        _ => turn::<1>,
    };
    // SAFETY: the caller's contract.
    unsafe { run(lines, count, k, dst.cast(), ld) }
}

/// As [`pack`], with `IN_LANE` elements a lane: an f32 or two bf16.
///
/// # Safety
///
/// The CPU must have AVX-512F. Lines must be readable, `ld` at least `count`, and `dst` writable
/// for `k * ld` numbers.
#[target_feature(enable = "avx512f")]
unsafe fn turn<const IN_LANE: usize>(
    lines: &Lines,
    count: usize,
    k: usize,
    dst: *mut u32,
    ld: usize,
) {
    let high = x86::_mm512_set1_epi32(0xffff << 16);
    for j in overlapping(count, SIDE) {
        for p in overlapping(k, SIDE * IN_LANE) {
            let mut rows = [x86::_mm512_setzero_si512(); SIDE];
            for (l, row) in rows.iter_mut().enumerate() {
                // SAFETY: a vector of steps of a line.
                *row = unsafe { x86::_mm512_loadu_si512(lines.from(j + l, p).base.cast()) };
            }
            let to = dst.wrapping_add(p * ld + j);
            for (q, column) in transpose(rows).into_iter().enumerate() {
                let to = to.wrapping_add(q * IN_LANE * ld);
                if IN_LANE == 1 {
                    // SAFETY: its places.
                    unsafe { x86::_mm512_storeu_si512(to.cast(), column) };
                    continue;
                }
                let first = x86::_mm512_slli_epi32::<16>(column);
                // SAFETY: those of the first of two steps.
                unsafe { x86::_mm512_storeu_si512(to.cast(), first) };
                let second = x86::_mm512_and_si512(column, high);
                // SAFETY: those of the second.
                unsafe { x86::_mm512_storeu_si512(to.wrapping_add(ld).cast(), second) };
            }
        }
    }
}

/// Rounds columns of sums to bf16, a vector each, and transposes them to rows of stride `ld`.
///
/// # Safety
///
/// The CPU must have AVX-512F and BW. Sums must be readable as whole vectors, places writable.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::contract) unsafe fn turn_rounded(
    sums: *const f32,
    columns: usize,
    lanes: usize,
    to: *mut u16,
    ld: usize,
) {
    for c in (0..columns).step_by(2 * SIDE) {
        let some = (2 * SIDE).min(columns - c);
        let mut rows = [x86::_mm512_setzero_si512(); SIDE];
        for (i, row) in rows.iter_mut().enumerate().take(some.div_ceil(2)) {
            let column = sums.wrapping_add((c + 2 * i) * SIDE);
            // SAFETY: the sums of a column.
            let even = unsafe { x86::_mm512_loadu_ps(column) };
            let even = x86::_mm512_srli_epi32::<16>(nearest_bf16(even));
            *row = even;
            if 2 * i + 1 < some {
                // SAFETY: the sums of the next one.
                let odd = unsafe { x86::_mm512_loadu_ps(column.wrapping_add(SIDE)) };
                *row = x86::_mm512_mask_blend_epi16(0xaaaa_aaaa, even, nearest_bf16(odd));
            }
        }
        for (l, lane) in transpose(rows).into_iter().enumerate().take(lanes) {
            let to = to.wrapping_add(l * ld + c).cast::<i16>();
            if some == 2 * SIDE {
                // SAFETY: the places of a lane's sums.
                unsafe { x86::_mm512_storeu_si512(to.cast(), lane) };
            } else {
                // SAFETY: as above.
                unsafe { x86::_mm512_mask_storeu_epi16(to, first(some) as u32, lane) };
            }
        }
    }
}

/// Starts of runs of `some` that cover `count`; the last run may overlap the one before it.
fn overlapping(count: usize, some: usize) -> impl Iterator<Item = usize> {
    (0..count).step_by(some).map(move |at| at.min(count.saturating_sub(some)))
}
