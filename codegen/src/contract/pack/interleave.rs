//! Interleaves rows of bf16 into pairs with AVX-512, for a block of an image.

use super::cells::{Bf16, RoundedToBf16};
use super::loads::{Numbers, Two, first, least_of, spread};
use super::{Grid, Half};
use core::arch::x86_64 as x86;
use std::ops::Range;
use tracecast_ir::DType;

/// Numbers of a vector.
const LANES: usize = 16;

/// Bytes of the widest elements.
const MOST_BYTES: usize = 4;

/// A routine that interleaves two halves into pairs; returns what
/// [`Engine::pack`](super::super::micro::Engine::pack) does. It needs AVX-512F, BW and VL, elements
/// of both halves that are readable, and places of their pairs that are writable.
type JoinFn = unsafe fn(&[Half; 2], Grid, *mut u32) -> u16;

/// The routine that interleaves these halves: bf16, or f32 that is rounded to it.
pub(in crate::contract) fn join_halves([half, _]: &[Half; 2], grid: Grid) -> JoinFn {
    match (half.from.dtype, grid.across) {
        (DType::BF16, 1) => join::<Two<Bf16>, 1>,
        (DType::BF16, 2) => join::<Two<Bf16>, 2>,
        (DType::BF16, _) => join::<Two<Bf16>, 0>,
        (_, 1) => join::<Two<RoundedToBf16>, 1>,
        (_, 2) => join::<Two<RoundedToBf16>, 2>,
        (_, _) => join::<Two<RoundedToBf16>, 0>,
    }
}

/// Mask of the sixteen columns from `from` on that are in the range.
#[inline(always)]
fn lanes(columns: &Range<usize>, from: usize) -> u16 {
    let before = |column: usize| first(column.saturating_sub(from).min(LANES)) as u16;
    before(columns.end) & !before(columns.start)
}

/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Elements of both halves must be readable, of `N`'s dtype
/// and with columns of stride `S`, or any if zero, and the places of their pairs writable.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn join<N: Numbers, const S: usize>(halves: &[Half; 2], grid: Grid, to: *mut u32) -> u16 {
    let [one, other] = halves;
    let mut least = x86::_mm512_set1_epi16(-1);
    let mut ends = [one.rows.start, one.rows.end, other.rows.start, other.rows.end];
    ends.sort_unstable();
    // Rows with the same columns in bounds.
    for rows in ends.windows(2).map(|ends| ends[0]..ends[1]) {
        let columns = |half: &Half| match half.rows.contains(&rows.start) {
            true => half.columns.clone(),
            false => 0..0,
        };
        let (columns, others) = (columns(one), columns(other));
        let all = match [columns.is_empty(), others.is_empty()] {
            [false, false] => columns.start.min(others.start)..columns.end.max(others.end),
            [true, _] => others.clone(),
            [false, true] => columns.clone(),
        };
        let inner = columns.start.max(others.start)..columns.end.min(others.end);
        // From `first` on, `count` vectors are in bounds in both halves, and more elements follow.
        let missing = (inner.start - all.start.min(inner.start)).next_multiple_of(LANES);
        let first = all.start + missing;
        let count = if S == 0 { 0 } else { inner.end.saturating_sub(first + 1) / LANES };
        let first = if count == 0 { all.start } else { first };
        let edges = [all.start..first, first + count * LANES..all.end];
        // Mask of the 16-bit halves that are in bounds in an edge's first vector.
        let halves_of = |edge: &Range<usize>| {
            let [one, other] = [&columns, &others].map(|of| lanes(of, edge.start));
            let some = lanes(edge, edge.start);
            spread(one & some) << 1 | spread(other & some)
        };
        let [left, right] = [halves_of(&edges[0]), halves_of(&edges[1])];
        // An edge may be read as a whole vector if what it adds is in adjacent rows.
        let are_both = !columns.is_empty() && !others.is_empty();
        let fits =
            |edge: &Range<usize>| edge.len() <= LANES && edge.start + LANES <= 2 * grid.pitch;
        let is_far = S > 0 && are_both && edges.iter().all(fits);
        let is_far = is_far && grid.along.unsigned_abs() >= LANES * S;
        for row in rows.clone() {
            let from = |half: &Half, column: usize| {
                let at = row as isize * grid.along + column as isize * grid.across;
                half.from.moved(at).base
            };
            let to = to.wrapping_add(row * grid.pitch);
            let ([mut p, mut q], mut own) =
                ([from(one, first), from(other, first)], to.wrapping_add(first));
            for _ in 0..count {
                // SAFETY: elements of a row each, and others behind them.
                let numbers = unsafe { N::across::<S>(p, u16::MAX, q, u16::MAX) };
                least = N::smaller(least, numbers);
                // SAFETY: the numbers' places.
                unsafe { x86::_mm512_storeu_si512(own.cast(), numbers) };
                [p, q] = [p, q].map(|p| p.wrapping_add(LANES * S * N::BYTES));
                own = own.wrapping_add(LANES);
            }
            // Inner rows have elements on both sides, and the next row overwrites what follows.
            let is_inside = row > rows.start && row + 1 < rows.end && is_far;
            for (edge, there) in edges.iter().zip([left, right]) {
                if is_inside && !edge.is_empty() {
                    let i = edge.start;
                    let [p, q] = [from(one, i), from(other, i)];
                    // SAFETY: elements of a row each, and of those before and behind.
                    let numbers = unsafe { N::across::<S>(p, u16::MAX, q, u16::MAX) };
                    let numbers = x86::_mm512_maskz_mov_epi16(there, numbers);
                    least = N::smaller(least, numbers);
                    // SAFETY: the numbers' places, and some of the next row's.
                    unsafe { x86::_mm512_storeu_si512(to.wrapping_add(i).cast(), numbers) };
                    continue;
                }
                for i in edge.clone().step_by(LANES) {
                    let (p, q, some) = (from(one, i), from(other, i), lanes(edge, i));
                    let (mask, mask_after) = (lanes(&columns, i) & some, lanes(&others, i) & some);
                    let numbers = if S == 0 {
                        // SAFETY: the elements that masks name.
                        unsafe { apart::<N>([p, q], [mask, mask_after], grid.across) }
                    } else {
                        // SAFETY: the elements that masks name, `S` apart.
                        unsafe { N::across::<S>(p, mask, q, mask_after) }
                    };
                    least = N::smaller(least, numbers);
                    // SAFETY: the numbers' places.
                    unsafe {
                        x86::_mm512_mask_storeu_epi32(to.wrapping_add(i).cast(), some, numbers)
                    };
                }
            }
        }
    }
    least_of(least)
}

/// [`Numbers::across`] of elements with a stride of `across`.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. The elements that masks name must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn apart<N: Numbers>(from: [*const u8; 2], masks: [u16; 2], across: isize) -> x86::__m512i {
    let mut lines = [[0u8; LANES * MOST_BYTES]; 2];
    for ((line, from), mask) in lines.iter_mut().zip(from).zip(masks) {
        for (lane, to) in line.chunks_exact_mut(N::BYTES).enumerate().take(LANES) {
            if mask >> lane & 1 == 1 {
                let element = from.wrapping_offset(lane as isize * across * N::BYTES as isize);
                // SAFETY: an element that the mask names.
                unsafe { std::ptr::copy_nonoverlapping(element, to.as_mut_ptr(), N::BYTES) };
            }
        }
    }
    let [from, after] = lines.each_ref().map(|line| line.as_ptr());
    // SAFETY: sixteen elements each.
    unsafe { N::across::<1>(from, u16::MAX, after, u16::MAX) }
}
