//! Numbers that are packed with AVX2 and F16C: eight f32.

use super::vectors::{Element, Lanes, Numbers, first, spread};
use crate::routines::{avx2_nearest_bf16 as nearest_bf16, transpose};
use core::arch::x86_64 as x86;
use std::marker::PhantomData;

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn as_f32(bits: x86::__m256i) -> x86::__m256 {
    x86::_mm256_castsi256_ps(bits)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn widen_bf16(bits: x86::__m256i) -> x86::__m256 {
    let wide = x86::_mm256_cvtepu16_epi32(x86::_mm256_castsi256_si128(bits));
    x86::_mm256_castsi256_ps(x86::_mm256_slli_epi32::<16>(wide))
}

#[inline]
#[target_feature(enable = "avx,f16c")]
pub(super) fn widen_f16(bits: x86::__m256i) -> x86::__m256 {
    x86::_mm256_cvtph_ps(x86::_mm256_castsi256_si128(bits))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn round_to_bf16(bits: x86::__m256i) -> x86::__m256 {
    let high = x86::_mm256_set1_epi32(0xffff << 16);
    let nearest = nearest_bf16(x86::_mm256_castsi256_ps(bits));
    x86::_mm256_castsi256_ps(x86::_mm256_and_si256(nearest, high))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn round_to_f16(bits: x86::__m256i) -> x86::__m256 {
    let x = x86::_mm256_castsi256_ps(bits);
    x86::_mm256_cvtph_ps(x86::_mm256_cvtps_ph::<{ x86::_MM_FROUND_TO_NEAREST_INT }>(x))
}

impl Lanes for x86::__m256 {
    const LANES: usize = 8;
    type Square = [x86::__m256; 8];
    #[inline(always)]
    fn square() -> [x86::__m256; 8] {
        [Self::zero(); 8]
    }
    #[inline(always)]
    fn zero() -> x86::__m256 {
        // SAFETY: the trait is for CPUs with AVX2.
        unsafe { x86::_mm256_setzero_ps() }
    }
    #[inline(always)]
    fn or(self, other: x86::__m256) -> x86::__m256 {
        // SAFETY: as for `zero`.
        unsafe { x86::_mm256_or_ps(self, other) }
    }
    #[inline(always)]
    fn transposed(square: [x86::__m256; 8]) -> [x86::__m256; 8] {
        // SAFETY: as for `zero`.
        unsafe { transpose(square) }
    }
    /// AMD's masked stores are slow.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store(self, to: *mut u32, mask: u16) {
        let to = to.cast::<f32>();
        if mask == 0xff {
            // SAFETY: the caller's contract.
            return unsafe { x86::_mm256_storeu_ps(to, self) };
        }
        let mut numbers = [0f32; 8];
        // SAFETY: eight numbers.
        unsafe { x86::_mm256_storeu_ps(numbers.as_mut_ptr(), self) };
        for (lane, number) in numbers.into_iter().enumerate() {
            if mask >> lane & 1 == 1 {
                // SAFETY: the caller's contract.
                unsafe { to.wrapping_add(lane).write(number) };
            }
        }
    }
}

/// Eight elements as f32.
pub(in crate::contract) struct Eight<C>(PhantomData<C>);

impl<C: Element> Numbers for Eight<C> {
    type Vector = x86::__m256;
    const BYTES: usize = C::BYTES;
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn along(p: *const u8, count: usize) -> x86::__m256 {
        // SAFETY: the caller's contract.
        unsafe { some::<C, 1>(p, first(count) as u8) }
    }
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn across<const S: usize>([p, _]: [*const u8; 2], masks: [u16; 2]) -> x86::__m256 {
        // SAFETY: the caller's contract.
        unsafe { some::<C, S>(p, masks[0] as u8) }
    }
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn within<const S: usize>([p, _]: [*const u8; 2], masks: [u16; 2]) -> x86::__m256 {
        let named = x86::_mm256_castsi256_ps(lanes_of(u32::from(masks[0])));
        // SAFETY: the caller's contract.
        x86::_mm256_and_ps(named, unsafe { eight::<C, S>(p) })
    }
}

/// Expands a bit mask to a lane mask.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes_of(mask: u32) -> x86::__m256i {
    let bits = x86::_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let named = x86::_mm256_and_si256(x86::_mm256_set1_epi32(mask as i32), bits);
    x86::_mm256_cmpeq_epi32(named, bits)
}

/// Loads eight numbers, zeros where the mask has no bit.
///
/// # Safety
///
/// `from` must be readable for those that it names.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::contract) unsafe fn masked(from: *const u8, mask: u32) -> x86::__m256 {
    let lanes = lanes_of(mask);
    // SAFETY: the caller vouches for the numbers that the mask names; no others are read.
    unsafe { x86::_mm256_maskload_ps(from.cast(), lanes) }
}

/// Deinterleaves two vectors by halves: [`in_quarters`] restores order.
#[inline]
#[target_feature(enable = "avx")]
pub(in crate::contract) fn parities(low: x86::__m256, high: x86::__m256) -> [x86::__m256; 2] {
    [x86::_mm256_shuffle_ps::<0x88>(low, high), x86::_mm256_shuffle_ps::<0xdd>(low, high)]
}

/// Exchanges the middle quarters: shuffles of halves leave them in each other's place.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::contract) fn in_quarters(numbers: x86::__m256) -> x86::__m256 {
    let pairs = x86::_mm256_permute4x64_pd::<0xd8>(x86::_mm256_castps_pd(numbers));
    x86::_mm256_castpd_ps(pairs)
}

/// Loads the elements of stride `S` whose bit is set, zeros elsewhere.
///
/// # Safety
///
/// They must be readable, with those in between, and the CPU have AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn some<C: Element, const S: usize>(p: *const u8, lanes: u8) -> x86::__m256 {
    let bits = match lanes {
        0 => return x86::_mm256_setzero_ps(),
        // SAFETY: all eight are there.
        u8::MAX => return unsafe { eight::<C, S>(p) },
        // SAFETY: the caller's contract.
        _ if C::BYTES == 4 && S == 1 => unsafe { masked(p, u32::from(lanes)) },
        _ if C::BYTES == 4 => {
            let named = spread(u16::from(lanes));
            // SAFETY: the caller's contract.
            let low = unsafe { masked(p, named & 0xff) };
            // SAFETY: as above.
            let high = unsafe { masked(p.wrapping_add(32), named >> 8) };
            let [even, _] = parities(low, high);
            in_quarters(even)
        }
        _ => {
            let mut all = [0u16; 16];
            for lane in (0..8).filter(|lane| lanes >> lane & 1 == 1) {
                // SAFETY: an element that is named.
                all[lane] = unsafe { p.cast::<u16>().wrapping_add(lane * S).read_unaligned() };
            }
            // SAFETY: sixteen elements.
            unsafe { x86::_mm256_loadu_ps(all.as_ptr().cast()) }
        }
    };
    C::eight(x86::_mm256_castps_si256(bits))
}

/// Loads eight elements of stride `S`, one or two.
///
/// # Safety
///
/// They must be readable, with those in between, and the CPU have AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn eight<C: Element, const S: usize>(p: *const u8) -> x86::__m256 {
    // SAFETY: the caller's contract.
    let low = unsafe { load::<C>(p) };
    if S == 1 {
        return low;
    }
    // From the last of the eight elements that `low` has on: nothing behind the fifteenth is read.
    // SAFETY: the caller's contract.
    let high = unsafe { load::<C>(p.wrapping_add(7 * C::BYTES)) };
    in_quarters(x86::_mm256_shuffle_ps::<0b11_01_10_00>(low, high))
}

/// Loads eight contiguous elements.
///
/// # Safety
///
/// `p` must be readable for eight elements, and the CPU must have AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load<C: Element>(p: *const u8) -> x86::__m256 {
    if C::BYTES == 4 {
        // SAFETY: the caller's contract.
        C::eight(unsafe { x86::_mm256_loadu_si256(p.cast()) })
    } else {
        // SAFETY: the caller's contract.
        C::eight(x86::_mm256_castsi128_si256(unsafe { x86::_mm_loadu_si128(p.cast()) }))
    }
}
