//! Memory of devices: [`Memory`], opaque to the runtime, and [`HostMemory`], the aligned bytes that devices of the host use.

use crate::error::{Error, Result};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

const WORDS: usize = 8;
const WORD: usize = size_of::<u64>();

/// One cache line.
#[repr(align(64))]
struct Line([AtomicU64; WORDS]);

/// Bytes of the host, aligned to 64 bytes and zero at first.
///
/// They are shared: whoever holds the memory may read and write it, also while others do. Reads and writes here are made of
/// whole relaxed words, so they are never undefined, but bytes written at the same time arrive in any order.
pub struct HostMemory {
    lines: Box<[Line]>,
    bytes: usize,
}

impl HostMemory {
    /// Reserves that many bytes, rounded up to whole lines of 64.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(bytes: usize) -> Result<Self> {
        let count = bytes.div_ceil(WORD * WORDS);
        let mut lines = Vec::new();
        lines
            .try_reserve_exact(count)
            .map_err(|e| Error::Device(format!("{bytes} bytes of memory: {e}")))?;
        lines.extend((0..count).map(|_| Line([const { AtomicU64::new(0) }; WORDS])));
        Ok(HostMemory { lines: lines.into_boxed_slice(), bytes })
    }

    /// The number of bytes asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True if no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address of the first byte, valid for reads and writes of the whole memory for as long as it exists. Every byte is inside an
    /// atomic cell, so writing through it is allowed by the shared handle.
    pub fn as_ptr(&self) -> *mut u8 {
        self.lines.as_ptr().cast_mut().cast()
    }

    /// Copies bytes from `at` on into `to`.
    ///
    /// # Errors
    /// If they do not lie inside.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<()> {
        self.check(at, to.len())?;
        let (first, skip) = (at / WORD, at % WORD);
        let (head, body) = to.split_at_mut(if skip == 0 { 0 } else { (WORD - skip).min(to.len()) });
        let mut word = first;
        if !head.is_empty() {
            head.copy_from_slice(
                &self.word(word).load(Ordering::Relaxed).to_ne_bytes()[skip..skip + head.len()],
            );
            word += 1;
        }
        let mut chunks = body.chunks_exact_mut(WORD);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&self.word(word).load(Ordering::Relaxed).to_ne_bytes());
            word += 1;
        }
        let tail = chunks.into_remainder();
        if !tail.is_empty() {
            tail.copy_from_slice(
                &self.word(word).load(Ordering::Relaxed).to_ne_bytes()[..tail.len()],
            );
        }
        Ok(())
    }

    /// Copies the bytes of `from` to `at` and on.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<()> {
        self.check(at, from.len())?;
        let (first, skip) = (at / WORD, at % WORD);
        let (head, body) = from.split_at(if skip == 0 { 0 } else { (WORD - skip).min(from.len()) });
        let mut word = first;
        if !head.is_empty() {
            self.patch(word, skip, head);
            word += 1;
        }
        let (chunks, tail) = body.as_chunks::<WORD>();
        for chunk in chunks {
            self.word(word).store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
            word += 1;
        }
        if !tail.is_empty() {
            self.patch(word, 0, tail);
        }
        Ok(())
    }

    fn word(&self, i: usize) -> &AtomicU64 {
        &self.lines[i / WORDS].0[i % WORDS]
    }

    /// Writes a part of one word.
    fn patch(&self, word: usize, skip: usize, part: &[u8]) {
        let word = self.word(word);
        let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        bytes[skip..skip + part.len()].copy_from_slice(part);
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }

    fn check(&self, at: usize, len: usize) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::Device(format!(
                "{len} bytes at {at} are not inside a memory of {} bytes",
                self.bytes
            ))),
        }
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} bytes)", self.bytes)
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
