//! Microkernels for NEON: 32 registers of four f32, strips of 8 rows by 12 columns.

use super::cell::{Bf16, Cell, Same, Sight};
use super::engine::{Elementwise, Engine};
use super::vector::{Interleave, Microkernel, Vector};
use core::arch::aarch64 as arm;
use tracecast_ir::DType;

macro_rules! vector {
    ($ty:ident, $num:ty, $set:ident, $fma:ident, $add:ident, [$low:ident, $high:ident]) => {
        impl Vector for arm::$ty {
            type Num = $num;
            unsafe fn run<K: Microkernel>(kernel: K) -> K::Out {
                // SAFETY: the caller's contract.
                unsafe { kernel.run() }
            }
            #[inline(always)]
            fn splat(x: $num) -> Self {
                // SAFETY: every 64-bit Arm CPU has NEON.
                unsafe { arm::$set(x) }
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

vector!(float32x4_t, f32, vdupq_n_f32, vfmaq_f32, vaddq_f32, [vzip1q_f32, vzip2q_f32]);
vector!(float64x2_t, f64, vdupq_n_f64, vfmaq_f64, vaddq_f64, [vzip1q_f64, vzip2q_f64]);

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
    type Vector = arm::float32x4_t;
    type Singly = Self;
    type Careful = Self;
    type Bf16 = Bf16;
    type F16 = Same;
    const WIDTH: usize = 12;
    const ROWS: usize = 8;
    const FEW: usize = 4;
    const SPOTS: usize = 9;
    fn reads(cell: DType) -> bool {
        matches!(cell, DType::F32 | DType::BF16)
    }
}

impl Elementwise for NeonF32 {
    type Same = Same;
}

/// f64 with NEON.
pub(in crate::contract) struct NeonF64;

impl Engine for NeonF64 {
    type Num = f64;
    type Vector = arm::float64x2_t;
    type Singly = Self;
    type Careful = Self;
    type Bf16 = Same;
    type F16 = Same;
    const WIDTH: usize = 6;
    const ROWS: usize = 8;
    const FEW: usize = 4;
    const SPOTS: usize = 9;
}

impl Elementwise for NeonF64 {
    type Same = Same;
    const ALTERNATING: usize = 1;
}
