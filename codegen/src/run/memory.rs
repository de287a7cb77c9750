//! The memory that a run works on: addresses of operands, scratch that only grows, and what is done
//! with them outside of compiled code.
//!
//! [`Slots`] are made from operands whose sizes have been checked against the kernel, and ranges
//! come from the kernel's own extents; so what is called here trusts its addresses.
#![allow(
    unsafe_code,
    reason = "this file owns the addresses that compiled code and contractions are given, and the calls with them"
)]

mod products;

pub(super) use products::{keep, product};

use super::need::Need;
use crate::code::link::Code;
use crate::contract;
pub(super) use crate::contract::Place;
use crate::error::no_memory;
use crate::routines::{ElementSize, TileFn, Tiles};
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Cascade, Reduction, Scalar};
use tracecast_runtime::{Arg, HostLoan, HostMemory, Memory};

/// Where an operand lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Address(*mut u8);

// SAFETY: an address is only a number; what is at it is accessed by compiled code and tile
// routines, whose callers split outputs among threads and let nobody write what another reads.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// The address that many bytes on.
    pub(super) fn offset(self, bytes: isize) -> Address {
        Address(self.0.wrapping_offset(bytes))
    }

    /// The pointer, for who takes one.
    pub(super) fn pointer(self) -> *mut u8 {
        self.0
    }

    /// Whether fewer bytes than that lie between two addresses: places of that size there overlap.
    pub(super) fn is_within(self, other: Address, bytes: usize) -> bool {
        self.0.addr().abs_diff(other.0.addr()) < bytes
    }
}

/// Calls a compiled function for the positions of some rows, of which there must be at least one.
/// Positions may be missing only if the row has none at all.
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
    // SAFETY: the slots stand for operands whose sizes were checked against the kernel that the
    // function is of; ranges are those of its extents, and threads share them so that nobody writes
    // what another reads; the scratch is this thread's.
    unsafe { code.call(addresses, slots.sizes, rows, positions, scratch, status) }
}

/// The addresses that compiled functions are given, and in front of them what they read of the
/// sizes of a binding (`plan::numbers::SizeTable`), the first of it last.
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
            self.push(address_in(&arg.memory, arg.offset, arg.len)?);
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
        // SAFETY: used for the scalar that predicates a kernel, whose operand is one f32 inside its
        // memory.
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
        // SAFETY: the caller's numbers lie in memory lent for this run, which no thread uses yet or
        // any more.
        unsafe { to.copy_from_nonoverlapping(bits.to_le_bytes().as_ptr(), size) };
    }
}

/// Puts a number where another is.
pub(super) fn copy_number(scalar: Scalar, from: Address, to: Address) {
    let bytes = if matches!(scalar, Scalar::F64 | Scalar::I64) { 8 } else { 4 };
    // SAFETY: one is in memory lent for this run, the other an operand of that type, and no thread
    // uses either any more.
    unsafe { std::ptr::copy_nonoverlapping(from.0, to.0, bytes) };
}

/// Replaces the first of some results of chunks by what all of them amount to.
pub(super) fn combine(reduction: Reduction, scalar: Scalar, first: Address, count: usize) {
    let size = scalar.dtype().bytes();
    let result = |i: usize| {
        let mut bits = [0; 8];
        // SAFETY: the caller's results lie one after another in memory lent for this run, and no
        // thread writes them any more.
        unsafe { first.0.wrapping_add(i * size).copy_to_nonoverlapping(bits.as_mut_ptr(), size) };
        u64::from_le_bytes(bits)
    };
    let together = |a, b| reduction.combine(scalar, a, b);
    let mut all = Cascade::default();
    (0..count).for_each(|i| all.push(result(i), together));
    let all = all.total(together).unwrap_or(reduction.identity(scalar));
    // SAFETY: as above.
    unsafe { first.0.copy_from_nonoverlapping(all.to_le_bytes().as_ptr(), size) };
}

/// Where an operand of that many bytes begins.
///
/// # Errors
/// If it is not in memory of this device, or reaches beyond it.
pub(super) fn address_in(
    memory: &Memory,
    at: usize,
    bytes: usize,
) -> tracecast_runtime::Result<Address> {
    let (base, len) = match memory.find::<HostLoan>() {
        Some(loan) => loan.place(),
        None => {
            let memory = memory.get::<HostMemory>()?;
            (memory.as_ptr(), memory.len())
        }
    };
    if at.checked_add(bytes).is_none_or(|end| end > len) {
        let message = format!("an operand of {bytes} bytes at {at} is not inside its memory");
        return Err(tracecast_runtime::Error::Device(message));
    }
    Ok(Address(base.wrapping_add(at)))
}

/// The bytes of an operand from the first of a part on.
pub(super) fn bytes<'a>(of: Address, first: usize, count: usize) -> &'a [u8] {
    // SAFETY: used for the operands of a kernel of lines and the panels of its thread during its
    // run, and for places that are merged or copied: their sizes have been checked, and nobody
    // writes an operand that is read, or only after the last use of these bytes. Copies of
    // overlapping places are refused, and `merge` refuses places that are written and overlap
    // others in part; one that is the same as one that is read is either the one that it merges in,
    // or written when all have been read.
    unsafe { std::slice::from_raw_parts(of.0.wrapping_add(first), count) }
}

/// The bytes of an output that one thread writes, from the first of its part on.
pub(super) fn bytes_mut<'a>(of: Address, first: usize, count: usize) -> &'a mut [u8] {
    // SAFETY: as above; the parts of threads do not overlap, and nobody reads an output during the
    // run, or before the last use of these bytes.
    unsafe { std::slice::from_raw_parts_mut(of.0.wrapping_add(first), count) }
}

/// A number of words of memory that is lent for this run, which one thread uses.
pub(super) fn words_mut<'a>(of: Address, count: usize) -> &'a mut [u64] {
    debug_assert!(of.0.cast::<u64>().is_aligned());
    // SAFETY: used for the part of one thread in memory that is lent for a run and begins at a
    // cache line, as each part does; parts have room for that number and do not overlap, and any
    // bits are a word.
    unsafe { std::slice::from_raw_parts_mut(of.0.cast(), count) }
}

/// A number of elements of memory that is lent for this run, which one thread uses.
pub(super) fn doubles_mut<'a>(of: Address, count: usize) -> &'a mut [f64] {
    debug_assert!(of.0.cast::<f64>().is_aligned());
    // SAFETY: as above; what is lent has been written once, and any bits are an f64.
    unsafe { std::slice::from_raw_parts_mut(of.0.cast(), count) }
}

/// An operand of attention: its first element is `offset` elements from an address.
pub(super) fn place(of: Address, dtype: DType, offset: isize, strides: [isize; 4]) -> Place {
    Place { base: of.0.wrapping_offset(offset * dtype.bytes() as isize), dtype, strides }
}

/// Computes a unit of attention.
pub(super) fn attend(problem: &contract::Problem<'_>, unit: &contract::Unit, memory: &mut [f64]) {
    // SAFETY: the instructions are those of this CPU, as `InstructionSet::of` chose them; operands
    // are those of the kernel, whose places stay inside for its extents; units share no results.
    unsafe { contract::attend(problem, unit, memory) }
}

/// Where elements of some rows lie: the first of them, and how many bytes from a row to the next.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// The first element.
    pub(super) first: Address,
    /// From a row to the next.
    pub(super) step: usize,
}

/// Copies a number of bytes of each of some rows.
pub(super) fn copy_rows(from: Rows, to: Rows, rows: usize, bytes: usize) {
    let (rows, bytes) = match from.step == bytes && to.step == bytes {
        true => (1, rows * bytes),
        false => (rows, bytes),
    };
    match bytes {
        32 => copy_lines::<32>(from, to, rows),
        64 => copy_lines::<64>(from, to, rows),
        _ => {
            for row in 0..rows {
                let source = from.first.0.wrapping_add(row * from.step);
                let target = to.first.0.wrapping_add(row * to.step);
                // SAFETY: used for lines of an operand and a panel of them: both hold these bytes
                // and do not overlap, and those that are written are this thread's.
                unsafe { target.copy_from_nonoverlapping(source, bytes) };
            }
        }
    }
}

/// Makes 16-bit floats of a number of f32 of each of some rows, by that routine.
pub(super) fn narrow_rows(narrowing: TileFn, from: Rows, to: Rows, rows: usize, count: usize) {
    let are_dense = from.step == count * 4 && to.step == count * 2;
    let (rows, count) = if are_dense { (1, rows * count) } else { (rows, count) };
    for row in 0..rows {
        let source = from.first.0.wrapping_add(row * from.step);
        let target = to.first.0.wrapping_add(row * to.step);
        // SAFETY: as for `copy_rows`; the routine is one of this CPU.
        unsafe { narrowing(source, target, count) };
    }
}

/// As [`copy_rows`], for a number of bytes that vectors have.
fn copy_lines<const BYTES: usize>(from: Rows, to: Rows, rows: usize) {
    for row in 0..rows {
        let source = from.first.0.wrapping_add(row * from.step).cast::<[u8; BYTES]>();
        // SAFETY: as for `copy_rows`.
        let line = unsafe { source.read_unaligned() };
        let target = to.first.0.wrapping_add(row * to.step).cast::<[u8; BYTES]>();
        // SAFETY: as above.
        unsafe { target.write_unaligned(line) };
    }
}

/// Transposes elements of some rows, each of that many bytes, into as many rows: the first of all,
/// the second of all, and so on.
pub(super) fn turn(
    tiles: &Tiles,
    bytes: usize,
    from: Rows,
    to: Rows,
    rows: usize,
    elements: usize,
) {
    let size = ElementSize::of(bytes as i64).expect("elements have 1, 2, 4 or 8 bytes");
    let (step, next) = (from.step as isize, to.step / bytes);
    // SAFETY: as for `copy_rows`; the routines are those of this CPU.
    unsafe { tiles.gather_rows(size)(from.first.0, to.first.0, rows, elements, step, next) };
}

/// Runs a routine over a number of elements.
pub(super) fn over_tile(tile: TileFn, from: Address, to: Address, elements: usize) {
    // SAFETY: used for panels of this thread, which do not overlap and have room for that number of
    // elements.
    unsafe { tile(from.0, to.0, elements) };
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
        if self.0.len() < bytes.div_ceil(size_of::<Line>()) {
            self.grow(bytes).unwrap_or_else(|missing| no_memory(missing));
        }
        Address(self.0.as_mut_ptr().cast())
    }

    /// Has at least `bytes` bytes.
    ///
    /// # Errors
    /// The bytes that are not there.
    fn grow(&mut self, bytes: usize) -> Result<(), usize> {
        let lines = bytes.div_ceil(size_of::<Line>());
        if let Some(more) = lines.checked_sub(self.0.len()) {
            self.0.try_reserve_exact(more).map_err(|_| bytes)?;
            self.0.resize(lines, Line([0; 8]));
        }
        Ok(())
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Arena>>> = const { Cell::new(None) };
    static SHARED: Cell<Vec<Arena>> = const { Cell::new(Vec::new()) };
    static PACKED: Cell<Option<Box<contract::Scratch>>> = const { Cell::new(None) };
}

/// Buffers that threads share in one kernel: one for its columns and one for its largest values.
const NESTED: usize = 2;

/// Has this thread keep so much scratch.
///
/// # Errors
/// The bytes that are not there.
pub(super) fn reserve(need: &Need) -> Result<(), usize> {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let mut shared = SHARED.take();
    let mut packed = PACKED.take().unwrap_or_default();
    let done = scratch.grow(need.functions).and_then(|()| {
        if need.shared > 0 {
            shared.resize_with(shared.len().max(NESTED), Arena::default);
        }
        shared.iter_mut().try_for_each(|arena| arena.grow(need.shared))?;
        packed.reserve(&need.workspace)
    });
    SCRATCH.set(Some(scratch));
    SHARED.set(shared);
    PACKED.set(Some(packed));
    done
}

/// The bytes that this thread keeps: for compiled functions, for what threads share, for packing.
pub(super) fn held() -> [usize; 3] {
    let (scratch, shared, packed) = (SCRATCH.take(), SHARED.take(), PACKED.take());
    let bytes = |arena: &Arena| arena.0.len() * size_of::<Line>();
    let held = [
        scratch.as_ref().map_or(0, |arena| bytes(arena)),
        shared.iter().map(bytes).sum(),
        packed.as_ref().map_or(0, |packed| packed.bytes()),
    ];
    SCRATCH.set(scratch);
    SHARED.set(shared);
    PACKED.set(packed);
    held
}

/// Lends this thread's scratch for compiled functions. Whoever asks again in the meantime gets a
/// new one.
#[inline]
pub(super) fn with_scratch<T>(f: impl FnOnce(&mut Arena) -> T) -> T {
    SCRATCH.with(|kept| {
        let mut scratch = kept.take().unwrap_or_default();
        let result = f(&mut scratch);
        kept.set(Some(scratch));
        result
    })
}

/// Lends this thread's memory for packing.
#[inline]
fn with_packed<T>(f: impl FnOnce(&mut contract::Scratch) -> T) -> T {
    PACKED.with(|kept| {
        let mut packed = kept.take().unwrap_or_default();
        let result = f(&mut packed);
        kept.set(Some(packed));
        result
    })
}

/// Lends memory for one run of a kernel, which other threads may use as well: the room of its
/// binding, if that is large enough. A kernel may ask for more within.
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
    SHARED.with(|kept| {
        let mut free = kept.take();
        let mut arena = free.pop().unwrap_or_default();
        kept.set(free);
        let result = f(arena.reserve(bytes));
        let mut free = kept.take();
        free.push(arena);
        kept.set(free);
        result
    })
}

/// Where a routine has or wants a block.
pub(super) fn block_address(at: *const u8) -> Address {
    Address(at.cast_mut())
}

/// Where memory of the host begins.
pub(super) fn address_of(memory: &HostMemory) -> Address {
    Address(memory.as_ptr())
}
