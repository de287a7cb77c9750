//! [`Workspace`]: the memory of one run at a time; [`Binding`]: kernels tied to memory.

use super::arenas::Arena;
use super::command::Command;
use crate::memory::Memory;

/// The memory of one run at a time.
pub(super) struct Workspace {
    /// There while it is in use.
    pub(super) arena: Option<Arena>,
    pub(super) fresh: Vec<Memory>,
    /// Each is a [`HostLoan`](crate::HostLoan).
    pub(super) loans: Vec<Memory>,
    /// The one used last comes first.
    pub(super) bindings: Vec<Binding>,
}

/// The kernels tied to one set of memories.
pub(super) struct Binding {
    pub(super) arena: Memory,
    pub(super) states: Vec<Memory>,
    pub(super) fresh: Vec<Memory>,
    pub(super) commands: Vec<Command>,
    /// True if one of them runs on several threads.
    pub(super) is_shared: bool,
    /// The number of the thread on which they have reserved what they need.
    pub(super) reserved_on: u64,
}

impl Workspace {
    /// The arena of the run.
    pub(super) fn arena(&self) -> &Memory {
        &self.arena.as_ref().expect("a workspace in use has an arena").memory
    }

    /// True if the first binding is to the arena that is there.
    pub(super) fn is_tied(&self) -> bool {
        self.bindings.first().is_some_and(|binding| binding.arena.same(self.arena()))
    }
}

impl Binding {
    /// True if it is tied to these memories.
    pub(super) fn is_for(&self, arena: &Memory, states: &[Memory], fresh: &[Memory]) -> bool {
        let same = |a: &[Memory], b: &[Memory]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b))
        };
        self.arena.same(arena) && same(&self.states, states) && same(&self.fresh, fresh)
    }
}
