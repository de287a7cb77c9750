//! Microkernels for AVX-512: 32 registers of 16 f32.

use super::super::pack::Packing;
use super::super::pack::avx512::{One, even, load};
use super::super::pack::routines::IntoF32;
use super::super::pack::vectors::{Element, F32};
use super::avx2::vector;
use super::cell::{Bf16, Cell, F16, Same, Sight, There};
use super::engine::{Elementwise, Engine};
use super::vector::{Interleave, Microkernel, Vector};
use crate::routines::nearest_bf16;
use core::arch::x86_64 as x86;
use tracecast_ir::DType;

vector!(__m512, f32, "avx512f,avx512bw,avx512vl", _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps);
vector!(__m512d, f64, "avx512f", _mm512_set1_pd, _mm512_fmadd_pd, _mm512_add_pd);

impl Interleave for x86::__m512 {
    #[inline(always)]
    fn interleave(self, odd: Self) -> [Self; 2] {
        // SAFETY: the engines of this CPU alone have such vectors.
        unsafe { interleaved(self, odd) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn round_in_turn(self, odd: Self, to: *mut u8) {
        let (even, odd) = (x86::_mm512_srli_epi32::<16>(nearest_bf16(self)), nearest_bf16(odd));
        let both = x86::_mm512_mask_blend_epi16(0xaaaa_aaaa, even, odd);
        // SAFETY: the caller vouches for the places of both vectors' sums.
        unsafe { x86::_mm512_storeu_si512(to.cast(), both) }
    }
}

impl Interleave for x86::__m512d {
    #[inline(always)]
    fn interleave(self, odd: Self) -> [Self; 2] {
        // SAFETY: the engines of this CPU alone have such vectors.
        unsafe { interleaved_f64(self, odd) }
    }
}

/// Interleaves two vectors: the low half, then the high half.
#[inline]
#[target_feature(enable = "avx512f")]
fn interleaved(even: x86::__m512, odd: x86::__m512) -> [x86::__m512; 2] {
    let first = x86::_mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let last = x86::_mm512_add_epi32(first, x86::_mm512_set1_epi32(8));
    [first, last].map(|order| x86::_mm512_permutex2var_ps(even, order, odd))
}

/// The same of eight f64 each.
#[inline]
#[target_feature(enable = "avx512f")]
fn interleaved_f64(even: x86::__m512d, odd: x86::__m512d) -> [x86::__m512d; 2] {
    let first = x86::_mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    let last = x86::_mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    [first, last].map(|order| x86::_mm512_permutex2var_pd(even, order, odd))
}

impl<C: Element> Cell<x86::__m512> for C {
    const BYTES: usize = <C as Element>::BYTES;
    #[inline(always)]
    unsafe fn load(p: *const u8, _: isize) -> x86::__m512 {
        // SAFETY: the caller's contract; the vector's CPU has what `load` needs.
        unsafe { load::<C>(p, u16::MAX) }
    }
}

/// Read in place of an element out of bounds.
static ZERO: f32 = 0.0;

impl Sight<x86::__m512> for Same {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn side_by_side(from: *const u8, there: There) -> x86::__m512 {
        // SAFETY: the caller's contract.
        unsafe { load::<F32>(from, there.mask as u16) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn apart<const TWO: bool>(
        [low, high]: [*const u8; 2],
        there: There,
    ) -> [x86::__m512; 2] {
        // SAFETY: the caller's contract.
        let low = unsafe { load::<F32>(low, there.mask as u16) };
        // SAFETY: the caller's contract.
        let high = unsafe { load::<F32>(high, (there.mask >> 16) as u16) };
        let even = even();
        let odd = x86::_mm512_or_si512(even, x86::_mm512_set1_epi32(1));
        [even, odd].map(|order| x86::_mm512_permutex2var_ps(low, order, high))
    }
    /// Unaligned vectors cross cache lines, so all lanes but the first come from `next`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn even<const TWO: bool>(
        from: [*const u8; 2],
        there: There,
        next: x86::__m512,
    ) -> x86::__m512 {
        let order = x86::_mm512_set_epi32(14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0);
        let next = x86::_mm512_permutexvar_ps(order, next);
        let one = |half: usize| {
            let is_there = there.mask >> (16 * half) & 1 != 0;
            let from = if is_there { from[half].cast() } else { &raw const ZERO };
            // SAFETY: the caller's contract: an element that is there, or zero.
            unsafe { x86::_mm_load_ss(from) }
        };
        let even = x86::_mm512_mask_broadcastss_ps(next, 1, one(0));
        if !TWO {
            return even;
        }
        x86::_mm512_mask_broadcastss_ps(even, 1 << 8, one(1))
    }
}

impl Sight<x86::__m512> for Bf16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn side_by_side(from: *const u8, there: There) -> x86::__m512 {
        // SAFETY: the caller's contract.
        unsafe { load::<Bf16>(from, there.mask as u16) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn apart<const TWO: bool>(from: [*const u8; 2], there: There) -> [x86::__m512; 2] {
        let both = if !TWO {
            // SAFETY: the caller's contract.
            unsafe { x86::_mm512_maskz_loadu_epi16(there.mask, from[0].cast()) }
        } else {
            let mask = there.mask as u16;
            // SAFETY: the caller's contract.
            let low = unsafe { x86::_mm256_maskz_loadu_epi16(mask, from[0].cast()) };
            let mask = (there.mask >> 16) as u16;
            // SAFETY: the caller's contract.
            let high = unsafe { x86::_mm256_maskz_loadu_epi16(mask, from[1].cast()) };
            x86::_mm512_inserti64x4::<1>(x86::_mm512_castsi256_si512(low), high)
        };
        let odd = x86::_mm512_and_si512(both, x86::_mm512_set1_epi32(0xffff << 16));
        [x86::_mm512_slli_epi32::<16>(both), odd].map(|bits| x86::_mm512_castsi512_ps(bits))
    }
}

impl Sight<x86::__m512d> for Same {}

/// f32 with AVX-512F.
pub(in crate::contract) struct Avx512F32;

impl Engine for Avx512F32 {
    type Num = f32;
    type Vector = x86::__m512;
    type Singly = Self;
    type Careful = Self;
    type Bf16 = Bf16;
    type F16 = F16;
    const WIDTH: usize = 32;
    const ROWS: usize = 14;
    const FEW: usize = 6;
    const SPOTS: usize = 9;
    const SPOTS_ALONE: usize = 16;
    fn reads(cell: DType) -> bool {
        matches!(cell, DType::F32 | DType::BF16 | DType::F16)
    }
    fn packing(dtype: DType, round: Option<DType>) -> Option<Packing> {
        Self::of_dtype(dtype, round)
    }
}

impl IntoF32 for Avx512F32 {
    type Of<C: Element> = One<C>;
}

impl Elementwise for Avx512F32 {
    type Same = Same;
    const ALTERNATES_BF16: bool = true;
}

/// f64 with AVX-512F.
pub(in crate::contract) struct Avx512F64;

impl Engine for Avx512F64 {
    type Num = f64;
    type Vector = x86::__m512d;
    type Singly = Self;
    type Careful = Self;
    type Bf16 = Same;
    type F16 = Same;
    const WIDTH: usize = 16;
    const ROWS: usize = 14;
    const FEW: usize = 6;
    const SPOTS: usize = 9;
}

impl Elementwise for Avx512F64 {
    type Same = Same;
    const ALTERNATING: usize = 1;
}
