//! [`Invocation`]: one launch of a kernel, and how it calls the kernel's functions.

use super::memory::{self, Arena, Slots, with_scratch};
use crate::code::cache::Program;
use crate::machine::Machine;
use crate::plan::BoundDispatch;
use crate::threads::{Team, part};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use tracecast_runtime::HostMemory;

/// Positions of a map are split at multiples of this: cache lines of every dtype.
pub(super) const POSITIONS: usize = 64;

/// One launch of a kernel.
#[derive(Clone, Copy)]
pub(crate) struct Invocation<'a> {
    /// Its functions, and how they are used.
    pub(crate) program: &'a Program,
    /// What it does with them, at the sizes of the binding.
    pub(crate) dispatch: &'a BoundDispatch,
    /// What the run is chosen for.
    pub(crate) machine: &'a Machine,
    /// The threads that share the work.
    pub(crate) team: &'a Team,
    /// The addresses of the kernel's operands.
    pub(crate) operands: &'a Slots,
    /// What [`prepare`](super::prepare) has made of them.
    pub(crate) prepared: &'a [Slots],
    /// Memory of the binding for what threads share during a run, if that is much.
    pub(crate) room: Option<&'a HostMemory>,
    /// Where checks that fail are noted; see `status`.
    pub(crate) status: &'a AtomicU64,
}

impl Invocation<'_> {
    /// Calls a function of the kernel for the positions of some rows, of which there must be at
    /// least one. Positions may be missing only if the row has none at all.
    #[inline]
    pub(super) fn call(
        &self,
        function: usize,
        slots: &Slots,
        rows: Range<usize>,
        positions: Range<usize>,
        scratch: &mut Arena,
    ) {
        memory::call(&self.program.code[function], slots, rows, positions, scratch, self.status);
    }

    /// Calls a function whose positions are independent for all positions of some rows.
    pub(super) fn over_positions(
        &self,
        function: usize,
        slots: &Slots,
        rows: Range<usize>,
        length: usize,
    ) {
        if rows.is_empty() || length == 0 {
            return;
        }
        let parts = self.machine.parts(rows.len() * length, length.div_ceil(POSITIONS));
        self.team.each(parts, |i| {
            let positions = part(length, POSITIONS, parts, i);
            with_scratch(|scratch| self.call(function, slots, rows.clone(), positions, scratch));
        });
    }
}
