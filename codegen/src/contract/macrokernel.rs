//! Macro-kernel: loops over strips and panels of a block, packed or in place.

use super::micro::Engine;
use super::micro::gemm::{Strip, Sums, outer, place};
use super::pack::{Lines, Part, panels, strips};
use super::prefetch::{LINE, Prefetch};
use super::subnormal::may_be_subnormal;
use std::ops::Range;
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
    let tiny = may_be_subnormal(left.least(), right.least);
    let [_, widest] = tile::<E>(m);
    let whole = right.in_place.map_or(0, |(_, whole)| whole);
    let strips = strips(m, E::ROWS);
    let (a, row, step) = match left {
        Left::Packed { base, .. } => (base, 1, 0),
        Left::InPlace { base, row, step } => (base, row, step),
    };
    let Out { sums, ld, add, rounded, .. } = out;
    let sums = Sums { from: std::ptr::null(), from_ld: 0, out: sums, ld, add, rounded, tiny };
    let (b, cell) = (right.packed, right.cell);
    let mut of = Strip { k, a, row, step, b, b_step: 0, cell, ahead: 0, sums };
    let span = |of: &mut Strip<E::Num>, columns: Range<usize>, ahead: isize| {
        // SAFETY: the caller's contract.
        let least = unsafe { span::<E>(strips.clone(), left, of, columns.clone(), ahead, &out) };
        if !tiny && least < u16::MAX && may_be_subnormal(left.least(), least) {
            // Such sums begin at zero and are not added to others.
            of.sums.tiny = true;
            // SAFETY: as above.
            unsafe { span::<E>(strips.clone(), left, of, columns, ahead, &out) };
            of.sums.tiny = false;
        }
    };
    if let Some((lines, whole)) = right.in_place {
        let bytes = lines.dtype.bytes() as isize;
        (of.cell, of.b_step) = (lines.dtype, lines.along * bytes * E::DEPTH as isize);
        for (start, count) in vectors_of::<E>(whole, widest) {
            of.b = lines.from(start, 0).base;
            span(&mut of, start..start + count, count as isize * bytes);
        }
    }
    of.cell = right.cell;
    for Part { start, count, ld } in panels(n - whole, E::WIDTH) {
        let bytes = right.cell.bytes();
        of.b = right.packed.wrapping_add((right.first + start) * k * bytes);
        of.b_step = (ld * bytes) as isize;
        // The next panel, of this block of `k` or the next.
        let ahead = k as isize * of.b_step;
        span(&mut of, whole + start..whole + start + count, ahead);
    }
}

/// Spans of whole vectors: first column and columns. The last may overlap the one before it.
fn vectors_of<E: Engine>(columns: usize, widest: usize) -> impl Iterator<Item = (usize, usize)> {
    let whole = columns / E::LANES * E::LANES;
    let spans = (0..whole).step_by(widest).map(move |start| (start, widest.min(whole - start)));
    spans.chain((whole < columns).then(|| (columns - E::LANES, E::LANES)))
}

/// Computes all strips of rows of a block by some columns, which `of` reads; the next ones are
/// `ahead` bytes away. Returns what [`outer`] does.
///
/// Strip 0 prefetches the first line of each row of the next columns, strip 1 the second, and so
/// on. Later strips prefetch what they read themselves, at no cost.
///
/// # Safety
///
/// The CPU must be the engine's. Operands must be ready for these rows, columns and steps, and sums
/// have room.
unsafe fn span<E: Engine>(
    strips: impl Iterator<Item = Part>,
    left: Left<E::Num>,
    of: &mut Strip<E::Num>,
    columns: Range<usize>,
    ahead: isize,
    out: &Out<'_, E::Num>,
) -> u16 {
    let mut least = u16::MAX;
    let vectors = columns.len().div_ceil(E::LANES);
    for (number, Part { start, count: rows, .. }) in strips.enumerate() {
        match left {
            Left::Packed { base, .. } => {
                (of.a, of.step) = (base.wrapping_add(start * of.k), rows as isize);
            }
            Left::InPlace { base, row, .. } => of.a = base.wrapping_offset(start as isize * row),
        }
        let line = number * LINE;
        let has_line = line < columns.len() * of.cell.bytes();
        of.ahead = if has_line { ahead + line as isize } else { 0 };
        of.sums.out = out.place(start * out.ld + columns.start);
        for prefetched in out.prefetched {
            let [row, col] = [out.at[0] + start, out.at[1] + columns.start];
            prefetched.issue(row..row + rows, col..col + columns.len());
        }
        // SAFETY: the caller's contract.
        least = least.min(unsafe { outer::<E, _>([rows, vectors], of) });
    }
    least
}
