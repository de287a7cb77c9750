//! [`Bytes`]: the memory of a tensor's elements, on cache lines of its own and on huge pages where
//! it is large.

use super::mapping::{HUGE, Mapping};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes that begin with a cache line, unless they were taken over from a `Vec` or belong to
/// somebody else.
///
/// Large ones are a mapping of their own, for which the system is asked to use huge pages: results
/// that are written once per run otherwise cost a tenth to a fifth of the time in translated
/// addresses. Such pages come into being, zeroed, when they are first touched; mappings that are
/// free again are used for others, see [`give_back_free`](super::give_back_free).
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
    Mapping(Mapping),
    /// Of an owner who may read them as well.
    Borrowed(Box<dyn AsRef<[u8]> + Send + Sync>),
    /// Of an owner who has given up their use.
    Lent(Box<dyn Lender>),
}

/// An owner whose bytes are read and written.
trait Lender: AsRef<[u8]> + AsMut<[u8]> + Send + Sync {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send + Sync> Lender for T {}

const LINE: usize = 64;

/// What bytes to be written hold until then: in debug builds what nobody takes for a result, no
/// number as a float.
const UNWRITTEN: u8 = if cfg!(debug_assertions) { 0xff } else { 0 };

impl Bytes {
    /// That many zeros.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn zeroed(len: usize) -> Result<Self, String> {
        match Bytes::mapped(len) {
            Some((mut bytes, is_new)) => {
                if !is_new {
                    bytes.fill(0);
                }
                Ok(bytes)
            }
            None => Bytes::on_heap(len, 0),
        }
    }

    /// That many bytes of any content, to be written whole: where they are those of an earlier
    /// tensor nobody takes the time to zero them.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn to_write(len: usize) -> Result<Self, String> {
        match Bytes::mapped(len) {
            Some((mut bytes, _)) => {
                if cfg!(debug_assertions) {
                    bytes.fill(UNWRITTEN);
                }
                Ok(bytes)
            }
            None => Bytes::on_heap(len, UNWRITTEN),
        }
    }

    /// The bytes of an owner in place, who is dropped with them. They are read only: who writes to
    /// them writes to a copy.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tracecast_ir::eval::Bytes;
    /// let owner: Arc<[u8]> = Arc::new([1, 2, 3]);
    /// let mut bytes = Bytes::borrowed(owner.clone());
    /// assert_eq!(bytes.as_ptr(), owner.as_ptr());
    /// bytes[0] = 7;
    /// assert_eq!((&bytes[..], &owner[..]), (&[7, 2, 3][..], &[1, 2, 3][..]));
    /// ```
    pub fn borrowed(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let len = owner.as_ref().len();
        Bytes { held: Held::Borrowed(Box::new(owner)), at: 0, len }
    }

    /// The bytes of an owner in place, who is dropped with them. What is written lies in the memory
    /// of the owner.
    pub fn lent(owner: impl AsRef<[u8]> + AsMut<[u8]> + Send + Sync + 'static) -> Self {
        let len = owner.as_ref().len();
        Bytes { held: Held::Lent(Box::new(owner)), at: 0, len }
    }

    /// A mapping, if they are many and there can be one, and whether it is a new one, which holds
    /// zeros.
    fn mapped(len: usize) -> Option<(Bytes, bool)> {
        if len < HUGE {
            return None;
        }
        let mapping = Mapping::of(len)?;
        let is_new = mapping.is_new;
        Some((Bytes { held: Held::Mapping(mapping), at: 0, len }, is_new))
    }

    fn on_heap(len: usize, value: u8) -> Result<Self, String> {
        let mut heap = Vec::new();
        let size = len.checked_add(LINE).ok_or_else(|| format!("{len} bytes are too many"))?;
        heap.try_reserve_exact(size).map_err(|e| format!("{len} bytes of memory: {e}"))?;
        heap.resize(size, value);
        let at = heap.as_ptr().addr().wrapping_neg() % LINE;
        Ok(Bytes { held: Held::Heap(heap), at, len })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.held {
            Held::Heap(heap) => heap,
            Held::Mapping(map) => map,
            Held::Borrowed(owner) => (**owner).as_ref(),
            Held::Lent(owner) => (**owner).as_ref(),
        };
        &all[self.at..self.at + self.len]
    }
}

impl DerefMut for Bytes {
    /// # Panics
    /// If they are borrowed, and there is not enough memory for a copy.
    fn deref_mut(&mut self) -> &mut [u8] {
        if matches!(self.held, Held::Borrowed(_)) {
            *self = self.clone();
        }
        let all: &mut [u8] = match &mut self.held {
            Held::Heap(heap) => heap,
            Held::Mapping(map) => map,
            Held::Lent(owner) => (**owner).as_mut(),
            Held::Borrowed(_) => &mut [],
        };
        &mut all[self.at..self.at + self.len]
    }
}

/// None.
impl Default for Bytes {
    fn default() -> Self {
        Bytes { held: Held::Heap(Vec::new()), at: 0, len: 0 }
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
        let mut copy = Bytes::to_write(self.len).expect("memory for a copy");
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
    fn zeros_are_zero_where_others_were() {
        for round in 0..3 {
            let mut bytes = Bytes::zeroed(2 * HUGE + round).unwrap();
            assert!(bytes.iter().all(|b| *b == 0));
            bytes.fill(7);
            drop(bytes);
            let mut bytes = Bytes::to_write(2 * HUGE + round).unwrap();
            assert_eq!(bytes.len(), 2 * HUGE + round);
            bytes.fill(8);
        }
    }

    #[test]
    fn an_owner_lives_as_long_as_its_bytes() {
        use std::sync::Arc;
        let owner: Arc<Vec<u8>> = Arc::new(vec![1, 2, 3]);
        struct Part(Arc<Vec<u8>>);
        impl AsRef<[u8]> for Part {
            fn as_ref(&self) -> &[u8] {
                &self.0[1..]
            }
        }
        let mut bytes = Bytes::borrowed(Part(owner.clone()));
        assert_eq!((&bytes[..], bytes.as_ptr()), (&[2, 3][..], owner[1..].as_ptr()));
        let copy = bytes.clone();
        assert!(copy == bytes && copy.as_ptr() != bytes.as_ptr());
        assert_eq!(Arc::strong_count(&owner), 2);
        bytes[1] = 9;
        assert_eq!(
            (Arc::strong_count(&owner), &bytes[..], &owner[..]),
            (1, &[2, 9][..], &[1, 2, 3][..])
        );
    }

    #[test]
    fn what_is_lent_is_written_in_place() {
        let vec = vec![1, 2, 3];
        let at = vec.as_ptr();
        let mut bytes = Bytes::lent(vec);
        bytes.fill(7);
        assert_eq!((bytes.as_ptr(), &bytes[..]), (at, &[7, 7, 7][..]));
    }

    #[test]
    fn large_ones_begin_on_different_lines() {
        let all: Vec<Bytes> = (0..4).map(|_| Bytes::zeroed(HUGE).unwrap()).collect();
        let mut lines: Vec<usize> = all.iter().map(|b| b.as_ptr().addr() % 4096).collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 4);
    }
}
