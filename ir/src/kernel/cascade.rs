//! [`Cascade`]: the order in which the results of chunks become one, three levels of sums as in a
//! cascade sum.
//!
//! The error of a sum then grows with the length of a group and the number of the largest groups,
//! not with the number of all chunks.

/// Results that are combined into one of the next level.
pub const GROUP: usize = 64;

/// Levels of results. The last has groups of any length.
pub const LEVELS: usize = 3;

/// Results of chunks, one after another. [`GROUP`] of them are combined in order, as many of what
/// these come to are combined in order, and the rest in order.
///
/// ```
/// use tracecast_ir::kernel::{Cascade, GROUP};
///
/// let join = |a: f32, b: f32| a + b;
/// let mut sums = Cascade::default();
/// sums.push(16_777_216.0, join);
/// (0..GROUP - 1).for_each(|_| sums.push(0.0, join));
/// // One by one they would be lost; a group of its own adds them up first.
/// (0..GROUP).for_each(|_| sums.push(1.0, join));
/// assert_eq!(sums.total(join), Some(16_777_280.0));
/// ```
#[derive(Clone, Debug)]
pub struct Cascade<T> {
    taken: usize,
    /// What the unfinished group of each level comes to so far.
    totals: [Option<T>; LEVELS],
}

impl<T> Default for Cascade<T> {
    fn default() -> Self {
        Cascade { taken: 0, totals: [const { None }; LEVELS] }
    }
}

impl<T: Copy> Cascade<T> {
    /// True if it has taken nothing.
    pub fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Takes the result of the next chunk.
    pub fn push(&mut self, chunk: T, combine: impl Fn(T, T) -> T) {
        self.taken += 1;
        let (mut carry, mut group) = (chunk, 1);
        for (level, held) in self.totals.iter_mut().enumerate() {
            let total = held.take().map_or(carry, |total| combine(total, carry));
            group *= GROUP;
            if level + 1 == LEVELS || !self.taken.is_multiple_of(group) {
                *held = Some(total);
                return;
            }
            carry = total;
        }
    }

    /// What all of them come to; nothing if there were none.
    pub fn total(&self, combine: impl Fn(T, T) -> T) -> Option<T> {
        let totals = self.totals.iter().flatten().copied();
        totals.reduce(|last, before| combine(before, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition, from all results at once.
    fn defined(all: &[f32]) -> Option<f32> {
        let sum = |group: &[f32]| group.iter().copied().reduce(|a, b| a + b).unwrap_or(0.0);
        let groups: Vec<f32> = all.chunks(GROUP).map(sum).collect();
        let larger: Vec<f32> = groups.chunks(GROUP).map(sum).collect();
        larger.into_iter().reduce(|a, b| a + b)
    }

    #[test]
    fn results_are_combined_in_groups() {
        let mut dice = 1u32;
        let mut next = || {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (dice >> 8) as f32 - 8e6
        };
        let all: Vec<f32> = (0..3 * GROUP * GROUP + 5 * GROUP + 7).map(|_| next()).collect();
        let mut cascade = Cascade::default();
        for (i, x) in all.iter().enumerate() {
            assert!(i % 97 != 0 || cascade.total(|a, b| a + b) == defined(&all[..i]), "{i}");
            cascade.push(*x, |a, b| a + b);
        }
        assert_eq!(cascade.total(|a, b| a + b), defined(&all));
    }
}
