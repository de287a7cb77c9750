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
pub(super) mod sweep;
pub(super) mod taps;
mod vector;

use super::pack::{
    Alternate, Elements, Grid, Half, Lines, Matrices, Rows, Wider, WindowRows, apart_singly,
    pack_singly, window_rows_singly,
};
use super::prefetch::ask;
use super::windows::{Runs, Seen};
use alternating::Alternating;
use field::Field;
use lanes::Lanes;
use line::Line;
use sliding::Sliding;
use spots::Spots;
use std::ops::Range;
use sweep::Sweep;
use taps::Taps;
use tracecast_ir::DType;
pub(super) use vector::Number;
use vector::Vector;

/// Arguments of the GEMM microkernel: a strip of rows times columns over part of a `k` block.
pub(super) struct Strip<T> {
    pub(super) k: usize,
    /// First element of A; `row` and `step` are the strides of rows and of `k`, in elements.
    pub(super) a: *const T,
    pub(super) row: isize,
    pub(super) step: isize,
    /// First column of B, of dtype `cell`; columns are contiguous. `b_step` is in bytes, along `k`.
    pub(super) b: *const u8,
    pub(super) b_step: isize,
    pub(super) cell: DType,
    /// Prefetch distance from the columns that a step reads, in bytes.
    pub(super) ahead: isize,
    /// Accumulators to continue, of row stride `from_ld`; null for zeros, as with widened columns.
    pub(super) from: *const T,
    pub(super) from_ld: usize,
    /// Destination of the sums, with row stride `ld` in sums.
    pub(super) out: *mut T,
    pub(super) ld: usize,
    /// Adds to the destination instead of replacing it.
    pub(super) add: bool,
    /// Stores the sums as bf16, which `out` then points to. Never with `add`.
    pub(super) rounded: bool,
    /// Sums may be subnormal.
    pub(super) tiny: bool,
}

impl<T> Strip<T> {
    /// Address of the sum at index `sums`.
    #[cfg(target_arch = "x86_64")]
    fn place(&self, sums: usize) -> *mut T {
        place(self.out, sums, self.rounded)
    }
}

/// Address of the sum at index `sums` after `first`; sums are stored as bf16 if `rounded`.
pub(super) fn place<T>(first: *mut T, sums: usize, rounded: bool) -> *mut T {
    let bytes = if rounded { DType::BF16.bytes() } else { size_of::<T>() };
    first.wrapping_byte_add(sums * bytes)
}

/// Microkernels and packing for one accumulator type and one instruction set.
pub(super) trait Engine {
    type Num: Wider;
    /// The engine whose packed numbers hold one step each: it fills images of f32 or f64.
    type Singly: Engine<Num = Self::Num>;
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
    /// The most runs of three adjacent columns with one vector of rows; zero if unsupported.
    const THREES: usize = 0;
    /// The most columns of [`Engine::line`], a vector of batches each.
    const LINE: usize;
    /// Steps of `k` in a packed number, the unit of lengths along `k` below, except in packing.
    const DEPTH: usize = 1;
    /// True if strips and [`Engine::taps`] round sums to bf16.
    const ROUNDS: bool = false;
    /// True if [`Engine::alternating`] rounds sums of products of bf16.
    const ALTERNATES_BF16: bool = false;

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
    /// As there.
    unsafe fn taps(rows: usize, vectors: usize, taps: &Taps<'_, Self::Num>);

    /// Multiplies one or two vectors of rows by columns of an image, broadcast number by number. Up
    /// to [`Engine::SPOTS`]; for one vector [`Engine::SPOTS_ALONE`], or [`Engine::THREES`] runs.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn spots(columns: usize, vectors: usize, spots: &Spots<'_, Self::Num>);

    /// Packs rows of `row` stride, each of two-row matrices that are read column by column. Returns
    /// what [`Engine::pack`] does; `None` if unsupported.
    ///
    /// # Safety
    ///
    /// As [`Engine::pack`].
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
    /// As there.
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
    /// As there. Each place must be writable for `rows.count` numbers.
    unsafe fn pack_window_rows(from: &Elements, rows: &WindowRows<'_>, dst: *mut Self::Num) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { window_rows_singly(from, rows, dst) };
        u16::MAX
    }

    /// Packs one line whose steps are contiguous; returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// As there; `dst` must be writable for the numbers of `k` steps.
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

    /// Continues the accumulators of `lines` by `columns`, a vector each.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What steps and columns span must be readable, chains writable.
    unsafe fn lanes(lines: usize, columns: usize, lanes: &Lanes<'_, Self::Num>);

    /// Accumulates up to [`Engine::LINE`] columns, a vector each, over the steps of a block.
    ///
    /// # Safety
    ///
    /// As there, with sums in the place of chains.
    unsafe fn line(columns: usize, line: &Line<'_, Self::Num>);

    /// True if the engine has [`Engine::sliding`].
    const SLIDES: bool = false;

    /// Depthwise windows, 3 by 3 or 5 by 5: [`sliding::LINES`] by [`sliding::WINDOWS`] at most.
    ///
    /// # Safety
    ///
    /// As there. The engine must have it.
    unsafe fn sliding(_taps: usize, _sizes: [usize; 2], _of: &Sliding<Self::Num>) {
        unreachable!("has no way to")
    }

    /// Accumulates up to [`field::most_lines`] by [`field::MOST_VECTORS`] vectors of an image.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn field(lines: usize, vectors: usize, field: &Field<'_, Self::Num>);

    /// Accumulates up to [`alternating::MOST_VECTORS`] vectors of even columns, and as many of odd.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn alternating(vectors: usize, of: &Alternating<Self::Num>);

    /// True if [`Engine::sweep`] reads elements of that dtype.
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

    /// Packs element `p < k` of line `j < count` to `dst[p * ld + j]`; a row's rest is undefined.
    ///
    /// Returns the least nonzero magnitude as bf16 bits, if the engine needs it; else a large one.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, lines readable, `ld >= count`, `k * ld + 8` numbers writable.
    unsafe fn pack(lines: &Lines, count: usize, k: usize, dst: *mut Self::Num, ld: usize) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { pack_singly(lines, 0..count, 0..k, dst, ld) };
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

/// Loads elements of one dtype as a vector.
trait Cell<T: Vector> {
    const BYTES: usize;
    /// Loads a vector of columns; `step` is the stride of numbers along `k`, in bytes.
    ///
    /// # Safety
    ///
    /// `p` must be readable for as many elements as the vector has lanes, in each step of a number.
    unsafe fn load(p: *const u8, step: isize) -> T;
    /// Two adjacent vectors of columns, in a lane order of the cell's own.
    ///
    /// # Safety
    ///
    /// As [`Cell::load`], for both.
    #[inline(always)]
    unsafe fn load_two(p: *const u8, step: isize) -> [T; 2] {
        // SAFETY: the caller's contract.
        let first = unsafe { Self::load(p, step) };
        // SAFETY: as above.
        [first, unsafe { Self::load(p.wrapping_add(T::LANES * Self::BYTES), step) }]
    }
    /// Restores column order after [`Cell::load_two`].
    #[inline(always)]
    fn in_order(two: [T; 2]) -> [T; 2] {
        two
    }
    /// [`Vector::round`] of two vectors in the order of [`Cell::load_two`].
    ///
    /// # Safety
    ///
    /// As there, for both.
    #[inline(always)]
    unsafe fn round_two(two: [T; 2], p: *mut u16) {
        for (v, x) in two.into_iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { x.round(p.wrapping_add(v * T::LANES)) };
        }
    }
    /// Updates the least magnitude so far, zeros at first. Only pairs of bf16 keep it.
    fn smaller(least: T, _: T) -> T {
        least
    }
    /// That magnitude, as [`Engine::pack`] returns it.
    fn least(_: T) -> u16 {
        u16::MAX
    }
}

/// Elements of the accumulator's dtype.
struct Same;

impl<T: Vector> Cell<T> for Same {
    const BYTES: usize = size_of::<T::Num>();
    #[inline(always)]
    unsafe fn load(p: *const u8, _: isize) -> T {
        // SAFETY: the caller's contract.
        unsafe { T::load(p.cast()) }
    }
}

/// bf16 in memory.
struct Bf16;

/// f16 in memory.
struct F16;

/// # Safety
///
/// As [`Engine::strip`], for `R` rows and `V` vectors, whose sums are rounded if `ROUNDED`.
#[inline(always)]
unsafe fn product<T: Vector, C: Cell<T>, const R: usize, const V: usize, const ROUNDED: bool>(
    s: &Strip<T::Num>,
) -> u16 {
    let mut least = T::splat(T::Num::ZERO);
    let mut acc = [[T::splat(T::Num::ZERO); V]; R];
    if !s.from.is_null() {
        for (i, row) in acc.iter_mut().enumerate() {
            for (v, sum) in row.iter_mut().enumerate() {
                // SAFETY: the caller vouches for the chains' memory.
                *sum = unsafe { T::load(s.from.wrapping_add(i * s.from_ld + v * T::LANES)) };
            }
        }
    }
    if s.row == 1 {
        let mut a = s.a;
        let mut b = s.b;
        for _ in 0..s.k {
            // SAFETY: this step's row of the panel and of the strip, for which the caller vouches.
            unsafe {
                step::<T, C, R, V>((b, s.b_step), |i| a.wrapping_add(i), &mut acc, &mut least)
            };
            ask(b.wrapping_offset(s.ahead));
            a = a.wrapping_offset(s.step);
            b = b.wrapping_offset(s.b_step);
        }
    } else {
        let mut rows = [s.a; R];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = s.a.wrapping_offset(i as isize * s.row);
        }
        let mut b = s.b;
        let mut at = 0isize;
        for _ in 0..s.k {
            // SAFETY: as above.
            unsafe {
                step::<T, C, R, V>(
                    (b, s.b_step),
                    |i| rows[i].wrapping_offset(at),
                    &mut acc,
                    &mut least,
                )
            };
            ask(b.wrapping_offset(s.ahead));
            at += s.step;
            b = b.wrapping_offset(s.b_step);
        }
    }
    for (i, row) in acc.into_iter().enumerate() {
        // SAFETY: the caller vouches for the sums' memory.
        unsafe { finish::<T, C, V, ROUNDED>(s, row, i * s.ld) };
    }
    C::least(least)
}

/// Stores a row of sums, or adds it to memory, `place` sums after the first.
///
/// # Safety
///
/// As [`Engine::strip`], for the places of these sums.
#[inline(always)]
unsafe fn finish<T: Vector, C: Cell<T>, const V: usize, const ROUNDED: bool>(
    s: &Strip<T::Num>,
    mut row: [T; V],
    place: usize,
) {
    if ROUNDED {
        let out = s.out.cast::<u16>().wrapping_add(place);
        for v in 0..V / 2 {
            let to = out.wrapping_add(2 * v * T::LANES);
            // SAFETY: the caller's contract.
            unsafe { C::round_two([row[2 * v], row[2 * v + 1]], to) };
        }
        if V % 2 == 1 {
            // SAFETY: as above.
            unsafe { row[V - 1].round(out.wrapping_add((V - 1) * T::LANES)) };
        }
        return;
    }
    for v in 0..V / 2 {
        [row[2 * v], row[2 * v + 1]] = C::in_order([row[2 * v], row[2 * v + 1]]);
    }
    for (v, sum) in row.into_iter().enumerate() {
        let out = s.out.wrapping_add(place + v * T::LANES);
        // SAFETY: as above.
        let total = if s.add { unsafe { T::load(out) }.add(sum) } else { sum };
        // SAFETY: as above.
        unsafe { total.store(out) };
    }
}

/// One step along `k`.
///
/// # Safety
///
/// `b` must be readable for `V` vectors of cells, `a` must give addresses of numbers.
#[inline(always)]
unsafe fn step<T: Vector, C: Cell<T>, const R: usize, const V: usize>(
    (b, step): (*const u8, isize),
    a: impl Fn(usize) -> *const T::Num,
    acc: &mut [[T; V]; R],
    least: &mut T,
) {
    let mut right = [T::splat(T::Num::ZERO); V];
    let from = |v: usize| b.wrapping_add(v * T::LANES * C::BYTES);
    for v in 0..V / 2 {
        // SAFETY: the caller's contract.
        [right[2 * v], right[2 * v + 1]] = unsafe { C::load_two(from(2 * v), step) };
    }
    if V % 2 == 1 {
        // SAFETY: the caller's contract.
        right[V - 1] = unsafe { C::load(from(V - 1), step) };
    }
    for right in right {
        *least = C::smaller(*least, right);
    }
    for (i, row) in acc.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        let left = T::splat(unsafe { a(i).read_unaligned() });
        for (v, sum) in row.iter_mut().enumerate() {
            *sum = left.fma(right[v], *sum);
        }
    }
}

/// Dispatches to [`product`] by the strip's rows and vectors; few rows may have more vectors.
macro_rules! sizes {
    ($vector:ty, $cell:ty, $rounded:expr, $rows:expr, $vectors:expr, $strip:expr, few: [$($few:literal)*], all: [$($r:literal)*], more: [$($v:literal)*]) => {
        match ($rows, $vectors) {
            // SAFETY: the caller vouches for a strip of this size.
            $(($r, 1) => unsafe { product::<$vector, $cell, $r, 1, { $rounded }>($strip) },
            // SAFETY: as above.
            ($r, 2) => unsafe { product::<$vector, $cell, $r, 2, { $rounded }>($strip) },)*
            // SAFETY: as above.
            $(($few, 3) => unsafe { product::<$vector, $cell, $few, 3, { $rounded }>($strip) },
            // SAFETY: as above.
            ($few, 4) => unsafe { product::<$vector, $cell, $few, 4, { $rounded }>($strip) },)*
            // SAFETY: as above.
            $(($v, 3) => unsafe { product::<$vector, $cell, $v, 3, { $rounded }>($strip) },)*
            (rows, vectors) => unreachable!("no strip of {rows} rows by {vectors} vectors"),
        }
    };
}

use sizes;
