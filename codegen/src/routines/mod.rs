//! Precompiled routines for what generated code does badly: functions of many numbers, 16-bit
//! conversions, random bits, and scans. Contractions are in `contract`.
//!
//! The routines are chosen once, by what the CPU has, into a table of pointers ([`Tiles`]) that
//! compiled kernels call. Whatever the choice, every element gets the bits that
//! `tracecast_ir::kernel` defines, wherever it stands in a tile and however many follow it. No
//! routine unwinds.
#![allow(
    unsafe_code,
    reason = "tile routines use vector instructions and the pointers of generated code"
)]

#[cfg(target_arch = "x86_64")]
mod arithmetic;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod doubles;
mod gather_rows;
mod gather_within;
mod kinds;
mod names;
mod narrow_float;
mod peak;
mod portable;
mod random;
mod scan;
mod sum_rows;
#[cfg(test)]
mod tests;
mod tiles;
mod weigh;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::nearest_bf16 as avx2_nearest_bf16;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{nearest_bf16, to_bf16};
#[cfg(target_arch = "x86_64")]
pub(crate) use gather_rows::avx2::transpose;
pub(crate) use kinds::{ElementSize, NarrowFloat, Precision};
pub(crate) use names::Routine;
pub(crate) use peak::flops as peak_flops;
pub(crate) use scan::advance as advance_scan;
pub(crate) use tiles::{FunctionRoutines, GatherFn, OneF16, TileFn, Tiles};
pub(crate) use weigh::{ROW, Scoring, Slopes, Weighed, differentiate, double, weigh};

use crate::machine::InstructionSet;
use tracecast_ir::DType;

impl Tiles {
    /// Those for an instruction set of this CPU.
    pub(crate) fn of(instructions: InstructionSet) -> &'static Tiles {
        match instructions {
            InstructionSet::Portable => &portable::TILES,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => &avx2::TILES,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => &avx512::TILES,
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => &portable::TILES,
        }
    }

    /// The routine that widens a narrow float to f32.
    pub(crate) fn widen(&self, narrow: NarrowFloat) -> TileFn {
        match narrow.dtype() {
            DType::F16 => self.f16_to_f32,
            DType::BF16 => self.bf16_to_f32,
            _ => narrow_float::widen_tile(narrow),
        }
    }

    /// The routine that narrows f32.
    pub(crate) fn narrow(&self, narrow: NarrowFloat) -> TileFn {
        match narrow.dtype() {
            DType::F16 => self.f32_to_f16,
            DType::BF16 => self.f32_to_bf16,
            _ => narrow_float::narrow_tile(narrow),
        }
    }

    /// The routine that rounds f32 to the values of a narrow float.
    pub(crate) fn round(&self, narrow: NarrowFloat) -> TileFn {
        match narrow.dtype() {
            DType::F16 => self.round_f16,
            DType::BF16 => self.round_bf16,
            _ => narrow_float::round_tile(narrow),
        }
    }

    /// The routine that widens the bits of one narrow float.
    fn widen_one(&self, narrow: NarrowFloat) -> *const () {
        match narrow.dtype() {
            DType::F16 => self.one_f16.widen as *const (),
            _ => narrow_float::widen(narrow) as *const (),
        }
    }

    /// The routine that narrows one f32.
    fn narrow_one(&self, narrow: NarrowFloat) -> *const () {
        match narrow.dtype() {
            DType::F16 => self.one_f16.narrow as *const (),
            _ => narrow_float::narrow(narrow) as *const (),
        }
    }

    /// The routine that rounds one f32.
    fn round_one(&self, narrow: NarrowFloat) -> *const () {
        match narrow.dtype() {
            DType::F16 => self.one_f16.round as *const (),
            _ => narrow_float::round(narrow) as *const (),
        }
    }
}

/// Entries for single numbers, which need no particular CPU.
pub(crate) mod one {
    use tracecast_ir::kernel::math::fma;
    use tracecast_ir::kernel::philox;

    /// The largest integral number not above.
    pub(crate) extern "C" fn floor(x: f32) -> f32 {
        x.floor()
    }

    /// The largest integral number not above.
    pub(crate) extern "C" fn floor_f64(x: f64) -> f64 {
        x.floor()
    }

    /// A product and a sum with one rounding.
    pub(crate) extern "C" fn mul_add(x: f32, factor: f32, addend: f32) -> f32 {
        fma(x, factor, addend)
    }

    /// A product and a sum with one rounding.
    pub(crate) extern "C" fn mul_add_f64(x: f64, factor: f64, addend: f64) -> f64 {
        x.mul_add(factor, addend)
    }

    /// The random word of one element.
    pub(crate) extern "C" fn random(key: i64, step: i64, stream: u32, element: u64) -> u32 {
        philox::random_bits(key, step, stream, element)
    }
}
