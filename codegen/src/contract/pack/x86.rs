//! Packs into f32 with AVX2 and F16C: eight lines by eight steps at once.

use super::{Elements, Lines, pack_singly};
use crate::routines::{avx2_nearest_bf16 as nearest_bf16, transpose};
use core::arch::x86_64 as x86;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::half;

/// Prefetch distance along a line, in bytes.
const AHEAD: usize = 512;

/// Elements that are loaded as eight f32.
pub(super) trait Octet {
    /// Of one element.
    const BYTES: usize;
    /// # Safety
    ///
    /// `p` must be readable for eight elements, and the CPU must have AVX2 and F16C.
    unsafe fn load(p: *const u8) -> x86::__m256;
    /// A single one.
    ///
    /// # Safety
    ///
    /// `p` must be readable for an element, and the CPU must have F16C.
    unsafe fn one(p: *const u8) -> f32;
    /// Loads the elements of stride `S` whose bit is set, zeros elsewhere.
    ///
    /// # Safety
    ///
    /// They must be readable, and the CPU must have AVX2 and F16C.
    #[inline(always)]
    unsafe fn some<const S: usize>(p: *const u8, lanes: u8) -> x86::__m256 {
        let number = |lane: usize| {
            if lanes & (1 << lane) == 0 {
                return 0.0;
            }
            // SAFETY: an element that is named.
            unsafe { Self::one(p.wrapping_add(lane * S * Self::BYTES)) }
        };
        let all: [f32; 8] = std::array::from_fn(number);
        // SAFETY: the caller's contract.
        unsafe { x86::_mm256_loadu_ps(all.as_ptr()) }
    }
}

/// A routine that packs `count` lines for `k` steps: lines, `count`, `k`, destination and its
/// stride of steps. It needs AVX2 and F16C, and memory as
/// [`Engine::pack`](super::super::micro::Engine::pack) says.
type PackFn = unsafe fn(&Lines, usize, usize, *mut f32, usize);

/// A routine that packs a line: the line, its elements, and the destination. It needs AVX2 and
/// F16C, elements that are readable, and places that are writable.
type PackLineFn = unsafe fn(&Elements, usize, *mut f32);

pub(super) struct F32;
pub(super) struct Bf16;
pub(super) struct F16;
/// f32, rounded to bf16.
pub(super) struct RoundedToBf16;
/// f32, rounded to f16.
pub(super) struct RoundedToF16;

impl Octet for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load(p: *const u8) -> x86::__m256 {
        // SAFETY: the caller's contract.
        unsafe { x86::_mm256_loadu_ps(p.cast()) }
    }
    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<f32>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn some<const S: usize>(p: *const u8, lanes: u8) -> x86::__m256 {
        if S == 1 {
            // SAFETY: the caller's contract.
            return unsafe { masked(p, lanes) };
        }
        // SAFETY: the caller's contract.
        unsafe { every_second(p, lanes) }
    }
}

/// Loads the contiguous f32 whose bit is set, zeros elsewhere.
///
/// # Safety
///
/// They must be readable, and the CPU must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn masked(p: *const u8, lanes: u8) -> x86::__m256 {
    let bits = x86::_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let named = x86::_mm256_and_si256(x86::_mm256_set1_epi32(i32::from(lanes)), bits);
    let mask = x86::_mm256_cmpeq_epi32(named, bits);
    // SAFETY: the caller's contract; what the mask does not name is not read.
    unsafe { x86::_mm256_maskload_ps(p.cast(), mask) }
}

/// The same of every second f32.
///
/// # Safety
///
/// Elements that are named must be readable, and the CPU must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn every_second(p: *const u8, lanes: u8) -> x86::__m256 {
    let lanes = x86::_mm256_set1_epi32(i32::from(lanes));
    let named = |bits| x86::_mm256_cmpeq_epi32(x86::_mm256_and_si256(lanes, bits), bits);
    // No number of eight bits has the one of 256: these elements are not read.
    let low = named(x86::_mm256_setr_epi32(1, 256, 2, 256, 4, 256, 8, 256));
    let high = named(x86::_mm256_setr_epi32(16, 256, 32, 256, 64, 256, 128, 256));
    // SAFETY: the caller's contract; what the mask does not name is not read.
    let low = unsafe { x86::_mm256_maskload_ps(p.cast(), low) };
    // SAFETY: as above.
    let high = unsafe { x86::_mm256_maskload_ps(p.wrapping_add(32).cast(), high) };
    let both = x86::_mm256_shuffle_ps::<0b10_00_10_00>(low, high);
    let both = x86::_mm256_permute4x64_pd::<0b11_01_10_00>(x86::_mm256_castps_pd(both));
    x86::_mm256_castpd_ps(both)
}

impl Octet for Bf16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(p: *const u8) -> x86::__m256 {
        // SAFETY: the caller vouches for eight elements.
        let x = x86::_mm256_cvtepu16_epi32(unsafe { x86::_mm_loadu_si128(p.cast()) });
        x86::_mm256_castsi256_ps(x86::_mm256_slli_epi32::<16>(x))
    }
    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        half::bf16_to_f32(unsafe { p.cast::<u16>().read_unaligned() })
    }
}

impl Octet for F16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "avx,f16c")]
    unsafe fn load(p: *const u8) -> x86::__m256 {
        // SAFETY: the caller vouches for eight elements.
        x86::_mm256_cvtph_ps(unsafe { x86::_mm_loadu_si128(p.cast()) })
    }
    #[inline]
    #[target_feature(enable = "f16c")]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: the caller vouches for an element.
        let x = i32::from(unsafe { p.cast::<u16>().read_unaligned() });
        x86::_mm_cvtss_f32(x86::_mm_cvtph_ps(x86::_mm_cvtsi32_si128(x)))
    }
}

impl Octet for RoundedToBf16 {
    const BYTES: usize = 4;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(p: *const u8) -> x86::__m256 {
        // SAFETY: the caller vouches for eight elements.
        round_to_bf16(unsafe { F32::load(p) })
    }
    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        half::round_to_bf16(unsafe { F32::one(p) })
    }
}

impl Octet for RoundedToF16 {
    const BYTES: usize = 4;
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(p: *const u8) -> x86::__m256 {
        // SAFETY: the caller vouches for eight elements.
        round_to_f16(unsafe { F32::load(p) })
    }
    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        half::round_to_f16(unsafe { F32::one(p) })
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn round_to_bf16(x: x86::__m256) -> x86::__m256 {
    let high = x86::_mm256_set1_epi32(0xffff << 16);
    x86::_mm256_castsi256_ps(x86::_mm256_and_si256(nearest_bf16(x), high))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn round_to_f16(x: x86::__m256) -> x86::__m256 {
    x86::_mm256_cvtph_ps(x86::_mm256_cvtps_ph::<{ x86::_MM_FROUND_TO_NEAREST_INT }>(x))
}

/// The routine that packs these lines to f32.
pub(in crate::contract) fn pack_f32(lines: &Lines) -> PackFn {
    match (lines.dtype, lines.round) {
        (DType::F32, None) => pack_octets::<F32>,
        (DType::BF16, None) => pack_octets::<Bf16>,
        (DType::F16, None) => pack_octets::<F16>,
        (DType::F32, Some(DType::BF16)) => pack_octets::<RoundedToBf16>,
        (DType::F32, Some(DType::F16)) => pack_octets::<RoundedToF16>,
        _ => pack_singly,
    }
}

/// The routine that packs this line to f32.
pub(in crate::contract) fn pack_line_f32(line: &Elements) -> PackLineFn {
    match (line.dtype, line.round) {
        (DType::F32, None) => pack_line::<F32>,
        (DType::BF16, None) => pack_line::<Bf16>,
        (DType::F16, None) => pack_line::<F16>,
        (DType::F32, Some(DType::BF16)) => pack_line::<RoundedToBf16>,
        (DType::F32, Some(DType::F16)) => pack_line::<RoundedToF16>,
        _ => line_singly,
    }
}

/// Packs a line element by element.
///
/// # Safety
///
/// The line must be readable for `k` elements, and `dst` writable for as many.
unsafe fn line_singly(line: &Elements, k: usize, dst: *mut f32) {
    let lines =
        Lines { across: 0, along: 1, base: line.base, dtype: line.dtype, round: line.round };
    // SAFETY: the caller vouches for a line and its places.
    unsafe { pack_singly(&lines, 1, k, dst, 1) }
}

/// # Safety
///
/// The CPU must have AVX2 and F16C. The line must be readable for `k` elements of the octets'
/// dtype, and `dst` writable for as many.
#[target_feature(enable = "avx2,f16c")]
unsafe fn pack_line<O: Octet>(line: &Elements, k: usize, dst: *mut f32) {
    let line = line.base;
    for p in eights(k).take_while(|_| k >= 8) {
        // SAFETY: eight elements.
        let x = unsafe { O::load(line.wrapping_add(p * O::BYTES)) };
        // SAFETY: their places.
        unsafe { x86::_mm256_storeu_ps(dst.wrapping_add(p), x) };
    }
    for p in (0..k).take_while(|_| k < 8) {
        // SAFETY: an element.
        let x = unsafe { O::one(line.wrapping_add(p * O::BYTES)) };
        // SAFETY: its place.
        unsafe { dst.wrapping_add(p).write(x) };
    }
}

/// # Safety
///
/// The CPU must have AVX2 and F16C. Lines must be readable, of the octets' dtype. `ld` is at least
/// `count`, and `dst` writable for `k * ld + 8` numbers.
#[target_feature(enable = "avx2,f16c")]
unsafe fn pack_octets<O: Octet>(lines: &Lines, count: usize, k: usize, dst: *mut f32, ld: usize) {
    if lines.across == 1 && count >= 8 {
        let along = lines.along * O::BYTES as isize;
        let (mut from, mut to) = (lines.base, dst);
        for _ in 0..k {
            for j in eights(count) {
                // SAFETY: eight neighbouring lines at one step.
                let x = unsafe { O::load(from.wrapping_add(j * O::BYTES)) };
                // SAFETY: their places.
                unsafe { x86::_mm256_storeu_ps(to.wrapping_add(j), x) };
            }
            from = from.wrapping_offset(along);
            to = to.wrapping_add(ld);
        }
    } else if lines.across == 1 && lines.along > 1 {
        // SAFETY: the caller's contract.
        unsafe { pack_narrow::<O>(lines, count, k, dst, ld) };
    } else if lines.along == 1 && k >= 8 {
        let across = lines.across * O::BYTES as isize;
        for j in eights(count) {
            let first = lines.from(j, 0).base;
            let mut starts = [first; 8];
            for (l, start) in starts.iter_mut().enumerate() {
                // If there are fewer than eight lines, the last one stands in for the missing ones.
                *start = first.wrapping_offset(l.min(count - 1 - j) as isize * across);
            }
            for p in eights(k) {
                let mut rows = [x86::_mm256_setzero_ps(); 8];
                for (row, start) in rows.iter_mut().zip(starts) {
                    let from = start.wrapping_add(p * O::BYTES);
                    if (p * O::BYTES).is_multiple_of(64) {
                        let prefetched = from.wrapping_add(AHEAD);
                        x86::_mm_prefetch::<{ x86::_MM_HINT_T0 }>(prefetched.cast());
                    }
                    // SAFETY: eight steps of a line.
                    *row = unsafe { O::load(from) };
                }
                let to = dst.wrapping_add(p * ld + j);
                for (q, row) in transpose(rows).into_iter().enumerate() {
                    // SAFETY: their places. Fewer than eight lines spill into the next steps, which
                    // are written later or again, or into the eight numbers after the last step.
                    unsafe { x86::_mm256_storeu_ps(to.wrapping_add(q * ld), row) };
                }
            }
        }
    } else {
        // SAFETY: the caller's contract.
        unsafe { singly::<O>(lines, count, 0..k, dst, ld) };
    }
}

/// Fewer than eight adjacent lines: loads eight elements where these are in bounds, and masks.
///
/// # Safety
///
/// The CPU must have AVX2 and F16C. Lines must be adjacent and readable, of the octets' dtype, with
/// a positive stride of `k`. `ld` is at least `count`, and `dst` writable for `k * ld` numbers.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn pack_narrow<O: Octet>(lines: &Lines, count: usize, k: usize, dst: *mut f32, ld: usize) {
    let order = x86::_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mask = x86::_mm256_cmpgt_epi32(x86::_mm256_set1_epi32(count as i32), order);
    let along = lines.along as usize;
    // Steps whose eight elements end by the last step's last line, both read and written.
    let behind = |step: usize| (8 - count).div_ceil(step.max(1));
    let whole = k.saturating_sub(behind(along).max(behind(ld)));
    for p in 0..whole {
        // SAFETY: eight elements from the step's first line on, up to the last step's last line.
        let x = unsafe { O::load(lines.base.wrapping_add(p * along * O::BYTES)) };
        let x = x86::_mm256_and_ps(x, x86::_mm256_castsi256_ps(mask));
        // SAFETY: the step's places, and some that later steps write again.
        unsafe { x86::_mm256_storeu_ps(dst.wrapping_add(p * ld), x) };
    }
    // SAFETY: the caller's contract.
    unsafe { singly::<O>(lines, count, whole..k, dst, ld) };
}

/// Some steps, element by element.
///
/// # Safety
///
/// The CPU must have F16C. Lines must be readable for these steps, of the octets' dtype, and their
/// places writable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn singly<O: Octet>(
    lines: &Lines,
    count: usize,
    steps: Range<usize>,
    dst: *mut f32,
    ld: usize,
) {
    let [across, along] = [lines.across, lines.along].map(|stride| stride * O::BYTES as isize);
    for p in steps {
        let from = lines.base.wrapping_offset(p as isize * along);
        for j in 0..count {
            // SAFETY: an element of the operand.
            let x = unsafe { O::one(from.wrapping_offset(j as isize * across)) };
            // SAFETY: its place.
            unsafe { dst.wrapping_add(p * ld + j).write(x) };
        }
    }
}

/// Starts of runs of eight that cover `count`; the last run may overlap the one before it.
pub(super) fn eights(count: usize) -> impl Iterator<Item = usize> {
    (0..count).step_by(8).map(move |j| if j + 8 > count { count.saturating_sub(8) } else { j })
}
