//! The innermost loop of a contraction: a few rows times a few vectors of columns, summed along `k` in registers.
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

/// A product of a strip of rows with some columns over a part of a block of `k`.
pub(super) struct Strip<T> {
    pub(super) k: usize,
    /// The first row's first number; rows are `row` numbers apart and steps along `k` are `step` apart.
    pub(super) a: *const T,
    pub(super) row: isize,
    pub(super) step: isize,
    /// The first step's first column, of dtype `cell`; columns are side by side, numbers along `k` are `b_step` bytes apart.
    pub(super) b: *const u8,
    pub(super) b_step: isize,
    pub(super) cell: DType,
    /// So many bytes behind what each step reads of the columns is asked for.
    pub(super) ahead: isize,
    /// The sums that the chains go on from, rows `from_ld` numbers apart; null for chains that begin at zero, as those of columns that are widened do.
    pub(super) from: *const T,
    pub(super) from_ld: usize,
    /// Where the sums go, rows `ld` of them apart.
    pub(super) out: *mut T,
    pub(super) ld: usize,
    /// Adds the sums to what is there instead of replacing it.
    pub(super) add: bool,
    /// Rounds the sums to bf16: `out` takes these. They are not added to others then.
    pub(super) rounded: bool,
    /// Sums may be subnormal.
    pub(super) tiny: bool,
}

impl<T> Strip<T> {
    /// Where a sum goes so many behind the first.
    #[cfg(target_arch = "x86_64")]
    fn place(&self, sums: usize) -> *mut T {
        place(self.out, sums, self.rounded)
    }
}

/// Where a sum goes so many behind the first, which goes there, if they are rounded to bf16 or not.
pub(super) fn place<T>(first: *mut T, sums: usize, rounded: bool) -> *mut T {
    let bytes = if rounded { DType::BF16.bytes() } else { size_of::<T>() };
    first.wrapping_byte_add(sums * bytes)
}

/// Vectors of one type on one kind of CPU.
pub(super) trait Engine {
    type Num: Wider;
    /// The engine of the same numbers that holds a step in each: images are filled with it.
    type Singly: Engine<Num = Self::Num>;
    /// Numbers of a vector.
    const LANES: usize;
    /// The columns of a packed panel.
    const WIDTH: usize;
    /// The most rows of a strip.
    const ROWS: usize;
    /// The most columns whose numbers lie in an image that are summed together, by two vectors of rows.
    const SPOTS: usize;
    /// The same by one vector.
    const SPOTS_ALONE: usize = Self::SPOTS;
    /// The most runs of three columns side by side that are summed together by one vector of rows; zero if there is no way to.
    const THREES: usize = 0;
    /// The most columns of a line that are summed together, each a vector of batches.
    const LINE: usize;
    /// How many steps of `k` a packed number holds. Everything below that is counted in steps along `k` is counted in numbers,
    /// apart from what is packed.
    const DEPTH: usize = 1;
    /// True if strips and [`Engine::taps`] round sums to bf16.
    const ROUNDS: bool = false;
    /// True if [`Engine::alternating`] rounds sums of products of bf16.
    const ALTERNATES_BF16: bool = false;

    /// The most columns of a strip with so few rows: enough chains to keep the CPU busy.
    fn columns(rows: usize) -> usize;

    /// True if a strip can read right operands of that dtype.
    fn reads(cell: DType) -> bool;

    /// True if it reads them as fast as packed ones.
    fn reads_fast(cell: DType) -> bool {
        cell == Self::Num::DTYPE
    }

    /// Computes `rows` (1 to [`Engine::ROWS`]) by `vectors` of columns (1 to [`Engine::columns`] of them). Of columns that are
    /// read as they lie, returns what [`Engine::pack`] does of those that are packed.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Everything the strip spans must be readable, and its sums writable. The engine must read
    /// the strip's `cell`.
    unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<Self::Num>) -> u16;

    /// As [`Engine::strip`], of columns that lie in an image, in numbers of one step.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn taps(rows: usize, vectors: usize, taps: &Taps<'_, Self::Num>);

    /// The same for up to [`Engine::SPOTS`] columns whose numbers lie in an image by one vector of rows or two, or up to [`Engine::SPOTS_ALONE`], or three for each of
    /// [`Engine::THREES`], by one.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn spots(columns: usize, vectors: usize, spots: &Spots<'_, Self::Num>);

    /// Packs rows of which each goes across matrices of two rows: steps are in the order of columns. They lie `row` elements apart. Returns what [`Engine::pack`] does; `None` if the engine has no way to.
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

    /// Packs `count` rows that lie so many elements apart, for steps of which the first row's elements are at those offsets, without gaps; returns what
    /// [`Engine::pack`] does.
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
    /// As there. Each place must be writable for so many numbers as there are rows.
    unsafe fn pack_window_rows(from: &Elements, rows: &WindowRows<'_>, dst: *mut Self::Num) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { window_rows_singly(from, rows, dst) };
        u16::MAX
    }

    /// Packs a single line whose steps lie side by side, number by number without gaps; returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// As there; `dst` must be writable for the numbers of so many steps.
    unsafe fn pack_line(line: &Elements, k: usize, dst: *mut Self::Num) -> u16 {
        let Elements { base, dtype, round } = *line;
        let lines = Lines { base, dtype, round, across: 0, along: 1 };
        // SAFETY: the caller's contract.
        unsafe { Self::pack(&lines, 1, k, dst, 1) }
    }

    /// Makes numbers of two steps of those of an image: each with the one so many places on, where both are among `count`. Returns what [`Engine::pack`] does.
    /// Engines whose numbers hold one step do nothing.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. So many numbers must be readable at `from` and writable at `to`, which may be `from` if `apart` is positive.
    unsafe fn join(
        _from: *const Self::Num,
        _to: *mut Self::Num,
        _count: usize,
        _apart: isize,
    ) -> u16 {
        u16::MAX
    }

    /// Makes numbers of two steps of the elements of two halves: rows and columns that are among those of one at least. Returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, whose numbers hold two steps. What is there of both halves must be readable, and `to` writable for all rows and columns.
    unsafe fn join_halves(_halves: &[Half; 2], _grid: Grid, _to: *mut Self::Num) -> u16 {
        unreachable!("numbers hold one step")
    }

    /// Goes on with the chains of so many lines of so many columns, a vector each.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What steps and columns span must be readable, and chains writable.
    unsafe fn lanes(lines: usize, columns: usize, lanes: &Lanes<'_, Self::Num>);

    /// Sums up to [`Engine::LINE`] columns, a vector each, over the steps of a block.
    ///
    /// # Safety
    ///
    /// As there, with sums in the place of chains.
    unsafe fn line(columns: usize, line: &Line<'_, Self::Num>);

    /// True if the engine has a way to let windows slide; see [`Engine::sliding`].
    const SLIDES: bool = false;

    /// Sums up to [`sliding::LINES`] lines of up to [`sliding::WINDOWS`] windows of so many positions each way, three or five, a vector each.
    ///
    /// # Safety
    ///
    /// As there. The engine must have a way to.
    unsafe fn sliding(_taps: usize, _sizes: [usize; 2], _of: &Sliding<Self::Num>) {
        unreachable!("has no way to")
    }

    /// Sums up to [`field::most_lines`] lines of up to [`field::MOST_VECTORS`] vectors of columns that lie in an image, over all steps.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn field(lines: usize, vectors: usize, field: &Field<'_, Self::Num>);

    /// Sums up to [`alternating::MOST_VECTORS`] vectors of even columns, and as many of odd ones.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn alternating(vectors: usize, of: &Alternating<Self::Num>);

    /// True if [`Engine::sweep`] reads elements of that dtype.
    fn sweeps(dtype: DType) -> bool {
        dtype == Self::Num::DTYPE
    }

    /// Goes on with the chains of all windows, which are so many places apart, over some lines of a plane of such elements.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, which must read these elements. What is there must be readable, and chains writable.
    unsafe fn sweep(step: usize, dtype: DType, of: &Sweep<'_, Self::Num>);

    /// Packs `count` lines of `k` elements: number `p` of line `j` goes to `dst[p * ld + j]`. What follows in a row up to `ld` is
    /// not defined.
    ///
    /// Returns the least magnitude of them other than zero, as the bits of a bf16, if the engine has to know it; a large number
    /// otherwise.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. The lines must be readable, `ld` not below `count`, and `k * ld + 8` numbers writable.
    unsafe fn pack(lines: &Lines, count: usize, k: usize, dst: *mut Self::Num, ld: usize) -> u16 {
        // SAFETY: the caller's contract.
        unsafe { pack_singly(lines, 0..count, 0..k, dst, ld) };
        u16::MAX
    }

    /// True if the engine has a way to round sums as they are turned; see [`Engine::turn_rounded`].
    const TURNS_ROUNDED: bool = false;

    /// Rounds columns of sums to bf16, a vector each, and turns them: those of each of so many lanes go side by side, lanes `ld` of them apart.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, which must have a way to. Sums must be readable, and their places writable.
    unsafe fn turn_rounded(_sums: *const Self::Num, _sizes: [usize; 2], _to: *mut u16, _ld: usize) {
        unreachable!("has no way to")
    }

    /// Tells the numbers of rows apart that alternate: every second one, from the first or the second on, goes to a place of its own. Returns what
    /// [`Engine::pack`] does; `None`, and nothing is done, if the engine has no way to.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Rows must be readable, and places writable for so many numbers of each.
    unsafe fn alternate(
        _from: &Elements,
        _rows: Rows,
        _to: [Alternate<Self::Num>; 2],
    ) -> Option<u16> {
        None
    }

    /// True if [`Engine::pack_through`] packs such columns; otherwise they are brought together first.
    fn packs_through(_seen: &Seen, _from: &Elements) -> bool {
        false
    }

    /// Packs columns that are seen through windows into panels, for some steps, in the way of [`Engine::pack`]; `None` if they have to be brought together
    /// first.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What is there of the columns and steps must be readable, and `dst` writable for whole panels.
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

/// How elements in memory become a vector.
trait Cell<T: Vector> {
    const BYTES: usize;
    /// The columns of a number; those of the next one lie `step` bytes on.
    ///
    /// # Safety
    ///
    /// `p` must be readable for as many elements as the vector has lanes, in each step of a number.
    unsafe fn load(p: *const u8, step: isize) -> T;
    /// Two vectors of columns side by side, in an order of their own.
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
    /// What was in the order of [`Cell::load_two`] in that of columns.
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
    /// Takes numbers into what is known of the least magnitude so far, zeros at first. Only two steps of bf16 keep it.
    fn smaller(least: T, _: T) -> T {
        least
    }
    /// That magnitude, as [`Engine::pack`] returns it.
    fn least(_: T) -> u16 {
        u16::MAX
    }
}

/// Elements that are numbers already.
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
/// As [`Engine::strip`], for `R` rows and `V` vectors, whose sums are rounded if they are to be `ROUNDED`.
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

/// Stores the sums of a row, or adds them to others, so many places behind the first.
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

/// Calls [`product`] for a strip's number of rows, listed, and of vectors, which few rows have more of.
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
