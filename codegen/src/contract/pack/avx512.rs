//! Numbers that are packed with AVX-512: sixteen f32, or pairs of bf16.
//!
//! A pair has the earlier step in the high half of 32 bits, and the later one in the low half.

use super::vectors::{Element, Lanes, Numbers, first, spread};
use crate::routines::nearest_bf16;
use core::arch::x86_64 as x86;
use std::marker::PhantomData;

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn as_f32(bits: x86::__m512i) -> x86::__m512 {
    x86::_mm512_castsi512_ps(bits)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn widen_bf16(bits: x86::__m512i) -> x86::__m512 {
    even_bf16(x86::_mm512_cvtepu16_epi32(x86::_mm512_castsi512_si256(bits)))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn even_bf16(bits: x86::__m512i) -> x86::__m512 {
    x86::_mm512_castsi512_ps(x86::_mm512_slli_epi32::<16>(bits))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn widen_f16(bits: x86::__m512i) -> x86::__m512 {
    x86::_mm512_cvtph_ps(x86::_mm512_castsi512_si256(bits))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn even_f16(bits: x86::__m512i) -> x86::__m512 {
    x86::_mm512_cvtph_ps(x86::_mm512_cvtepi32_epi16(bits))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn round_to_f16(bits: x86::__m512i) -> x86::__m512 {
    let x = x86::_mm512_castsi512_ps(bits);
    x86::_mm512_cvtph_ps(x86::_mm512_cvtps_ph::<{ x86::_MM_FROUND_TO_NEAREST_INT }>(x))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn round_to_bf16(bits: x86::__m512i) -> x86::__m512 {
    let high = x86::_mm512_set1_epi32(0xffff << 16);
    let nearest = nearest_bf16(x86::_mm512_castsi512_ps(bits));
    x86::_mm512_castsi512_ps(x86::_mm512_and_si512(nearest, high))
}

/// Loads contiguous elements whose bit of the mask is set, zeros elsewhere.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL, and `p` be readable for the elements that the mask names.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::contract) unsafe fn load<C: Element>(p: *const u8, mask: u16) -> x86::__m512 {
    if C::BYTES == 4 {
        // SAFETY: the caller's contract.
        C::sixteen(unsafe { x86::_mm512_maskz_loadu_epi32(mask, p.cast()) })
    } else {
        // SAFETY: the caller's contract.
        let half = unsafe { x86::_mm256_maskz_loadu_epi16(mask, p.cast()) };
        C::sixteen(x86::_mm512_castsi256_si512(half))
    }
}

/// The same at stride `S`, one or two. Elements in between are not read.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL, and `p` be readable for the elements that the mask names.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn strided<C: Element, const S: usize>(p: *const u8, mask: u16) -> x86::__m512i {
    if S == 1 {
        // SAFETY: the caller's contract.
        return x86::_mm512_castps_si512(unsafe { load::<C>(p, mask) });
    }
    let mask = spread(mask);
    let numbers = if C::BYTES == 2 {
        // SAFETY: the caller's contract.
        C::evens(unsafe { x86::_mm512_maskz_loadu_epi16(mask, p.cast()) })
    } else {
        // SAFETY: the caller's contract.
        let x = unsafe { x86::_mm512_maskz_loadu_epi32(mask as u16, p.cast()) };
        let rest = p.wrapping_add(64).cast();
        // SAFETY: the caller's contract.
        let y = unsafe { x86::_mm512_maskz_loadu_epi32((mask >> 16) as u16, rest) };
        C::sixteen(x86::_mm512_permutex2var_epi32(x, even(), y))
    };
    x86::_mm512_castps_si512(numbers)
}

/// Every second one of two vectors' lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::contract) fn even() -> x86::__m512i {
    x86::_mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0)
}

impl Lanes for x86::__m512i {
    const LANES: usize = 16;
    type Square = [x86::__m512i; 16];
    #[inline(always)]
    fn square() -> [x86::__m512i; 16] {
        [Self::zero(); 16]
    }
    #[inline(always)]
    fn zero() -> x86::__m512i {
        // SAFETY: the trait is for CPUs with AVX-512.
        unsafe { x86::_mm512_setzero_si512() }
    }
    #[inline(always)]
    fn or(self, other: x86::__m512i) -> x86::__m512i {
        // SAFETY: as for `zero`.
        unsafe { x86::_mm512_or_si512(self, other) }
    }
    #[inline(always)]
    fn transposed(square: [x86::__m512i; 16]) -> [x86::__m512i; 16] {
        // SAFETY: as for `zero`.
        unsafe { transpose(square) }
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(self, to: *mut u32, mask: u16) {
        if mask == u16::MAX {
            // SAFETY: the caller's contract.
            unsafe { x86::_mm512_storeu_si512(to.cast(), self) }
        } else {
            // SAFETY: the caller's contract.
            unsafe { x86::_mm512_mask_storeu_epi32(to.cast(), mask, self) }
        }
    }
}

/// One element each.
pub(in crate::contract) struct One<C>(PhantomData<C>);
/// Pairs of elements that are bf16 after they are loaded.
pub(in crate::contract) struct Two<C>(PhantomData<C>);

impl<C: Element> Numbers for One<C> {
    type Vector = x86::__m512i;
    const BYTES: usize = C::BYTES;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn along(p: *const u8, count: usize) -> x86::__m512i {
        // SAFETY: the caller's contract.
        unsafe { strided::<C, 1>(p, first(count) as u16) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn across<const S: usize>([p, _]: [*const u8; 2], masks: [u16; 2]) -> x86::__m512i {
        // SAFETY: the caller's contract.
        unsafe { strided::<C, S>(p, masks[0]) }
    }
}

impl<C: Element> Numbers for Two<C> {
    type Vector = x86::__m512i;
    const BYTES: usize = C::BYTES;
    const STEPS: usize = 2;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn along(p: *const u8, count: usize) -> x86::__m512i {
        let mask = first(count) as u32;
        if C::BYTES == 2 {
            // SAFETY: the caller's contract.
            let x = unsafe { x86::_mm512_maskz_loadu_epi16(mask, p.cast()) };
            return x86::_mm512_rol_epi32::<16>(x);
        }
        // SAFETY: the caller's contract.
        let x = unsafe { strided::<C, 1>(p, mask as u16) };
        // SAFETY: the caller's contract.
        let y = unsafe { strided::<C, 1>(p.wrapping_add(16 * C::BYTES), (mask >> 16) as u16) };
        let even = even();
        let odd = x86::_mm512_or_si512(even, x86::_mm512_set1_epi32(1));
        let after = x86::_mm512_permutex2var_epi32(x, odd, y);
        pair(x86::_mm512_permutex2var_epi32(x, even, y), after)
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn across<const S: usize>(from: [*const u8; 2], masks: [u16; 2]) -> x86::__m512i {
        // SAFETY: the caller's contract.
        let x = unsafe { strided::<C, S>(from[0], masks[0]) };
        // SAFETY: the caller's contract.
        pair(x, unsafe { strided::<C, S>(from[1], masks[1]) })
    }
    #[inline(always)]
    fn smaller(least: x86::__m512i, numbers: x86::__m512i) -> x86::__m512i {
        // SAFETY: packing is called on CPUs with AVX-512BW only.
        unsafe { larger_negated(least, numbers) }
    }
    #[inline(always)]
    fn least(least: x86::__m512i) -> u16 {
        // SAFETY: as for `smaller`.
        unsafe { least_magnitude(least) }
    }
}

/// Packs the high halves of two steps into a pair.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair(step: x86::__m512i, after: x86::__m512i) -> x86::__m512i {
    x86::_mm512_or_si512(step, x86::_mm512_srli_epi32::<16>(after))
}

/// Per 16-bit half the maximum of `known` and the negated magnitude: that of zero is the least.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::contract) fn larger_negated(known: x86::__m512i, of: x86::__m512i) -> x86::__m512i {
    let magnitudes = x86::_mm512_and_si512(of, x86::_mm512_set1_epi16(i16::MAX));
    let negated = x86::_mm512_sub_epi16(x86::_mm512_setzero_si512(), magnitudes);
    x86::_mm512_max_epu16(known, negated)
}

/// The least magnitude, of which [`larger_negated`] left the largest negative.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::contract) fn least_magnitude(negated: x86::__m512i) -> u16 {
    // Less one, so that zero is the largest.
    let less = x86::_mm512_xor_si512(negated, x86::_mm512_set1_epi16(-1));
    let half = x86::_mm256_min_epu16(
        x86::_mm512_castsi512_si256(less),
        x86::_mm512_extracti64x4_epi64::<1>(less),
    );
    let quarter = x86::_mm_min_epu16(
        x86::_mm256_castsi256_si128(half),
        x86::_mm256_extracti128_si256::<1>(half),
    );
    let least = x86::_mm_cvtsi128_si32(x86::_mm_minpos_epu16(quarter)) as u16;
    least.saturating_add(1)
}

/// [`Engine::join`](super::super::micro::Engine::join) of f32 whose values are those of bf16.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. `count` numbers must be readable at `from`, writable at
/// `to`. They may be the same if `apart` is positive.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::contract) unsafe fn join_pairs(
    from: *const u32,
    to: *mut u32,
    count: usize,
    apart: isize,
) -> u16 {
    let mut least = x86::_mm512_setzero_si512();
    let first = (-apart).max(0) as usize;
    let end = count - apart.max(0) as usize;
    for i in (first..end.saturating_sub(x86::__m512i::LANES - 1)).step_by(x86::__m512i::LANES) {
        let at = from.wrapping_add(i);
        // SAFETY: the caller's contract; in place, what is read has not been overwritten.
        let step = unsafe { x86::_mm512_loadu_si512(at.cast()) };
        // SAFETY: as above.
        let after = unsafe { x86::_mm512_loadu_si512(at.wrapping_offset(apart).cast()) };
        let both = pair(step, after);
        least = larger_negated(least, both);
        // SAFETY: as above.
        unsafe { x86::_mm512_storeu_si512(to.wrapping_add(i).cast(), both) };
    }
    least_magnitude(least)
}

/// Transposes sixteen by sixteen numbers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::contract) fn transpose(r: [x86::__m512i; 16]) -> [x86::__m512i; 16] {
    let mut t = r;
    for i in 0..8 {
        t[2 * i] = x86::_mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = x86::_mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    let mut u = t;
    for i in [0, 4, 8, 12] {
        u[i] = x86::_mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = x86::_mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = x86::_mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = x86::_mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // Quarter `l` of `u[4 * i + c]` holds column `4 * l + c` of rows `4 * i` to `4 * i + 3`.
    let mut out = u;
    for c in 0..4 {
        let even = |i: usize| x86::_mm512_shuffle_i32x4::<0x88>(u[i + c], u[i + 4 + c]);
        let odd = |i: usize| x86::_mm512_shuffle_i32x4::<0xdd>(u[i + c], u[i + 4 + c]);
        out[c] = x86::_mm512_shuffle_i32x4::<0x88>(even(0), even(8));
        out[4 + c] = x86::_mm512_shuffle_i32x4::<0x88>(odd(0), odd(8));
        out[8 + c] = x86::_mm512_shuffle_i32x4::<0xdd>(even(0), even(8));
        out[12 + c] = x86::_mm512_shuffle_i32x4::<0xdd>(odd(0), odd(8));
    }
    out
}
