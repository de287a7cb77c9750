//! The memory of a chip: an address space of its own with a limit, and who has which part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tensors begin at multiples of it.
pub const ALIGNMENT: usize = 256;

/// The address space of a chip. The host keeps the account of it; its bytes are the chip's.
#[derive(Debug)]
pub struct Space {
    limit: usize,
    account: Mutex<Account>,
}

/// What of a space is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub in_use: usize,
    /// The most that ever were.
    pub peak: usize,
    /// Parts.
    pub allocations: usize,
    /// Bytes that are kept for later, in the sizes that they had.
    pub kept: usize,
}

#[derive(Debug, Default)]
struct Account {
    /// Parts by where they begin, with their ends: those in use, and those kept.
    parts: BTreeMap<usize, usize>,
    /// Parts that are kept: how long they are, and where they begin.
    kept: BTreeSet<(usize, usize)>,
    usage: Usage,
}

/// A part of a space, which is free again when it is dropped.
#[derive(Debug)]
pub struct Region {
    space: Arc<Space>,
    range: Range<usize>,
    /// What is taken of the space for it.
    taken: usize,
}

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// The bytes that were asked for.
    pub asked: usize,
    /// Those in use.
    pub in_use: usize,
    /// Those there are.
    pub limit: usize,
}

impl Space {
    /// A number of bytes, none in use.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Space { limit, account: Mutex::default() })
    }

    /// Takes a part that is kept and has that length, or the first gap that is wide enough.
    ///
    /// # Errors
    /// If there is none.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<Region, Full> {
        let mut account = self.account();
        let full = Full { asked: bytes, in_use: account.usage.in_use, limit: self.limit };
        // Of no bytes, too, each part has a place of its own.
        let taken = bytes.max(1).checked_next_multiple_of(ALIGNMENT).ok_or(full)?;
        let start = account.start(taken, self.limit).ok_or(full)?;
        account.parts.insert(start, start + taken);
        let usage = &mut account.usage;
        usage.in_use += taken;
        usage.allocations += 1;
        usage.peak = usage.peak.max(usage.in_use);
        Ok(Region { space: self.clone(), range: start..start + bytes, taken })
    }

    /// Keeps nothing for later.
    pub fn trim(&self) {
        let account = &mut *self.account();
        for (_, start) in std::mem::take(&mut account.kept) {
            account.parts.remove(&start);
        }
        account.usage.kept = 0;
    }

    /// What is in use.
    pub fn usage(&self) -> Usage {
        self.account().usage
    }

    /// How many bytes there are.
    pub fn limit(&self) -> usize {
        self.limit
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    /// Where a part of that length is to begin.
    fn start(&mut self, taken: usize, limit: usize) -> Option<usize> {
        let kept = self.kept.range((taken, 0)..(taken + 1, 0)).next().copied();
        if let Some((_, start)) = kept {
            self.kept.remove(&(taken, start));
            self.usage.kept -= taken;
            return Some(start);
        }
        let mut start = 0;
        for (&begin, &end) in &self.parts {
            if begin - start >= taken {
                break;
            }
            start = end;
        }
        (taken <= limit.saturating_sub(start)).then_some(start)
    }
}

impl Region {
    /// The space that it is a part of.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The addresses of a number of bytes from `at` on.
    ///
    /// # Errors
    /// If they do not lie inside.
    pub fn part(&self, at: usize, len: usize) -> Result<Range<usize>, String> {
        let end = at.checked_add(len).filter(|end| *end <= self.range.len());
        let end = end.ok_or_else(|| {
            format!("{len} bytes at {at} are not inside a memory of {} bytes", self.range.len())
        })?;
        Ok(self.range.start + at..self.range.start + end)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let mut account = self.space.account();
        account.kept.insert((self.taken, self.range.start));
        account.usage.kept += self.taken;
        account.usage.in_use -= self.taken;
        account.usage.allocations -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_taken_again_and_nothing_beyond_the_limit() {
        let space = Space::new(4 * ALIGNMENT);
        let take = |bytes| space.take(bytes).unwrap();
        let (a, b, c) = (take(1), take(ALIGNMENT + 1), take(ALIGNMENT));
        assert_eq!(space.take(1).unwrap_err(), Full { asked: 1, in_use: 1024, limit: 1024 });
        drop(b);
        let b = take(2 * ALIGNMENT);
        assert_eq!(b.part(0, 512), Ok(ALIGNMENT..3 * ALIGNMENT));
        assert!(b.part(1, 512).is_err() && b.part(usize::MAX, 2).is_err());
        assert_eq!(space.usage(), Usage { in_use: 1024, peak: 1024, allocations: 3, kept: 0 });
        drop((a, b, c));
        assert_eq!(space.usage(), Usage { in_use: 0, peak: 1024, allocations: 0, kept: 1024 });
        assert!(space.take(usize::MAX).is_err() && space.take(1025).is_err());
    }

    #[test]
    fn what_is_kept_is_in_the_way_of_other_sizes_until_it_is_given_back() {
        let space = Space::new(4 * ALIGNMENT);
        drop((space.take(0).unwrap(), space.take(2 * ALIGNMENT).unwrap()));
        assert!(space.take(3 * ALIGNMENT).is_err());
        let small = space.take(1).unwrap();
        assert_eq!(small.part(0, 1), Ok(0..1));
        space.trim();
        let large = space.take(3 * ALIGNMENT).unwrap();
        assert_eq!(large.part(0, 768), Ok(256..1024));
        assert_eq!(space.usage(), Usage { in_use: 1024, peak: 1024, allocations: 2, kept: 0 });
    }
}
