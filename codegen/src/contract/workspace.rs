//! [`Workspace`]: the buffers that a contraction packs into.

use super::im2col::Runs;

/// Bytes of each buffer of a [`Scratch`](super::Scratch), at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Workspace {
    pub(super) left: usize,
    pub(super) right: usize,
    pub(super) filled: usize,
    pub(super) chains: usize,
    pub(super) sums: usize,
    /// Lengths of the lists of a view's lines and runs.
    pub(super) listed: [usize; 2],
    /// Length of the list of offsets of steps.
    pub(super) steps: usize,
}

impl Workspace {
    /// The larger of both, buffer by buffer.
    pub(crate) fn max(self, other: Workspace) -> Workspace {
        Workspace {
            left: self.left.max(other.left),
            right: self.right.max(other.right),
            filled: self.filled.max(other.filled),
            chains: self.chains.max(other.chains),
            sums: self.sums.max(other.sums),
            listed: most(self.listed, other.listed),
            steps: self.steps.max(other.steps),
        }
    }

    /// Bytes of all buffers and lists.
    pub(crate) fn bytes(&self) -> usize {
        let Workspace { left, right, filled, chains, sums, listed, steps } = *self;
        let steps = steps.saturating_mul(size_of::<isize>());
        let buffers = [left, right, filled, chains, sums, Runs::bytes_of(listed), steps];
        buffers.into_iter().fold(0, usize::saturating_add)
    }

    /// Multiplies buffers, counted in elements, by `bytes`. Lists keep their lengths.
    pub(super) fn times(self, bytes: usize) -> Workspace {
        let times = |numbers: usize| numbers.saturating_mul(bytes);
        Workspace {
            left: times(self.left),
            right: times(self.right),
            filled: times(self.filled),
            chains: times(self.chains),
            sums: times(self.sums),
            listed: self.listed,
            steps: self.steps,
        }
    }
}

/// The larger of each.
pub(super) fn most(one: [usize; 2], other: [usize; 2]) -> [usize; 2] {
    [one[0].max(other[0]), one[1].max(other[1])]
}
