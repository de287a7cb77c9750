//! Memory of devices: [`Memory`], opaque to the runtime, a [`Span`] of it, and [`HostMemory`], the
//! aligned bytes that devices of the host use.

use crate::arena::ALIGNMENT;
use crate::error::{Error, Result};
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tracecast_ir::eval::Bytes;

/// A piece of some device's memory. A copy of the handle is the same memory, which is freed with
/// the last handle.
#[derive(Clone)]
pub struct Memory(Arc<Held<dyn Any + Send + Sync>>);

struct Held<T: ?Sized> {
    version: AtomicU64,
    region: T,
}

/// The number of the next version of any memory.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Memory {
    /// Wraps what a device knows its memory by.
    pub fn new<T: Any + Send + Sync>(region: T) -> Self {
        Memory(Arc::new(Held { version: AtomicU64::new(next()), region }))
    }

    /// The number of its version: another one after [`changed`](Memory::changed), and greater than
    /// that of any memory before.
    ///
    /// The runtime counts what it does to the memory of [lasting](crate::Arg::lasting) operands:
    /// uploads, and runs of programs that write it. The versions of other memory mean nothing.
    pub fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Says that its bytes change. Whoever writes to the memory of a store other than through the
    /// runtime has to say so.
    pub fn changed(&self) {
        self.0.version.store(next(), Ordering::Release);
    }

    /// What [`Memory::new`] was given.
    ///
    /// # Errors
    /// If that was of another type: the memory belongs to another device.
    pub fn get<T: Any>(&self) -> Result<&T> {
        self.find().ok_or_else(|| Error::Device("memory of another device".to_owned()))
    }

    /// What [`Memory::new`] was given, if that was of this type.
    pub fn find<T: Any>(&self) -> Option<&T> {
        self.0.region.downcast_ref()
    }

    /// How many handles there are to it, this one included: whether memory has come back to who
    /// reserved it.
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// True if both are the same piece of memory.
    pub fn same(&self, other: &Memory) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:p})", Arc::as_ptr(&self.0))
    }
}

/// Bytes of some memory.
#[derive(Clone, Debug)]
pub struct Span {
    /// The memory.
    pub memory: Memory,
    /// Where they begin in it.
    pub at: usize,
    /// How many they are.
    pub len: usize,
}

/// Bytes of the host that begin with a cache line.
///
/// They are shared: whoever holds the memory may read and write it. Reads and writes here take
/// turns; they do not wait for kernels, which the runtime does not let run meanwhile.
pub struct HostMemory {
    bytes: RwLock<Bytes>,
    address: AtomicPtr<u8>,
    len: usize,
}

impl HostMemory {
    /// Reserves that many bytes; they hold anything.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(bytes: usize) -> Result<Self> {
        Bytes::to_write(bytes).map(HostMemory::of).map_err(Error::Device)
    }

    /// Takes over bytes, or gives them back if they do not begin with a cache line.
    ///
    /// # Errors
    /// The bytes.
    pub fn adopt(bytes: Bytes) -> std::result::Result<Self, Bytes> {
        if bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            return Ok(HostMemory::of(bytes));
        }
        Err(bytes)
    }

    fn of(mut bytes: Bytes) -> Self {
        let (address, len) = (AtomicPtr::new(bytes.as_mut_ptr()), bytes.len());
        HostMemory { bytes: RwLock::new(bytes), address, len }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte, valid for reads and writes of the whole memory for as long as
    /// it exists.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.load(Ordering::Relaxed)
    }

    /// Copies bytes from `at` on into `to`.
    ///
    /// # Errors
    /// If they do not lie inside.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let from = at.checked_add(to.len()).and_then(|end| bytes.get(at..end));
        to.copy_from_slice(from.ok_or_else(|| self.outside(at, to.len()))?);
        Ok(())
    }

    /// Copies the bytes of `from` to `at` and on.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let to = at.checked_add(from.len()).and_then(|end| bytes.get_mut(at..end));
        to.ok_or_else(|| self.outside(at, from.len()))?.copy_from_slice(from);
        Ok(())
    }

    /// Copies bytes from `at` on to another place, in this memory or in another one.
    ///
    /// # Errors
    /// If they do not lie inside of both.
    pub fn copy(&self, at: usize, len: usize, to: &HostMemory, to_at: usize) -> Result<()> {
        let end = |all: &HostMemory, at: usize| {
            at.checked_add(len).filter(|end| *end <= all.len).ok_or_else(|| all.outside(at, len))
        };
        let (end, to_end) = (end(self, at)?, end(to, to_at)?);
        let read = || self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let write = || to.bytes.write().unwrap_or_else(PoisonError::into_inner);
        if std::ptr::eq(self, to) {
            write().copy_within(at..end, to_at);
            return Ok(());
        }
        // Everybody locks in the order of addresses, so nobody waits for another in a circle.
        let (bytes, mut room) = match self.as_ptr().addr() < to.as_ptr().addr() {
            true => (read(), write()),
            false => {
                let room = write();
                (read(), room)
            }
        };
        room[to_at..to_end].copy_from_slice(&bytes[at..end]);
        Ok(())
    }

    fn outside(&self, at: usize, len: usize) -> Error {
        let all = self.len;
        Error::Device(format!("{len} bytes at {at} are not inside a memory of {all} bytes"))
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_patched_anywhere() {
        let memory = HostMemory::new(203).unwrap();
        assert_eq!(memory.as_ptr().addr() % 64, 0);
        let mut model = vec![0u8; 203];
        for (i, (at, len)) in
            [(0, 203), (3, 2), (5, 20), (8, 8), (7, 1), (196, 7), (203, 0)].into_iter().enumerate()
        {
            let bytes: Vec<u8> = (0..len).map(|b| (b * 7 + i) as u8).collect();
            memory.write(at, &bytes).unwrap();
            model[at..at + len].copy_from_slice(&bytes);
            let mut all = vec![0; 203];
            memory.read(0, &mut all).unwrap();
            assert_eq!(all, model);
            let mut part = vec![0; len];
            memory.read(at, &mut part).unwrap();
            assert_eq!(part, bytes);
        }
        let other = HostMemory::new(10).unwrap();
        memory.copy(5, 10, &other, 0).unwrap();
        let mut ten = [0; 10];
        other.read(0, &mut ten).unwrap();
        assert_eq!(ten, model[5..15]);
        memory.copy(5, 10, &memory, 100).unwrap();
        memory.read(100, &mut ten).unwrap();
        assert_eq!(ten, model[5..15]);
        assert!(memory.copy(0, 11, &other, 0).is_err() && memory.copy(200, 4, &other, 0).is_err());
        assert!(
            memory.write(200, &[0; 4]).is_err() && memory.read(usize::MAX, &mut [0; 2]).is_err()
        );
    }

    #[test]
    fn bytes_are_taken_over_where_they_lie() {
        let mut bytes = Bytes::zeroed(100).unwrap();
        bytes[3] = 7;
        let at = bytes.as_ptr();
        let memory = HostMemory::adopt(bytes).unwrap();
        let mut four = [0; 4];
        memory.read(0, &mut four).unwrap();
        assert!(memory.as_ptr().cast_const() == at && memory.len() == 100 && four == [0, 0, 0, 7]);
        // Vectors begin anywhere, and most of these off a line.
        let vectors: Vec<Bytes> = (0..50).map(|i| Bytes::from(vec![i; 100])).collect();
        for bytes in vectors {
            let (at, first) = (bytes.as_ptr(), bytes[0]);
            match HostMemory::adopt(bytes) {
                Ok(memory) => assert!(memory.as_ptr().addr().is_multiple_of(ALIGNMENT)),
                Err(bytes) => assert!(bytes.as_ptr() == at && bytes[..] == [first; 100]),
            }
        }
    }

    #[test]
    fn handles_are_compared_by_identity() {
        let (a, b) =
            (Memory::new(HostMemory::new(0).unwrap()), Memory::new(HostMemory::new(0).unwrap()));
        assert!(a.same(&a.clone()) && !a.same(&b) && a.handles() == 1);
        assert!(a.get::<HostMemory>().is_ok() && a.get::<u8>().is_err());
        let before = (a.version(), b.version());
        a.clone().changed();
        assert!(before.0 < before.1 && a.version() > before.1 && b.version() == before.1);
        assert!(HostMemory::new(isize::MAX as usize - 64).is_err());
    }
}
