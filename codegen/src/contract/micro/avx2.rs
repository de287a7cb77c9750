//! Microkernels for AVX2, FMA and F16C: 16 registers of eight f32.

use super::super::pack::x86::{pack_f32, pack_line_f32};
use super::super::pack::{
    Alternate, Elements, Lines, Rows, WindowRows, alternate, apart, eights, window_rows,
};
use super::super::windows::{Runs, Seen};
use super::alternating::{Alternating, Interleave, alternating};
use super::field::{Field, field};
use super::lanes::{Lanes, lanes};
use super::line::{Line, line};
use super::spots::{Spots, spots};
use super::sweep::{Sight, Sweep, There, sweep};
use super::taps::{Taps, taps};
use super::{Bf16, Cell, Engine, F16, Same, Strip, Vector, product, sizes};
use crate::routines::avx2_nearest_bf16 as nearest_bf16;
use core::arch::x86_64 as x86;
use std::ops::Range;
use tracecast_ir::DType;

macro_rules! vector {
    ($ty:ident, $num:ty, $lanes:literal, $set:ident, $load:ident, $store:ident, $fma:ident, $add:ident $(, $round:ident)?) => {
        impl Vector for x86::$ty {
            type Num = $num;
            const LANES: usize = $lanes;
            #[inline(always)]
            fn splat(x: $num) -> Self {
                // SAFETY: used by the engines of this CPU only, whose callers have checked for it.
                unsafe { x86::$set(x) }
            }
            #[inline(always)]
            unsafe fn load(p: *const $num) -> Self {
                // SAFETY: as for `splat`, and the caller vouches for the memory.
                unsafe { x86::$load(p) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $num) {
                // SAFETY: as for `load`.
                unsafe { x86::$store(p, self) }
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
                    // SAFETY: as for `load`.
                    unsafe { $round(self, p) }
                }
            )?
        }
    };
}

pub(super) use vector;

vector!(
    __m256,
    f32,
    8,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps,
    round
);
vector!(
    __m256d,
    f64,
    4,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd
);

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
        // SAFETY: the CPU has AVX, as for all of this module.
        let low = unsafe { x86::_mm256_unpacklo_ps(self, odd) };
        // SAFETY: as above.
        let high = unsafe { x86::_mm256_unpackhi_ps(self, odd) };
        // SAFETY: as above.
        let first = unsafe { x86::_mm256_permute2f128_ps::<0x20>(low, high) };
        // SAFETY: as above.
        let last = unsafe { x86::_mm256_permute2f128_ps::<0x31>(low, high) };
        [first, last]
    }
    #[inline(always)]
    unsafe fn round_in_turn(self, odd: Self, to: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { x86::_mm256_storeu_si256(to.cast(), bf16_in_turn(self, odd)) }
    }
}

/// Rounds sums of bf16 products to bf16 in their high halves. Their NaNs have low halves of zero.
#[inline(always)]
pub(super) fn nearest_without_nan(sums: x86::__m256) -> x86::__m256i {
    // SAFETY: the CPU has AVX2, as for all of this module.
    let bits = unsafe { x86::_mm256_castps_si256(sums) };
    // SAFETY: as above.
    let high = unsafe { x86::_mm256_srli_epi32::<16>(bits) };
    // SAFETY: as above.
    let one = unsafe { x86::_mm256_set1_epi32(1) };
    // SAFETY: as above.
    let odd = unsafe { x86::_mm256_and_si256(high, one) };
    // SAFETY: as above.
    let half = unsafe { x86::_mm256_set1_epi32(0x7fff) };
    // SAFETY: as above.
    let more = unsafe { x86::_mm256_add_epi32(bits, half) };
    // SAFETY: as above.
    unsafe { x86::_mm256_add_epi32(more, odd) }
}

/// Such sums interleaved and rounded.
#[inline(always)]
pub(super) fn bf16_in_turn(even: x86::__m256, odd: x86::__m256) -> x86::__m256i {
    // SAFETY: as above.
    let even = unsafe { x86::_mm256_srli_epi32::<16>(nearest_without_nan(even)) };
    // SAFETY: as above.
    unsafe { x86::_mm256_blend_epi16::<0xaa>(even, nearest_without_nan(odd)) }
}

impl Interleave for x86::__m256d {
    #[inline(always)]
    fn interleave(self, odd: Self) -> [Self; 2] {
        // SAFETY: as above.
        let low = unsafe { x86::_mm256_unpacklo_pd(self, odd) };
        // SAFETY: as above.
        let high = unsafe { x86::_mm256_unpackhi_pd(self, odd) };
        // SAFETY: as above.
        let first = unsafe { x86::_mm256_permute2f128_pd::<0x20>(low, high) };
        // SAFETY: as above.
        let last = unsafe { x86::_mm256_permute2f128_pd::<0x31>(low, high) };
        [first, last]
    }
}

impl Cell<x86::__m256> for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(p: *const u8, _: isize) -> x86::__m256 {
        // SAFETY: the caller vouches for eight elements.
        let x = unsafe { x86::_mm_loadu_si128(p.cast()) };
        // SAFETY: the CPU has AVX2, as for all of this module.
        let x = unsafe { x86::_mm256_cvtepu16_epi32(x) };
        // SAFETY: as above.
        let x = unsafe { x86::_mm256_slli_epi32::<16>(x) };
        // SAFETY: as above.
        unsafe { x86::_mm256_castsi256_ps(x) }
    }
    /// Even columns, and odd ones.
    #[inline(always)]
    unsafe fn load_two(p: *const u8, _: isize) -> [x86::__m256; 2] {
        // SAFETY: the caller vouches for sixteen elements.
        let both = unsafe { x86::_mm256_loadu_si256(p.cast()) };
        // SAFETY: the CPU has AVX2, as for all of this module.
        unsafe { widened(both) }
    }
    #[inline(always)]
    fn in_order([even, odd]: [x86::__m256; 2]) -> [x86::__m256; 2] {
        even.interleave(odd)
    }
    #[inline(always)]
    unsafe fn round_two(two: [x86::__m256; 2], p: *mut u16) {
        // SAFETY: the CPU has AVX2, as for all of this module.
        let both = unsafe { rounded(two) };
        // SAFETY: the caller's contract.
        unsafe { x86::_mm256_storeu_si256(p.cast(), both) };
    }
}

/// Widens sixteen bf16 to f32, deinterleaved: even ones, and odd ones.
#[inline]
#[target_feature(enable = "avx2")]
fn widened(both: x86::__m256i) -> [x86::__m256; 2] {
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
    #[inline(always)]
    unsafe fn load(p: *const u8, _: isize) -> x86::__m256 {
        // SAFETY: the caller vouches for eight elements.
        let x = unsafe { x86::_mm_loadu_si128(p.cast()) };
        // SAFETY: the CPU has F16C, as for all of this module.
        unsafe { x86::_mm256_cvtph_ps(x) }
    }
}

/// Expands a bit mask to a lane mask.
#[inline(always)]
fn lanes_of(mask: u32) -> x86::__m256i {
    // SAFETY: the CPU has AVX2, as for all of this module.
    let bits = unsafe { x86::_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128) };
    // SAFETY: as above.
    let mask = unsafe { x86::_mm256_set1_epi32(mask as i32) };
    // SAFETY: as above.
    let named = unsafe { x86::_mm256_and_si256(mask, bits) };
    // SAFETY: as above.
    unsafe { x86::_mm256_cmpeq_epi32(named, bits) }
}

/// Loads eight numbers, zeros where the mask has no bit.
///
/// # Safety
///
/// `from` must be readable for those that it names.
#[inline(always)]
unsafe fn some(from: *const u8, mask: u32) -> x86::__m256 {
    // SAFETY: the caller's contract; the CPU has AVX.
    unsafe { x86::_mm256_maskload_ps(from.cast(), lanes_of(mask)) }
}

impl Sight<x86::__m256> for Same {
    #[inline(always)]
    unsafe fn side_by_side(from: *const u8, there: There) -> x86::__m256 {
        // SAFETY: the caller's contract.
        unsafe { some(from, there.mask) }
    }
    #[inline(always)]
    unsafe fn apart(from: *const u8, there: There) -> [x86::__m256; 2] {
        // SAFETY: the caller's contract.
        let low = unsafe { some(from, there.mask) };
        // SAFETY: the caller's contract.
        let high = unsafe { some(from.wrapping_add(32), there.mask >> 8) };
        // SAFETY: the CPU has AVX2, as for all of this module.
        let even = unsafe { x86::_mm256_shuffle_ps::<0x88>(low, high) };
        // SAFETY: as above.
        let odd = unsafe { x86::_mm256_shuffle_ps::<0xdd>(low, high) };
        [even, odd].map(|of_halves| {
            // SAFETY: as above.
            let pairs = unsafe { x86::_mm256_castps_pd(of_halves) };
            // SAFETY: as above.
            let pairs = unsafe { x86::_mm256_permute4x64_pd::<0xd8>(pairs) };
            // SAFETY: as above.
            unsafe { x86::_mm256_castpd_ps(pairs) }
        })
    }
    #[inline(always)]
    unsafe fn even(from: *const u8, there: There, next: x86::__m256) -> x86::__m256 {
        // SAFETY: the caller's contract.
        let first = unsafe { some(from, there.mask & 1) };
        // SAFETY: the CPU has AVX2, as for all of this module.
        let order = unsafe { x86::_mm256_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6) };
        // SAFETY: as above.
        let next = unsafe { x86::_mm256_permutevar8x32_ps(next, order) };
        // SAFETY: as above.
        unsafe { x86::_mm256_blend_ps::<1>(next, first) }
    }
}

impl Sight<x86::__m256> for Bf16 {
    #[inline(always)]
    unsafe fn side_by_side(from: *const u8, there: There) -> x86::__m256 {
        // SAFETY: the caller's contract.
        let eight = unsafe { eight_by(from, there.by[0]) };
        // SAFETY: the CPU has AVX2, as for all of this module.
        let x = unsafe { x86::_mm256_cvtepu16_epi32(eight) };
        // SAFETY: as above.
        let x = unsafe { x86::_mm256_slli_epi32::<16>(x) };
        // SAFETY: as above.
        unsafe { x86::_mm256_castsi256_ps(x) }
    }
    #[inline(always)]
    unsafe fn apart(from: *const u8, there: There) -> [x86::__m256; 2] {
        // SAFETY: the caller's contract.
        let low = unsafe { eight_by(from, there.by[0]) };
        // SAFETY: the caller's contract.
        let high = unsafe { eight_by(from.wrapping_add(16), there.by[1]) };
        // SAFETY: the CPU has AVX2, as for all of this module.
        let both = unsafe { x86::_mm256_set_m128i(high, low) };
        // SAFETY: as above.
        unsafe { widened(both) }
    }
}

/// Eight 16-bit elements, zeros out of bounds: loads those `by` elements later and shifts them.
///
/// # Safety
///
/// Eight elements must be readable there.
#[inline(always)]
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
    // SAFETY: the caller's contract.
    let there = unsafe { x86::_mm_loadu_si128(from.wrapping_offset(2 * by).cast()) };
    let places = PLACES.as_ptr().wrapping_offset(16 - 2 * by.clamp(-8, 8));
    // SAFETY: sixteen of the bytes.
    let places = unsafe { x86::_mm_loadu_si128(places.cast()) };
    // SAFETY: the CPU has SSSE3, as it has AVX2.
    unsafe { x86::_mm_shuffle_epi8(there, places) }
}

impl Sight<x86::__m256d> for Same {}

/// f32 with AVX2 and FMA.
pub(in crate::contract) struct Avx2F32;

impl Engine for Avx2F32 {
    type Num = f32;
    type Singly = Self;
    const LANES: usize = 8;
    const WIDTH: usize = 16;
    const ROWS: usize = 6;
    const SPOTS: usize = 6;
    const LINE: usize = 14;
    const ALTERNATES_BF16: bool = true;
    const ROUNDS: bool = true;
    fn columns(rows: usize) -> usize {
        if rows <= 3 { 32 } else { 16 }
    }
    fn reads(cell: DType) -> bool {
        matches!(cell, DType::F32 | DType::BF16 | DType::F16)
    }
    fn reads_fast(cell: DType) -> bool {
        matches!(cell, DType::F32 | DType::BF16)
    }
    unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<f32>) -> u16 {
        macro_rules! strip {
            ($cell:ty) => {
                match strip.rounded {
                    // SAFETY: the caller's contract.
                    true => unsafe { strip_f32::<$cell, true>(rows, vectors, strip) },
                    // SAFETY: the caller's contract.
                    false => unsafe { strip_f32::<$cell, false>(rows, vectors, strip) },
                }
            };
        }
        match strip.cell {
            DType::BF16 => strip!(Bf16),
            DType::F16 => strip!(F16),
            _ => strip!(Same),
        }
    }
    unsafe fn taps(rows: usize, vectors: usize, taps: &Taps<'_, f32>) {
        let sum = if taps.rounded { taps_f32::<true> } else { taps_f32::<false> };
        // SAFETY: the caller's contract.
        unsafe { sum(rows, vectors, taps) }
    }
    unsafe fn spots(columns: usize, vectors: usize, of: &Spots<'_, f32>) {
        // SAFETY: the caller's contract.
        unsafe { spots_f32(columns, vectors, of) }
    }
    unsafe fn lanes(lines: usize, columns: usize, lanes: &Lanes<'_, f32>) {
        // SAFETY: the caller's contract.
        unsafe { lanes_f32(lines, columns, lanes) }
    }
    unsafe fn line(columns: usize, of: &Line<'_, f32>) {
        // SAFETY: the caller's contract.
        unsafe { line_f32(columns, of) }
    }
    unsafe fn field(lines: usize, vectors: usize, of: &Field<'_, f32>) {
        // SAFETY: the caller's contract.
        unsafe { field_f32(lines, vectors, of) }
    }
    fn sweeps(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16)
    }
    unsafe fn sweep(step: usize, dtype: DType, of: &Sweep<'_, f32>) {
        match dtype {
            // SAFETY: the caller's contract.
            DType::BF16 => unsafe { sweep_f32::<Bf16>(step, of) },
            // SAFETY: the caller's contract.
            _ => unsafe { sweep_f32::<Same>(step, of) },
        }
    }
    unsafe fn alternating(vectors: usize, of: &Alternating<f32>) {
        // SAFETY: the caller's contract.
        unsafe { alternating_f32(vectors, of) }
    }
    unsafe fn pack_apart(
        from: &Elements,
        row: isize,
        offsets: &[isize],
        count: usize,
        dst: *mut f32,
    ) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { apart::by_eights(from, row, offsets, count, dst) };
        u16::MAX
    }
    unsafe fn pack_window_rows(from: &Elements, rows: &WindowRows<'_>, dst: *mut f32) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { window_rows::by_eights(from, rows, dst) };
        u16::MAX
    }
    unsafe fn pack(lines: &Lines, count: usize, k: usize, dst: *mut f32, ld: usize) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { pack_f32(lines, count, k, dst, ld) };
        u16::MAX
    }
    unsafe fn pack_line(line: &Elements, k: usize, dst: *mut f32) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { pack_line_f32(line, k, dst) };
        u16::MAX
    }
    unsafe fn alternate(from: &Elements, rows: Rows, to: [Alternate<f32>; 2]) -> Option<u16> {
        // SAFETY: the caller's contract.
        unsafe { alternate::alternate_f32(from, rows, to) }
    }
    fn packs_through(seen: &Seen, from: &Elements) -> bool {
        eights::is_packed(seen, from)
    }
    unsafe fn pack_through(
        seen: &Seen,
        from: Elements,
        block: (Range<usize>, Range<usize>),
        runs: &mut Runs,
        dst: *mut f32,
    ) -> Option<u16> {
        // SAFETY: the caller's contract.
        unsafe { eights::pack_f32(seen, from, block, runs, dst) }
    }
}

/// f64 with AVX2 and FMA.
pub(in crate::contract) struct Avx2F64;

impl Engine for Avx2F64 {
    type Num = f64;
    type Singly = Self;
    const LANES: usize = 4;
    const WIDTH: usize = 8;
    const ROWS: usize = 6;
    const SPOTS: usize = 6;
    const LINE: usize = 14;
    fn columns(rows: usize) -> usize {
        if rows <= 3 { 16 } else { 8 }
    }
    fn reads(cell: DType) -> bool {
        cell == DType::F64
    }
    unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<f64>) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { strip_f64(rows, vectors, strip) }
    }
    unsafe fn taps(rows: usize, vectors: usize, taps: &Taps<'_, f64>) {
        // SAFETY: the caller's contract.
        unsafe { taps_f64(rows, vectors, taps) }
    }
    unsafe fn spots(columns: usize, vectors: usize, of: &Spots<'_, f64>) {
        // SAFETY: the caller's contract.
        unsafe { spots_f64(columns, vectors, of) }
    }
    unsafe fn lanes(lines: usize, columns: usize, lanes: &Lanes<'_, f64>) {
        // SAFETY: the caller's contract.
        unsafe { lanes_f64(lines, columns, lanes) }
    }
    unsafe fn line(columns: usize, of: &Line<'_, f64>) {
        // SAFETY: the caller's contract.
        unsafe { line_f64(columns, of) }
    }
    unsafe fn field(lines: usize, vectors: usize, of: &Field<'_, f64>) {
        // SAFETY: the caller's contract.
        unsafe { field_f64(lines, vectors, of) }
    }
    unsafe fn sweep(step: usize, _: DType, of: &Sweep<'_, f64>) {
        // SAFETY: the caller's contract.
        unsafe { sweep_f64(step, of) }
    }
    unsafe fn alternating(vectors: usize, of: &Alternating<f64>) {
        // SAFETY: the caller's contract.
        unsafe { alternating_f64(vectors, of) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn strip_f32<C: Cell<x86::__m256>, const ROUNDED: bool>(
    rows: usize,
    vectors: usize,
    strip: &Strip<f32>,
) -> u16 {
    sizes!(x86::__m256, C, ROUNDED, rows, vectors, strip, few: [1 2 3], all: [1 2 3 4 5 6], more: [])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn strip_f64(rows: usize, vectors: usize, strip: &Strip<f64>) -> u16 {
    sizes!(x86::__m256d, Same, false, rows, vectors, strip, few: [1 2 3], all: [1 2 3 4 5 6], more: [])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn taps_f32<const ROUNDED: bool>(rows: usize, vectors: usize, strip: &Taps<'_, f32>) {
    taps!(x86::__m256, ROUNDED, rows, vectors, strip, few: [1 2 3], all: [1 2 3 4 5 6], more: [])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn spots_f32(columns: usize, vectors: usize, of: &Spots<'_, f32>) {
    spots!(x86::__m256, columns, vectors, of, [1 2 3 4 5 6])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn taps_f64(rows: usize, vectors: usize, strip: &Taps<'_, f64>) {
    taps!(x86::__m256d, false, rows, vectors, strip, few: [1 2 3], all: [1 2 3 4 5 6], more: [])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn spots_f64(columns: usize, vectors: usize, of: &Spots<'_, f64>) {
    spots!(x86::__m256d, columns, vectors, of, [1 2 3 4 5 6])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn lanes_f32(lines: usize, columns: usize, of: &Lanes<'_, f32>) {
    lanes!(x86::__m256, lines, columns, of, [3 by 3])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn lanes_f64(lines: usize, columns: usize, of: &Lanes<'_, f64>) {
    lanes!(x86::__m256d, lines, columns, of, [3 by 3])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn line_f32(columns: usize, of: &Line<'_, f32>) {
    line!(x86::__m256, columns, of, [1 2 3 4 5 6 7 8 9 10 11 12 13 14])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn line_f64(columns: usize, of: &Line<'_, f64>) {
    line!(x86::__m256d, columns, of, [1 2 3 4 5 6 7 8 9 10 11 12 13 14])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn field_f32(lines: usize, vectors: usize, of: &Field<'_, f32>) {
    field!(x86::__m256, lines, vectors, of)
}

#[target_feature(enable = "avx2,fma")]
unsafe fn field_f64(lines: usize, vectors: usize, of: &Field<'_, f64>) {
    field!(x86::__m256d, lines, vectors, of)
}

#[target_feature(enable = "avx2,fma")]
unsafe fn alternating_f32(vectors: usize, of: &Alternating<f32>) {
    alternating!(x86::__m256, vectors, of, [1 2 3 4])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn alternating_f64(vectors: usize, of: &Alternating<f64>) {
    alternating!(x86::__m256d, vectors, of, [1])
}

#[target_feature(enable = "avx2,fma")]
unsafe fn sweep_f32<C: Sight<x86::__m256>>(step: usize, of: &Sweep<'_, f32>) {
    sweep!(x86::__m256, C, step, of, has_many: false)
}

#[target_feature(enable = "avx2,fma")]
unsafe fn sweep_f64(step: usize, of: &Sweep<'_, f64>) {
    sweep!(x86::__m256d, Same, step, of, has_many: false)
}
