//! A block of a contraction whose operands are packed or read where they lie: the loop over its strips and panels.

use super::micro::{Engine, Strip, place};
use super::pack::{Lines, Part, Wider, panels, strips};
use super::prefetch::{LINE, Prefetch};
use tracecast_ir::DType;

/// A left operand that is ready for the innermost loop.
#[derive(Clone, Copy)]
pub(super) enum Left<T> {
    /// In strips, a block of `k` after the other, so many rows in all; see [`Engine::pack`] for `least`.
    Packed { base: *const T, rows: usize, least: u16 },
    /// As it lies: row by step, distances in numbers.
    InPlace { base: *const T, row: isize, step: isize },
}

/// A right operand that is ready for the innermost loop.
#[derive(Clone, Copy)]
pub(super) struct Right {
    /// Columns that are read as they lie, from the first one on: a vector of them at least, if they are not whole vectors.
    pub(super) in_place: Option<(Lines, usize)>,
    /// The others in panels, a block of `k` after the other.
    pub(super) packed: *const u8,
    /// The dtype of the numbers in panels.
    pub(super) cell: DType,
    /// The packed columns, the last panel filled up.
    pub(super) width: usize,
    /// The first of them to use, the beginning of a panel.
    pub(super) first: usize,
    /// See [`Engine::pack`].
    pub(super) least: u16,
}

impl<T> Left<T> {
    /// See [`Engine::pack`].
    fn least(&self) -> u16 {
        if let Left::Packed { least, .. } = self { *least } else { u16::MAX }
    }

    /// The part from a number on.
    pub(super) fn from(self, step: usize) -> Self {
        match self {
            Left::Packed { base, rows, least } => {
                Left::Packed { base: base.wrapping_add(step * rows), rows, least }
            }
            Left::InPlace { base, row, step: along } => {
                let base = base.wrapping_offset(step as isize * along);
                Left::InPlace { base, row, step: along }
            }
        }
    }
}

/// Whether a chain of products of such numbers may leave a sum that is not zero and below the least normal f32. The arguments are
/// the least magnitudes other than zero of both sides, as bits of bf16.
///
/// A normal bf16 is a whole number of 2<sup>e - 7</sup>, where `e` is its exponent. So every product is a whole number of
/// 2<sup>e + f - 14</sup> with the least exponents of both sides, and so is every sum, rounded or not.
pub(super) fn may_be_subnormal(a: u16, b: u16) -> bool {
    let (a, b) = (a >> 7, b >> 7);
    a == 0 || b == 0 || a + b < 2 * 127 + 14 - 126
}

impl Right {
    /// The part from a number on.
    pub(super) fn from<E: Engine>(self, step: usize) -> Self {
        Right {
            in_place: self.in_place.map(|(lines, n)| (lines.from(0, step * E::DEPTH), n)),
            packed: self.packed.wrapping_add(step * self.width * self.cell.bytes()),
            ..self
        }
    }
}

/// Some columns of a right operand, as an innermost loop reads them.
#[derive(Clone, Copy)]
struct Columns {
    base: *const u8,
    /// From a number to the next, in bytes.
    step: isize,
    cell: DType,
    count: usize,
    /// From these columns to those that come next, in bytes.
    ahead: isize,
}

impl Columns {
    /// Bytes from what a strip reads at each `k` to the cache line that it prefetches. Strip 0 prefetches the first line of each row of the next columns, strip 1 the
    /// second one, and so on. Later strips prefetch what they read themselves, which costs nothing.
    fn prefetch_offset(&self, strip: usize) -> isize {
        let line = strip * LINE;
        if line < self.count * self.cell.bytes() { self.ahead + line as isize } else { 0 }
    }
}

/// Where the sums of a group go.
#[derive(Clone, Copy)]
pub(super) struct Out<'a, T> {
    pub(super) sums: *mut T,
    pub(super) ld: usize,
    /// Adds the sums of a block of `k` to what is there.
    pub(super) add: bool,
    /// The chains begin, with these steps.
    pub(super) begins: bool,
    /// The chains end: they are sums now.
    pub(super) ends: bool,
    /// What the epilogue needs next.
    prefetched: &'a [Prefetch],
    /// The first row and column of the sums there.
    at: [usize; 2],
    /// Sums may be subnormal.
    tiny: bool,
    /// Sums are rounded to bf16 where they are stored: they begin chains and end them.
    rounded: bool,
}

impl<T> Out<'_, T> {
    /// Sums of a part of `k` that begins chains, ends them, both or neither, added to others if `add`.
    pub(super) fn new(sums: *mut T, ld: usize, add: bool, begins: bool, ends: bool) -> Self {
        Out {
            sums,
            ld,
            add,
            begins,
            ends,
            prefetched: &[],
            at: [0; 2],
            tiny: false,
            rounded: false,
        }
    }

    /// The same, rounded to bf16 where they are stored.
    pub(super) fn rounding(self) -> Self {
        Out { rounded: true, ..self }
    }

    /// Where a sum goes so many behind the first.
    fn place(&self, sums: usize) -> *mut T {
        place(self.sums, sums, self.rounded)
    }

    /// The same, and memory that is asked for where sums go whose first one is of that row and column.
    pub(super) fn asking<'a>(self, prefetched: &'a [Prefetch], at: [usize; 2]) -> Out<'a, T> {
        Out { prefetched, at, ..self }
    }
}

/// The distance between rows of sums: whole vectors, and not a multiple of 1024 numbers, which would share cache sets.
pub(super) fn leading<E: Engine>(columns: usize) -> usize {
    let ld = columns.next_multiple_of(E::LANES);
    if ld.is_multiple_of(512) { ld + E::LANES } else { ld }
}

/// The register tile of a product of this many rows: even strips of rows, by vectors of columns.
pub(super) fn tile<E: Engine>(rows: usize) -> [usize; 2] {
    let most = rows.div_ceil(rows.div_ceil(E::ROWS));
    [most, E::columns(most)]
}

/// How many numbers [`block`] needs for the chains of so many rows.
pub(super) fn chain_room<E: Engine>(rows: usize) -> usize {
    rows * E::columns(1).max(E::WIDTH)
}

/// Computes a block of the sums of `[rows, columns, steps]`; or, of a single panel, a part of a block, whose chains stay where
/// they are for the next part.
///
/// # Safety
///
/// The CPU must be the engine's, the operands ready for these rows, columns and steps; the sums must have room for them, the
/// chains for [`chain_room`] numbers.
pub(super) unsafe fn block<E: Engine>(
    [m, n, k]: [usize; 3],
    left: Left<E::Num>,
    right: Right,
    out: Out<'_, E::Num>,
    chains: *mut E::Num,
) {
    let out = Out { tiny: may_be_subnormal(left.least(), right.least), ..out };
    let [_, widest] = tile::<E>(m);
    let whole = right.in_place.map_or(0, |(_, whole)| whole);
    let strips = strips(m, E::ROWS);
    let span = |start: usize, columns: Columns| {
        let at = [out.at[0], out.at[1] + start];
        let out = Out { sums: out.place(start), at, ..out };
        // SAFETY: the caller's contract; the chains have room for all rows and as many columns.
        let least = unsafe { span::<E>(strips.clone(), k, left, columns, out, chains) };
        if !out.tiny && least < u16::MAX && may_be_subnormal(left.least(), least) {
            // Such sums begin at zero and are not added to others.
            let out = Out { tiny: true, ..out };
            // SAFETY: as above.
            unsafe { span::<E>(strips.clone(), k, left, columns, out, chains) };
        }
    };
    if let Some((lines, whole)) = right.in_place {
        let bytes = lines.dtype.bytes() as isize;
        for (start, count) in vectors_of::<E>(whole, widest) {
            let base = lines.from(start, 0).base;
            let (step, ahead) = (lines.along * bytes * E::DEPTH as isize, count as isize * bytes);
            span(start, Columns { base, step, cell: lines.dtype, count, ahead });
        }
    }
    for Part { start, count, ld } in panels(n - whole, E::WIDTH) {
        let bytes = right.cell.bytes();
        let base = right.packed.wrapping_add((right.first + start) * k * bytes);
        let step = (ld * bytes) as isize;
        // The next panel, of this block of `k` or the next block.
        let ahead = k as isize * step;
        span(whole + start, Columns { base, step, cell: right.cell, count, ahead });
    }
}

/// Whole vectors of so many columns, at least one: where they begin, and how many columns they are. The last ones may be some of those before it once more.
fn vectors_of<E: Engine>(columns: usize, widest: usize) -> impl Iterator<Item = (usize, usize)> {
    let whole = columns / E::LANES * E::LANES;
    let spans = (0..whole).step_by(widest).map(move |start| (start, widest.min(whole - start)));
    spans.chain((whole < columns).then(|| (columns - E::LANES, E::LANES)))
}

/// All strips of rows of a block by some columns. Returns what [`Engine::strip`] does.
///
/// # Safety
///
/// As [`block`]; the chains must have room for all rows and columns in whole vectors.
unsafe fn span<E: Engine>(
    strips: impl Iterator<Item = Part>,
    k: usize,
    left: Left<E::Num>,
    columns: Columns,
    out: Out<'_, E::Num>,
    chains: *mut E::Num,
) -> u16 {
    let mut least = u16::MAX;
    let vectors = columns.count.div_ceil(E::LANES);
    let width = vectors * E::LANES;
    debug_assert!(out.begins || columns.cell == E::Num::DTYPE, "widened columns go on");
    for (number, Part { start, count: rows, .. }) in strips.enumerate() {
        let (a, row, step) = match left {
            Left::Packed { base, .. } => (base.wrapping_add(start * k), 1, rows as isize),
            Left::InPlace { base, row, step } => {
                (base.wrapping_offset(start as isize * row), row, step)
            }
        };
        let chain = chains.wrapping_add(start * width);
        let (to, ld) = if out.ends { (out.place(start * out.ld), out.ld) } else { (chain, width) };
        let strip = Strip {
            k,
            a,
            row,
            step,
            b: columns.base,
            b_step: columns.step,
            cell: columns.cell,
            ahead: columns.prefetch_offset(number),
            from: if out.begins { std::ptr::null() } else { chain },
            from_ld: width,
            out: to,
            ld,
            add: out.ends && out.add,
            rounded: out.ends && out.rounded,
            tiny: out.tiny,
        };
        for prefetched in out.prefetched {
            let [row, col] = [out.at[0] + start, out.at[1]];
            prefetched.ask(row..row + rows, col..col + columns.count);
        }
        // SAFETY: the caller's contract.
        least = least.min(unsafe { E::strip(rows, vectors, &strip) });
    }
    least
}
