//! AVX-512 microkernels of depthwise convolutions, 3 × 3 or 5 × 5, which read the input in place.

use super::super::super::pack::cells::{Bf16, Cells, F32};
use super::super::super::pack::loads::{even, first, load};
use super::super::super::prefetch::{LINE, prefetch_l1};
use super::super::SHORT;
use super::{MOST_PLANES, Planes, unrolled};
use crate::routines::to_bf16;
use core::arch::x86_64 as x86;
use std::ops::Range;

/// Prefetch distance in bytes, into the rows and channels that follow.
const AHEAD: isize = 8192;

/// Read in place of an element out of bounds.
static ZERO: f32 = 0.0;

/// Masked loads of sixteen elements, or of eight from each of two addresses.
pub(in crate::contract) trait Loads: Cells {
    /// Loads contiguous elements.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that the mask names.
    unsafe fn side_by_side(from: [*const u8; 2], halves: bool, mask: u16) -> x86::__m512;

    /// Loads twice as many, deinterleaved: those at even places, and those at odd ones.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that the mask names.
    unsafe fn apart(from: [*const u8; 2], halves: bool, mask: u32) -> [x86::__m512; 2];

    /// Loads those at even places; `next` are those at even places from two elements later on.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that the mask names.
    unsafe fn even(from: [*const u8; 2], halves: bool, mask: u32, next: x86::__m512)
    -> x86::__m512;
}

/// How sums are stored.
pub(in crate::contract) trait Stores {
    const BYTES: usize;
    /// Stores the sums of the mask: sixteen, or eight at each of two addresses.
    ///
    /// # Safety
    ///
    /// `to` must be writable for them.
    unsafe fn store(to: [*mut u8; 2], halves: bool, mask: u16, sums: x86::__m512);
}

impl Loads for F32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn side_by_side([p, q]: [*const u8; 2], halves: bool, mask: u16) -> x86::__m512 {
        if !halves {
            // SAFETY: the caller's contract.
            return unsafe { load::<F32>(p, mask) };
        }
        // SAFETY: the caller's contract.
        let low = unsafe { x86::_mm256_maskz_loadu_ps(mask as u8, p.cast()) };
        // SAFETY: the caller's contract.
        let high = unsafe { x86::_mm256_maskz_loadu_ps((mask >> 8) as u8, q.cast()) };
        let low = x86::_mm512_castps_pd(x86::_mm512_castps256_ps512(low));
        x86::_mm512_castpd_ps(x86::_mm512_insertf64x4::<1>(low, x86::_mm256_castps_pd(high)))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn apart([p, q]: [*const u8; 2], halves: bool, mask: u32) -> [x86::__m512; 2] {
        let rest = if halves { q } else { p.wrapping_add(64) };
        // SAFETY: the caller's contract.
        let low = unsafe { load::<F32>(p, mask as u16) };
        // SAFETY: the caller's contract.
        let high = unsafe { load::<F32>(rest, (mask >> 16) as u16) };
        let even = even();
        let odd = x86::_mm512_or_si512(even, x86::_mm512_set1_epi32(1));
        [even, odd].map(|order| x86::_mm512_permutex2var_ps(low, order, high))
    }

    /// Unaligned vectors cross cache lines, so all lanes but the first come from `next`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn even(
        [p, q]: [*const u8; 2],
        halves: bool,
        mask: u32,
        next: x86::__m512,
    ) -> x86::__m512 {
        let order = x86::_mm512_set_epi32(14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0);
        let next = x86::_mm512_permutexvar_ps(order, next);
        let one = |from: *const u8, is_there: bool| {
            let from = if is_there { from.cast() } else { &raw const ZERO };
            // SAFETY: the caller's contract: an element that is there, or zero.
            unsafe { x86::_mm_load_ss(from) }
        };
        let even = x86::_mm512_mask_broadcastss_ps(next, 1, one(p, mask & 1 != 0));
        if !halves {
            return even;
        }
        x86::_mm512_mask_broadcastss_ps(even, 1 << 8, one(q, mask >> 16 & 1 != 0))
    }
}

impl Loads for Bf16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn side_by_side([p, q]: [*const u8; 2], halves: bool, mask: u16) -> x86::__m512 {
        if !halves {
            // SAFETY: the caller's contract.
            return unsafe { load::<Bf16>(p, mask) };
        }
        // SAFETY: the caller's contract.
        let low = unsafe { x86::_mm_maskz_loadu_epi16(mask as u8, p.cast()) };
        // SAFETY: the caller's contract.
        let high = unsafe { x86::_mm_maskz_loadu_epi16((mask >> 8) as u8, q.cast()) };
        let wide = x86::_mm512_cvtepu16_epi32(x86::_mm256_set_m128i(high, low));
        x86::_mm512_castsi512_ps(x86::_mm512_slli_epi32::<16>(wide))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn apart([p, q]: [*const u8; 2], halves: bool, mask: u32) -> [x86::__m512; 2] {
        let both = if halves {
            // SAFETY: the caller's contract.
            let low = unsafe { x86::_mm256_maskz_loadu_epi16(mask as u16, p.cast()) };
            // SAFETY: the caller's contract.
            let high = unsafe { x86::_mm256_maskz_loadu_epi16((mask >> 16) as u16, q.cast()) };
            x86::_mm512_inserti64x4::<1>(x86::_mm512_castsi256_si512(low), high)
        } else {
            // SAFETY: the caller's contract.
            unsafe { x86::_mm512_maskz_loadu_epi16(mask, p.cast()) }
        };
        let odd = x86::_mm512_and_si512(both, x86::_mm512_set1_epi32(0xffff << 16));
        [x86::_mm512_slli_epi32::<16>(both), odd].map(|bits| x86::_mm512_castsi512_ps(bits))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn even(from: [*const u8; 2], halves: bool, mask: u32, _: x86::__m512) -> x86::__m512 {
        // SAFETY: the caller's contract.
        let [even, _] = unsafe { Bf16::apart(from, halves, mask) };
        even
    }
}

impl Stores for F32 {
    const BYTES: usize = 4;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn store([p, q]: [*mut u8; 2], halves: bool, mask: u16, sums: x86::__m512) {
        if !halves {
            // SAFETY: the caller's contract.
            return unsafe { x86::_mm512_mask_storeu_ps(p.cast(), mask, sums) };
        }
        let high = x86::_mm512_extractf64x4_pd::<1>(x86::_mm512_castps_pd(sums));
        let low = x86::_mm512_castps512_ps256(sums);
        // SAFETY: the caller's contract.
        unsafe { x86::_mm256_mask_storeu_ps(p.cast(), mask as u8, low) };
        let high = x86::_mm256_castpd_ps(high);
        // SAFETY: the caller's contract.
        unsafe { x86::_mm256_mask_storeu_ps(q.cast(), (mask >> 8) as u8, high) };
    }
}

/// Rounded.
impl Stores for Bf16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn store([p, q]: [*mut u8; 2], halves: bool, mask: u16, sums: x86::__m512) {
        let bits = to_bf16(sums);
        if !halves {
            // SAFETY: the caller's contract.
            return unsafe { x86::_mm256_mask_storeu_epi16(p.cast(), mask, bits) };
        }
        let [low, high] =
            [x86::_mm256_castsi256_si128(bits), x86::_mm256_extracti128_si256::<1>(bits)];
        // SAFETY: the caller's contract.
        unsafe { x86::_mm_mask_storeu_epi16(p.cast(), mask as u8, low) };
        // SAFETY: the caller's contract.
        unsafe { x86::_mm_mask_storeu_epi16(q.cast(), (mask >> 8) as u8, high) };
    }
}

/// Computes all lines, `taps` 3 or 5, `step` 1 or 2. Flags: the input is bf16, and the result.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. What is in bounds must be readable, and sums writable.
pub(in crate::contract) unsafe fn sum(
    planes: &Planes<'_>,
    [taps, step]: [usize; 2],
    [is_bf16, to_bf16]: [bool; 2],
) {
    let run = match (is_bf16, to_bf16) {
        (false, false) => of::<F32, F32>,
        (false, true) => of::<F32, Bf16>,
        (true, false) => of::<Bf16, F32>,
        (true, true) => of::<Bf16, Bf16>,
    };
    // SAFETY: the caller's contract.
    unsafe { run(planes, [taps, step]) }
}

/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. What is in bounds must be readable, and sums writable.
unsafe fn of<C: Loads, O: Stores>(planes: &Planes<'_>, [taps, step]: [usize; 2]) {
    let halves = planes.counts[1] <= SHORT;
    let vectors = if halves { planes.count.div_ceil(2) } else { planes.count };
    let run = match (taps, step, halves, vectors) {
        (3, 1, false, 1) => lines::<C, O, 3, 1, 1, false>,
        (3, 1, false, 2) => lines::<C, O, 3, 1, 2, false>,
        (3, 2, false, 1) => lines::<C, O, 3, 2, 1, false>,
        (3, 2, false, 2) => lines::<C, O, 3, 2, 2, false>,
        (3, 2, true, 1) => lines::<C, O, 3, 2, 1, true>,
        (3, 2, true, 2) => lines::<C, O, 3, 2, 2, true>,
        (5, 1, false, 1) => lines::<C, O, 5, 1, 1, false>,
        (5, 1, false, 2) => lines::<C, O, 5, 1, 2, false>,
        (5, 2, false, 1) => lines::<C, O, 5, 2, 1, false>,
        (5, 2, false, 2) => lines::<C, O, 5, 2, 2, false>,
        (5, 2, true, 1) => lines::<C, O, 5, 2, 1, true>,
        (5, 2, true, 2) => lines::<C, O, 5, 2, 2, true>,
        _ => unreachable!("no {taps} positions {step} apart of {} planes", planes.count),
    };
    // SAFETY: the caller's contract.
    unsafe { run(planes) }
}

/// As [`sum`], `K` by `K` at stride `S`, in `V` vectors: of a channel each, or of two halves each.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. What is in bounds must be readable, and sums writable.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn lines<
    C: Loads,
    O: Stores,
    const K: usize,
    const S: usize,
    const V: usize,
    const HALVES: bool,
>(
    s: &Planes<'_>,
) {
    assert!(s.weights.len() >= K * K, "a number for each position");
    let [lines, columns] = s.counts;
    // Lines before the current one that read the same row.
    let before = (K - 1) / S;
    // The planes of a vector.
    let both = |v: usize| if HALVES { [2 * v, 2 * v + 1] } else { [v; 2] };
    for column in (0..columns).step_by(16) {
        let place = |c: usize| s.first[1] + (column * S) as isize + c as isize * s.dilation[1];
        let masks: [u32; K] = std::array::from_fn(|c| match HALVES {
            true => named(&s.there[1], place(c), 8 * S) * (1 | 1 << (8 * S)),
            false => named(&s.there[1], place(c), 16 * S),
        });
        let mask = match HALVES {
            true => first(columns) as u16 * 0x101,
            false => first(16.min(columns - column)) as u16,
        };
        // Of the line that begins with a row, and of those before it, for each plane.
        let mut sums = [[x86::_mm512_setzero_ps(); V]; K];
        let mut at = s.first[0];
        for y in 0..lines + before {
            for phase in 0..S {
                let is_there = s.there[0].contains(&at);
                let row = |base: *const u8| base.wrapping_offset(at * s.row);
                let bases = if is_there { s.bases.map(row) } else { [s.zeros; MOST_PLANES] };
                at += s.dilation[0];
                let mut seen = [[x86::_mm512_setzero_ps(); V]; K];
                unrolled!(v of 0 1 => {
                    let from = |c: usize| {
                        let by = place(c) * C::BYTES as isize;
                        both(v).map(|plane| bases[plane]).map(|base| base.wrapping_offset(by))
                    };
                    for line in (0..16 * S * C::BYTES).step_by(LINE) {
                        if v < V {
                            prefetch_l1(from(0)[0].wrapping_offset(AHEAD + line as isize));
                        }
                    }
                    unrolled!(c of 0 1 2 3 4 => {
                        if v < V && c < K && S == 1 {
                            // SAFETY: elements of a row that are there, or zeros.
                            seen[c][v] = unsafe { C::side_by_side(from(c), HALVES, masks[c] as u16) };
                        } else if v < V && K == 3 && c == 0 {
                            // A window's first position is the last one of the window before.
                            // SAFETY: as above.
                            let [even, odd] = unsafe { C::apart(from(1), HALVES, masks[1]) };
                            // SAFETY: as above.
                            seen[0][v] = unsafe { C::even(from(0), HALVES, masks[0], odd) };
                            seen[1][v] = even;
                            seen[2][v] = odd;
                        } else if v < V && K > 3 && c < K && c.is_multiple_of(2) {
                            // SAFETY: as above.
                            let [even, odd] = unsafe { C::apart(from(c), HALVES, masks[c]) };
                            seen[c][v] = even;
                            if c + 1 < K {
                                seen[c + 1][v] = odd;
                            }
                        }
                    });
                });
                unrolled!(t of 0 1 2 3 4 => {
                    if t < K && t % S == phase && y.wrapping_sub(t / S) < lines {
                        let mut line = sums[t / S];
                        for (c, seen) in seen.iter().enumerate() {
                            let weight = x86::_mm512_set1_ps(s.weights[t * K + c]);
                            for (sum, seen) in line.iter_mut().zip(seen) {
                                *sum = x86::_mm512_fmadd_ps(weight, *seen, *sum);
                            }
                        }
                        sums[t / S] = line;
                    }
                });
            }
            if y >= before {
                let line = (y - before) as isize * s.line + (column * O::BYTES) as isize;
                let to = s.sums.map(|to| to.wrapping_offset(line));
                for (v, sum) in sums[before].iter().enumerate() {
                    // SAFETY: the caller vouches for the sums of a line.
                    unsafe { O::store(both(v).map(|plane| to[plane]), HALVES, mask, *sum) };
                }
            }
            unrolled!(t of 4 3 2 1 => {
                if t <= before {
                    sums[t] = sums[t - 1];
                }
            });
            sums[0] = [x86::_mm512_setzero_ps(); V];
        }
    }
}

/// Mask of the `count` columns from `from` on that are in bounds.
fn named(there: &Range<isize>, from: isize, count: usize) -> u32 {
    let before = |end: isize| first((end - from).clamp(0, count as isize) as usize) as u32;
    before(there.end) & !before(there.start)
}
