//! Microkernels of contractions: a tile of rows by vectors of columns, accumulated over `k`.
//!
//! One definition serves every element type and CPU; [`Engine`] names the combinations.

pub(super) mod alternating;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod depthwise;
#[cfg(target_arch = "x86_64")]
pub(super) mod eights;
#[cfg(target_arch = "x86_64")]
pub(super) mod few;
pub(super) mod field;
pub(super) mod lanes;
pub(super) mod line;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod pairs;
pub(super) mod portable;
pub(super) mod sliding;
pub(super) mod spots;
pub(super) mod strip;
pub(super) mod sweep;
pub(super) mod taps;
mod vector;

use super::pack::{
    Alternate, Elements, Grid, Half, Lines, Matrices, Rows, Wider, WindowRows, apart_singly,
    pack_singly, window_rows_singly,
};
use super::windows::{Runs, Seen};
use alternating::Alternating;
use field::Field;
use lanes::Lanes;
use line::Line;
use sliding::Sliding;
use spots::Spots;
use std::ops::Range;
pub(super) use strip::{Strip, place};
use sweep::Sweep;
use taps::Taps;
use tracecast_ir::DType;
pub(super) use vector::Number;
use vector::Vector;

/// Lines of no more windows than this leave half of the widest vectors empty.
pub(super) const SHORT: usize = 8;

/// Microkernels and packing for one accumulator type and one instruction set.
pub(super) trait Engine {
    type Num: Wider;
    /// The engine whose packed numbers hold one step each: it fills images of f32 or f64.
    type Singly: Elementwise<Num = Self::Num>;
    /// Numbers of a vector.
    const LANES: usize;
    /// The columns of a packed panel.
    const WIDTH: usize;
    /// The most rows of a strip.
    const ROWS: usize;
    /// The most columns of [`Engine::spots`] with two vectors of rows.
    const SPOTS: usize;
    /// The same with one vector of rows.
    const SPOTS_ALONE: usize = Self::SPOTS;
    /// Steps of `k` in a packed number, the unit of lengths along `k` below, except in packing.
    const DEPTH: usize = 1;
    /// True if strips and [`Engine::taps`] round sums to bf16.
    const ROUNDS: bool = false;

    /// The most columns of a strip of `rows`: enough independent chains to hide the latency of FMA.
    fn columns(rows: usize) -> usize;

    /// True if [`Engine::strip`] reads columns of that dtype.
    fn reads(cell: DType) -> bool;

    /// True if it reads them as fast as packed ones.
    fn reads_fast(cell: DType) -> bool {
        cell == Self::Num::DTYPE
    }

    /// Computes `rows` (1 to [`Engine::ROWS`]) by `vectors` of columns (up to [`Engine::columns`]).
    /// For columns read in place, returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, which must read the strip's `cell`. All that the strip spans
    /// must be readable, and its sums writable.
    unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<Self::Num>) -> u16;

    /// As [`Engine::strip`], with columns read in place from an image, at one offset per step.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. The image must be readable for these vectors at each offset,
    /// the strip for its rows, and sums writable.
    unsafe fn taps(rows: usize, vectors: usize, taps: &Taps<'_, Self::Num>);

    /// Multiplies one or two vectors of rows by columns of an image, broadcast number by number. Up
    /// to [`Engine::SPOTS`]; for one vector [`Engine::SPOTS_ALONE`].
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. The image must be readable for these columns at each offset,
    /// rows for these vectors, and sums writable.
    unsafe fn spots(columns: usize, vectors: usize, spots: &Spots<'_, Self::Num>);

    /// Packs rows of `row` stride, each of two-row matrices that are read column by column. Returns
    /// what [`Engine::pack`] does; `None` if unsupported.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Elements must be readable for these rows and steps, and `dst`
    /// writable for their numbers.
    unsafe fn pack_crossed(
        _from: &Elements,
        _row: isize,
        _matrices: Matrices,
        _steps: Range<usize>,
        _count: usize,
        _dst: *mut Self::Num,
    ) -> Option<u16> {
        None
    }

    /// Gathers `count` rows of stride `row` into a strip; a step is at its offset in the first row.
    /// Returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Elements must be readable for these rows at `offsets`, and
    /// `dst` writable for their numbers.
    unsafe fn pack_apart(
        from: &Elements,
        row: isize,
        offsets: &[isize],
        count: usize,
        dst: *mut Self::Num,
    ) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { apart_singly(from, row, offsets, count, dst) };
        u16::MAX
    }

    /// Packs rows of windows; returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Windows must be readable, and each place writable for
    /// `rows.count` numbers.
    unsafe fn pack_window_rows(from: &Elements, rows: &WindowRows<'_>, dst: *mut Self::Num) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { window_rows_singly(from, rows, dst) };
        u16::MAX
    }

    /// Packs one line whose steps are contiguous; returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. The line must be readable for `k` elements, and `dst` writable
    /// for their numbers.
    unsafe fn pack_line(line: &Elements, k: usize, dst: *mut Self::Num) -> u16 {
        let Elements { base, dtype, round } = *line;
        let lines = Lines { base, dtype, round, across: 0, along: 1 };
        // SAFETY: the caller's contract.
        unsafe { Self::pack(&lines, 1, k, dst, 1) }
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

    /// Packs element `p < k` of line `j < count` to `dst[p * ld + j]`; a row's rest is undefined.
    ///
    /// Returns the least nonzero magnitude as bf16 bits, if the engine needs it; else a large one.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, lines readable, `ld >= count`, `k * ld + 8` numbers writable.
    unsafe fn pack(lines: &Lines, count: usize, k: usize, dst: *mut Self::Num, ld: usize) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { pack_singly(lines, count, k, dst, ld) };
        u16::MAX
    }

    /// True if the engine has [`Engine::turn_rounded`].
    const TURNS_ROUNDED: bool = false;

    /// Rounds columns of sums to bf16, a vector each, and transposes them to rows of stride `ld`.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, which must have it. Sums must be readable, places writable.
    unsafe fn turn_rounded(_sums: *const Self::Num, _sizes: [usize; 2], _to: *mut u16, _ld: usize) {
        unreachable!("has no way to")
    }

    /// Deinterleaves rows: even elements go to the first place, odd ones to the second. Returns
    /// what [`Engine::pack`] does; `None`, with nothing done, if unsupported.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Rows must be readable, and each place writable for its count
    /// of numbers in every row.
    unsafe fn alternate(
        _from: &Elements,
        _rows: Rows,
        _to: [Alternate<Self::Num>; 2],
    ) -> Option<u16> {
        None
    }

    /// True if [`Engine::pack_through`] packs these columns; otherwise they are gathered first.
    fn packs_through(_seen: &Seen, _from: &Elements) -> bool {
        false
    }

    /// Packs a block of patches (implicit im2col) straight into panels, as [`Engine::pack`] does.
    /// Returns `None` if they must be gathered first.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What is in bounds must be readable, and `dst` writable for
    /// whole panels.
    unsafe fn pack_through(
        _seen: &Seen,
        _from: Elements,
        _block: (Range<usize>, Range<usize>),
        _runs: &mut Runs,
        _dst: *mut Self::Num,
    ) -> Option<u16> {
        None
    }
}

/// Microkernels of depthwise convolutions, which multiply vectors by vectors.
pub(super) trait Elementwise: Engine {
    /// The most columns of [`Elementwise::line`], a vector of batches each.
    const LINE: usize;
    /// True if [`Elementwise::alternating`] rounds sums of products of bf16.
    const ALTERNATES_BF16: bool = false;

    /// Continues the accumulators of `lines` by `columns`, a vector each.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What steps and columns span must be readable, chains writable.
    unsafe fn lanes(lines: usize, columns: usize, lanes: &Lanes<'_, Self::Num>);

    /// Accumulates up to [`Elementwise::LINE`] columns, a vector each, over the steps of a block.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What steps and columns span must be readable, sums writable.
    unsafe fn line(columns: usize, line: &Line<'_, Self::Num>);

    /// True if the engine has [`Elementwise::sliding`].
    const SLIDES: bool = false;

    /// Depthwise windows, 3 by 3 or 5 by 5: [`sliding::LINES`] by [`sliding::WINDOWS`] at most.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, which must slide. What windows see must be readable, sums
    /// writable.
    unsafe fn sliding(_taps: usize, _sizes: [usize; 2], _of: &Sliding<Self::Num>) {
        unreachable!("has no way to")
    }

    /// Accumulates up to [`field::most_lines`] by [`field::MOST_VECTORS`] vectors of an image.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What steps and columns span must be readable, and sums
    /// writable for whole vectors.
    unsafe fn field(lines: usize, vectors: usize, field: &Field<'_, Self::Num>);

    /// Accumulates up to [`alternating::MOST_VECTORS`] vectors of even columns, and as many of odd.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What columns read must be readable, and their sums writable.
    unsafe fn alternating(vectors: usize, of: &Alternating<Self::Num>);

    /// True if [`Elementwise::sweep`] reads elements of that dtype.
    fn sweeps(dtype: DType) -> bool {
        dtype == Self::Num::DTYPE
    }

    /// Continues a depthwise weight gradient over lines of a channel, at stride `step`.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, and `dtype` one it reads. Elements inside of the channel and
    /// the lines must be readable, and chains writable.
    unsafe fn sweep(step: usize, dtype: DType, of: &Sweep<'_, Self::Num>);
}
