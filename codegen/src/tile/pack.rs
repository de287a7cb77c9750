//! Bringing the operands of a contraction into the shape the innermost loop reads, widening on the way.
//!
//! The left operand is read in place when it holds accumulator numbers and is either small or used little; otherwise its runs
//! are copied or widened as they lie, along rows or along `k`, since the loop takes any two strides. The right operand becomes panels: [`Engine::WIDTH`] columns side by side,
//! step after step, the last panel padded with zeros.

use super::Tiles;
use super::micro::{Engine, Number};
use tracecast_ir::DType;
use tracecast_ir::kernel::half;

/// A part of an operand in memory: elements of `dtype`, strides in elements.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) base: *const u8,
    pub(super) dtype: DType,
    pub(super) row: isize,
    pub(super) col: isize,
}

impl Matrix {
    /// The part that begins at an element.
    pub(super) fn from(self, row: usize, col: usize) -> Matrix {
        let at = row as isize * self.row + col as isize * self.col;
        Matrix { base: self.base.wrapping_offset(at * self.dtype.bytes() as isize), ..self }
    }

    /// Rows as columns.
    pub(super) fn transposed(self) -> Matrix {
        Matrix { row: self.col, col: self.row, ..self }
    }
}

/// Numbers with two strides, in elements.
#[derive(Clone, Copy)]
pub(super) struct Strided<T> {
    pub(super) base: *const T,
    pub(super) row: isize,
    pub(super) step: isize,
}

/// Accumulator numbers that every float dtype can be read as.
pub(super) trait Wider: Number {
    /// The dtype of these numbers in memory.
    const DTYPE: DType;

    /// Reads one element; other dtypes than floats read as zero.
    ///
    /// # Safety
    ///
    /// `p` must be readable for an element of `dtype`.
    unsafe fn read(dtype: DType, p: *const u8) -> Self;
}

/// # Safety
///
/// `p` must be readable for a `T`, any bits of which are valid.
#[inline(always)]
unsafe fn at<T: Copy>(p: *const u8) -> T {
    // SAFETY: the caller's contract.
    unsafe { p.cast::<T>().read_unaligned() }
}

impl Wider for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    unsafe fn read(dtype: DType, p: *const u8) -> f32 {
        match dtype {
            // SAFETY: the caller's contract.
            DType::F32 => unsafe { at(p) },
            // SAFETY: the caller's contract.
            DType::F16 => half::f16_to_f32(unsafe { at(p) }),
            // SAFETY: the caller's contract.
            DType::BF16 => half::bf16_to_f32(unsafe { at(p) }),
            // SAFETY: the caller's contract.
            DType::F64 => (unsafe { at::<f64>(p) }) as f32,
            _ => 0.0,
        }
    }
}

impl Wider for f64 {
    const DTYPE: DType = DType::F64;

    #[inline(always)]
    unsafe fn read(dtype: DType, p: *const u8) -> f64 {
        match dtype {
            // SAFETY: the caller's contract.
            DType::F64 => unsafe { at(p) },
            // SAFETY: the caller's contract.
            _ => f64::from(unsafe { f32::read(dtype, p) }),
        }
    }
}

/// Widens `n` elements in a row.
///
/// # Safety
///
/// `src` must be readable and `dst` writable for `n` elements.
unsafe fn widen<T: Wider>(tiles: &Tiles, dtype: DType, src: *const u8, n: usize, dst: *mut T) {
    if dtype == T::DTYPE {
        // SAFETY: the caller's contract; operands and scratch are different memory.
        unsafe { src.copy_to_nonoverlapping(dst.cast::<u8>(), n * size_of::<T>()) };
    } else if let (DType::F32, Some(tile)) = (T::DTYPE, tiles.widen(dtype)) {
        // SAFETY: the caller's contract, and `T` is f32.
        unsafe { tile(src, dst.cast::<u8>(), n) };
    } else {
        for i in 0..n {
            // SAFETY: the caller's contract.
            let x = unsafe { T::read(dtype, src.wrapping_add(i * dtype.bytes())) };
            // SAFETY: the caller's contract.
            unsafe { dst.wrapping_add(i).write(x) };
        }
    }
}

/// The distance between widened runs of `n`: whole cache lines, and not a power of two.
fn spread(n: usize) -> usize {
    n.next_multiple_of(16) + 16
}

/// How many numbers [`pack_left`] may write.
pub(super) fn left_room(rows: usize, k: usize) -> usize {
    (rows * spread(k)).max(k * spread(rows))
}

/// From this many columns on, a left operand is used often enough to be copied if its runs lie far apart.
const MANY_COLUMNS: usize = 96;
/// Runs at least this many bytes apart share few cache sets and need a page each.
const FAR_APART: usize = 1024;

/// The rows of a left operand as numbers with two strides, in place or in `out`, to be used for that many columns.
///
/// # Safety
///
/// `m` must be readable for `rows` by `k` elements, `out` writable for [`left_room`] numbers.
pub(super) unsafe fn pack_left<T: Wider>(
    tiles: &Tiles,
    m: Matrix,
    rows: usize,
    k: usize,
    columns: usize,
    out: *mut T,
) -> Strided<T> {
    let far = m.row.unsigned_abs().max(m.col.unsigned_abs()) * size_of::<T>() > FAR_APART;
    if m.dtype == T::DTYPE && !(far && columns >= MANY_COLUMNS) {
        return Strided { base: m.base.cast(), row: m.row, step: m.col };
    }
    let along_rows = m.row == 1 && m.col != 1;
    let (m, runs, n) = if along_rows { (m.transposed(), k, rows) } else { (m, rows, k) };
    let ld = spread(n);
    for r in 0..runs {
        let (run, to) = (m.from(r, 0), out.wrapping_add(r * ld));
        if m.col == 1 {
            // SAFETY: a run of the operand, and its room.
            unsafe { widen(tiles, m.dtype, run.base, n, to) };
            continue;
        }
        for p in 0..n {
            // SAFETY: an element of the operand.
            let x = unsafe { T::read(m.dtype, m.from(r, p).base) };
            // SAFETY: its place in the run's room.
            unsafe { to.wrapping_add(p).write(x) };
        }
    }
    let ld = ld as isize;
    if along_rows {
        Strided { base: out, row: 1, step: ld }
    } else {
        Strided { base: out, row: ld, step: 1 }
    }
}

/// How many numbers [`pack_right`] needs to widen into before it makes panels.
pub(super) fn right_spare<E: Engine>(k: usize, columns: usize) -> usize {
    (CHUNK * columns).max(E::WIDTH * spread(k))
}

/// How many rows of a right operand are widened before they are spread over the panels.
const CHUNK: usize = 16;

/// The columns of a right operand as panels in `out`: panel `j` begins at `out[j * WIDTH * k]`.
///
/// # Safety
///
/// The CPU must be the engine's. `m` must be readable for `k` by `columns` elements, `spare` writable for [`right_spare`] numbers
/// and `out` for `k` times the columns rounded up to panels.
pub(super) unsafe fn pack_right<E: Engine>(
    tiles: &Tiles,
    m: Matrix,
    k: usize,
    columns: usize,
    spare: *mut E::Num,
    out: *mut E::Num,
) where
    E::Num: Wider,
{
    let native = m.dtype == E::Num::DTYPE;
    if m.col == 1 && native {
        // SAFETY: the caller's contract.
        unsafe { panels_of_rows::<E>(m, (0, k), k, columns, out) };
    } else if m.col == 1 {
        for p in (0..k).step_by(CHUNK) {
            let rows = CHUNK.min(k - p);
            // Rows without gaps between them are one run.
            let (runs, n) =
                if m.row == columns as isize { (1, rows * columns) } else { (rows, columns) };
            for r in 0..runs {
                let to = spare.wrapping_add(r * n);
                // SAFETY: one or all of the rows, and their room.
                unsafe { widen(tiles, m.dtype, m.from(p + r, 0).base, n, to) };
            }
            let wide = Matrix {
                base: spare.cast_const().cast(),
                dtype: E::Num::DTYPE,
                row: columns as isize,
                col: 1,
            };
            // SAFETY: the rows just widened; `out` as the caller's contract.
            unsafe { panels_of_rows::<E>(wide, (p, p + rows), k, columns, out) };
        }
    } else {
        for j in (0..columns).step_by(E::WIDTH) {
            let width = E::WIDTH.min(columns - j);
            // SAFETY: a panel of the operand; the rest as the caller's contract.
            let runs = unsafe { runs_of_panel(tiles, m.from(0, j), k, width, spare) };
            // SAFETY: the runs just found; a panel has `k * WIDTH` numbers.
            unsafe { E::across(runs.base, runs.row, width, k, out.wrapping_add(j * k)) };
        }
    }
}

/// The columns of a panel as runs along `k` one after the other, in place or in `spare`.
///
/// # Safety
///
/// As [`pack_right`], for one panel.
unsafe fn runs_of_panel<T: Wider>(
    tiles: &Tiles,
    m: Matrix,
    k: usize,
    width: usize,
    spare: *mut T,
) -> Strided<T> {
    if m.dtype == T::DTYPE && m.row == 1 {
        return Strided { base: m.base.cast(), row: m.col, step: 1 };
    }
    let ld = spread(k);
    for j in 0..width {
        let to = spare.wrapping_add(j * ld);
        if m.row == 1 {
            // SAFETY: a column of the operand, and its room.
            unsafe { widen(tiles, m.dtype, m.from(0, j).base, k, to) };
            continue;
        }
        for p in 0..k {
            // SAFETY: an element of the operand.
            let x = unsafe { T::read(m.dtype, m.from(p, j).base) };
            // SAFETY: its place in the run's room.
            unsafe { to.wrapping_add(p).write(x) };
        }
    }
    Strided { base: spare, row: ld as isize, step: 1 }
}

/// Copies rows of numbers into their places in all panels; row 0 of `m` is step `from`.
///
/// # Safety
///
/// `m` must hold `to - from` rows of `columns` numbers, `out` the panels of all `k` steps.
unsafe fn panels_of_rows<E: Engine>(
    m: Matrix,
    (from, to): (usize, usize),
    k: usize,
    columns: usize,
    out: *mut E::Num,
) {
    for j in (0..columns).step_by(E::WIDTH) {
        let width = E::WIDTH.min(columns - j);
        let panel = out.wrapping_add(j * k);
        for p in from..to {
            let src = m.from(p - from, j).base.cast::<E::Num>();
            let dst = panel.wrapping_add(p * E::WIDTH);
            if width == E::WIDTH {
                let bytes = E::WIDTH * size_of::<E::Num>();
                // SAFETY: a whole row of a panel.
                unsafe { src.cast::<u8>().copy_to_nonoverlapping(dst.cast::<u8>(), bytes) };
                continue;
            }
            // SAFETY: a whole row of a panel, for which zero bytes are the number zero.
            unsafe { dst.write_bytes(0, E::WIDTH) };
            let fours = width / 4 * 4;
            for c in (0..fours).step_by(4) {
                let (src, dst) =
                    (src.wrapping_add(c).cast::<u8>(), dst.wrapping_add(c).cast::<u8>());
                // SAFETY: four columns of the operand.
                unsafe { src.copy_to_nonoverlapping(dst, 4 * size_of::<E::Num>()) };
            }
            for c in fours..width {
                // SAFETY: a column of the operand.
                let x = unsafe { src.wrapping_add(c).read_unaligned() };
                // SAFETY: within a row of the panel.
                unsafe { dst.wrapping_add(c).write(x) };
            }
        }
    }
}
