//! The memory that a run works on: addresses of operands, scratch that only grows, and what is done with them outside of compiled code.
//!
//! [`Slots`] are made from operands whose sizes have been checked against the kernel, and ranges come from the kernel's own extents; so
//! what is called here trusts its addresses.
#![allow(
    unsafe_code,
    reason = "this file owns the addresses that compiled code and contractions are given, and the calls with them"
)]

use crate::code::link::Code;
use crate::contract::{self, Cpu};
use crate::error::no_memory;
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Reduction, Scalar};
use tracecast_runtime::{Arg, HostLoan, HostMemory};

/// Where an operand lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Address(*mut u8);

// SAFETY: an address is only a number; what is at it is accessed by compiled code and tile routines, whose callers split outputs
// among threads and let nobody write what another reads.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// The address that many bytes on.
    pub(super) fn offset(self, bytes: isize) -> Address {
        Address(self.0.wrapping_offset(bytes))
    }
}

/// Calls a compiled function for the positions of some rows, of which there must be at least one. Positions may be missing only if the row
/// has none at all.
#[inline]
pub(super) fn call(
    code: &Code,
    slots: &Slots,
    rows: Range<usize>,
    positions: Range<usize>,
    scratch: &mut Arena,
    status: &AtomicU64,
) {
    let scratch = scratch.reserve(code.scratch()).0;
    // SAFETY: an address has the layout of the pointer in it.
    let addresses =
        unsafe { std::slice::from_raw_parts(slots.words.as_ptr().cast(), slots.words.len()) };
    // SAFETY: the slots stand for operands whose sizes were checked against the kernel that the function is of; ranges are those of its
    // extents, and threads share them so that nobody writes what another reads; the scratch is this thread's.
    unsafe { code.call(addresses, slots.sizes, rows, positions, scratch, status) }
}

/// The addresses that compiled functions are given, and in front of them what they read of the sizes of a binding
/// (`plan::numbers::SizeTable`), the first of it last.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// How many of the words are no addresses.
    sizes: usize,
    words: SmallVec<[Address; 24]>,
}

impl Clone for Slots {
    fn clone(&self) -> Self {
        // At once, not word by word.
        Slots { sizes: self.sizes, words: SmallVec::from_slice(&self.words) }
    }
}

impl Slots {
    /// No addresses, for functions that read these words of sizes.
    pub(crate) fn with_sizes(sizes: &[u64]) -> Slots {
        let words = sizes
            .iter()
            .rev()
            .map(|bits| Address(std::ptr::without_provenance_mut(*bits as usize)));
        Slots { sizes: sizes.len(), words: words.collect() }
    }

    /// The same sizes, and no addresses.
    pub(super) fn without_addresses(&self) -> Slots {
        Slots { sizes: self.sizes, words: SmallVec::from_slice(&self.words[..self.sizes]) }
    }

    /// Makes it the addresses of a kernel's operands.
    ///
    /// # Errors
    /// If an operand is not in memory of this device, or reaches beyond it.
    pub(crate) fn refill(&mut self, args: &[Arg]) -> tracecast_runtime::Result<()> {
        self.words.truncate(self.sizes);
        for arg in args {
            let (base, len) = match arg.memory.find::<HostLoan>() {
                Some(loan) => loan.place(),
                None => {
                    let memory = arg.memory.get::<HostMemory>()?;
                    (memory.as_ptr(), memory.len())
                }
            };
            if arg.offset.checked_add(arg.len).is_none_or(|end| end > len) {
                let message = format!(
                    "an operand of {} bytes at {} is not inside its memory",
                    arg.len, arg.offset
                );
                return Err(tracecast_runtime::Error::Device(message));
            }
            self.push(Address(base.wrapping_add(arg.offset)));
        }
        Ok(())
    }

    /// Makes it the addresses that others have at those places.
    pub(super) fn select(&mut self, from: &Slots, at: impl IntoIterator<Item = usize>) {
        self.sizes = from.sizes;
        self.words.clear();
        self.words.extend_from_slice(&from.words[..from.sizes]);
        self.words.extend(at.into_iter().map(|i| from.get(i)));
    }

    /// One more address.
    pub(super) fn push(&mut self, address: Address) {
        self.words.push(address);
    }

    /// Replaces an address.
    pub(super) fn set(&mut self, slot: usize, address: Address) {
        self.words[self.sizes + slot] = address;
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.words.len() - self.sizes
    }

    /// The address of a slot.
    pub(super) fn get(&self, slot: usize) -> Address {
        self.words[self.sizes + slot]
    }

    /// The f32 that a slot holds.
    pub(crate) fn read_f32(&self, slot: usize) -> f32 {
        // SAFETY: used for the scalar that predicates a kernel, whose operand is one f32 inside its memory.
        unsafe { self.get(slot).0.cast::<f32>().read_unaligned() }
    }
}

/// Zeros.
pub(super) fn clear(first: Address, bytes: usize) {
    // SAFETY: the caller's bytes lie in memory lent for this run, which no thread uses yet.
    unsafe { first.0.write_bytes(0, bytes) };
}

/// Makes numbers of a type, one after another, all of those bits.
pub(super) fn fill(scalar: Scalar, first: Address, bits: u64, count: usize) {
    let size = scalar.dtype().bytes();
    for i in 0..count {
        let to = first.0.wrapping_add(i * size);
        // SAFETY: the caller's numbers lie in memory lent for this run, which no thread uses yet or any more.
        unsafe { to.copy_from_nonoverlapping(bits.to_le_bytes().as_ptr(), size) };
    }
}

/// Puts a number where another is.
pub(super) fn copy_number(scalar: Scalar, from: Address, to: Address) {
    let bytes = if matches!(scalar, Scalar::F64 | Scalar::I64) { 8 } else { 4 };
    // SAFETY: one is in memory lent for this run, the other an operand of that type, and no thread uses either any more.
    unsafe { std::ptr::copy_nonoverlapping(from.0, to.0, bytes) };
}

/// Replaces the first of some results by what all of them amount to, combined in order.
pub(super) fn combine(reduction: Reduction, scalar: Scalar, first: Address, count: usize) {
    let size = scalar.dtype().bytes();
    let result = |i: usize| {
        let mut bits = [0; 8];
        // SAFETY: the caller's results lie one after another in memory lent for this run, and no thread writes them any more.
        unsafe { first.0.wrapping_add(i * size).copy_to_nonoverlapping(bits.as_mut_ptr(), size) };
        u64::from_le_bytes(bits)
    };
    let all = (1..count).fold(result(0), |all, i| reduction.combine(scalar, all, result(i)));
    // SAFETY: as above.
    unsafe { first.0.copy_from_nonoverlapping(all.to_le_bytes().as_ptr(), size) };
}

/// The bytes of an operand from the first of a part on.
pub(super) fn bytes<'a>(of: Address, first: usize, count: usize) -> &'a [u8] {
    // SAFETY: used for the operands of a kernel of lines during its run: their sizes have been checked against the kernel, and nobody
    // writes an operand that is read.
    unsafe { std::slice::from_raw_parts(of.0.wrapping_add(first), count) }
}

/// The bytes of an output that one thread writes, from the first of its part on.
pub(super) fn bytes_mut<'a>(of: Address, first: usize, count: usize) -> &'a mut [u8] {
    // SAFETY: as above; the parts of threads do not overlap, and nobody reads an output during the run.
    unsafe { std::slice::from_raw_parts_mut(of.0.wrapping_add(first), count) }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Memory that only grows, so that a steady state allocates nothing.
#[derive(Default)]
pub(super) struct Arena(Vec<Line>);

impl Arena {
    /// Room for that many bytes, aligned to a cache line; what was there is gone.
    #[inline]
    pub(super) fn reserve(&mut self, bytes: usize) -> Address {
        let lines = bytes.div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            let more = lines - self.0.len();
            self.0.try_reserve_exact(more).unwrap_or_else(|_| no_memory(bytes));
            self.0.resize(lines, Line([0; 8]));
        }
        Address(self.0.as_mut_ptr().cast())
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Arena>>> = const { Cell::new(None) };
    static SHARED: Cell<Vec<Arena>> = const { Cell::new(Vec::new()) };
    static PACKED: Cell<Option<Box<contract::Scratch>>> = const { Cell::new(None) };
}

/// Lends this thread's scratch for compiled functions. Whoever asks again in the meantime gets a new one.
#[inline]
pub(super) fn with_scratch<T>(f: impl FnOnce(&mut Arena) -> T) -> T {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let result = f(&mut scratch);
    SCRATCH.set(Some(scratch));
    result
}

/// Lends memory for one run of a kernel, which other threads may use as well: the room of its binding, if that is large enough. A kernel may
/// ask for more within.
pub(super) fn with_room<T>(
    room: Option<&HostMemory>,
    bytes: usize,
    f: impl FnOnce(Address) -> T,
) -> T {
    match room.filter(|room| room.len() >= bytes) {
        Some(room) => f(address_of(room)),
        None => with_shared(bytes, f),
    }
}

/// As [`with_room`], for a kernel that has none.
pub(super) fn with_shared<T>(bytes: usize, f: impl FnOnce(Address) -> T) -> T {
    let mut free = SHARED.take();
    let mut arena = free.pop().unwrap_or_default();
    SHARED.set(free);
    let result = f(arena.reserve(bytes));
    let mut free = SHARED.take();
    free.push(arena);
    SHARED.set(free);
    result
}

/// Writes a block of an operand: (first row, rows, first column, columns, where to).
pub(super) type Fill<'a> = dyn Fn(usize, usize, usize, usize, *mut u8) + Sync + 'a;

/// An operand of a contraction.
#[derive(Clone, Copy)]
pub(super) enum Operand<'a> {
    /// Floats in memory: element (0, 0), and how to go on, in elements.
    Matrix {
        /// Element (0, 0).
        base: Address,
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
        base: Address,
        /// The dtype of the elements.
        dtype: DType,
        /// The 16-bit float to whose values they are rounded first.
        round: Option<DType>,
        /// Where they lie.
        seen: &'a contract::Seen,
    },
    /// Computed block by block, in that dtype.
    Computed(&'a Fill<'a>, DType),
    /// All of a right operand, packed by [`keep`].
    Packed {
        /// Where it is.
        base: Address,
        /// How it lies.
        panels: contract::Panels,
        /// The least that [`keep`] has returned.
        least: u16,
    },
}

impl Operand<'_> {
    fn source(&self) -> contract::Source<'_> {
        match self {
            Operand::Matrix { base, dtype, round, row, col } => contract::Source::Matrix {
                base: base.0.cast_const(),
                dtype: *dtype,
                round: *round,
                row: *row,
                col: *col,
            },
            Operand::Windows { base, dtype, round, seen } => contract::Source::Windows {
                base: base.0.cast_const(),
                dtype: *dtype,
                round: *round,
                seen,
            },
            Operand::Computed(fill, dtype) => contract::Source::Fill { fill, dtype: *dtype },
            Operand::Packed { base, panels, least } => contract::Source::Packed {
                base: base.0.cast_const(),
                panels: *panels,
                least: *least,
            },
        }
    }
}

/// Where a routine wants a block.
pub(super) fn block_address(at: *mut u8) -> Address {
    Address(at)
}

/// Where memory of the host begins.
pub(super) fn address_of(memory: &HostMemory) -> Address {
    Address(memory.as_ptr())
}

/// Packs some columns of a right operand, from a multiple of [`contract::PIECE`] to another one or the end, to their place in memory for all
/// of them, which no thread uses. Returns the least of the numbers, for [`Operand::Packed`].
pub(super) fn keep(
    cpu: &Cpu,
    panels: &contract::Panels,
    piece: Range<usize>,
    b: &Operand<'_>,
    to: Address,
) -> u16 {
    let mut packed = PACKED.take().unwrap_or_default();
    // SAFETY: the instructions are those of this CPU, as `InstructionSet::of` chose them, and the panels were made for it; matrices are operands
    // of the kernel, whose accesses stay inside for these columns and all of `k`; the place is the caller's.
    let least = unsafe { contract::keep(cpu, panels, piece, &b.source(), &mut packed, to.0) };
    PACKED.set(Some(packed));
    least
}

/// The ranges of one contraction.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Of the result.
    pub(super) rows: Range<usize>,
    /// Of the result.
    pub(super) cols: Range<usize>,
    /// The summed axis, all of it.
    pub(super) k: usize,
}

/// A matrix that the epilogue of a contraction writes or reads: element (0, 0), bytes from a row to the next, bytes of an element.
pub(super) fn prefetched(base: Address, row: isize, cell: usize) -> contract::Prefetch {
    contract::Prefetch { base: base.0.cast_const(), row, cell }
}

/// Contracts a block and hands the sums to `epilogue(row, rows, column, columns, sums)`, each once.
pub(super) fn contract(
    cpu: &Cpu,
    acc: DType,
    block: Block,
    [a, b]: [Operand<'_>; 2],
    prefetched: &[contract::Prefetch],
    epilogue: &mut dyn FnMut(usize, usize, usize, usize, Address),
) {
    let mut packed = PACKED.take().unwrap_or_default();
    let mut finish = |row: usize, rows: usize, col: usize, cols: usize, sums: *const u8| {
        epilogue(row, rows, col, cols, Address(sums.cast_mut()))
    };
    let Block { rows, cols, k } = block;
    // SAFETY: the instructions are those of this CPU, as `InstructionSet::of` chose them; matrices are operands of the kernel, whose accesses
    // stay inside for the rows, the columns and `k` of its extents.
    unsafe {
        contract::contract(
            cpu,
            acc,
            rows,
            cols,
            k,
            &a.source(),
            &b.source(),
            &mut packed,
            prefetched,
            &mut finish,
        )
    };
    PACKED.set(Some(packed));
}
