//! Microkernels for AVX-512: 32 registers of 16 f32.

use super::super::pack::{
    Alternate, Elements, Lines, Rows, WindowRows, apart, avx512, loads, squares, through,
    window_rows, x86 as avx2,
};
use super::super::windows::{Runs, Seen};
use super::alternating::{Alternating, Interleave, alternating};
use super::avx2::vector;
use super::depthwise::avx512::Loads;
use super::field::{Field, field};
use super::lanes::{Lanes, lanes};
use super::line::{Line, line};
use super::sliding::{Sliding, sliding};
use super::spots::{Spots, spots};
use super::sweep::{Sight, Sweep, There, sweep};
use super::taps::{Taps, taps};
use super::{Bf16, Cell, Engine, F16, Same, Strip, Vector, product, sizes};
use crate::routines::nearest_bf16;
use core::arch::x86_64 as x86;
use std::ops::Range;
use tracecast_ir::DType;

vector!(
    __m512,
    f32,
    16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps
);
vector!(
    __m512d,
    f64,
    8,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_fmadd_pd,
    _mm512_add_pd
);

/// Interleaves two vectors of sixteen numbers: the low half, then the high half.
const IN_TURN: [[i32; 16]; 2] = [
    [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23],
    [8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31],
];

impl Interleave for x86::__m512 {
    #[inline(always)]
    fn interleave(self, odd: Self) -> [Self; 2] {
        IN_TURN.map(|order| {
            // SAFETY: sixteen numbers; the CPU has AVX-512F, as for all of this module.
            let order = unsafe { x86::_mm512_loadu_si512(order.as_ptr().cast()) };
            // SAFETY: as above.
            unsafe { x86::_mm512_permutex2var_ps(self, order, odd) }
        })
    }
    #[inline(always)]
    unsafe fn round_in_turn(self, odd: Self, to: *mut u8) {
        // SAFETY: the CPU has AVX-512F, as for all of this module.
        let [even, odd] = [self, odd].map(|sums| unsafe { nearest_bf16(sums) });
        // SAFETY: as above.
        let even = unsafe { x86::_mm512_srli_epi32::<16>(even) };
        // SAFETY: engines of AVX-512 have BW.
        let both = unsafe { x86::_mm512_mask_blend_epi16(0xaaaa_aaaa, even, odd) };
        // SAFETY: the caller's contract.
        unsafe { x86::_mm512_storeu_si512(to.cast(), both) }
    }
}

impl Interleave for x86::__m512d {
    #[inline(always)]
    fn interleave(self, odd: Self) -> [Self; 2] {
        // SAFETY: as above.
        let first = unsafe { x86::_mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11) };
        // SAFETY: as above.
        let last = unsafe { x86::_mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15) };
        // SAFETY: as above.
        [first, last].map(|order| unsafe { x86::_mm512_permutex2var_pd(self, order, odd) })
    }
}

impl Cell<x86::__m512> for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(p: *const u8, _: isize) -> x86::__m512 {
        // SAFETY: the caller vouches for sixteen elements.
        let x = unsafe { x86::_mm256_loadu_si256(p.cast()) };
        // SAFETY: the CPU has AVX-512F, as for all of this module.
        let x = unsafe { x86::_mm512_cvtepu16_epi32(x) };
        // SAFETY: as above.
        let x = unsafe { x86::_mm512_slli_epi32::<16>(x) };
        // SAFETY: as above.
        unsafe { x86::_mm512_castsi512_ps(x) }
    }
}

impl Cell<x86::__m512> for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(p: *const u8, _: isize) -> x86::__m512 {
        // SAFETY: the caller vouches for sixteen elements.
        let x = unsafe { x86::_mm256_loadu_si256(p.cast()) };
        // SAFETY: the CPU has AVX-512F, as for all of this module.
        unsafe { x86::_mm512_cvtph_ps(x) }
    }
}

/// Elements of depthwise convolutions, of one plane.
macro_rules! sight {
    ($cell:ty, $loads:ty) => {
        impl Sight<x86::__m512> for $cell {
            #[inline(always)]
            unsafe fn side_by_side(from: *const u8, there: There) -> x86::__m512 {
                // SAFETY: the caller's contract; engines of AVX-512 have BW and VL.
                unsafe { <$loads>::side_by_side([from; 2], false, there.mask as u16) }
            }
            #[inline(always)]
            unsafe fn apart(from: *const u8, there: There) -> [x86::__m512; 2] {
                // SAFETY: as above.
                unsafe { <$loads>::apart([from; 2], false, there.mask) }
            }
            #[inline(always)]
            unsafe fn even(from: *const u8, there: There, next: x86::__m512) -> x86::__m512 {
                // SAFETY: as above.
                unsafe { <$loads>::even([from; 2], false, there.mask, next) }
            }
        }
    };
}

sight!(Same, loads::F32);
sight!(Bf16, loads::Bf16);

impl Sight<x86::__m512d> for Same {}

/// The largest `k` of which eight lines at a time are packed, not sixteen.
const SHORT: usize = 128;
/// Up to this `k` it must be a multiple of eight for that: a remainder would cost too much.
const LINE: usize = 32;

/// f32 with AVX-512F.
pub(in crate::contract) struct Avx512F32;

impl Engine for Avx512F32 {
    type Num = f32;
    type Singly = Self;
    const LANES: usize = 16;
    const WIDTH: usize = 32;
    const ROWS: usize = 14;
    const SPOTS: usize = 9;
    const SPOTS_ALONE: usize = 16;
    const THREES: usize = 9;
    const LINE: usize = 14;
    const SLIDES: bool = true;
    const TURNS_ROUNDED: bool = true;
    const ALTERNATES_BF16: bool = true;
    fn columns(rows: usize) -> usize {
        if rows <= 6 { 64 } else { 32 }
    }
    fn reads(cell: DType) -> bool {
        matches!(cell, DType::F32 | DType::BF16 | DType::F16)
    }
    unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<f32>) -> u16 {
        match strip.cell {
            // SAFETY: the caller's contract.
            DType::BF16 => unsafe { strip_f32::<Bf16>(rows, vectors, strip) },
            // SAFETY: the caller's contract.
            DType::F16 => unsafe { strip_f32::<F16>(rows, vectors, strip) },
            // SAFETY: the caller's contract.
            _ => unsafe { strip_f32::<Same>(rows, vectors, strip) },
        }
    }
    unsafe fn taps(rows: usize, vectors: usize, taps: &Taps<'_, f32>) {
        // SAFETY: the caller's contract.
        unsafe { taps_f32(rows, vectors, taps) }
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
    unsafe fn sliding(taps: usize, sizes: [usize; 2], of: &Sliding<f32>) {
        // SAFETY: the caller's contract.
        unsafe { sliding_f32(taps, sizes, of) }
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
        unsafe { apart::by_sixteens(from, row, offsets, count, dst) };
        u16::MAX
    }
    unsafe fn pack_window_rows(from: &Elements, rows: &WindowRows<'_>, dst: *mut f32) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { window_rows::by_sixteens(from, rows, dst) };
        u16::MAX
    }
    unsafe fn pack(lines: &Lines, count: usize, k: usize, dst: *mut f32, ld: usize) -> u16 {
        if k <= SHORT && squares::are_whole(lines, [count, k]) {
            // SAFETY: the caller's contract.
            unsafe { squares::pack(lines, count, k, dst, ld) };
            return u16::MAX;
        }
        // Short lines come from near caches, where sixteen at once evict each other.
        let by_eights = k.is_multiple_of(8) || k > LINE;
        if lines.along == 1 && k <= SHORT && by_eights {
            // SAFETY: the caller's contract; AVX-512F implies AVX2 and F16C.
            unsafe { avx2::pack_f32(lines, count, k, dst, ld) };
            return u16::MAX;
        }
        // SAFETY: the caller's contract.
        unsafe { avx512::pack_f32(lines, count, k, dst, ld) }
    }
    unsafe fn turn_rounded(
        sums: *const f32,
        [columns, lanes]: [usize; 2],
        to: *mut u16,
        ld: usize,
    ) {
        // SAFETY: the caller's contract.
        unsafe { squares::turn_rounded(sums, columns, lanes, to, ld) }
    }
    unsafe fn pack_line(line: &Elements, k: usize, dst: *mut f32) -> u16 {
        // SAFETY: the caller's contract; AVX-512F implies AVX2 and F16C.
        unsafe { avx2::pack_line_f32(line, k, dst) };
        u16::MAX
    }
    unsafe fn alternate(from: &Elements, rows: Rows, to: [Alternate<f32>; 2]) -> Option<u16> {
        // SAFETY: the caller's contract.
        unsafe { avx512::alternate_f32(from, rows, to) }
    }
    fn packs_through(seen: &Seen, from: &Elements) -> bool {
        through::is_packed_to_f32(seen, from)
    }
    unsafe fn pack_through(
        seen: &Seen,
        from: Elements,
        block: (Range<usize>, Range<usize>),
        runs: &mut Runs,
        dst: *mut f32,
    ) -> Option<u16> {
        // SAFETY: the caller's contract.
        unsafe { through::pack_f32(seen, from, block, runs, dst) }
    }
}

/// f64 with AVX-512F.
pub(in crate::contract) struct Avx512F64;

impl Engine for Avx512F64 {
    type Num = f64;
    type Singly = Self;
    const LANES: usize = 8;
    const WIDTH: usize = 16;
    const ROWS: usize = 14;
    const SPOTS: usize = 9;
    const LINE: usize = 14;
    fn columns(rows: usize) -> usize {
        if rows <= 6 { 32 } else { 16 }
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

#[target_feature(enable = "avx512f")]
unsafe fn strip_f32<C: Cell<x86::__m512>>(rows: usize, vectors: usize, strip: &Strip<f32>) -> u16 {
    sizes!(x86::__m512, C, false, rows, vectors, strip, few: [1 2 3 4 5 6], all: [1 2 3 4 5 6 7 8 9 10 11 12 13 14], more: [])
}

#[target_feature(enable = "avx512f")]
unsafe fn strip_f64(rows: usize, vectors: usize, strip: &Strip<f64>) -> u16 {
    sizes!(x86::__m512d, Same, false, rows, vectors, strip, few: [1 2 3 4 5 6], all: [1 2 3 4 5 6 7 8 9 10 11 12 13 14], more: [])
}

#[target_feature(enable = "avx512f")]
unsafe fn taps_f32(rows: usize, vectors: usize, strip: &Taps<'_, f32>) {
    taps!(x86::__m512, false, rows, vectors, strip, few: [1 2 3 4 5 6], all: [1 2 3 4 5 6 7 8 9 10 11 12 13 14], more: [])
}

#[target_feature(enable = "avx512f")]
unsafe fn spots_f32(columns: usize, vectors: usize, of: &Spots<'_, f32>) {
    spots!(x86::__m512, columns, vectors, of, [1 2 3 4 5 6 7 8 9], alone: [10 11 12 13 14 15 16], threes: [6 7 8 9])
}

#[target_feature(enable = "avx512f")]
unsafe fn taps_f64(rows: usize, vectors: usize, strip: &Taps<'_, f64>) {
    taps!(x86::__m512d, false, rows, vectors, strip, few: [1 2 3 4 5 6], all: [1 2 3 4 5 6 7 8 9 10 11 12 13 14], more: [])
}

#[target_feature(enable = "avx512f")]
unsafe fn spots_f64(columns: usize, vectors: usize, of: &Spots<'_, f64>) {
    spots!(x86::__m512d, columns, vectors, of, [1 2 3 4 5 6 7 8 9])
}

#[target_feature(enable = "avx512f")]
unsafe fn lanes_f32(lines: usize, columns: usize, of: &Lanes<'_, f32>) {
    lanes!(x86::__m512, lines, columns, of, [3 by 3 5 by 5])
}

#[target_feature(enable = "avx512f")]
unsafe fn lanes_f64(lines: usize, columns: usize, of: &Lanes<'_, f64>) {
    lanes!(x86::__m512d, lines, columns, of, [3 by 3 5 by 5])
}

#[target_feature(enable = "avx512f")]
unsafe fn line_f32(columns: usize, of: &Line<'_, f32>) {
    line!(x86::__m512, columns, of, [1 2 3 4 5 6 7 8 9 10 11 12 13 14])
}

#[target_feature(enable = "avx512f")]
unsafe fn line_f64(columns: usize, of: &Line<'_, f64>) {
    line!(x86::__m512d, columns, of, [1 2 3 4 5 6 7 8 9 10 11 12 13 14])
}

#[target_feature(enable = "avx512f")]
unsafe fn sliding_f32(taps: usize, [lines, columns]: [usize; 2], of: &Sliding<f32>) {
    sliding!(x86::__m512, taps, lines, columns, of, [3: [1 2 3 4 5 6 7 8], 5: [1 2 3 4 5 6 7 8]])
}

#[target_feature(enable = "avx512f")]
unsafe fn field_f32(lines: usize, vectors: usize, of: &Field<'_, f32>) {
    field!(x86::__m512, lines, vectors, of)
}

#[target_feature(enable = "avx512f")]
unsafe fn field_f64(lines: usize, vectors: usize, of: &Field<'_, f64>) {
    field!(x86::__m512d, lines, vectors, of)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn alternating_f32(vectors: usize, of: &Alternating<f32>) {
    alternating!(x86::__m512, vectors, of, [1 2 3 4])
}

#[target_feature(enable = "avx512f")]
unsafe fn alternating_f64(vectors: usize, of: &Alternating<f64>) {
    alternating!(x86::__m512d, vectors, of, [1])
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn sweep_f32<C: Sight<x86::__m512>>(step: usize, of: &Sweep<'_, f32>) {
    sweep!(x86::__m512, C, step, of, has_many: true)
}

#[target_feature(enable = "avx512f")]
unsafe fn sweep_f64(step: usize, of: &Sweep<'_, f64>) {
    sweep!(x86::__m512d, Same, step, of, has_many: true)
}
