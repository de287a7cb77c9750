//! Operands of a contraction: where they come from, and the buffers they are packed into.

use super::im2col::{Gathered, Runs, Seen, gather, gathered_elements, grow};
use super::micro::{Engine, Microkernel, Number};
use super::pack::strided::pack_apart;
use super::pack::{Elements, Lines, Packing, pack, strips};
use super::packed_weights::Panels;
use super::schedule::Load;
use super::workspace::Workspace;
use crate::error::no_memory;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::eval::Bytes;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Writes a block of an operand, dense and row-major: first row, rows, first column, columns,
/// destination.
pub(crate) type FillFn<'a> = dyn Fn(usize, usize, usize, usize, *mut u8) + Sync + 'a;

/// Where an operand comes from: `A` as rows by `k`, or `B` as `k` by columns.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Floats in memory. Strides are in elements and may be zero or negative.
    Matrix {
        /// From element (0, 0) on.
        of: Elements,
        /// Row stride.
        row: isize,
        /// Column stride.
        col: isize,
    },
    /// Floats in memory, with several axes per row or column (`im2col`).
    Windows {
        /// From element (0, 0) on.
        of: Elements,
        /// The view.
        seen: &'a Seen,
    },
    /// Values computed block by block, each at least once.
    Fill {
        /// Writes a block.
        fill: &'a FillFn<'a>,
        /// The dtype in which it writes.
        dtype: DType,
    },
    /// A right operand that [`super::keep`] has packed.
    Packed {
        /// The panels.
        base: *const u8,
        /// Their layout.
        panels: Panels,
        /// The least magnitude that `keep` returned.
        least: u16,
    },
}

impl Source<'_> {
    /// The same, `by` elements on, if in memory.
    pub(crate) fn moved(mut self, by: isize) -> Self {
        if let Source::Matrix { of, .. } | Source::Windows { of, .. } = &mut self {
            *of = of.moved(by);
        }
        self
    }

    /// The elements, if in memory.
    pub(super) fn elements(&self) -> Option<Elements> {
        match self {
            Source::Matrix { of, .. } | Source::Windows { of, .. } => Some(*of),
            Source::Fill { .. } | Source::Packed { .. } => None,
        }
    }

    /// True if all values are bf16.
    pub(super) fn is_bf16(&self) -> bool {
        match self {
            Source::Matrix { of, .. } | Source::Windows { of, .. } => {
                of.round.unwrap_or(of.dtype) == DType::BF16
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

/// A source, and whether its lines are columns.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) source: Source<'a>,
    pub(super) columns: bool,
}

impl Operand<'_> {
    /// Lines in memory. Computed lines and views are first written to `filled`.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. A view must be readable for the lines and steps.
    pub(super) unsafe fn lines<E: Engine>(
        &self,
        lines: Range<usize>,
        k: Range<usize>,
        filled: &mut Buffer,
        runs: &mut Runs,
    ) -> Lines {
        if let Some(all) = self.in_memory() {
            return all.from(lines.start, k.start);
        }
        let counts = [lines.len(), k.len()];
        let (rows, cols) = if self.columns { (k, lines) } else { (lines, k) };
        let (base, dtype, round, Gathered { row, column }) = match self.source {
            Source::Fill { fill, dtype } => {
                let to = filled.room::<E::Num>(counts[0] * counts[1]).cast::<u8>();
                fill(rows.start, rows.len(), cols.start, cols.len(), to);
                (to, dtype, None, Gathered { row: cols.len(), column: 1 })
            }
            Source::Windows { of: Elements { base, dtype, round }, seen } => {
                let to = filled.room::<E::Num>(gathered_elements(counts[0], counts[1])).cast();
                let (bytes, ranges) = (dtype.bytes(), (rows, cols));
                let of = Gather { seen, base, bytes, ranges, runs, to };
                // SAFETY: the caller's contract; `to` has room in numbers at least as wide.
                (to, dtype, round, unsafe { E::Singly::run(of) })
            }
            Source::Matrix { .. } | Source::Packed { .. } => {
                unreachable!("a matrix is in memory, and what is packed is not packed again")
            }
        };
        let (row, col) = (row as isize, column as isize);
        let (across, along) = if self.columns { (col, row) } else { (row, col) };
        Lines { base, dtype, round, across, along }
    }

    /// View, its first element, and the routines that pack columns straight from it, if there are.
    pub(super) fn through<E: Engine>(&self) -> Option<(&Seen, *const u8, Packing)> {
        let Source::Windows { of, seen } = self.source else { return None };
        seen.column_step().filter(|_| self.columns)?;
        Some((seen, of.base, E::packing(of.dtype, of.round)?))
    }

    /// Packs lines for at most a block of steps, in strips of at most `most`, as [`pack`] does.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. A view must be readable for the lines and steps, and there
    /// must be room for the packed lines.
    pub(super) unsafe fn pack_strips<E: Engine>(
        &self,
        lines: Range<usize>,
        steps: Range<usize>,
        most: usize,
        (filled, runs): (&mut Buffer, &mut Runs),
        to: *mut E::Num,
    ) -> u16 {
        let count = steps.len();
        if let Some((seen, elements, line)) = self.apart().filter(|_| E::DEPTH == 1) {
            let mut offsets = [0; CONTRACT_BLOCK];
            let offsets = &mut offsets[..count];
            seen.offsets(steps, offsets);
            let first = elements.moved(lines.start as isize * line);
            // SAFETY: the caller's contract.
            unsafe { pack_apart::<E>(first, line, offsets, (lines.len(), most), to) };
            return u16::MAX;
        }
        let parts = strips(lines.len(), most);
        // SAFETY: the caller's contract.
        let lines = unsafe { self.lines::<E>(lines, steps, filled, runs) };
        // SAFETY: the lines are readable or gathered; there is room for them.
        unsafe { pack::<E>(lines, parts, count, to) }
    }

    /// View, elements and line stride, if lines are rows closer together than some of their
    /// elements, and no bound applies: as the weight of a strided convolution's input gradient.
    fn apart(&self) -> Option<(&Seen, Elements, isize)> {
        let Source::Windows { of, seen } = self.source else { return None };
        let line = seen.near_rows().filter(|_| !self.columns)?;
        Some((seen, of, line))
    }

    /// Elements that [`Operand::lines`] writes to `filled` for these counts.
    pub(super) fn filled(&self, lines: usize, steps: usize) -> usize {
        match self.source {
            Source::Fill { .. } => lines.saturating_mul(steps),
            Source::Windows { .. } => gathered_elements(lines, steps),
            Source::Matrix { .. } | Source::Packed { .. } => 0,
        }
    }

    /// Lengths of the lists for a view of these counts; see [`Seen::listed`].
    pub(super) fn listed(&self, lines: usize, steps: usize) -> [usize; 2] {
        let Source::Windows { seen, .. } = self.source else { return [0; 2] };
        seen.listed(if self.columns { [steps, lines] } else { [lines, steps] })
    }

    /// All lines, if it is a matrix in memory.
    pub(super) fn in_memory(&self) -> Option<Lines> {
        let Source::Matrix { of, row, col } = self.source else { return None };
        let (across, along) = if self.columns { (col, row) } else { (row, col) };
        Some(of.lines(across, along))
    }
}

/// A block of a view that is gathered, and the size of its elements in bytes.
struct Gather<'a> {
    seen: &'a Seen,
    base: *const u8,
    bytes: usize,
    ranges: (Range<usize>, Range<usize>),
    runs: &'a mut Runs,
    to: *mut u8,
}

/// A microkernel, so that copies at a stride are compiled for the CPU's vectors.
impl Microkernel for Gather<'_> {
    type Out = Gathered;

    #[inline(always)]
    unsafe fn run(self) -> Gathered {
        let Gather { seen, base, bytes, ranges, runs, to } = self;
        match bytes {
            // SAFETY: the caller's contract.
            2 => unsafe { gather::<u16>(seen, base.cast(), ranges, runs, to.cast()) },
            // SAFETY: as above.
            4 => unsafe { gather::<u32>(seen, base.cast(), ranges, runs, to.cast()) },
            // SAFETY: as above.
            _ => unsafe { gather::<u64>(seen, base.cast(), ranges, runs, to.cast()) },
        }
    }
}

/// Buffers that contractions pack into. They only grow, so a steady state allocates nothing.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) left: Buffer,
    pub(super) right: Buffer,
    pub(super) filled: Buffer,
    pub(super) runs: Runs,
    pub(super) chains: Buffer,
    pub(super) sums: Buffer,
    /// Offsets of the steps of `k` in an image.
    pub(super) steps: Vec<isize>,
}

impl Scratch {
    /// Grows to this workspace.
    ///
    /// # Errors
    /// The bytes that could not be allocated.
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

    /// Calls `run`, which uses at most `workspace`: debug builds reserve exactly that.
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

    /// Limits each buffer to these bytes, in the order of fields.
    fn limit(&mut self, most: [usize; 5]) {
        let Scratch { left, right, filled, chains, sums, runs: _, steps: _ } = self;
        let buffers = [left, right, filled, chains, sums];
        buffers.into_iter().zip(most).for_each(|(buffer, most)| buffer.most = most);
    }
}

impl Scratch {
    /// Memory of buffers and lists, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let all = [&self.left, &self.right, &self.filled, &self.chains, &self.sums];
        all.map(|b| b.bytes.len()).iter().sum::<usize>() + self.lists()
    }

    /// Memory of the lists, in bytes.
    fn lists(&self) -> usize {
        self.runs.bytes() + self.steps.capacity() * size_of::<isize>()
    }
}

/// Size of a huge page, in bytes. Buffers of half a page and more are whole pages: panels on small
/// pages cost misses of the TLB.
const PAGE: usize = 2 << 20;

pub(super) struct Buffer {
    bytes: Bytes,
    /// Bytes that may be requested at most; checked in debug builds.
    most: usize,
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer { bytes: Bytes::default(), most: usize::MAX }
    }
}

impl Buffer {
    /// Room for `n` elements, aligned to a cache line. The old content may be lost.
    pub(super) fn room<T>(&mut self, n: usize) -> *mut T {
        let bytes = n.saturating_mul(size_of::<T>());
        debug_assert!(bytes <= self.most, "{bytes} bytes, and {} were reserved", self.most);
        if self.bytes.len() < bytes {
            self.grow(bytes).unwrap_or_else(|missing| no_memory(missing));
        }
        self.bytes.as_mut_ptr().cast()
    }

    /// The same, all zero.
    pub(super) fn zeroed<T: Number>(&mut self, n: usize) -> *mut T {
        let first = self.room::<T>(n);
        // SAFETY: the buffer holds `n` numbers; all bits zero are the number zero.
        unsafe { first.write_bytes(0, n) };
        first
    }

    /// Holds at least `bytes`. The old content may be lost.
    ///
    /// # Errors
    /// The bytes that could not be allocated.
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
