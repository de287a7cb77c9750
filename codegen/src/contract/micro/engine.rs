//! [`Engine`]: what microkernels and packing need to know of an instruction set.

use super::super::pack::{Grid, Half, Lines, Packing, Wider, pack_singly};
use super::cell::{Cell, Sight};
use super::vector::{Interleave, Microkernel, Vector};
use tracecast_ir::DType;

/// Microkernels and packing for one accumulator type and one instruction set.
pub(in crate::contract) trait Engine: Sized {
    type Num: Wider;
    type Vector: Vector<Num = Self::Num>;
    /// The engine whose packed numbers hold one step each: it fills images of f32 or f64.
    type Singly: Elementwise<Num = Self::Num>;
    /// The engine for sums that may be subnormal, of one row and one vector at a time.
    type Careful: Engine<Num = Self::Num>;
    /// How columns of 16 bits are loaded, if [`Engine::reads`] them.
    type Bf16: Cell<Self::Vector>;
    type F16: Cell<Self::Vector>;
    /// Numbers of a vector.
    const LANES: usize = <Self::Vector as Vector>::LANES;
    /// The columns of a packed panel.
    const WIDTH: usize;
    /// The most rows of a strip.
    const ROWS: usize;
    /// The most rows of a strip that is four vectors wide: enough independent chains to hide the
    /// latency of FMA.
    const FEW: usize;
    /// The most columns that two vectors of rows are multiplied by.
    const SPOTS: usize;
    /// The same with one vector of rows.
    const SPOTS_ALONE: usize = Self::SPOTS;
    /// Steps of `k` in a packed number, the unit of lengths along `k` below, except in packing.
    const DEPTH: usize = 1;
    /// True if sums that may be subnormal are for [`Engine::Careful`].
    const IS_CARELESS: bool = false;
    /// True if strips round sums to bf16.
    const ROUNDS: bool = false;

    /// Runs a microkernel with the CPU's instructions.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, and [`Microkernel::run`] be allowed.
    #[inline(always)]
    unsafe fn run<K: Microkernel>(kernel: K) -> K::Out {
        // SAFETY: the caller's contract.
        unsafe { Self::Vector::run(kernel) }
    }

    /// The most columns of a strip of `rows`.
    fn columns(rows: usize) -> usize {
        if rows <= Self::FEW { 4 * Self::LANES } else { Self::WIDTH }
    }

    /// True if a strip reads columns of that dtype.
    fn reads(cell: DType) -> bool {
        cell == Self::Num::DTYPE
    }

    /// True if it reads them as fast as packed ones.
    fn reads_fast(cell: DType) -> bool {
        cell == Self::Num::DTYPE
    }

    /// Interleaves an image into pairs: each number with that at distance `apart`, if both are
    /// below `count`. Returns what [`Engine::pack`] does. Does nothing if a number holds one step.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. `count` numbers must be readable at `from`, writable at `to`.
    /// They may be the same if `apart` is positive.
    unsafe fn join(
        _from: *const Self::Num,
        _to: *mut Self::Num,
        _count: usize,
        _apart: isize,
    ) -> u16 {
        u16::MAX
    }

    /// Interleaves two halves into pairs, zeros where one ends; returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, whose numbers hold two steps. Elements inside of both halves
    /// must be readable, and `to` writable for all rows and columns.
    unsafe fn join_halves(_halves: &[Half; 2], _grid: Grid, _to: *mut Self::Num) -> u16 {
        unreachable!("numbers hold one step")
    }

    /// How vectors pack elements of a dtype that are rounded to another one. `None` if elements are
    /// packed one by one. Only numbers of 32 bits are packed with vectors.
    fn packing(_dtype: DType, _round: Option<DType>) -> Option<Packing> {
        None
    }

    /// Packs element `p < k` of line `j < count` to `dst[p * ld + j]`; a row's rest is undefined.
    ///
    /// Returns the least nonzero magnitude as bf16 bits, if the engine needs it; else a large one.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, `ld >= count`, and `k * ld + 8` numbers writable. Lines must
    /// be readable, with the elements between them if their stride is two.
    unsafe fn pack(lines: &Lines, count: usize, k: usize, dst: *mut Self::Num, ld: usize) -> u16 {
        if let Some(packing) = Self::packing(lines.dtype, lines.round) {
            // SAFETY: the caller's contract; these numbers have 32 bits.
            return unsafe { (packing.lines)(lines, None, [count, k, ld], dst.cast()) };
        }
        // SAFETY: the caller's contract.
        unsafe { pack_singly(lines, count, k, dst, ld) };
        u16::MAX
    }
}

/// Microkernels of depthwise convolutions, which multiply vectors by vectors.
pub(in crate::contract) trait Elementwise:
    Engine<Vector: Interleave, Bf16: Sight<<Self as Engine>::Vector>>
{
    /// How elements of the accumulator's dtype are loaded.
    type Same: Sight<Self::Vector>;
    /// True if the CPU has 32 vector registers, not 16.
    const HAS_MANY: bool = true;
    /// The most columns of an elementwise line, a vector of batches each.
    const LINE: usize = 14;
    /// The most vectors that a transposed convolution accumulates together.
    const ALTERNATING: usize = 4;
    /// True if a transposed convolution rounds sums of products of bf16.
    const ALTERNATES_BF16: bool = false;
    /// True if blocks of depthwise convolutions fill caches. Where products are slow, copying more
    /// often costs little, and the workspace stays small.
    const FILLS_CACHES: bool = true;

    /// The shortest row of bf16 that a depthwise weight gradient reads in place.
    const BF16_ROW: usize = 1;

    /// True if a depthwise weight gradient reads rows of that many elements in place.
    fn sweeps(dtype: DType, row: usize) -> bool {
        let is_bf16 = dtype == DType::BF16 && Self::reads(dtype) && row >= Self::BF16_ROW;
        dtype == Self::Num::DTYPE || is_bf16
    }
}
