//! Guard mode: with `TRACECAST_GUARD` set, buffers and scratch end at a page that nobody may touch,
//! and every kernel has operands of its own.
//!
//! A read or a write beyond a buffer then ends the process at the instruction that does it.
//! Operands end less than a cache line in front of their guard page, at it if they are whole lines,
//! whatever their size; scratch ends within 64 bytes of it, and has none from 2 MiB on, where it is
//! a mapping.

#![allow(
    unsafe_code,
    reason = "this file owns the guard pages of tests, and the allocator that makes them"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tracecast_codegen::CpuDevice;
use tracecast_ir::eval::Bytes;
use tracecast_ir::kernel::{Capabilities, Kernel};
use tracecast_ir::policy::DeviceType;
use tracecast_runtime::{Access, Arg, Bound, Device, HostMemory, Launch, Memory, Result};

/// The bytes of a line of the cache, at which buffers begin.
const LINE: usize = 64;

/// 0 before anybody has looked, then 1 if guard mode is off, and 2 if it is on.
static MODE: AtomicU8 = AtomicU8::new(0);

/// Whether guard mode is on. Allocates nothing: the allocator calls it.
fn is_on() -> bool {
    if MODE.load(Ordering::Relaxed) == 0 {
        // SAFETY: the name ends with a zero, and no test changes the environment.
        let found = unsafe { libc::getenv(c"TRACECAST_GUARD".as_ptr()) };
        MODE.store(1 + u8::from(!found.is_null()), Ordering::Relaxed);
    }
    MODE.load(Ordering::Relaxed) == 2
}

/// The allocator of the tests: in guard mode bytes and cache lines lie between guard pages, and
/// everything else where the system puts it.
struct Guarding;

#[global_allocator]
static ALLOCATOR: Guarding = Guarding;

/// A block between two guard pages: the bytes of a page, those of the pages between, and where the
/// block begins in the first of them.
fn between(layout: Layout) -> Option<[usize; 3]> {
    let is_buffer = layout.align() == 1 || layout.align() >= LINE;
    if !is_buffer || layout.size() <= LINE || !is_on() {
        return None;
    }
    // SAFETY: it only reads a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let whole = layout.size().next_multiple_of(page);
    let start = whole - layout.size();
    Some([page, whole, start - start % layout.align()])
}

// SAFETY: a guarded block is a mapping of its own, aligned as the layout says, and unmapped as a
// whole; whether a block is guarded follows from its layout and from the mode, which does not
// change. All other blocks are the system's.
unsafe impl GlobalAlloc for Guarding {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some([page, whole, start]) = between(layout) else {
            // SAFETY: the caller's layout.
            return unsafe { System.alloc(layout) };
        };
        let (bytes, flags) = (whole + 2 * page, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping that touches no other.
        let base = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return null_mut();
        }
        let inside = base.wrapping_byte_add(page);
        // SAFETY: the pages between the first and the last of the mapping, which nobody uses yet.
        match unsafe { libc::mprotect(inside, whole, libc::PROT_READ | libc::PROT_WRITE) } {
            0 => inside.wrapping_byte_add(start).cast(),
            _ => null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some([page, whole, start]) = between(layout) else {
            // SAFETY: the caller's block, which is not guarded.
            return unsafe { System.dealloc(block, layout) };
        };
        // SAFETY: the whole mapping that `alloc` made for this layout.
        unsafe { libc::munmap(block.wrapping_sub(start + page).cast(), whole + 2 * page) };
    }
}

/// Memory of that many bytes and what is left of a cache line: of the heap, where
/// [`HostMemory::new`] has a mapping without guard pages from 2 MiB on.
fn operand(len: usize) -> Result<HostMemory> {
    // Blocks of one line are not guarded.
    let whole = len.next_multiple_of(LINE).max(2 * LINE);
    HostMemory::adopt(Bytes::from(vec![0xff; whole])).or_else(|_| HostMemory::new(len))
}

/// Writes a byte that many bytes behind the first of an operand of `len` bytes.
pub fn write_at(len: usize, offset: isize) {
    let memory = operand(len).expect("memory");
    let at = memory.as_ptr().wrapping_offset(offset);
    // SAFETY: guard mode is on, and the byte is in the buffer or on a guard page.
    unsafe { at.write_volatile(1) };
}

/// The CPU; in guard mode with operands apart.
pub fn guarded(device: CpuDevice) -> Arc<dyn Device> {
    if is_on() { Arc::new(Apart(device)) } else { Arc::new(device) }
}

/// A device whose kernels work on copies of their operands, each between guard pages: the runtime
/// puts operands side by side.
#[derive(Debug)]
struct Apart(CpuDevice);

impl Device for Apart {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn serves(&self) -> Option<DeviceType> {
        self.0.serves()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        Ok(Box::new(LaunchApart(self.0.load(kernel)?)))
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        self.0.alloc(bytes)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        self.0.upload(from, to, at)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        self.0.download(from, at, to)
    }

    fn run_step(&self, body: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        self.0.run_step(body)
    }

    fn launches_are_infallible(&self) -> bool {
        true
    }
}

struct LaunchApart(Box<dyn Launch>);

impl Launch for LaunchApart {
    fn bind(&self, args: &[Arg], sizes: &[i64]) -> Result<Box<dyn Bound>> {
        let mut operands: Vec<[Arg; 2]> = Vec::new();
        for arg in args {
            // An output that updates an input has its place.
            let same = operands.iter().find(|[given, _]| {
                given.memory.same(&arg.memory) && (given.offset, given.len) == (arg.offset, arg.len)
            });
            let memory = match same {
                Some([_, own]) => own.memory.clone(),
                None => Memory::new(operand(arg.len)?),
            };
            operands.push([arg.clone(), Arg { memory, offset: 0, lasting: false, ..arg.clone() }]);
        }
        let own: Vec<Arg> = operands.iter().map(|[_, own]| own.clone()).collect();
        Ok(Box::new(BoundApart { inner: self.0.bind(&own, sizes)?, operands }))
    }

    fn scratch_bytes(&self, sizes: &[i64]) -> usize {
        self.0.scratch_bytes(sizes)
    }
}

struct BoundApart {
    inner: Box<dyn Bound>,
    /// Each operand as it was given, and its copy.
    operands: Vec<[Arg; 2]>,
}

impl Bound for BoundApart {
    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    fn reserve(&self) -> Result<()> {
        self.inner.reserve()
    }

    fn run(&self) -> Result<()> {
        let read = self.operands.iter().filter(|[given, _]| given.access != Access::Write);
        read.clone().try_for_each(|[given, own]| copy(given, own))?;
        self.inner.run()?;
        let written = self.operands.iter().filter(|[given, _]| given.access != Access::Read);
        written.clone().try_for_each(|[given, own]| copy(own, given))
    }
}

fn copy(from: &Arg, to: &Arg) -> Result<()> {
    let memory = to.memory.get::<HostMemory>()?;
    from.memory.get::<HostMemory>()?.copy(from.offset, from.len, memory, to.offset)
}
