//! Microkernels for NEON: 32 registers of four f32, strips of 8 rows by 12 columns.

use super::alternating::{Alternating, Interleave, alternating};
use super::field::{Field, field};
use super::lanes::{Lanes, lanes};
use super::line::{Line, line};
use super::spots::{Spots, spots};
use super::strip::{Bf16, Cell, Same, sizes};
use super::sweep::{Sight, Sweep, sweep};
use super::taps::{Taps, taps};
use super::{Elementwise, Engine, Strip, Vector};
use core::arch::aarch64 as arm;
use tracecast_ir::DType;

macro_rules! vector {
    ($ty:ident, $num:ty, $lanes:literal, $set:ident, $load:ident, $store:ident, $fma:ident, $add:ident, [$low:ident, $high:ident]) => {
        impl Vector for arm::$ty {
            type Num = $num;
            const LANES: usize = $lanes;
            #[inline(always)]
            fn splat(x: $num) -> Self {
                // SAFETY: every 64-bit Arm CPU has NEON.
                unsafe { arm::$set(x) }
            }
            #[inline(always)]
            unsafe fn load(p: *const $num) -> Self {
                // SAFETY: as for `splat`, and the caller vouches for the memory.
                unsafe { arm::$load(p) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $num) {
                // SAFETY: as for `load`.
                unsafe { arm::$store(p, self) }
            }
            #[inline(always)]
            fn fma(self, b: Self, acc: Self) -> Self {
                // SAFETY: as for `splat`.
                unsafe { arm::$fma(acc, self, b) }
            }
            #[inline(always)]
            fn add(self, o: Self) -> Self {
                // SAFETY: as for `splat`.
                unsafe { arm::$add(self, o) }
            }
        }

        impl Interleave for arm::$ty {
            #[inline(always)]
            fn interleave(self, odd: Self) -> [Self; 2] {
                // SAFETY: as for `splat`.
                let first = unsafe { arm::$low(self, odd) };
                // SAFETY: as above.
                let last = unsafe { arm::$high(self, odd) };
                [first, last]
            }
        }
    };
}

vector!(
    float32x4_t,
    f32,
    4,
    vdupq_n_f32,
    vld1q_f32,
    vst1q_f32,
    vfmaq_f32,
    vaddq_f32,
    [vzip1q_f32, vzip2q_f32]
);
vector!(
    float64x2_t,
    f64,
    2,
    vdupq_n_f64,
    vld1q_f64,
    vst1q_f64,
    vfmaq_f64,
    vaddq_f64,
    [vzip1q_f64, vzip2q_f64]
);

impl Cell<arm::float32x4_t> for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(p: *const u8, _: isize) -> arm::float32x4_t {
        // SAFETY: the caller vouches for four elements.
        let x = unsafe { arm::vld1_u16(p.cast()) };
        // SAFETY: every 64-bit Arm CPU has NEON.
        let x = unsafe { arm::vshll_n_u16::<16>(x) };
        // SAFETY: as above.
        unsafe { arm::vreinterpretq_f32_u32(x) }
    }
}

impl Sight<arm::float32x4_t> for Same {}
impl Sight<arm::float32x4_t> for Bf16 {}
impl Sight<arm::float64x2_t> for Same {}

/// f32 with NEON.
pub(in crate::contract) struct NeonF32;

impl Engine for NeonF32 {
    type Num = f32;
    type Singly = Self;
    const LANES: usize = 4;
    const WIDTH: usize = 12;
    const ROWS: usize = 8;
    const SPOTS: usize = 9;
    fn columns(rows: usize) -> usize {
        if rows <= 4 { 16 } else { 12 }
    }
    fn reads(cell: DType) -> bool {
        matches!(cell, DType::F32 | DType::BF16)
    }
    unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<f32>) -> u16 {
        type V = arm::float32x4_t;
        if strip.cell == DType::BF16 {
            sizes!(V, Bf16, false, rows, vectors, strip, few: [1 2 3 4], all: [1 2 3 4 5 6 7 8], more: [5 6 7 8])
        } else {
            sizes!(V, Same, false, rows, vectors, strip, few: [1 2 3 4], all: [1 2 3 4 5 6 7 8], more: [5 6 7 8])
        }
    }
    unsafe fn taps(rows: usize, vectors: usize, strip: &Taps<'_, f32>) {
        type V = arm::float32x4_t;
        taps!(V, false, rows, vectors, strip, few: [1 2 3 4], all: [1 2 3 4 5 6 7 8], more: [5 6 7 8])
    }
    unsafe fn spots(columns: usize, vectors: usize, of: &Spots<'_, f32>) {
        type V = arm::float32x4_t;
        spots!(V, columns, vectors, of, [1 2 3 4 5 6 7 8 9])
    }
}

impl Elementwise for NeonF32 {
    const LINE: usize = 14;
    unsafe fn lanes(lines: usize, columns: usize, of: &Lanes<'_, f32>) {
        lanes!(arm::float32x4_t, lines, columns, of, [3 by 3 5 by 5])
    }
    unsafe fn line(columns: usize, of: &Line<'_, f32>) {
        line!(arm::float32x4_t, columns, of, [1 2 3 4 5 6 7 8 9 10 11 12 13 14])
    }
    unsafe fn field(lines: usize, vectors: usize, of: &Field<'_, f32>) {
        field!(arm::float32x4_t, lines, vectors, of)
    }
    unsafe fn alternating(vectors: usize, of: &Alternating<f32>) {
        alternating!(arm::float32x4_t, vectors, of, [1 2 3 4])
    }
    fn sweeps(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16)
    }
    unsafe fn sweep(step: usize, dtype: DType, of: &Sweep<'_, f32>) {
        type V = arm::float32x4_t;
        if dtype == DType::BF16 {
            sweep!(V, Bf16, step, of, has_many: true)
        } else {
            sweep!(V, Same, step, of, has_many: true)
        }
    }
}

/// f64 with NEON.
pub(in crate::contract) struct NeonF64;

impl Engine for NeonF64 {
    type Num = f64;
    type Singly = Self;
    const LANES: usize = 2;
    const WIDTH: usize = 6;
    const ROWS: usize = 8;
    const SPOTS: usize = 9;
    fn columns(rows: usize) -> usize {
        if rows <= 4 { 8 } else { 6 }
    }
    fn reads(cell: DType) -> bool {
        cell == DType::F64
    }
    unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<f64>) -> u16 {
        type V = arm::float64x2_t;
        sizes!(V, Same, false, rows, vectors, strip, few: [1 2 3 4], all: [1 2 3 4 5 6 7 8], more: [5 6 7 8])
    }
    unsafe fn taps(rows: usize, vectors: usize, strip: &Taps<'_, f64>) {
        type V = arm::float64x2_t;
        taps!(V, false, rows, vectors, strip, few: [1 2 3 4], all: [1 2 3 4 5 6 7 8], more: [5 6 7 8])
    }
    unsafe fn spots(columns: usize, vectors: usize, of: &Spots<'_, f64>) {
        type V = arm::float64x2_t;
        spots!(V, columns, vectors, of, [1 2 3 4 5 6 7 8 9])
    }
}

impl Elementwise for NeonF64 {
    const LINE: usize = 14;
    unsafe fn lanes(lines: usize, columns: usize, of: &Lanes<'_, f64>) {
        lanes!(arm::float64x2_t, lines, columns, of, [3 by 3 5 by 5])
    }
    unsafe fn line(columns: usize, of: &Line<'_, f64>) {
        line!(arm::float64x2_t, columns, of, [1 2 3 4 5 6 7 8 9 10 11 12 13 14])
    }
    unsafe fn field(lines: usize, vectors: usize, of: &Field<'_, f64>) {
        field!(arm::float64x2_t, lines, vectors, of)
    }
    unsafe fn alternating(vectors: usize, of: &Alternating<f64>) {
        alternating!(arm::float64x2_t, vectors, of, [1])
    }
    unsafe fn sweep(step: usize, _: DType, of: &Sweep<'_, f64>) {
        sweep!(arm::float64x2_t, Same, step, of, has_many: true)
    }
}
