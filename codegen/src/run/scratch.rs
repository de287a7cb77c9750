//! Sizes what a run takes on each of its threads when a kernel is bound, and reserves it before a
//! step begins, so that no step fails half way for want of memory.

use super::need::Need;
use super::packed_weights::Packing;
use super::{ROOM_FROM, attention, contract, lines, max_abs, memory, nest, room_bytes, transposed};
use crate::code::cache::Program;
use crate::contract::Workspace;
use crate::error::no_memory;
use crate::machine::Machine;
use crate::plan::{BoundDispatch, Dispatch};

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
