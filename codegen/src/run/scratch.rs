//! [`Need`]: the memory beside its operands that a run takes on each of its threads. It is worked
//! out when a kernel is bound and reserved before a step begins, so that no step ends half way for
//! want of it.

use super::transposed;
use super::{Packing, ROOM_FROM, attention, contract, lines, max_abs, memory, nest, room_bytes};
use crate::code::cache::Program;
use crate::contract::Workspace;
use crate::error::no_memory;
use crate::machine::Machine;
use crate::plan::{BoundDispatch, Dispatch};

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
    /// That of the runs of a kernel, which may keep its right operand packed.
    pub(crate) fn of(
        program: &Program,
        dispatch: &BoundDispatch,
        machine: &Machine,
        packing: Option<&Packing>,
    ) -> Need {
        let functions = program.code.iter().map(|code| code.scratch()).max().unwrap_or(0);
        let room = room_bytes(dispatch, machine);
        let room = if room < ROOM_FROM { room } else { 0 };
        let (places, workspace) = match dispatch {
            Dispatch::Nest(nest) => {
                let tasks = nest::parts(nest, machine);
                let places = max_abs::bytes(&nest.largest, tasks, nest.segments.len());
                (places, Workspace::default())
            }
            Dispatch::Contract(c) => {
                let (tasks, workspace) = contract::workspace(c, machine, packing);
                (max_abs::bytes(&c.largest, tasks, 1), workspace)
            }
            Dispatch::Transposed(of) => (0, transposed::workspace(of, &machine.cpu)),
            Dispatch::Scatter(_) | Dispatch::Lines(_) | Dispatch::Attention(_) => {
                (0, Workspace::default())
            }
        };
        let functions = match dispatch {
            Dispatch::Lines(lines) => functions.max(lines::bytes_of_thread(lines)),
            Dispatch::Attention(attention) => functions.max(attention::bytes_of_thread(attention)),
            Dispatch::Nest(_)
            | Dispatch::Contract(_)
            | Dispatch::Scatter(_)
            | Dispatch::Transposed(_) => functions,
        };
        Need { functions, shared: room.max(places), workspace }
    }

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

    /// Runs something on this thread that takes no more. Debug builds reserve this first and hold
    /// it to that.
    ///
    /// # Panics
    /// In debug builds, if it takes more.
    #[inline(always)]
    pub(crate) fn held_to<T>(&self, run: impl FnOnce() -> T) -> T {
        if !cfg!(debug_assertions) {
            return run();
        }
        self.reserve().unwrap_or_else(|bytes| no_memory(bytes));
        let before = memory::held();
        let result = run();
        assert_eq!(before, memory::held(), "a run keeps more than {self:?}");
        result
    }

    /// Reserves it on this thread, for as long as there is the thread.
    ///
    /// # Errors
    /// The bytes that are not there.
    pub(crate) fn reserve(&self) -> Result<(), usize> {
        memory::reserve(self)
    }
}
