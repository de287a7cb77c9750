//! AVX-512 loads of sixteen packed numbers from floats in memory: as f32, or as pairs of bf16.
//!
//! A pair has the earlier step in the high half of 32 bits, and the later one in the low half.

use super::cells::{Bf16, Cells, F16, F32, RoundedToBf16, RoundedToF16, Sixteen};
use crate::routines::nearest_bf16;
use core::arch::x86_64 as x86;
use std::marker::PhantomData;

macro_rules! cells {
    ($ty:ident, $near:ident, $evens:ident) => {
        impl Cells for $ty {
            #[inline(always)]
            fn sixteen(bits: x86::__m512i) -> x86::__m512 {
                // SAFETY: used on CPUs with AVX-512 only.
                unsafe { $near(bits) }
            }
            #[inline(always)]
            fn evens(bits: x86::__m512i) -> x86::__m512 {
                // SAFETY: as for `sixteen`.
                unsafe { $evens(bits) }
            }
        }
    };
}

cells!(F32, as_f32, as_f32);
cells!(Bf16, widen_bf16, even_bf16);
cells!(F16, widen_f16, even_f16);
cells!(RoundedToBf16, round_to_bf16, round_to_bf16);
cells!(RoundedToF16, round_to_f16, round_to_f16);

#[inline]
#[target_feature(enable = "avx512f")]
fn as_f32(bits: x86::__m512i) -> x86::__m512 {
    x86::_mm512_castsi512_ps(bits)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen_bf16(bits: x86::__m512i) -> x86::__m512 {
    even_bf16(x86::_mm512_cvtepu16_epi32(x86::_mm512_castsi512_si256(bits)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn even_bf16(bits: x86::__m512i) -> x86::__m512 {
    x86::_mm512_castsi512_ps(x86::_mm512_slli_epi32::<16>(bits))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen_f16(bits: x86::__m512i) -> x86::__m512 {
    x86::_mm512_cvtph_ps(x86::_mm512_castsi512_si256(bits))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn even_f16(bits: x86::__m512i) -> x86::__m512 {
    x86::_mm512_cvtph_ps(x86::_mm512_cvtepi32_epi16(bits))
}

/// The nearest f16, ties to even.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_to_f16(bits: x86::__m512i) -> x86::__m512 {
    let x = x86::_mm512_castsi512_ps(bits);
    x86::_mm512_cvtph_ps(x86::_mm512_cvtps_ph::<{ x86::_MM_FROUND_TO_NEAREST_INT }>(x))
}

/// The nearest bf16, ties to even.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_to_bf16(bits: x86::__m512i) -> x86::__m512 {
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
pub(in crate::contract) unsafe fn load<C: Cells>(p: *const u8, mask: u16) -> x86::__m512 {
    if C::BYTES == 4 {
        // SAFETY: the caller's contract.
        C::sixteen(unsafe { x86::_mm512_maskz_loadu_epi32(mask, p.cast()) })
    } else {
        // SAFETY: the caller's contract.
        let half = unsafe { x86::_mm256_maskz_loadu_epi16(mask, p.cast()) };
        C::sixteen(x86::_mm512_castsi256_si512(half))
    }
}

/// The same at stride two. Elements in between are not read.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL, and `p` be readable for the elements that the mask names.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load_apart<C: Cells>(p: *const u8, mask: u16) -> x86::__m512 {
    let mask = spread(mask);
    if C::BYTES == 2 {
        // SAFETY: the caller's contract.
        return C::evens(unsafe { x86::_mm512_maskz_loadu_epi16(mask, p.cast()) });
    }
    // SAFETY: the caller's contract.
    let x = unsafe { x86::_mm512_maskz_loadu_epi32(mask as u16, p.cast()) };
    let rest = p.wrapping_add(64).cast();
    // SAFETY: the caller's contract.
    let y = unsafe { x86::_mm512_maskz_loadu_epi32((mask >> 16) as u16, rest) };
    C::sixteen(x86::_mm512_permutex2var_epi32(x, even(), y))
}

/// Every second one of two vectors' lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::contract) fn even() -> x86::__m512i {
    x86::_mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0)
}

/// Spreads a mask to every second bit.
#[inline(always)]
pub(super) fn spread(mask: u16) -> u32 {
    if mask == u16::MAX {
        return 0x5555_5555;
    }
    let mut bits = u32::from(mask);
    bits = (bits | bits << 8) & 0x00ff_00ff;
    bits = (bits | bits << 4) & 0x0f0f_0f0f;
    bits = (bits | bits << 2) & 0x3333_3333;
    (bits | bits << 1) & 0x5555_5555
}

/// Loads of sixteen packed numbers.
pub(in crate::contract) trait Numbers {
    /// Of one element in memory.
    const BYTES: usize;
    /// Steps of `k` in a number.
    const STEPS: usize;
    /// The first `count` steps of a line; zeros after them.
    ///
    /// # Safety
    ///
    /// `p` must be readable for `count` elements, at most `16 * STEPS`.
    unsafe fn along(p: *const u8, count: usize) -> x86::__m512i;
    /// One number of each line, of stride `S`, one or two: from a step and from the one after it.
    ///
    /// # Safety
    ///
    /// `p` must be readable where `mask` is set, and for pairs `after` where `mask_after` is.
    unsafe fn across<const S: usize>(
        p: *const u8,
        mask: u16,
        after: *const u8,
        mask_after: u16,
    ) -> x86::__m512i;
    /// Least magnitudes so far, minus one, in 16-bit lanes: zero is the largest. For pairs only.
    fn smaller(least: x86::__m512i, numbers: x86::__m512i) -> x86::__m512i;
}

/// One element each.
pub(in crate::contract) struct One<C>(PhantomData<C>);
/// Pairs of elements that are bf16 after they are loaded.
pub(in crate::contract) struct Two<C>(PhantomData<C>);

impl<C: Cells> Numbers for One<C> {
    const BYTES: usize = C::BYTES;
    const STEPS: usize = 1;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn along(p: *const u8, count: usize) -> x86::__m512i {
        // SAFETY: the caller's contract.
        x86::_mm512_castps_si512(unsafe { load::<C>(p, first(count) as u16) })
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn across<const S: usize>(
        p: *const u8,
        mask: u16,
        _: *const u8,
        _: u16,
    ) -> x86::__m512i {
        // SAFETY: the caller's contract.
        x86::_mm512_castps_si512(unsafe { strided::<C, S>(p, mask) })
    }
    #[inline(always)]
    fn smaller(least: x86::__m512i, _: x86::__m512i) -> x86::__m512i {
        least
    }
}

impl<C: Cells> Numbers for Two<C> {
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
        let x = x86::_mm512_castps_si512(unsafe { load::<C>(p, mask as u16) });
        let rest = p.wrapping_add(16 * C::BYTES);
        // SAFETY: the caller's contract.
        let y = x86::_mm512_castps_si512(unsafe { load::<C>(rest, (mask >> 16) as u16) });
        let even = even();
        let odd = x86::_mm512_or_si512(even, x86::_mm512_set1_epi32(1));
        let after = x86::_mm512_permutex2var_epi32(x, odd, y);
        pair(x86::_mm512_permutex2var_epi32(x, even, y), after)
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn across<const S: usize>(
        p: *const u8,
        mask: u16,
        after: *const u8,
        mask_after: u16,
    ) -> x86::__m512i {
        // SAFETY: the caller's contract.
        let x = unsafe { strided::<C, S>(p, mask) };
        // SAFETY: the caller's contract.
        let y = unsafe { strided::<C, S>(after, mask_after) };
        pair(x86::_mm512_castps_si512(x), x86::_mm512_castps_si512(y))
    }
    #[inline(always)]
    fn smaller(least: x86::__m512i, numbers: x86::__m512i) -> x86::__m512i {
        // SAFETY: packing is called on CPUs with AVX-512BW only.
        unsafe { smaller(least, numbers) }
    }
}

impl<N: Numbers> Sixteen for N {
    type Vector = x86::__m512i;
    const BYTES: usize = N::BYTES;
    const STEPS: usize = N::STEPS;
    const VECTORS: usize = 2;
    #[inline(always)]
    fn empty() -> [x86::__m512i; 2] {
        // SAFETY: packing is called on CPUs with AVX-512 only.
        [0, -1].map(|all| unsafe { x86::_mm512_set1_epi16(all) })
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn add<const S: usize>(
        others: x86::__m512i,
        [p, after]: [*const u8; 2],
        [mask, mask_after]: [u16; 2],
    ) -> x86::__m512i {
        // SAFETY: the caller's contract.
        x86::_mm512_or_si512(others, unsafe { N::across::<S>(p, mask, after, mask_after) })
    }
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(numbers: x86::__m512i, to: *mut u32) {
        // SAFETY: the caller's contract.
        unsafe { x86::_mm512_storeu_si512(to.cast(), numbers) }
    }
    #[inline(always)]
    fn smaller(least: x86::__m512i, numbers: x86::__m512i) -> x86::__m512i {
        <N as Numbers>::smaller(least, numbers)
    }
    #[inline(always)]
    fn least(least: x86::__m512i) -> u16 {
        // SAFETY: as for `empty`.
        if N::STEPS == 2 { unsafe { least_of(least) } } else { u16::MAX }
    }
}

/// Loads elements of stride `S`, one or two, whose bit of the mask is set.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL, and `p` be readable for the elements that the mask names.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn strided<C: Cells, const S: usize>(p: *const u8, mask: u16) -> x86::__m512 {
    if S == 1 {
        // SAFETY: the caller's contract.
        unsafe { load::<C>(p, mask) }
    } else {
        // SAFETY: the caller's contract.
        unsafe { load_apart::<C>(p, mask) }
    }
}

/// A mask of the lowest `count` bits.
#[inline(always)]
pub(in crate::contract) fn first(count: usize) -> u64 {
    (1 << count) - 1
}

/// Packs the high halves of two steps into a pair.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::contract) fn pair(step: x86::__m512i, after: x86::__m512i) -> x86::__m512i {
    x86::_mm512_or_si512(step, x86::_mm512_srli_epi32::<16>(after))
}

/// See [`Numbers::smaller`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::contract) fn smaller(least: x86::__m512i, pairs: x86::__m512i) -> x86::__m512i {
    let magnitude = x86::_mm512_and_si512(pairs, x86::_mm512_set1_epi16(0x7fff));
    let less = x86::_mm512_sub_epi16(magnitude, x86::_mm512_set1_epi16(1));
    x86::_mm512_min_epu16(least, less)
}

/// The minimum of the lanes that [`smaller`] left, plus one: the least magnitude.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::contract) fn least_of(least: x86::__m512i) -> u16 {
    let mut lanes = [0u16; 32];
    // SAFETY: room for 32 lanes.
    unsafe { x86::_mm512_storeu_si512(lanes.as_mut_ptr().cast(), least) };
    lanes.into_iter().fold(u16::MAX, u16::min).saturating_add(1)
}
