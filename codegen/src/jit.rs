//! Executable memory, the calls into it, and the addresses they are given.
//!
//! A [`Code`] is one compiled function. A batch of them shares a module, whose memory is freed with the last of them. What is called
//! trusts its addresses: [`Slots`] are made from operands whose sizes have been checked against the kernel, and ranges come from the
//! kernel's own extents.
#![allow(
    unsafe_code,
    reason = "this file owns executable memory and the calls through function pointers"
)]

use crate::error::{Error, Result};
use crate::lower::{Target, signature};
use crate::object::{Gap, Name, Object};
use crate::tile::{self, Tiles};
use cranelift::jit::{JITBuilder, JITModule};
use cranelift::module::{
    FuncId, Linkage, Module, ModuleReloc, ModuleRelocTarget, default_libcall_names,
};
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use tracecast_ir::DType;
use tracecast_ir::kernel::{Reduction, Scalar};
use tracecast_runtime::{Arg, HostLoan, HostMemory};

type Entry = unsafe extern "C" fn(*const Address, i64, i64, i64, i64, *mut u8, *const AtomicU64);

/// One compiled function.
pub(crate) struct Code {
    entry: Entry,
    scratch: usize,
    slots: usize,
    /// Keeps the machine code where it is.
    _memory: Arc<CodeMemory>,
}

impl Code {
    /// Does the positions of the rows, of which there must be at least one. Positions may be missing only if the row has none at all.
    pub(crate) fn call(
        &self,
        slots: &Slots,
        rows: Range<usize>,
        positions: Range<usize>,
        scratch: &mut Arena,
        status: &AtomicU64,
    ) {
        assert!(
            slots.0.len() >= self.slots,
            "a function was given {} of {} addresses",
            slots.0.len(),
            self.slots
        );
        let scratch = scratch.reserve(self.scratch).0;
        let [begin, end] = [rows.start as i64, rows.end as i64];
        let [from, to] = [positions.start as i64, positions.end as i64];
        // SAFETY: the code is alive as long as this is; it was compiled for this signature, for at most this many slots and this much
        // scratch, and accesses nothing beyond the operands that the slots stand for.
        unsafe { (self.entry)(slots.0.as_ptr(), begin, end, from, to, scratch, status) }
    }
}

/// The module of a batch.
struct CodeMemory(Mutex<Option<JITModule>>);

impl Drop for CodeMemory {
    fn drop(&mut self) {
        let module = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(module) = module {
            // SAFETY: every function of the module keeps this alive, so none is left, and none is running.
            unsafe { module.free_memory() }
        }
    }
}

/// Puts functions, given with their kernel's name and number of slots, into one module.
///
/// # Errors
/// If Cranelift refuses, or there is no routine of a name.
pub(crate) fn link(target: &Target, functions: &[(&str, usize, &Object)]) -> Result<Vec<Code>> {
    let mut builder = JITBuilder::with_isa(target.isa.clone(), default_libcall_names());
    for (kernel, _, object) in functions {
        for routine in object.routines(target) {
            let (name, address) = routine.map_err(|message| failed(kernel, message))?;
            builder.symbol(name, address as *const u8);
        }
    }
    let mut module = JITModule::new(builder);
    let entries = fill(&mut module, functions);
    let memory = Arc::new(CodeMemory(Mutex::new(Some(module))));
    let code = |(entry, scratch, slots)| Code { entry, scratch, slots, _memory: memory.clone() };
    Ok(entries?.into_iter().map(code).collect())
}

fn failed(kernel: &str, message: impl ToString) -> Error {
    Error::Compile { kernel: kernel.to_owned(), message: message.to_string() }
}

/// Puts functions into a module: their entries, scratch and slots.
fn fill(
    module: &mut JITModule,
    functions: &[(&str, usize, &Object)],
) -> Result<Vec<(Entry, usize, usize)>> {
    let mut defined: Vec<(FuncId, usize, usize)> = Vec::new();
    for (kernel, slots, object) in functions {
        let id = define(module, object).map_err(|e| failed(kernel, e))?;
        defined.push((id, object.scratch as usize, *slots));
    }
    let last = functions.last().map_or("", |(kernel, ..)| kernel);
    module.finalize_definitions().map_err(|e| failed(last, e))?;
    let entry = |(id, scratch, slots): (FuncId, usize, usize)| {
        let at = module.get_finalized_function(id);
        // SAFETY: the function was defined with the signature of `Entry`: seven 64-bit integers, in the C calling convention.
        let entry = unsafe { std::mem::transmute::<*const u8, Entry>(at) };
        (entry, scratch, slots)
    };
    Ok(defined.into_iter().map(entry).collect())
}

/// Puts one function and its wide loops into a module.
fn define(module: &mut JITModule, object: &Object) -> std::result::Result<FuncId, String> {
    // What is linked is bytes, so that the signature says nothing.
    let signature = signature(module.isa().default_call_conv());
    let own = module.declare_anonymous_function(&signature).map_err(|e| e.to_string())?;
    let mut loops = Vec::new();
    for bytes in &object.loops {
        let id = module.declare_anonymous_function(&signature).map_err(|e| e.to_string())?;
        module.define_function_bytes(id, 64, bytes, &[]).map_err(|e| e.to_string())?;
        loops.push(id);
    }
    let mut gap = |gap: &Gap| {
        let user = |id: FuncId| ModuleRelocTarget::user(0, id.as_u32());
        let name = match &gap.name {
            Name::Routine(name) => user(
                module
                    .declare_function(name, Linkage::Import, &signature)
                    .map_err(|e| e.to_string())?,
            ),
            Name::Loop(number) => {
                user(*loops.get(*number as usize).ok_or("a call of a loop that is not there")?)
            }
            Name::Library(call) => ModuleRelocTarget::LibCall(*call),
            Name::Within(at) => ModuleRelocTarget::FunctionOffset(own, *at),
        };
        Ok::<_, String>(ModuleReloc {
            offset: gap.offset,
            kind: gap.kind,
            name,
            addend: gap.addend,
        })
    };
    let relocations: Vec<ModuleReloc> =
        object.gaps.iter().map(&mut gap).collect::<std::result::Result<_, _>>()?;
    module
        .define_function_bytes(own, object.align, &object.bytes, &relocations)
        .map_err(|e| e.to_string())?;
    Ok(own)
}

/// Where an operand lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Address(*mut u8);

// SAFETY: an address is only a number; what is at it is accessed by compiled code and tile routines, whose callers split outputs
// among threads and let nobody write what another reads.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// The address that many bytes on.
    pub(crate) fn offset(self, bytes: isize) -> Address {
        Address(self.0.wrapping_offset(bytes))
    }
}

/// The addresses that compiled functions are given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots(SmallVec<[Address; 24]>);

impl Slots {
    /// The addresses of a kernel's operands.
    ///
    /// # Errors
    /// If an operand is not in memory of this device, or reaches beyond it.
    pub(crate) fn of(args: &[Arg]) -> tracecast_runtime::Result<Slots> {
        let mut slots = Slots::default();
        slots.refill(args)?;
        Ok(slots)
    }

    /// Makes it the addresses of a kernel's operands.
    ///
    /// # Errors
    /// As [`of`](Slots::of).
    pub(crate) fn refill(&mut self, args: &[Arg]) -> tracecast_runtime::Result<()> {
        self.0.clear();
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
    pub(crate) fn select(&mut self, from: &Slots, at: impl IntoIterator<Item = usize>) {
        self.0.clear();
        self.0.extend(at.into_iter().map(|i| from.0[i]));
    }

    /// One more address.
    pub(crate) fn push(&mut self, address: Address) {
        self.0.push(address);
    }

    /// Replaces an address.
    pub(crate) fn set(&mut self, slot: usize, address: Address) {
        self.0[slot] = address;
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The address of a slot.
    pub(crate) fn get(&self, slot: usize) -> Address {
        self.0[slot]
    }

    /// The f32 that a slot holds.
    pub(crate) fn read_f32(&self, slot: usize) -> f32 {
        // SAFETY: used for the scalar that predicates a kernel, whose operand is one f32 inside its memory.
        unsafe { self.0[slot].0.cast::<f32>().read_unaligned() }
    }
}

/// Zeros.
pub(crate) fn clear(first: Address, bytes: usize) {
    // SAFETY: the caller's bytes lie in memory lent for this run, which no thread uses yet.
    unsafe { first.0.write_bytes(0, bytes) };
}

/// Puts a number where another is.
pub(crate) fn copy_number(scalar: Scalar, from: Address, to: Address) {
    let bytes = if matches!(scalar, Scalar::F64 | Scalar::I64) { 8 } else { 4 };
    // SAFETY: one is in memory lent for this run, the other an operand of that type, and no thread uses either any more.
    unsafe { std::ptr::copy_nonoverlapping(from.0, to.0, bytes) };
}

/// Replaces the first of some results by what all of them amount to, combined in order.
pub(crate) fn combine(reduction: Reduction, scalar: Scalar, first: Address, count: usize) {
    fn all<T: Copy>(first: Address, count: usize, f: impl Fn(T, T) -> T) {
        let at = first.0.cast::<T>();
        // SAFETY: the caller's results lie one after another in memory lent for this run, and no thread writes them any more.
        let result = |i: usize| unsafe { at.wrapping_add(i).read_unaligned() };
        let total = (1..count).fold(result(0), |sum, i| f(sum, result(i)));
        // SAFETY: as above.
        unsafe { at.write_unaligned(total) };
    }
    fn best<T: Copy + PartialOrd>(how: Reduction, first: Address, count: usize) {
        // Not a number is unlike itself.
        let is_nan = |v: T| v.partial_cmp(&v).is_none();
        all(first, count, |a: T, b: T| {
            let stays = if how == Reduction::Max { b <= a } else { a <= b };
            if is_nan(a) || !is_nan(b) && stays { a } else { b }
        });
    }
    match (reduction, scalar) {
        (Reduction::Sum, Scalar::F32) => all(first, count, |a: f32, b: f32| a + b),
        (Reduction::Sum, Scalar::F64) => all(first, count, |a: f64, b: f64| a + b),
        (Reduction::Sum, Scalar::I64) => all(first, count, i64::wrapping_add),
        (Reduction::Sum, _) => all(first, count, i32::wrapping_add),
        (_, Scalar::F32) => best::<f32>(reduction, first, count),
        (_, Scalar::F64) => best::<f64>(reduction, first, count),
        (_, Scalar::I64) => best::<i64>(reduction, first, count),
        _ => best::<i32>(reduction, first, count),
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Memory that only grows, so that a steady state allocates nothing.
#[derive(Default)]
pub(crate) struct Arena(Vec<Line>);

impl Arena {
    /// Room for that many bytes, aligned to a cache line; what was there is gone.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Address {
        let lines = bytes.div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 8]));
        }
        Address(self.0.as_mut_ptr().cast())
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Arena>>> = const { Cell::new(None) };
    static SHARED: Cell<Vec<Arena>> = const { Cell::new(Vec::new()) };
    static PACKED: Cell<Option<Box<tile::Scratch>>> = const { Cell::new(None) };
}

/// Lends this thread's scratch for compiled functions. Whoever asks again in the meantime gets a new one.
pub(crate) fn with_scratch<T>(f: impl FnOnce(&mut Arena) -> T) -> T {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let result = f(&mut scratch);
    SCRATCH.set(Some(scratch));
    result
}

/// Lends memory for one run of a kernel, which other threads may use as well. A kernel may ask for more within.
pub(crate) fn with_shared<T>(bytes: usize, f: impl FnOnce(Address) -> T) -> T {
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
pub(crate) type Fill<'a> = dyn Fn(usize, usize, usize, usize, *mut u8) + Sync + 'a;

/// An operand of a contraction.
#[derive(Clone, Copy)]
pub(crate) enum Operand<'a> {
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
    /// Computed block by block, in that dtype.
    Computed(&'a Fill<'a>, DType),
    /// All of a right operand, packed by [`keep`].
    Kept {
        /// Where it is.
        base: Address,
        /// How it lies.
        panels: tile::Panels,
        /// The least that [`keep`] has returned.
        least: u16,
    },
}

impl Operand<'_> {
    fn source(&self) -> tile::Source<'_> {
        match self {
            Operand::Matrix { base, dtype, round, row, col } => tile::Source::Matrix {
                base: base.0.cast_const(),
                dtype: *dtype,
                round: *round,
                row: *row,
                col: *col,
            },
            Operand::Computed(fill, dtype) => tile::Source::Fill { fill, dtype: *dtype },
            Operand::Kept { base, panels, least } => {
                tile::Source::Kept { base: base.0.cast_const(), panels: *panels, least: *least }
            }
        }
    }
}

/// Where a routine wants a block.
pub(crate) fn block_address(at: *mut u8) -> Address {
    Address(at)
}

/// Where memory of the host begins.
pub(crate) fn address_of(memory: &HostMemory) -> Address {
    Address(memory.as_ptr())
}

/// Packs some columns of a right operand, from a multiple of [`tile::PIECE`] to another one or the end, to their place in memory for all
/// of them, which no thread uses. Returns the least of the numbers, for [`Operand::Kept`].
pub(crate) fn keep(
    tiles: &Tiles,
    panels: &tile::Panels,
    piece: Range<usize>,
    b: &Operand<'_>,
    to: Address,
) -> u16 {
    let mut packed = PACKED.take().unwrap_or_default();
    let cpu = tile::Cpu::of(tiles);
    // SAFETY: the tiles are those of this CPU, as `Tiles::detect` chose them, and the panels were made for it; matrices are operands
    // of the kernel, whose accesses stay inside for these columns and all of `k`; the place is the caller's.
    let least = unsafe { tile::keep((&cpu, tiles), panels, piece, &b.source(), &mut packed, to.0) };
    PACKED.set(Some(packed));
    least
}

/// The ranges of one contraction.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Of the result.
    pub(crate) rows: Range<usize>,
    /// Of the result.
    pub(crate) cols: Range<usize>,
    /// The summed axis, all of it.
    pub(crate) k: usize,
}

/// A matrix that the epilogue of a contraction writes or reads: element (0, 0), bytes from a row to the next, bytes of an element.
pub(crate) fn ahead(base: Address, row: isize, cell: usize) -> tile::Ahead {
    tile::Ahead { base: base.0.cast_const(), row, cell }
}

/// Contracts a block and hands the sums to `epilogue(row, rows, column, columns, sums)`, each once.
pub(crate) fn contract(
    tiles: &Tiles,
    acc: DType,
    block: Block,
    [a, b]: [Operand<'_>; 2],
    ahead: &[tile::Ahead],
    epilogue: &mut dyn FnMut(usize, usize, usize, usize, Address),
) {
    let mut packed = PACKED.take().unwrap_or_default();
    let mut finish = |row: usize, rows: usize, col: usize, cols: usize, sums: *const u8| {
        epilogue(row, rows, col, cols, Address(sums.cast_mut()))
    };
    let cpu = tile::Cpu::of(tiles);
    let Block { rows, cols, k } = block;
    // SAFETY: the tiles are those of this CPU, as `Tiles::detect` chose them; matrices are operands of the kernel, whose accesses
    // stay inside for the rows, the columns and `k` of its extents.
    unsafe {
        tile::contract(
            &cpu,
            acc,
            rows,
            cols,
            k,
            &a.source(),
            &b.source(),
            &mut packed,
            ahead,
            &mut finish,
        )
    };
    PACKED.set(Some(packed));
}
