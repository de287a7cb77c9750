//! Packs into f32 with AVX2 and F16C: eight lines by eight steps at once.

use super::cells::{Bf16, F16, F32, Octet, RoundedToBf16, RoundedToF16, Sixteen, by_cells};
use super::{Lines, pack_singly};
use crate::routines::{avx2_nearest_bf16 as nearest_bf16, transpose};
use core::arch::x86_64 as x86;
use std::marker::PhantomData;
use std::ops::Range;

/// Prefetch distance along a line, in bytes.
const AHEAD: usize = 512;

macro_rules! octet {
    ($ty:ident, $near:ident) => {
        impl Octet for $ty {
            #[inline(always)]
            fn near(bits: x86::__m256i) -> x86::__m256 {
                // SAFETY: used on CPUs with AVX2 and F16C only.
                unsafe { $near(bits) }
            }
        }
    };
}

octet!(F32, as_f32);
octet!(Bf16, widen_bf16);
octet!(F16, widen_f16);
octet!(RoundedToBf16, round_to_bf16);
octet!(RoundedToF16, round_to_f16);

#[inline]
#[target_feature(enable = "avx")]
fn as_f32(bits: x86::__m256i) -> x86::__m256 {
    x86::_mm256_castsi256_ps(bits)
}

#[inline]
#[target_feature(enable = "avx2")]
fn widen_bf16(bits: x86::__m256i) -> x86::__m256 {
    let wide = x86::_mm256_cvtepu16_epi32(x86::_mm256_castsi256_si128(bits));
    x86::_mm256_castsi256_ps(x86::_mm256_slli_epi32::<16>(wide))
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn widen_f16(bits: x86::__m256i) -> x86::__m256 {
    x86::_mm256_cvtph_ps(x86::_mm256_castsi256_si128(bits))
}

#[inline]
#[target_feature(enable = "avx2")]
fn round_to_bf16(bits: x86::__m256i) -> x86::__m256 {
    let high = x86::_mm256_set1_epi32(0xffff << 16);
    let nearest = nearest_bf16(x86::_mm256_castsi256_ps(bits));
    x86::_mm256_castsi256_ps(x86::_mm256_and_si256(nearest, high))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn round_to_f16(bits: x86::__m256i) -> x86::__m256 {
    let x = x86::_mm256_castsi256_ps(bits);
    x86::_mm256_cvtph_ps(x86::_mm256_cvtps_ph::<{ x86::_MM_FROUND_TO_NEAREST_INT }>(x))
}

/// Loads eight contiguous elements.
///
/// # Safety
///
/// `p` must be readable for eight elements, and the CPU must have AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn load<O: Octet>(p: *const u8) -> x86::__m256 {
    if O::BYTES == 4 {
        // SAFETY: the caller's contract.
        O::near(unsafe { x86::_mm256_loadu_si256(p.cast()) })
    } else {
        // SAFETY: the caller's contract.
        O::near(x86::_mm256_castsi128_si256(unsafe { x86::_mm_loadu_si128(p.cast()) }))
    }
}

/// Loads an element.
///
/// # Safety
///
/// `p` must be readable for it, and the CPU must have AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn one<O: Octet>(p: *const u8) -> f32 {
    let bits = if O::BYTES == 4 {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<i32>().read_unaligned() }
    } else {
        // SAFETY: the caller's contract.
        i32::from(unsafe { p.cast::<u16>().read_unaligned() })
    };
    let bits = x86::_mm256_zextsi128_si256(x86::_mm_cvtsi32_si128(bits));
    x86::_mm256_cvtss_f32(O::near(bits))
}

/// Loads the contiguous elements of 32 bits whose bit is set, zeros elsewhere.
///
/// # Safety
///
/// They must be readable, and the CPU must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn masked(p: *const u8, lanes: u8) -> x86::__m256i {
    let bits = x86::_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let named = x86::_mm256_and_si256(x86::_mm256_set1_epi32(i32::from(lanes)), bits);
    let mask = x86::_mm256_cmpeq_epi32(named, bits);
    // SAFETY: the caller's contract; what the mask does not name is not read.
    unsafe { x86::_mm256_maskload_epi32(p.cast(), mask) }
}

/// The same of every second one.
///
/// # Safety
///
/// Elements that are named must be readable, and the CPU must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn every_second(p: *const u8, lanes: u8) -> x86::__m256i {
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
    x86::_mm256_permute4x64_epi64::<0b11_01_10_00>(x86::_mm256_castps_si256(both))
}

/// A routine that packs `count` lines for `k` steps: lines, `count`, `k`, destination and its
/// stride of steps. It needs AVX2 and F16C, and memory as
/// [`Engine::pack`](super::super::micro::Engine::pack) says.
type PackFn = unsafe fn(&Lines, usize, usize, *mut f32, usize);

/// The routine that packs these lines to f32.
pub(in crate::contract) fn pack_f32(lines: &Lines) -> PackFn {
    by_cells!(lines, C => pack_octets::<C>, pack_singly)
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
                let x = unsafe { load::<O>(from.wrapping_add(j * O::BYTES)) };
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
                    *row = unsafe { load::<O>(from) };
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
        let x = unsafe { load::<O>(lines.base.wrapping_add(p * along * O::BYTES)) };
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
            let x = unsafe { one::<O>(from.wrapping_offset(j as isize * across)) };
            // SAFETY: its place.
            unsafe { dst.wrapping_add(p * ld + j).write(x) };
        }
    }
}

/// Starts of runs of eight that cover `count`; the last run may overlap the one before it.
pub(super) fn eights(count: usize) -> impl Iterator<Item = usize> {
    (0..count).step_by(8).map(move |j| if j + 8 > count { count.saturating_sub(8) } else { j })
}

/// Sixteen elements as two vectors of f32.
pub(in crate::contract) struct Octets<O>(PhantomData<O>);

impl<O: Octet> Sixteen for Octets<O> {
    type Vector = [x86::__m256; 2];
    const BYTES: usize = O::BYTES;
    const STEPS: usize = 1;
    const VECTORS: usize = 1;
    #[inline(always)]
    fn empty() -> [[x86::__m256; 2]; 2] {
        // SAFETY: packing is called on CPUs with AVX2 only.
        [[unsafe { x86::_mm256_setzero_ps() }; 2]; 2]
    }
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn add<const S: usize>(
        [low, high]: [x86::__m256; 2],
        [p, _]: [*const u8; 2],
        [mask, _]: [u16; 2],
    ) -> [x86::__m256; 2] {
        let ([first, second], beside) = (mask.to_le_bytes(), p.wrapping_add(8 * S * O::BYTES));
        // SAFETY: the mask names elements that are there.
        let low = x86::_mm256_or_ps(low, unsafe { some::<O, S>(p, first) });
        // SAFETY: as above.
        [low, x86::_mm256_or_ps(high, unsafe { some::<O, S>(beside, second) })]
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store([low, high]: [x86::__m256; 2], to: *mut u32) {
        // SAFETY: the caller vouches for the places of sixteen numbers.
        unsafe { x86::_mm256_storeu_ps(to.cast(), low) };
        // SAFETY: as above.
        unsafe { x86::_mm256_storeu_ps(to.wrapping_add(8).cast(), high) };
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
        _ if O::BYTES == 4 && S == 1 => O::near(unsafe { masked(p, lanes) }),
        // SAFETY: as above.
        _ if O::BYTES == 4 => O::near(unsafe { every_second(p, lanes) }),
        _ => {
            let number = |lane: usize| {
                if lanes & (1 << lane) == 0 {
                    return 0.0;
                }
                // SAFETY: an element that is named.
                unsafe { one::<O>(p.wrapping_add(lane * S * O::BYTES)) }
            };
            let all: [f32; 8] = std::array::from_fn(number);
            // SAFETY: eight numbers.
            unsafe { x86::_mm256_loadu_ps(all.as_ptr()) }
        }
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
    let low = unsafe { load::<O>(p) };
    if S == 1 {
        return low;
    }
    // From the last of the eight elements that `low` has on: nothing behind the fifteenth is read.
    // SAFETY: the caller's contract.
    let high = unsafe { load::<O>(p.wrapping_add(7 * O::BYTES)) };
    let both = x86::_mm256_shuffle_ps::<0b11_01_10_00>(low, high);
    let both = x86::_mm256_permute4x64_pd::<0b11_01_10_00>(x86::_mm256_castps_pd(both));
    x86::_mm256_castpd_ps(both)
}
