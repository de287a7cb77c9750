//! Microkernels for AVX2, FMA and F16C: 16 registers of eight f32.

use super::super::pack::Packing;
use super::super::pack::avx2::{Eight, in_quarters, masked, parities};
use super::super::pack::routines::IntoF32;
use super::super::pack::vectors::Element;
use super::cell::{Bf16, Cell, F16, Same, Sight, There};
use super::engine::{Elementwise, Engine};
use super::vector::{Interleave, Microkernel, Vector};
use crate::routines::avx2_nearest_bf16 as nearest_bf16;
use core::arch::x86_64 as x86;
use tracecast_ir::DType;

macro_rules! vector {
    ($ty:ident, $num:ty, $features:literal, $set:ident, $fma:ident, $add:ident $(, $round:ident)?) => {
        impl Vector for x86::$ty {
            type Num = $num;
            #[target_feature(enable = $features)]
            unsafe fn run<K: Microkernel>(kernel: K) -> K::Out {
                // SAFETY: the caller's contract.
                unsafe { kernel.run() }
            }
            #[inline(always)]
            fn splat(x: $num) -> Self {
                // SAFETY: used by the engines of this CPU only, whose callers have checked for it.
                unsafe { x86::$set(x) }
            }
            #[inline(always)]
            fn fma(self, b: Self, acc: Self) -> Self {
                // SAFETY: as for `splat`.
                unsafe { x86::$fma(self, b, acc) }
            }
            #[inline(always)]
            fn add(self, o: Self) -> Self {
                // SAFETY: as for `splat`.
                unsafe { x86::$add(self, o) }
            }
            $(
                #[inline(always)]
                unsafe fn round(self, p: *mut u16) {
                    // SAFETY: as for `splat`, and the caller vouches for the memory.
                    unsafe { $round(self, p) }
                }
            )?
        }
    };
}

pub(super) use vector;

vector!(__m256, f32, "avx2,fma,f16c", _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps, round);
vector!(__m256d, f64, "avx2,fma", _mm256_set1_pd, _mm256_fmadd_pd, _mm256_add_pd);

/// Stores the nearest bf16.
///
/// # Safety
///
/// `p` must be writable for eight of them.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn round(x: x86::__m256, p: *mut u16) {
    let low = x86::_mm256_srli_epi32::<16>(nearest_bf16(x));
    let packed = x86::_mm256_packus_epi32(low, low);
    let packed = x86::_mm256_permute4x64_epi64::<0b1000>(packed);
    let packed = x86::_mm256_castsi256_si128(packed);
    // SAFETY: the caller's contract.
    unsafe { x86::_mm_storeu_si128(p.cast(), packed) };
}

impl Interleave for x86::__m256 {
    #[inline(always)]
    fn interleave(self, odd: Self) -> [Self; 2] {
        // SAFETY: the engines of this CPU alone have such vectors.
        unsafe { interleaved(self, odd) }
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn round_in_turn(self, odd: Self, to: *mut u8) {
        let both = bf16_in_turn(self, odd);
        // SAFETY: the caller vouches for the places of both vectors' sums.
        unsafe { x86::_mm256_storeu_si256(to.cast(), both) }
    }
}

/// Interleaves two vectors: the low half, then the high half.
#[inline]
#[target_feature(enable = "avx")]
fn interleaved(even: x86::__m256, odd: x86::__m256) -> [x86::__m256; 2] {
    let (low, high) = (x86::_mm256_unpacklo_ps(even, odd), x86::_mm256_unpackhi_ps(even, odd));
    let first = x86::_mm256_permute2f128_ps::<0x20>(low, high);
    [first, x86::_mm256_permute2f128_ps::<0x31>(low, high)]
}

/// The same of four f64 each.
#[inline]
#[target_feature(enable = "avx")]
fn interleaved_f64(even: x86::__m256d, odd: x86::__m256d) -> [x86::__m256d; 2] {
    let (low, high) = (x86::_mm256_unpacklo_pd(even, odd), x86::_mm256_unpackhi_pd(even, odd));
    let first = x86::_mm256_permute2f128_pd::<0x20>(low, high);
    [first, x86::_mm256_permute2f128_pd::<0x31>(low, high)]
}

/// Rounds sums of bf16 products to bf16 in their high halves. Their NaNs have low halves of zero.
#[inline]
#[target_feature(enable = "avx2")]
fn nearest_without_nan(sums: x86::__m256) -> x86::__m256i {
    let bits = x86::_mm256_castps_si256(sums);
    let odd = x86::_mm256_and_si256(x86::_mm256_srli_epi32::<16>(bits), x86::_mm256_set1_epi32(1));
    x86::_mm256_add_epi32(x86::_mm256_add_epi32(bits, x86::_mm256_set1_epi32(0x7fff)), odd)
}

/// Such sums interleaved and rounded.
#[inline]
#[target_feature(enable = "avx2")]
fn bf16_in_turn(even: x86::__m256, odd: x86::__m256) -> x86::__m256i {
    let even = x86::_mm256_srli_epi32::<16>(nearest_without_nan(even));
    x86::_mm256_blend_epi16::<0xaa>(even, nearest_without_nan(odd))
}

impl Interleave for x86::__m256d {
    #[inline(always)]
    fn interleave(self, odd: Self) -> [Self; 2] {
        // SAFETY: the engines of this CPU alone have such vectors.
        unsafe { interleaved_f64(self, odd) }
    }
}

impl Cell<x86::__m256> for Bf16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(p: *const u8, _: isize) -> x86::__m256 {
        // SAFETY: the caller vouches for eight elements.
        widened_eight(unsafe { x86::_mm_loadu_si128(p.cast()) })
    }
    /// Even columns, and odd ones.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load_two(p: *const u8, _: isize) -> [x86::__m256; 2] {
        // SAFETY: the caller vouches for sixteen elements.
        widened(unsafe { x86::_mm256_loadu_si256(p.cast()) })
    }
    #[inline(always)]
    fn in_order([even, odd]: [x86::__m256; 2]) -> [x86::__m256; 2] {
        even.interleave(odd)
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn round_two(two: [x86::__m256; 2], p: *mut u16) {
        let both = rounded(two);
        // SAFETY: the caller vouches for the places of sixteen sums.
        unsafe { x86::_mm256_storeu_si256(p.cast(), both) };
    }
}

/// Widens eight bf16 to f32.
#[inline]
#[target_feature(enable = "avx2")]
fn widened_eight(eight: x86::__m128i) -> x86::__m256 {
    x86::_mm256_castsi256_ps(x86::_mm256_slli_epi32::<16>(x86::_mm256_cvtepu16_epi32(eight)))
}

/// Widens sixteen bf16 to f32, deinterleaved: even ones, and odd ones.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn widened(both: x86::__m256i) -> [x86::__m256; 2] {
    let odd = x86::_mm256_and_si256(both, x86::_mm256_set1_epi32(0xffff << 16));
    [x86::_mm256_slli_epi32::<16>(both), odd].map(|bits| x86::_mm256_castsi256_ps(bits))
}

/// Rounds to bf16 and interleaves: the inverse of [`widened`].
#[inline]
#[target_feature(enable = "avx2")]
fn rounded([even, odd]: [x86::__m256; 2]) -> x86::__m256i {
    let nan = x86::_mm256_cmp_ps::<{ x86::_CMP_UNORD_Q }>(even, odd);
    let [even, odd] = if x86::_mm256_movemask_ps(nan) == 0 {
        [nearest_without_nan(even), nearest_without_nan(odd)]
    } else {
        [nearest_bf16(even), nearest_bf16(odd)]
    };
    x86::_mm256_blend_epi16::<0b1010_1010>(x86::_mm256_srli_epi32::<16>(even), odd)
}

impl Cell<x86::__m256> for F16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "avx,f16c")]
    unsafe fn load(p: *const u8, _: isize) -> x86::__m256 {
        // SAFETY: the caller vouches for eight elements.
        x86::_mm256_cvtph_ps(unsafe { x86::_mm_loadu_si128(p.cast()) })
    }
}

impl Sight<x86::__m256> for Same {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn side_by_side(from: *const u8, there: There) -> x86::__m256 {
        // SAFETY: the caller vouches for the elements that are there.
        unsafe { masked(from, there.mask) }
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn apart<const TWO: bool>(
        [low, high]: [*const u8; 2],
        there: There,
    ) -> [x86::__m256; 2] {
        // SAFETY: the caller vouches for the elements that are there.
        let low = unsafe { masked(low, there.mask) };
        // SAFETY: as above.
        let high = unsafe { masked(high, there.mask >> 8) };
        let [even, odd] = parities(low, high);
        [in_quarters(even), in_quarters(odd)]
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn even<const TWO: bool>(
        from: [*const u8; 2],
        there: There,
        next: x86::__m256,
    ) -> x86::__m256 {
        // SAFETY: the caller vouches for the elements that are there.
        let first = unsafe { masked(from[0], there.mask & 1) };
        let order = x86::_mm256_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6);
        x86::_mm256_blend_ps::<1>(x86::_mm256_permutevar8x32_ps(next, order), first)
    }
}

impl Sight<x86::__m256> for Bf16 {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn side_by_side(from: *const u8, there: There) -> x86::__m256 {
        // SAFETY: the caller vouches for a row in bounds, of eight elements or more.
        widened_eight(unsafe { eight_by(from, there.by[0]) })
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn apart<const TWO: bool>(
        [low, high]: [*const u8; 2],
        there: There,
    ) -> [x86::__m256; 2] {
        if !TWO && there.mask & 0xffff == 0xffff {
            // SAFETY: the caller vouches for sixteen elements.
            return unsafe { Self::load_two(low, 0) };
        }
        // SAFETY: the caller vouches for a row in bounds, of eight elements or more.
        let low = unsafe { eight_by(low, there.by[0]) };
        // SAFETY: as above.
        let high = unsafe { eight_by(high, there.by[1]) };
        widened(x86::_mm256_set_m128i(high, low))
    }
}

/// Eight 16-bit elements, zeros out of bounds: loads those `by` elements later and shifts them.
///
/// # Safety
///
/// Eight elements must be readable there.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn eight_by(from: *const u8, by: isize) -> x86::__m128i {
    /// Shuffle indices of bytes, with indices that yield zero on both sides.
    static PLACES: [u8; 48] = {
        let mut places = [0x80; 48];
        let mut i = 0;
        while i < 16 {
            places[16 + i] = i as u8;
            i += 1;
        }
        places
    };
    // SAFETY: the caller vouches for eight elements.
    let there = unsafe { x86::_mm_loadu_si128(from.wrapping_offset(2 * by).cast()) };
    let places = PLACES.as_ptr().wrapping_offset(16 - 2 * by.clamp(-8, 8));
    // SAFETY: sixteen of the bytes.
    x86::_mm_shuffle_epi8(there, unsafe { x86::_mm_loadu_si128(places.cast()) })
}

impl Sight<x86::__m256d> for Same {}

/// f32 with AVX2 and FMA.
pub(in crate::contract) struct Avx2F32;

impl Engine for Avx2F32 {
    type Num = f32;
    type Vector = x86::__m256;
    type Singly = Self;
    type Careful = Self;
    type Bf16 = Bf16;
    type F16 = F16;
    const WIDTH: usize = 16;
    const ROWS: usize = 6;
    const FEW: usize = 3;
    const SPOTS: usize = 6;
    const ROUNDS: bool = true;
    fn reads(cell: DType) -> bool {
        matches!(cell, DType::F32 | DType::BF16 | DType::F16)
    }
    fn reads_fast(cell: DType) -> bool {
        matches!(cell, DType::F32 | DType::BF16)
    }
    fn packing(dtype: DType, round: Option<DType>) -> Option<Packing> {
        Self::of_dtype(dtype, round)
    }
}

impl IntoF32 for Avx2F32 {
    type Of<C: Element> = Eight<C>;
}

impl Elementwise for Avx2F32 {
    type Same = Same;
    const HAS_MANY: bool = false;
    const ALTERNATES_BF16: bool = true;
    const BF16_ROW: usize = 8;
}

/// f64 with AVX2 and FMA.
pub(in crate::contract) struct Avx2F64;

impl Engine for Avx2F64 {
    type Num = f64;
    type Vector = x86::__m256d;
    type Singly = Self;
    type Careful = Self;
    type Bf16 = Same;
    type F16 = Same;
    const WIDTH: usize = 8;
    const ROWS: usize = 6;
    const FEW: usize = 3;
    const SPOTS: usize = 6;
}

impl Elementwise for Avx2F64 {
    type Same = Same;
    const HAS_MANY: bool = false;
    const ALTERNATING: usize = 1;
}
