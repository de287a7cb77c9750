//! Memory of devices: [`Memory`], opaque to the runtime, and [`HostMemory`], the aligned bytes that devices of the host use.

use crate::error::{Error, Result};
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tracecast_ir::eval::Bytes;

/// A piece of some device's memory. A copy of the handle is the same memory, which is freed with the last handle.
#[derive(Clone)]
pub struct Memory(Arc<dyn Any + Send + Sync>);

impl Memory {
    /// Wraps what a device knows its memory by.
    pub fn new<T: Any + Send + Sync>(region: T) -> Self {
        Memory(Arc::new(region))
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
        self.0.downcast_ref()
    }

    /// True if both are the same piece of memory.
    pub fn same(&self, other: &Memory) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:p})", Arc::as_ptr(&self.0))
    }
}

/// Bytes of the host, zero at first, that begin with a cache line.
///
/// They are shared: whoever holds the memory may read and write it. Reads and writes here take turns; they do not wait for kernels, which
/// the runtime does not let run meanwhile.
pub struct HostMemory {
    bytes: RwLock<Bytes>,
    address: AtomicPtr<u8>,
    len: usize,
}

impl HostMemory {
    /// Reserves that many bytes.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(bytes: usize) -> Result<Self> {
        let mut held = Bytes::zeroed(bytes).map_err(Error::Device)?;
        let address = AtomicPtr::new(held.as_mut_ptr());
        Ok(HostMemory { bytes: RwLock::new(held), address, len: bytes })
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte, valid for reads and writes of the whole memory for as long as it exists.
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
    fn aligned_zeroed_and_patched_anywhere() {
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
        assert!(
            memory.write(200, &[0; 4]).is_err() && memory.read(usize::MAX, &mut [0; 2]).is_err()
        );
    }

    #[test]
    fn handles_are_compared_by_identity() {
        let (a, b) =
            (Memory::new(HostMemory::new(0).unwrap()), Memory::new(HostMemory::new(0).unwrap()));
        assert!(a.same(&a.clone()) && !a.same(&b));
        assert!(a.get::<HostMemory>().is_ok() && a.get::<u8>().is_err());
        assert!(HostMemory::new(isize::MAX as usize - 64).is_err());
    }
}
