//! Where the operands of a contraction come from, and the memory they are packed into.

use super::pack::{Elements, Lines, Wider};
use super::panels::Panels;
use super::windows::{Brought, Runs, Seen, bring};
use crate::error::no_memory;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::eval::Bytes;

/// Writes a block of an operand, given by first row, number of rows, first column and number of columns, row by row without
/// gaps.
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
        /// The 16-bit float to whose values they are rounded first.
        round: Option<DType>,
        /// From a row to the next.
        row: isize,
        /// From a column to the next.
        col: isize,
    },
    /// Floats in memory of which rows or columns are several axes.
    Windows {
        /// Element (0, 0).
        base: *const u8,
        /// The dtype of the elements.
        dtype: DType,
        /// The 16-bit float to whose values they are rounded first.
        round: Option<DType>,
        /// Where they lie.
        seen: &'a Seen,
    },
    /// Values computed block by block, each at least once.
    Fill {
        /// Writes a block.
        fill: &'a FillFn<'a>,
        /// The dtype in which it writes.
        dtype: DType,
    },
    /// A right operand that [`super::keep`] has packed, all of it.
    Packed {
        /// Where it has put the panels.
        base: *const u8,
        /// What they are like.
        panels: Panels,
        /// The least that it has returned.
        least: u16,
    },
}

impl Source<'_> {
    /// True if all values are those of bf16.
    pub(super) fn is_bf16(&self) -> bool {
        match self {
            Source::Matrix { dtype, round, .. } | Source::Windows { dtype, round, .. } => {
                round.unwrap_or(*dtype) == DType::BF16
            }
            Source::Fill { dtype, .. } => *dtype == DType::BF16,
            Source::Packed { panels, .. } => panels.pairs,
        }
    }

    /// True if it is packed.
    pub(super) fn is_packed(&self) -> bool {
        matches!(self, Source::Packed { .. })
    }
}

/// A source, and whether its lines are its columns.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) source: Source<'a>,
    pub(super) columns: bool,
}

impl Operand<'_> {
    /// Lines in memory; computed ones, and those that are seen through windows, are written to `filled` first.
    ///
    /// # Safety
    ///
    /// What is seen through windows must be readable for the lines and steps.
    pub(super) unsafe fn lines<T: Wider>(
        &self,
        lines: Range<usize>,
        k: Range<usize>,
        filled: &mut Buffer,
        runs: &mut Runs,
    ) -> Lines {
        match self.source {
            Source::Matrix { .. } => self.in_memory().map(|all| all.from(lines.start, k.start)),
            Source::Fill { fill, dtype } => {
                let base = filled.room::<T>(lines.len() * k.len()).cast::<u8>();
                let (rows, cols) = if self.columns { (k, lines) } else { (lines, k) };
                fill(rows.start, rows.len(), cols.start, cols.len(), base);
                let (row, col) = (cols.len() as isize, 1);
                let (across, along) = if self.columns { (col, row) } else { (row, col) };
                Some(Lines { base, dtype, round: None, across, along })
            }
            Source::Windows { base, dtype, round, seen } => {
                let to = filled.room::<T>(lines.len() * k.len()).cast::<u8>();
                let block = if self.columns { (k, lines) } else { (lines, k) };
                let brought = match dtype.bytes() {
                    // SAFETY: the caller's contract; there is room for so many numbers that are at least as wide.
                    2 => unsafe { bring::<u16>(seen, base.cast(), block, runs, to.cast()) },
                    // SAFETY: as above.
                    4 => unsafe { bring::<u32>(seen, base.cast(), block, runs, to.cast()) },
                    // SAFETY: as above.
                    _ => unsafe { bring::<u64>(seen, base.cast(), block, runs, to.cast()) },
                };
                let Brought { row, column } = brought;
                let (row, col) = (row as isize, column as isize);
                let (across, along) = if self.columns { (col, row) } else { (row, col) };
                Some(Lines { base: to.cast_const(), dtype, round, across, along })
            }
            Source::Packed { .. } => None,
        }
        .expect("a matrix is in memory, and what is packed is not packed again")
    }

    /// Its elements and where they lie, if it is seen through windows whose columns are its lines.
    pub(super) fn through(&self) -> Option<(&Seen, Elements)> {
        let Source::Windows { base, dtype, round, seen } = self.source else { return None };
        if !self.columns {
            return None;
        }
        Some((seen, Elements { base, dtype, round }))
    }

    /// All of it, unless it is computed or packed.
    pub(super) fn in_memory(&self) -> Option<Lines> {
        let Source::Matrix { base, dtype, round, row, col } = self.source else { return None };
        let (across, along) = if self.columns { (col, row) } else { (row, col) };
        Some(Lines { base, dtype, round, across, along })
    }
}

/// Memory that contractions pack into. It only grows, so that a steady state allocates nothing.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) left: Buffer,
    pub(super) right: Buffer,
    pub(super) filled: Buffer,
    pub(super) runs: Runs,
    pub(super) chains: Buffer,
    pub(super) sums: Buffer,
}

#[cfg(test)]
impl Scratch {
    /// How much memory it holds.
    pub(super) fn bytes(&self) -> usize {
        let all = [&self.left, &self.right, &self.filled, &self.chains, &self.sums];
        all.map(|b| b.0.len()).iter().sum()
    }
}

/// The size of a huge page. Buffers of half a page and more are whole ones: panels on small pages took a contraction 1 to 2 per cent of its
/// time in translated addresses.
const PAGE: usize = 2 << 20;

#[derive(Default)]
pub(super) struct Buffer(Bytes);

impl Buffer {
    /// Room for `n` numbers, aligned to a cache line. What was there may be gone.
    pub(super) fn room<T>(&mut self, n: usize) -> *mut T {
        let bytes = n * size_of::<T>();
        if self.0.len() < bytes {
            let size = if bytes < PAGE / 2 { bytes } else { bytes.next_multiple_of(PAGE) };
            self.0 = Bytes::default();
            self.0 = Bytes::to_write(size).unwrap_or_else(|_| no_memory(size));
        }
        self.0.as_mut_ptr().cast()
    }
}
