//! Elements that become f32, and how x86-64's vectors hold them.

use core::arch::x86_64 as x86;

/// Elements of one dtype in memory, which become f32.
pub(in crate::contract) trait Element {
    /// Of one element.
    const BYTES: usize;
}

/// f32 in memory.
pub(in crate::contract) struct F32;
/// bf16 in memory.
pub(in crate::contract) struct Bf16;
/// f16 in memory.
pub(in crate::contract) struct F16;
/// f32, rounded to bf16.
pub(in crate::contract) struct RoundedToBf16;
/// f32, rounded to f16.
pub(in crate::contract) struct RoundedToF16;

macro_rules! elements {
    ($($ty:ident: $bytes:literal)*) => {
        $(impl Element for $ty {
            const BYTES: usize = $bytes;
        })*
    };
}

elements!(F32: 4 Bf16: 2 F16: 2 RoundedToBf16: 4 RoundedToF16: 4);

/// Elements that are loaded as eight f32. The CPU must have AVX2 and F16C.
pub(in crate::contract) trait Octet: Element {
    /// Numbers of eight elements: of 32 bits each, or of 16 in the low half.
    fn near(bits: x86::__m256i) -> x86::__m256;
}

/// Elements that are loaded as sixteen f32. The CPU must have AVX-512F, BW and VL.
pub(in crate::contract) trait Cells: Octet {
    /// Numbers of sixteen elements: of 32 bits each, or of 16 in the low half.
    fn sixteen(bits: x86::__m512i) -> x86::__m512;
    /// The same of elements at even places, if they have 16 bits.
    fn evens(bits: x86::__m512i) -> x86::__m512;
}

/// How sixteen columns at one step, or at two, become packed numbers.
pub(in crate::contract) trait Sixteen {
    /// Sixteen numbers.
    type Vector: Copy;
    /// Of one element in memory.
    const BYTES: usize;
    /// Steps of `k` in a number.
    const STEPS: usize;
    /// Sixteens of a panel.
    const VECTORS: usize;
    /// Zeros, and what [`Sixteen::smaller`] begins with.
    fn empty() -> [Self::Vector; 2];
    /// Adds columns of stride `S`, one or two, to others: from a step and from the one after it.
    ///
    /// # Safety
    ///
    /// The CPU must have the vector. `p` must be readable where `masks[0]` is set, and for pairs
    /// `after` where `masks[1]` is.
    unsafe fn add<const S: usize>(
        others: Self::Vector,
        places: [*const u8; 2],
        masks: [u16; 2],
    ) -> Self::Vector;
    /// Stores the numbers.
    ///
    /// # Safety
    ///
    /// The CPU must have the vector, and `to` must be writable for sixteen of them.
    unsafe fn store(numbers: Self::Vector, to: *mut u32);
    /// Least magnitudes so far, of pairs only.
    fn smaller(least: Self::Vector, _: Self::Vector) -> Self::Vector {
        least
    }
    /// What [`Engine::pack`] returns of them.
    fn least(_: Self::Vector) -> u16 {
        u16::MAX
    }
}

/// A routine for elements, whose type is `$cells`, if they become f32.
macro_rules! by_cells {
    ($from:expr, $cells:ident => $routine:expr, $otherwise:expr) => {{
        use tracecast_ir::DType;
        use $crate::contract::pack::cells;
        match ($from.dtype, $from.round) {
            (DType::F32, None) => {
                type $cells = cells::F32;
                $routine
            }
            (DType::BF16, None) => {
                type $cells = cells::Bf16;
                $routine
            }
            (DType::F16, None) => {
                type $cells = cells::F16;
                $routine
            }
            (DType::F32, Some(DType::BF16)) => {
                type $cells = cells::RoundedToBf16;
                $routine
            }
            (DType::F32, Some(DType::F16)) => {
                type $cells = cells::RoundedToF16;
                $routine
            }
            _ => $otherwise,
        }
    }};
}

pub(super) use by_cells;
