//! [`Need`]: the memory that a run takes on each of its threads, besides its operands.

use crate::contract::Workspace;

/// What one thread needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// For compiled functions and scans.
    pub(super) functions: usize,
    /// For what threads share where that is not memory of the binding, of the thread that launches.
    pub(super) shared: usize,
    /// For packing.
    pub(super) workspace: Workspace,
}

impl Need {
    /// The bytes on all of `threads` threads.
    pub(crate) fn bytes(&self, threads: usize) -> usize {
        let each = self.functions.saturating_add(self.workspace.bytes());
        each.saturating_mul(threads).saturating_add(self.shared)
    }

    /// Enough for both.
    pub(crate) fn max(self, other: Need) -> Need {
        Need {
            functions: self.functions.max(other.functions),
            shared: self.shared.max(other.shared),
            workspace: self.workspace.max(other.workspace),
        }
    }
}
