//! The routines of an engine that pack with its CPU's vectors, by the dtype of elements.

use super::super::micro::Engine;
use super::vectors::{Bf16, Element, F16, F32, Numbers, RoundedToBf16, RoundedToF16};
use super::{Packing, im2col, lines};
use tracecast_ir::DType;

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
