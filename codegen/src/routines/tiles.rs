//! [`Tiles`]: the table of the routines of one kind of CPU, and the types of its entries.

use super::kinds::ElementSize;
use super::sum_rows::SumRowsFn;
use tracecast_ir::kernel::Function;

/// Maps `n` elements from `src` to `dst`, neither of which needs to be aligned.
///
/// `src` may equal `dst` if the two element types are of one size; otherwise the two must not
/// overlap.
pub(crate) type TileFn = unsafe extern "C" fn(src: *const u8, dst: *mut u8, n: usize);

/// Writes the random words of `n` elements in a row, beginning with element `start`, as u32.
pub(crate) type RandomFn =
    unsafe extern "C" fn(dst: *mut u8, n: usize, key: i64, step: i64, stream: u32, start: u64);

/// Gathers strided rows into contiguous rows. The routine fixes the size of an element. Element `p`
/// of row `r` is at `src + p * step` plus `r` elements, and goes to element `r * ld + p` of `dst`,
/// for `n` positions of `rows` rows. The memory between elements of a row must be readable as well.
/// Nothing needs to be aligned.
pub(crate) type GatherFn = unsafe extern "C" fn(
    src: *const u8,
    dst: *mut u8,
    n: usize,
    rows: usize,
    step: isize,
    ld: usize,
);

/// The routines of one function.
pub(crate) struct FunctionRoutines {
    /// Over a tile of f32.
    pub(crate) tile: TileFn,
    /// Over a tile of f64.
    pub(crate) tile_f64: TileFn,
    /// Of one f32.
    pub(crate) one: unsafe extern "C" fn(f32) -> f32,
    /// Of one f64.
    pub(crate) one_f64: unsafe extern "C" fn(f64) -> f64,
}

/// The conversions of one f16.
#[derive(Clone, Copy)]
pub(crate) struct OneF16 {
    /// The f32 of the bits in the low half.
    pub(crate) widen: unsafe extern "C" fn(u32) -> f32,
    /// The bits of the nearest f16, in the low half.
    pub(crate) narrow: unsafe extern "C" fn(f32) -> u32,
    /// The nearest f16 value, as f32.
    pub(crate) round: unsafe extern "C" fn(f32) -> f32,
}

/// The routines of one kind of CPU. Each may be called only on a CPU it was made for, as
/// [`InstructionSet::of`](crate::machine::InstructionSet::of) ensures.
pub(crate) struct Tiles {
    /// Those of each function.
    pub(super) functions: fn(Function) -> FunctionRoutines,
    /// f16 to f32.
    pub(crate) f16_to_f32: TileFn,
    /// f32 to f16.
    pub(crate) f32_to_f16: TileFn,
    /// bf16 to f32.
    pub(crate) bf16_to_f32: TileFn,
    /// f32 to bf16.
    pub(crate) f32_to_bf16: TileFn,
    /// f32 to the nearest f16 value, as f32.
    pub(crate) round_f16: TileFn,
    /// f32 to the nearest bf16 value, as f32.
    pub(crate) round_bf16: TileFn,
    /// Those of one f16.
    pub(crate) one_f16: OneF16,
    /// Random words of elements in a row.
    pub(crate) random: RandomFn,
    /// Sums of rows of a table.
    pub(crate) sum_rows: SumRowsFn,
    /// Copying strided rows, for each size of an element.
    pub(super) gather_rows: fn(ElementSize) -> GatherFn,
}

impl Tiles {
    /// The routines of a function.
    pub(crate) fn function(&self, function: Function) -> FunctionRoutines {
        (self.functions)(function)
    }

    /// The routine that copies strided rows of elements of that size.
    pub(crate) fn gather_rows(&self, size: ElementSize) -> GatherFn {
        (self.gather_rows)(size)
    }
}
