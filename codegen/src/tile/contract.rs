//! Contractions on one thread: `C[i, j] = sum over k of A[i, k] * B[k, j]`, with the sums handed to an epilogue.
//!
//! Each sum is one chain in the order that [`CONTRACT_BLOCK`] defines, so it has the same bits whatever the range, the CPU and the
//! way the work is cut: columns in groups whose panels stay in the cache, rows in groups whose sums do, `k` in blocks.

use super::Tiles;
use super::micro::{Engine, PlainF32, PlainF64, ROWS, Strip};
use super::pack::{Matrix, Strided, Wider, left_room, pack_left, pack_right, right_spare};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Writes a block of an operand, given by first row, number of rows, first column and number of columns, row by row without
/// gaps, in the accumulator's dtype.
pub(crate) type FillFn<'a> = dyn Fn(usize, usize, usize, usize, *mut u8) + Sync + 'a;

/// Where an operand of a contraction comes from: `A` as rows by `k`, or `B` as `k` by columns.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Floats in memory. Strides are in elements and may be anything, zero and negative included.
    Matrix {
        /// Element (0, 0).
        base: *const u8,
        /// The dtype of the elements.
        dtype: DType,
        /// From a row to the next.
        row: isize,
        /// From a column to the next.
        col: isize,
    },
    /// Values computed block by block, each at least once.
    Fill(&'a FillFn<'a>),
}

/// Memory that contractions pack into. It only grows, so that a steady state allocates nothing.
#[derive(Default)]
pub(crate) struct Scratch {
    left: Buffer,
    right: Buffer,
    spare: Buffer,
    filled: Buffer,
    sums: Buffer,
}

#[cfg(test)]
impl Scratch {
    /// How much memory it holds.
    pub(super) fn bytes(&self) -> usize {
        let all = [&self.left, &self.right, &self.spare, &self.filled, &self.sums];
        all.map(|b| b.0.capacity() * size_of::<Line>()).iter().sum()
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

#[derive(Default)]
struct Buffer(Vec<Line>);

impl Buffer {
    /// Room for `n` numbers, aligned to a cache line.
    fn room<T>(&mut self, n: usize) -> *mut T {
        let lines = (n * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
        self.0.as_mut_ptr().cast()
    }
}

/// The rows of a group: their packed left operand and their sums stay in the second-level cache.
const GROUP_ROWS: usize = 96;
/// The most columns of a group, for the same reason.
const GROUP_COLUMNS: usize = 512;
/// The most numbers in the panels of a group, unless that left fewer than 64 columns.
const GROUP_PANELS: usize = 1 << 19;
/// Up to this many rows, panels are used so rarely that a right operand in place is better.
const FEW_ROWS: usize = 2 * ROWS;
/// Up to this many columns, rows and columns trade places.
const FEW_COLUMNS: usize = 4;

/// Contracts over all of `k` for a range of rows and columns of the result, accumulating in `acc`, f32 or f64.
///
/// `epilogue(row, column, n, sums)` gets every sum once: `n` of them in a row, from that column on.
///
/// # Safety
///
/// `tiles` must be of this CPU. Matrices must be readable for the rows, the columns and `k`.
///
/// # Panics
///
/// If `acc` is neither f32 nor f64.
#[allow(clippy::too_many_arguments, reason = "the one entry; a struct would only rename them")]
pub(crate) unsafe fn contract(
    tiles: &Tiles,
    acc: DType,
    rows: Range<usize>,
    cols: Range<usize>,
    k: usize,
    a: &Source<'_>,
    b: &Source<'_>,
    scratch: &mut Scratch,
    epilogue: &mut dyn FnMut(usize, usize, usize, *const u8),
) {
    assert!(
        matches!(acc, DType::F32 | DType::F64),
        "contractions accumulate in f32 or f64, not {acc}"
    );
    if rows.is_empty() || cols.is_empty() {
        return;
    }
    let traded = cols.len() <= FEW_COLUMNS && rows.len() > cols.len();
    let (a, b) = (Operand { source: *a, traded: false }, Operand { source: *b, traded: false });
    let work = if traded {
        Work { tiles, rows: cols, cols: rows, k, a: b.trade(), b: a.trade(), traded }
    } else {
        Work { tiles, rows, cols, k, a, b, traded }
    };
    match (acc, tiles.wide) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's contract; wide tiles mean AVX2 and FMA.
        (DType::F32, true) => unsafe { work.run::<super::micro::WideF32>(scratch, epilogue) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        (_, true) => unsafe { work.run::<super::micro::WideF64>(scratch, epilogue) },
        // SAFETY: the caller's contract.
        (DType::F32, _) => unsafe { work.run::<PlainF32>(scratch, epilogue) },
        // SAFETY: the caller's contract.
        (_, _) => unsafe { work.run::<PlainF64>(scratch, epilogue) },
    }
}

/// A source, and whether its rows are to be read as columns.
#[derive(Clone, Copy)]
struct Operand<'a> {
    source: Source<'a>,
    traded: bool,
}

impl Operand<'_> {
    fn trade(self) -> Self {
        Operand { traded: !self.traded, ..self }
    }

    /// A block in memory; a computed one is written to `filled` first.
    fn block<T: Wider>(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        filled: &mut Buffer,
    ) -> Matrix {
        let (outer, inner) = if self.traded { (cols, rows) } else { (rows, cols) };
        let m = match self.source {
            Source::Matrix { base, dtype, row, col } => {
                Matrix { base, dtype, row, col }.from(outer.start, inner.start)
            }
            Source::Fill(fill) => {
                let base = filled.room::<T>(outer.len() * inner.len()).cast::<u8>();
                fill(outer.start, outer.len(), inner.start, inner.len(), base);
                Matrix { base, dtype: T::DTYPE, row: inner.len() as isize, col: 1 }
            }
        };
        if self.traded { m.transposed() } else { m }
    }

    /// True if the block can be read by the innermost loop as it lies, as a right operand.
    fn is_in_place<T: Wider>(&self) -> bool {
        match self.source {
            Source::Matrix { dtype, row, col, .. } => {
                dtype == T::DTYPE && (if self.traded { row } else { col }) == 1
            }
            Source::Fill(_) => false,
        }
    }
}

type Epilogue<'a> = dyn FnMut(usize, usize, usize, *const u8) + 'a;

struct Work<'a> {
    tiles: &'a Tiles,
    rows: Range<usize>,
    cols: Range<usize>,
    k: usize,
    a: Operand<'a>,
    b: Operand<'a>,
    /// Rows are columns of the result and the reverse.
    traded: bool,
}

impl Work<'_> {
    /// # Safety
    ///
    /// As [`contract`], and the CPU must be the engine's.
    unsafe fn run<E: Engine>(&self, scratch: &mut Scratch, epilogue: &mut Epilogue<'_>)
    where
        E::Num: Wider,
    {
        let fitting = (GROUP_PANELS / self.k.max(1) / E::WIDTH * E::WIDTH).clamp(64, GROUP_COLUMNS);
        for start in self.cols.clone().step_by(fitting) {
            let cols = start..self.cols.end.min(start + fitting);
            let in_place = self.rows.len() <= FEW_ROWS && self.b.is_in_place::<E::Num>();
            // SAFETY: the caller's contract.
            unsafe { self.panels::<E>(cols.clone(), in_place, scratch) };
            for start in self.rows.clone().step_by(GROUP_ROWS) {
                let rows = start..self.rows.end.min(start + GROUP_ROWS);
                // SAFETY: the caller's contract.
                unsafe { self.sums::<E>(rows.clone(), cols.clone(), in_place, scratch) };
                self.finish::<E>(rows, cols.clone(), scratch, epilogue);
            }
        }
    }

    /// Packs the right operand for a group of columns, all of `k`: block after block, panels as in [`pack_right`]. With
    /// `in_place`, only an incomplete panel.
    ///
    /// # Safety
    ///
    /// As [`Work::run`].
    unsafe fn panels<E: Engine>(&self, cols: Range<usize>, in_place: bool, scratch: &mut Scratch)
    where
        E::Num: Wider,
    {
        let width = cols.len().next_multiple_of(E::WIDTH);
        let whole = if in_place { cols.len() / E::WIDTH * E::WIDTH } else { 0 };
        if whole == cols.len() {
            return;
        }
        let packed = scratch.right.room::<E::Num>(width * self.k);
        let rest = cols.start + whole..cols.end;
        let spare =
            scratch.spare.room::<E::Num>(right_spare::<E>(self.k.min(CONTRACT_BLOCK), rest.len()));
        for from in (0..self.k).step_by(CONTRACT_BLOCK) {
            let k = from..self.k.min(from + CONTRACT_BLOCK);
            let m = self.b.block::<E::Num>(k.clone(), rest.clone(), &mut scratch.filled);
            let out = packed.wrapping_add(from * width + whole * k.len());
            // SAFETY: the block is readable by the caller's contract, or filled; both rooms have been sized for it.
            unsafe { pack_right::<E>(self.tiles, m, k.len(), rest.len(), spare, out) };
        }
    }

    /// Computes the sums of a group of rows and columns.
    ///
    /// # Safety
    ///
    /// As [`Work::run`], after [`Work::panels`] for these columns.
    unsafe fn sums<E: Engine>(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        in_place: bool,
        scratch: &mut Scratch,
    ) where
        E::Num: Wider,
    {
        let width = cols.len().next_multiple_of(E::WIDTH);
        let sums = scratch.sums.room::<E::Num>(rows.len() * width);
        if self.k == 0 {
            for i in 0..rows.len() * width {
                // SAFETY: within the room of the sums.
                unsafe { sums.wrapping_add(i).write(<E::Num as super::micro::Number>::ZERO) };
            }
            return;
        }
        let packed = scratch.right.room::<E::Num>(0);
        for from in (0..self.k).step_by(CONTRACT_BLOCK) {
            let k = from..self.k.min(from + CONTRACT_BLOCK);
            let m = self.a.block::<E::Num>(rows.clone(), k.clone(), &mut scratch.filled);
            let room = scratch.left.room::<E::Num>(left_room(rows.len(), k.len()));
            // SAFETY: the block is readable by the caller's contract, or filled; the room is sized for it.
            let left = unsafe { pack_left(self.tiles, m, rows.len(), k.len(), cols.len(), room) };
            for j in (0..cols.len()).step_by(E::WIDTH) {
                let n = E::WIDTH.min(cols.len() - j);
                let right = if in_place && n == E::WIDTH {
                    let at = cols.start + j;
                    let m = self.b.block::<E::Num>(k.clone(), at..at + n, &mut scratch.filled);
                    Strided { base: m.base.cast(), row: 0, step: m.row }
                } else {
                    let base = packed.wrapping_add(from * width + j * k.len());
                    Strided { base: base.cast_const(), row: 0, step: E::WIDTH as isize }
                };
                let out = Out { sums: sums.wrapping_add(j), ld: width, add: from > 0 };
                // SAFETY: the operands are packed or in place; the sums have room for whole panels.
                unsafe { panel::<E>(rows.len(), n, k.len(), left, right, out) };
            }
        }
    }

    /// Hands the sums of a group to the epilogue.
    fn finish<E: Engine>(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        scratch: &mut Scratch,
        epilogue: &mut Epilogue<'_>,
    ) {
        let width = cols.len().next_multiple_of(E::WIDTH);
        let sums = scratch.sums.room::<E::Num>(0);
        if !self.traded {
            for (i, row) in rows.enumerate() {
                epilogue(
                    row,
                    cols.start,
                    cols.len(),
                    sums.wrapping_add(i * width).cast_const().cast(),
                );
            }
            return;
        }
        // At most `FEW_COLUMNS` rows here, which are columns of the result.
        let mut line = [<E::Num as super::micro::Number>::ZERO; FEW_COLUMNS];
        for (j, col) in cols.enumerate() {
            for (i, sum) in line.iter_mut().enumerate().take(rows.len()) {
                // SAFETY: within the sums of this group, which `Work::sums` has written.
                *sum = unsafe { sums.wrapping_add(i * width + j).read() };
            }
            epilogue(col, rows.start, rows.len(), line.as_ptr().cast());
        }
    }
}

#[derive(Clone, Copy)]
struct Out<T> {
    sums: *mut T,
    ld: usize,
    add: bool,
}

/// All rows of a group by one panel of `n` columns.
///
/// # Safety
///
/// As [`Engine::strip`], for all strips.
unsafe fn panel<E: Engine>(
    rows: usize,
    n: usize,
    k: usize,
    left: Strided<E::Num>,
    right: Strided<E::Num>,
    out: Out<E::Num>,
) {
    let vectors = if 2 * n <= E::WIDTH { 1 } else { 2 };
    for i in (0..rows).step_by(ROWS) {
        let strip = Strip {
            k,
            a: left.base.wrapping_offset(i as isize * left.row),
            row: left.row,
            step: left.step,
            b: right.base,
            b_step: right.step,
            out: out.sums.wrapping_add(i * out.ld),
            ld: out.ld,
            add: out.add,
        };
        // SAFETY: the caller's contract.
        unsafe { E::strip(ROWS.min(rows - i), vectors, &strip) };
    }
}
