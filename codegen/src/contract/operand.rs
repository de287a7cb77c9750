//! Where the operands of a contraction come from, and the memory they are packed into.

use super::micro::Engine;
use super::pack::{Elements, Lines, Matrices, Wider, pack, pack_apart, strips};
use super::panels::Panels;
use super::schedule::Load;
use super::windows::{Brought, Runs, Seen, bring, brought, grow};
use super::workspace::Workspace;
use crate::error::no_memory;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::eval::Bytes;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

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
    /// The same from so many elements on, if it is in memory.
    pub(crate) fn moved(self, by: isize) -> Self {
        match self {
            Source::Matrix { base, dtype, round, row, col } => {
                let base = base.wrapping_offset(by * dtype.bytes() as isize);
                Source::Matrix { base, dtype, round, row, col }
            }
            Source::Windows { base, dtype, round, seen } => {
                let base = base.wrapping_offset(by * dtype.bytes() as isize);
                Source::Windows { base, dtype, round, seen }
            }
            Source::Fill { .. } | Source::Packed { .. } => self,
        }
    }

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

    /// How it is read: in place, or packed.
    pub(super) fn load(&self, in_place: bool) -> Load {
        match self {
            _ if in_place => Load::InPlace,
            Source::Matrix { .. } => Load::Packed,
            Source::Windows { .. } => Load::Gathered,
            Source::Fill { .. } => Load::Computed,
            Source::Packed { .. } => Load::Prepacked,
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
                let to = filled.room::<T>(brought(lines.len(), k.len())).cast::<u8>();
                let ranges = if self.columns { (k, lines) } else { (lines, k) };
                let block = match dtype.bytes() {
                    // SAFETY: the caller's contract; there is room for so many numbers that are at least as wide.
                    2 => unsafe { bring::<u16>(seen, base.cast(), ranges, runs, to.cast()) },
                    // SAFETY: as above.
                    4 => unsafe { bring::<u32>(seen, base.cast(), ranges, runs, to.cast()) },
                    // SAFETY: as above.
                    _ => unsafe { bring::<u64>(seen, base.cast(), ranges, runs, to.cast()) },
                };
                let Brought { row, column } = block;
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

    /// Packs some of its lines for at most a block of steps, in strips of so many at most, as [`pack`] does; `filled` and `runs` as for [`Operand::lines`].
    ///
    /// # Safety
    ///
    /// As [`Operand::lines`]; there must be room for as many numbers.
    pub(super) unsafe fn pack_strips<E: Engine>(
        &self,
        lines: Range<usize>,
        steps: Range<usize>,
        most: usize,
        (filled, runs): (&mut Buffer, &mut Runs),
        to: *mut E::Num,
    ) -> u16 {
        let count = steps.len();
        if let Some((seen, elements, line)) = self.apart() {
            let mut offsets = [0; CONTRACT_BLOCK];
            let offsets = &mut offsets[..count];
            seen.offsets(steps, offsets);
            let first = elements.moved(lines.start as isize * line);
            // SAFETY: the caller's contract.
            return unsafe { pack_apart::<E>(first, line, offsets, (lines.len(), most), to) };
        }
        let parts = strips(lines.len(), most);
        if let Some((elements, line, matrices)) = self.crossed() {
            let pack = |part: Range<usize>| {
                let first = elements.moved((lines.start + part.start) as isize * line);
                let to = to.wrapping_add(part.start * count / E::DEPTH);
                // SAFETY: the caller's contract, for a strip.
                unsafe { E::pack_crossed(&first, line, matrices, steps.clone(), part.len(), to) }
            };
            let all = parts.clone().map(|part| pack(part.start..part.start + part.count));
            if let Some(least) = all.reduce(|a, b| Some(a?.min(b?))).flatten() {
                return least;
            }
        }
        // SAFETY: the caller's contract.
        let lines = unsafe { self.lines::<E::Num>(lines, steps, filled, runs) };
        // SAFETY: the lines are readable by the caller's contract, or brought together; there is room for them.
        unsafe { pack::<E>(lines, parts, count, to) }
    }

    /// Its elements, and from a line to the next, if it is seen whole, rows are its lines, and these lie closer together than what a row has side by side: as of the
    /// weight in the gradient of a strided convolution's operand.
    fn apart(&self) -> Option<(&Seen, Elements, isize)> {
        let Source::Windows { base, dtype, round, seen } = self.source else { return None };
        let line = seen.near_rows().filter(|_| !self.columns)?;
        Some((seen, Elements { base, dtype, round }, line))
    }

    /// Its elements, from a line to the next and its matrices, if rows are its lines and go across these ([`Engine::pack_crossed`]).
    fn crossed(&self) -> Option<(Elements, isize, Matrices)> {
        let Source::Windows { base, dtype, round: None, seen } = self.source else { return None };
        let (line, (next, columns)) = seen.crossed_rows().filter(|_| !self.columns)?;
        let matrices = Matrices { next, second: columns as isize, columns };
        Some((Elements { base, dtype, round: None }, line, matrices))
    }

    /// True if it is packed from where it is seen through windows.
    pub(super) fn is_packed_through<E: Engine>(&self) -> bool {
        self.through().is_some_and(|(seen, elements)| E::packs_through(seen, &elements))
    }

    /// The numbers that [`Operand::lines`] writes to `filled` for so many lines and steps.
    pub(super) fn filled(&self, lines: usize, steps: usize) -> usize {
        match self.source {
            Source::Fill { .. } => lines.saturating_mul(steps),
            Source::Windows { .. } => brought(lines, steps),
            Source::Matrix { .. } | Source::Packed { .. } => 0,
        }
    }

    /// What is listed of so many lines and steps, if it is seen through windows; see [`Seen::listed`].
    pub(super) fn listed(&self, lines: usize, steps: usize) -> [usize; 2] {
        let Source::Windows { seen, .. } = self.source else { return [0; 2] };
        seen.listed(if self.columns { [steps, lines] } else { [lines, steps] })
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
    /// Where the steps of an image begin.
    pub(super) steps: Vec<isize>,
}

impl Scratch {
    /// Has so much memory.
    ///
    /// # Errors
    /// The bytes that are not there.
    pub(crate) fn reserve(&mut self, need: &Workspace) -> Result<(), usize> {
        self.left.grow(need.left)?;
        self.right.grow(need.right)?;
        self.filled.grow(need.filled)?;
        self.chains.grow(need.chains)?;
        self.sums.grow(need.sums)?;
        if self.steps.capacity() < need.steps {
            grow(&mut self.steps, need.steps)?;
        }
        self.runs.reserve(need.listed)
    }

    /// Calls `run`, which uses at most `workspace`. Debug builds reserve exactly that much before it.
    ///
    /// # Panics
    /// In debug builds, if `run` uses more.
    #[inline(always)]
    pub(super) fn held_to<T>(
        &mut self,
        workspace: impl FnOnce() -> Workspace,
        run: impl FnOnce(&mut Scratch) -> T,
    ) -> T {
        if !cfg!(debug_assertions) {
            return run(self);
        }
        let need = workspace();
        self.reserve(&need).unwrap_or_else(|bytes| no_memory(bytes));
        let lists = self.lists();
        self.limit([need.left, need.right, need.filled, need.chains, need.sums]);
        let result = run(self);
        self.limit([usize::MAX; 5]);
        assert_eq!(lists, self.lists(), "lists of windows were not reserved");
        result
    }

    /// No more than these bytes may be asked for, in the order of the buffers.
    fn limit(&mut self, most: [usize; 5]) {
        let Scratch { left, right, filled, chains, sums, runs: _, steps: _ } = self;
        let buffers = [left, right, filled, chains, sums];
        buffers.into_iter().zip(most).for_each(|(buffer, most)| buffer.most = most);
    }
}

impl Scratch {
    /// How much memory it holds, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let all = [&self.left, &self.right, &self.filled, &self.chains, &self.sums];
        all.map(|b| b.bytes.len()).iter().sum::<usize>() + self.lists()
    }

    /// The same of lists alone.
    fn lists(&self) -> usize {
        self.runs.bytes() + self.steps.capacity() * size_of::<isize>()
    }
}

/// The size of a huge page. Buffers of half a page and more are whole ones: panels on small pages took a contraction 1 to 2 per cent of its
/// time in translated addresses.
const PAGE: usize = 2 << 20;

pub(super) struct Buffer {
    bytes: Bytes,
    /// No more than this may be asked for. Looked at in debug builds.
    most: usize,
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer { bytes: Bytes::default(), most: usize::MAX }
    }
}

impl Buffer {
    /// Room for `n` numbers, aligned to a cache line. What was there may be gone.
    pub(super) fn room<T>(&mut self, n: usize) -> *mut T {
        let bytes = n.saturating_mul(size_of::<T>());
        debug_assert!(bytes <= self.most, "{bytes} bytes, and {} were reserved", self.most);
        if self.bytes.len() < bytes {
            self.grow(bytes).unwrap_or_else(|missing| no_memory(missing));
        }
        self.bytes.as_mut_ptr().cast()
    }

    /// Has at least so many bytes. What was there may be gone.
    ///
    /// # Errors
    /// The bytes that are not there.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), usize> {
        if self.bytes.len() < bytes {
            let whole = bytes.checked_next_multiple_of(PAGE).ok_or(bytes)?;
            let size = if bytes < PAGE / 2 { bytes } else { whole };
            self.bytes = Bytes::default();
            self.bytes = Bytes::to_write(size).map_err(|_| size)?;
        }
        Ok(())
    }
}
