//! Which growing kernels need which others, kept as they grow and merge: no join may close a cycle.
//!
//! Every kernel knows all that it needs, directly or not, as a set of bits; what one gains is handed on to those that read it, as
//! far as it is news. Merging moves the smaller of two kernels into the larger one, so that all merges of `n` kernels move about
//! `n log n` relations.

use tracecast_ir::hash::FxHashSet;

/// A set of kernel numbers.
#[derive(Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    fn set(&mut self, i: usize) {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn clear(&mut self, i: usize) {
        self.0[i / 64] &= !(1 << (i % 64));
    }

    /// Takes in all of `other`; true if something of it was new.
    fn add(&mut self, other: &Bits) -> bool {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut news = 0;
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            news |= b & !*a;
            *a |= b;
        }
        news != 0
    }
}

/// What one kernel has to do with others.
#[derive(Default)]
struct Relations {
    /// Kernels it reads, directly.
    reads: FxHashSet<usize>,
    /// Kernels that read it, directly.
    readers: FxHashSet<usize>,
    /// Kernels it is never to be merged with, as one reads the other at another position than its own.
    apart: FxHashSet<usize>,
    /// Kernels it needs, directly or not. May name kernels that became part of others.
    needs: Bits,
}

impl Relations {
    fn size(&self) -> usize {
        self.reads.len() + self.readers.len() + self.apart.len()
    }
}

/// The relations of all kernels.
#[derive(Default)]
pub(super) struct Needs(Vec<Relations>);

impl Needs {
    /// A new kernel, with the next number.
    pub(super) fn start(&mut self) {
        self.0.push(Relations::default());
    }

    /// How much there is to move when this kernel is merged into another.
    pub(super) fn size(&self, k: usize) -> usize {
        self.0[k].size()
    }

    /// True if `k` needs `other`, directly or not.
    pub(super) fn needs(&self, k: usize, other: usize) -> bool {
        self.0[k].needs.has(other)
    }

    /// True if one of the two reads the other at another position than its own.
    pub(super) fn are_apart(&self, a: usize, b: usize) -> bool {
        self.0[a].apart.contains(&b)
    }

    /// True if `to` reads a third kernel that needs `from`.
    pub(super) fn leads_around(&self, from: usize, to: usize) -> bool {
        let third = |k: &&usize| **k != from && **k != to;
        self.0[to].reads.iter().filter(third).any(|k| self.needs(*k, from))
    }

    /// `k` reads `other`; `apart` if it does so at another position than its own.
    pub(super) fn read(&mut self, k: usize, other: usize, apart: bool) {
        self.0[k].reads.insert(other);
        self.0[other].readers.insert(k);
        if apart {
            self.0[k].apart.insert(other);
            self.0[other].apart.insert(k);
        }
        if !self.needs(k, other) {
            let mut gained = self.0[other].needs.clone();
            gained.set(other);
            self.0[k].needs.add(&gained);
            self.hand_on(k);
        }
    }

    /// Whoever reads `k` needs it and all that it needs.
    fn hand_on(&mut self, k: usize) {
        let mut todo = vec![k];
        while let Some(k) = todo.pop() {
            let mut needs = std::mem::take(&mut self.0[k].needs);
            let readers = std::mem::take(&mut self.0[k].readers);
            needs.set(k);
            todo.extend(readers.iter().copied().filter(|r| self.0[*r].needs.add(&needs)));
            needs.clear(k);
            (self.0[k].needs, self.0[k].readers) = (needs, readers);
        }
    }

    /// Makes `gone` part of `kept`.
    pub(super) fn merge(&mut self, gone: usize, kept: usize) {
        let Relations { reads, readers, apart, needs } = std::mem::take(&mut self.0[gone]);
        for (list, of_other) in [
            (&reads, (|r| &mut r.readers) as fn(&mut Relations) -> &mut FxHashSet<usize>),
            (&readers, |r| &mut r.reads),
            (&apart, |r| &mut r.apart),
        ] {
            for other in list {
                let set = of_other(&mut self.0[*other]);
                set.remove(&gone);
                set.insert(kept);
            }
        }
        let own = &mut self.0[kept];
        own.reads.extend(reads);
        own.readers.extend(readers);
        own.apart.extend(apart);
        own.needs.add(&needs);
        for set in [&mut own.reads, &mut own.readers, &mut own.apart] {
            set.remove(&kept);
            set.remove(&gone);
        }
        self.hand_on(kept);
    }
}
