//! The routines of an engine that pack with its CPU's vectors, by the dtype of elements.

use super::super::micro::{Bf16, Engine, F16};
use super::vectors::{Element, F32, Numbers, RoundedToBf16, RoundedToF16};
use super::{Packing, avx2, avx512, im2col, lines};
use core::arch::x86_64 as x86;
use tracecast_ir::DType;

macro_rules! elements {
    ($($ty:ident: $bytes:literal $eight:ident $sixteen:ident $evens:ident;)*) => {
        $(impl Element for $ty {
            const BYTES: usize = $bytes;
            #[inline(always)]
            fn eight(bits: x86::__m256i) -> x86::__m256 {
                // SAFETY: the trait is for CPUs with AVX2 and F16C.
                unsafe { avx2::$eight(bits) }
            }
            #[inline(always)]
            fn sixteen(bits: x86::__m512i) -> x86::__m512 {
                // SAFETY: the trait is for CPUs with AVX-512.
                unsafe { avx512::$sixteen(bits) }
            }
            #[inline(always)]
            fn evens(bits: x86::__m512i) -> x86::__m512 {
                // SAFETY: as for `sixteen`.
                unsafe { avx512::$evens(bits) }
            }
        })*
    };
}

elements! {
    F32: 4 as_f32 as_f32 as_f32;
    Bf16: 2 widen_bf16 widen_bf16 even_bf16;
    F16: 2 widen_f16 widen_f16 even_f16;
    RoundedToBf16: 4 round_to_bf16 round_to_bf16 round_to_bf16;
    RoundedToF16: 4 round_to_f16 round_to_f16 round_to_f16;
}

impl Packing {
    /// That of an engine's CPU.
    pub(in crate::contract) fn of<E: Engine, N: Numbers>() -> Packing {
        Packing { lines: lines::pack::<E, N>, patches: im2col::pack::<E, N> }
    }
}

/// Engines that pack into f32.
pub(in crate::contract) trait IntoF32: Engine {
    /// Numbers of such elements.
    type Of<C: Element>: Numbers;

    /// The routines for elements of a dtype that are rounded to another one, if they become f32.
    fn of_dtype(dtype: DType, round: Option<DType>) -> Option<Packing> {
        Some(match (dtype, round) {
            (DType::F32, None) => Packing::of::<Self, Self::Of<F32>>(),
            (DType::BF16, None) => Packing::of::<Self, Self::Of<Bf16>>(),
            (DType::F16, None) => Packing::of::<Self, Self::Of<F16>>(),
            (DType::F32, Some(DType::BF16)) => Packing::of::<Self, Self::Of<RoundedToBf16>>(),
            (DType::F32, Some(DType::F16)) => Packing::of::<Self, Self::Of<RoundedToF16>>(),
            _ => return None,
        })
    }
}
