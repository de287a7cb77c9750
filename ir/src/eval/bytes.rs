//! [`Bytes`]: the memory of a tensor's elements, on cache lines of its own and on huge pages where it is large.

use memmap2::MmapMut;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that begin with a cache line, unless they were taken over from a `Vec`.
///
/// Large ones are a mapping of their own, for which the system is asked to use huge pages: results that are written once per run
/// otherwise cost a tenth to a fifth of the time in translated addresses. Such pages come into being, zeroed, when they are first touched.
///
/// ```
/// use tracecast_ir::eval::Bytes;
/// let bytes = Bytes::zeroed(100_000)?;
/// assert!(bytes.as_ptr().addr() % 64 == 0 && bytes.iter().all(|b| *b == 0));
/// # Ok::<(), String>(())
/// ```
pub struct Bytes {
    held: Held,
    /// Where they begin in what is held.
    at: usize,
    len: usize,
}

/// What they are a part of.
enum Held {
    Heap(Vec<u8>),
    Mapping(MmapMut),
}

const LINE: usize = 64;
/// The usual size of a huge page, and the least that is mapped.
const HUGE: usize = 2 << 20;
/// A step that goes through the lines of a page in an order in which any few steps lie far apart.
const STRIDE: usize = 25;
const PAGE: usize = 4096;

impl Bytes {
    /// That many zeros.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn zeroed(len: usize) -> Result<Self, String> {
        if len >= HUGE
            && let Some(bytes) = Bytes::mapped(len)
        {
            return Ok(bytes);
        }
        let mut heap = Vec::new();
        let size = len.checked_add(LINE).ok_or_else(|| format!("{len} bytes are too many"))?;
        heap.try_reserve_exact(size).map_err(|e| format!("{len} bytes of memory: {e}"))?;
        heap.resize(size, 0);
        let at = heap.as_ptr().addr().wrapping_neg() % LINE;
        Ok(Bytes { held: Held::Heap(heap), at, len })
    }

    /// A mapping, if there can be one.
    ///
    /// The bytes begin on a huge page, which takes address space but no memory, and there on a line that is another one for each mapping:
    /// a processor takes a load for dependent on an earlier store if their addresses agree in the last twelve bits, and a program goes
    /// through several tensors at the same pace.
    fn mapped(len: usize) -> Option<Bytes> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let map = MmapMut::map_anon(len.checked_add(HUGE + PAGE)?).ok()?;
        let start = map.as_ptr().addr().wrapping_neg() % HUGE;
        let at = start + COUNT.fetch_add(STRIDE, Ordering::Relaxed) * LINE % PAGE;
        // What does not fill a huge page stays on small ones, so that no memory is used but that of the bytes. A system that does not
        // have huge pages does without.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, start, len / HUGE * HUGE);
        Some(Bytes { held: Held::Mapping(map), at, len })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.held {
            Held::Heap(heap) => heap,
            Held::Mapping(map) => map,
        };
        &all[self.at..self.at + self.len]
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        let all: &mut [u8] = match &mut self.held {
            Held::Heap(heap) => heap,
            Held::Mapping(map) => map,
        };
        &mut all[self.at..self.at + self.len]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(heap: Vec<u8>) -> Self {
        Bytes { len: heap.len(), held: Held::Heap(heap), at: 0 }
    }
}

impl Clone for Bytes {
    /// # Panics
    /// If there is not enough memory.
    fn clone(&self) -> Self {
        let mut copy = Bytes::zeroed(self.len).expect("memory for a copy");
        copy.copy_from_slice(self);
        copy
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_size_is_aligned_zeroed_and_its_own() {
        for len in [0, 1, 64, 5001, HUGE - 1, HUGE, 3 * HUGE + 77] {
            let mut bytes = Bytes::zeroed(len).unwrap();
            assert!(bytes.len() == len && bytes.iter().all(|b| *b == 0));
            assert!(bytes.as_ptr().addr().is_multiple_of(LINE));
            bytes.fill(7);
            let copy = bytes.clone();
            assert!(copy == bytes && copy.iter().all(|b| *b == 7));
            bytes.fill(8);
            assert!(len == 0 || copy != bytes);
        }
        assert_eq!(Bytes::from(vec![1, 2, 3])[..], [1, 2, 3]);
        assert!(Bytes::zeroed(usize::MAX).is_err() && Bytes::zeroed(isize::MAX as usize).is_err());
    }

    #[test]
    fn large_ones_begin_on_different_lines() {
        let all: Vec<Bytes> = (0..4).map(|_| Bytes::zeroed(HUGE).unwrap()).collect();
        let mut lines: Vec<usize> = all.iter().map(|b| b.as_ptr().addr() % PAGE).collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 4);
    }
}
