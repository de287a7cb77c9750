//! Macro-kernel: loops over strips and panels of a block, packed or in place.

use super::micro::Engine;
use super::micro::gemm::{Strip, Sums, outer, place};
use super::pack::{Lines, Part, panels, strips};
use super::prefetch::{LINE, Prefetch};
use super::subnormal::may_be_subnormal;
use tracecast_ir::DType;

/// A left operand that is ready for the micro-kernel.
#[derive(Clone, Copy)]
pub(super) enum Left<T> {
    /// In strips of `rows` rows in all, block after block of `k`; `least` is from [`Engine::pack`].
    Packed { base: *const T, rows: usize, least: u16 },
    /// In place: strides of rows and steps in elements.
    InPlace { base: *const T, row: isize, step: isize },
}

/// A right operand that is ready for the micro-kernel.
#[derive(Clone, Copy)]
pub(super) struct Right {
    /// Columns in place, from the first on. If not whole vectors, at least one.
    pub(super) in_place: Option<(Lines, usize)>,
    /// The other columns in panels, block after block of `k`.
    pub(super) packed: *const u8,
    /// Dtype of the elements in panels.
    pub(super) cell: DType,
    /// Packed columns, rounded up to whole panels.
    pub(super) width: usize,
    /// First packed column to use, where a panel begins.
    pub(super) first: usize,
    /// See [`Engine::pack`].
    pub(super) least: u16,
}

impl<T> Left<T> {
    /// See [`Engine::pack`].
    fn least(&self) -> u16 {
        if let Left::Packed { least, .. } = self { *least } else { u16::MAX }
    }

    /// The part from a packed element along `k` on.
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

impl Right {
    /// The part from a packed element along `k` on.
    pub(super) fn from<E: Engine>(self, step: usize) -> Self {
        Right {
            in_place: self.in_place.map(|(lines, n)| (lines.from(0, step * E::DEPTH), n)),
            packed: self.packed.wrapping_add(step * self.width * self.cell.bytes()),
            ..self
        }
    }
}

/// Columns of a right operand, as the micro-kernel reads them.
#[derive(Clone, Copy)]
struct Columns {
    base: *const u8,
    /// Stride along `k`, in bytes.
    step: isize,
    cell: DType,
    count: usize,
    /// Bytes from these columns to the next ones.
    ahead: isize,
}

impl Columns {
    /// Bytes from what a strip reads at each `k` to the cache line that it prefetches. Strip 0
    /// prefetches the first line of each row of the next columns, strip 1 the second, and so on.
    /// Later strips prefetch what they read themselves, at no cost.
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
    /// Adds the sums of a block of `k` to the destination.
    pub(super) add: bool,
    /// What the epilogue reads and writes next.
    pub(super) prefetched: &'a [Prefetch],
    /// First row and column of the sums.
    pub(super) at: [usize; 2],
    /// Sums may be subnormal.
    pub(super) tiny: bool,
    /// Stores round to bf16.
    pub(super) rounded: bool,
}

impl<T> Out<'_, T> {
    /// Address of the sum at an index.
    fn place(&self, sums: usize) -> *mut T {
        place(self.sums, sums, self.rounded)
    }
}

/// Leading dimension of sums: whole vectors, but no multiple of 512, which shares cache sets.
pub(super) fn leading<E: Engine>(columns: usize) -> usize {
    let ld = columns.next_multiple_of(E::LANES);
    if ld.is_multiple_of(512) { ld + E::LANES } else { ld }
}

/// Register tile for this many rows: even strips of rows, by vectors of columns.
pub(super) fn tile<E: Engine>(rows: usize) -> [usize; 2] {
    let most = rows.div_ceil(rows.div_ceil(E::ROWS));
    [most, E::columns(most)]
}

/// Computes a block of the sums of `[m, n, k]`.
///
/// # Safety
///
/// The CPU must be the engine's, and the operands ready for `[m, n, k]`. The sums must have room.
pub(super) unsafe fn block<E: Engine>(
    [m, n, k]: [usize; 3],
    left: Left<E::Num>,
    right: Right,
    out: Out<'_, E::Num>,
) {
    let out = Out { tiny: may_be_subnormal(left.least(), right.least), ..out };
    let [_, widest] = tile::<E>(m);
    let whole = right.in_place.map_or(0, |(_, whole)| whole);
    let strips = strips(m, E::ROWS);
    let span = |start: usize, columns: Columns| {
        let at = [out.at[0], out.at[1] + start];
        let out = Out { sums: out.place(start), at, ..out };
        // SAFETY: the caller's contract.
        let least = unsafe { span::<E>(strips.clone(), k, left, columns, out) };
        if !out.tiny && least < u16::MAX && may_be_subnormal(left.least(), least) {
            // Such sums begin at zero and are not added to others.
            let out = Out { tiny: true, ..out };
            // SAFETY: as above.
            unsafe { span::<E>(strips.clone(), k, left, columns, out) };
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
        // The next panel, of this block of `k` or the next.
        let ahead = k as isize * step;
        span(whole + start, Columns { base, step, cell: right.cell, count, ahead });
    }
}

/// Spans of whole vectors: first column and columns. The last may overlap the one before it.
fn vectors_of<E: Engine>(columns: usize, widest: usize) -> impl Iterator<Item = (usize, usize)> {
    let whole = columns / E::LANES * E::LANES;
    let spans = (0..whole).step_by(widest).map(move |start| (start, widest.min(whole - start)));
    spans.chain((whole < columns).then(|| (columns - E::LANES, E::LANES)))
}

/// Computes all strips of rows of a block by some columns. Returns what [`Engine::strip`] does.
///
/// # Safety
///
/// The CPU must be the engine's. Operands must be ready for these rows, columns and steps, and sums
/// have room.
unsafe fn span<E: Engine>(
    strips: impl Iterator<Item = Part>,
    k: usize,
    left: Left<E::Num>,
    columns: Columns,
    out: Out<'_, E::Num>,
) -> u16 {
    let mut least = u16::MAX;
    let vectors = columns.count.div_ceil(E::LANES);
    let (base, [row, step, next]) = match left {
        Left::Packed { base, .. } => (base, [1, 0, k as isize]),
        Left::InPlace { base, row, step } => (base, [row, step, row]),
    };
    let from = std::ptr::null();
    let Out { sums, ld, add, rounded, tiny, .. } = out;
    let mut of = Strip {
        k,
        a: base,
        row,
        step,
        b: columns.base,
        b_step: columns.step,
        cell: columns.cell,
        ahead: 0,
        sums: Sums { from, from_ld: 0, out: sums, ld, add, rounded },
        tiny,
    };
    for (number, Part { start, count: rows, .. }) in strips.enumerate() {
        of.a = base.wrapping_offset(start as isize * next);
        if let Left::Packed { .. } = left {
            of.step = rows as isize;
        }
        of.ahead = columns.prefetch_offset(number);
        of.sums.out = out.place(start * ld);
        for prefetched in out.prefetched {
            let [row, col] = [out.at[0] + start, out.at[1]];
            prefetched.ask(row..row + rows, col..col + columns.count);
        }
        // SAFETY: the caller's contract.
        least = least.min(unsafe { outer::<E, _>([rows, vectors], &of) });
    }
    least
}
