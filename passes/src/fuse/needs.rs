//! Which growing kernels need which others, kept as they grow and merge: no join may close a cycle.
//!
//! Every kernel knows all that it needs, directly or not, as a set of bits; what one gains is
//! handed on to those that read it, as far as it is news. What a kernel needs is mostly what those
//! that it reads need, so the sets share their parts. Merging moves the smaller of two kernels into
//! the larger one, so that all merges of `n` kernels move about `n log n` relations.

use std::rc::Rc;
use tracecast_ir::hash::FxHashSet;

/// Words of a part of a set; a word has 64 kernels.
const WORDS: usize = 8;

/// A set of kernel numbers, in parts that several sets share.
#[derive(Clone, Default)]
struct Bits(Vec<Option<Rc<[u64; WORDS]>>>);

impl Bits {
    /// The part, the word and the bit of a number.
    fn place(i: usize) -> (usize, usize, u64) {
        (i / (64 * WORDS), i / 64 % WORDS, 1 << (i % 64))
    }

    fn has(&self, i: usize) -> bool {
        let (part, word, bit) = Bits::place(i);
        self.0.get(part).and_then(Option::as_ref).is_some_and(|part| part[word] & bit != 0)
    }

    fn set(&mut self, i: usize) {
        let (part, word, bit) = Bits::place(i);
        if self.0.len() <= part {
            self.0.resize(part + 1, None);
        }
        Rc::make_mut(self.0[part].get_or_insert_default())[word] |= bit;
    }

    /// Takes in all of `other`; true if something of it was new.
    fn add(&mut self, other: &Bits) -> bool {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), None);
        }
        let mut is_news = false;
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            let Some(more) = other else { continue };
            let Some(part) = own else {
                is_news |= more.iter().any(|w| *w != 0);
                *own = Some(more.clone());
                continue;
            };
            if Rc::ptr_eq(part, more) {
                continue;
            }
            let both: [u64; WORDS] = std::array::from_fn(|i| part[i] | more[i]);
            if both == **more {
                is_news |= both != **part;
                *own = Some(more.clone());
            } else if both != **part {
                is_news = true;
                *own = Some(Rc::new(both));
            }
        }
        is_news
    }
}

/// What one kernel has to do with others.
#[derive(Default)]
struct Relations {
    /// Kernels it reads, directly.
    reads: FxHashSet<usize>,
    /// Kernels that read it, directly.
    readers: FxHashSet<usize>,
    /// Kernels it is never to be merged with, as one reads the other at another position than its
    /// own.
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
            let gained = self.0[other].needs.clone();
            let needs = &mut self.0[k].needs;
            needs.add(&gained);
            needs.set(other);
            self.hand_on(k);
        }
    }

    /// Whoever reads `k` needs it and all that it needs.
    fn hand_on(&mut self, k: usize) {
        let mut todo = vec![k];
        while let Some(k) = todo.pop() {
            let readers = std::mem::take(&mut self.0[k].readers);
            if !readers.is_empty() {
                let mut needs = self.0[k].needs.clone();
                needs.set(k);
                todo.extend(readers.iter().copied().filter(|r| self.0[*r].needs.add(&needs)));
            }
            self.0[k].readers = readers;
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

#[cfg(test)]
mod tests {
    use super::Needs;

    /// More kernels than lie in one part of a set, each reading some before it, here and there one
    /// merged into its reader.
    #[test]
    fn needs_are_what_reads_lead_to() {
        const KERNELS: usize = 1300;
        let mut draw = 7_usize;
        let mut below = |n: usize| {
            draw = draw
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (draw >> 33) % n
        };
        let mut needs = Needs::default();
        let mut reads: Vec<Vec<usize>> = Vec::new();
        let mut is_gone = vec![false; KERNELS];
        for k in 0..KERNELS {
            needs.start();
            reads.push(Vec::new());
            for _ in 0..1 + below(3) {
                let other = below(k.max(1));
                if other < k && !is_gone[other] {
                    needs.read(k, other, false);
                    reads[k].push(other);
                }
            }
            if let Some(&other) = reads[k].first().filter(|_| below(4) == 0)
                && !needs.leads_around(other, k)
            {
                needs.merge(other, k);
                is_gone[other] = true;
                let more = std::mem::take(&mut reads[other]);
                reads[k].extend(more);
                reads.iter_mut().flatten().filter(|r| **r == other).for_each(|r| *r = k);
                reads[k].retain(|r| *r != k);
            }
        }
        let mut found = 0;
        for k in (0..KERNELS).filter(|k| !is_gone[*k]) {
            let (mut reached, mut todo) = (vec![false; KERNELS], vec![k]);
            while let Some(at) = todo.pop() {
                todo.extend(
                    reads[at].iter().filter(|r| !std::mem::replace(&mut reached[**r], true)),
                );
            }
            for other in (0..KERNELS).filter(|other| !is_gone[*other]) {
                assert_eq!(needs.needs(k, other), reached[other], "{k} and {other}");
                found += usize::from(reached[other]);
            }
        }
        assert!(found > 10_000, "{found}");
    }
}
