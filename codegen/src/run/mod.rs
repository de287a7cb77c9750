//! What a launch does with the functions of a compiled kernel.

mod columns;
mod contract;
mod max_abs;
mod memory;
mod nest;
mod packed_weights;
mod prefetch;
mod scatter;
mod split_row;

pub(crate) use memory::Slots;
#[cfg(test)]
pub(crate) use packed_weights::RUNS;
pub(crate) use packed_weights::{Keeping, Kept, Packed};

use crate::code::cache::Program;
use crate::plan::Dispatch;
use crate::target::Target;
use crate::threads::Team;
use std::sync::atomic::AtomicU64;

impl Program {
    /// The addresses that a run needs besides those of the operands.
    pub(crate) fn prepare(&self, operands: &Slots, prepared: &mut Vec<Slots>) {
        if let Dispatch::Nest(run) = &self.dispatch {
            run.prepare(operands, prepared);
        }
    }

    /// How a run keeps something for the next one, if that is worth it and these inputs last.
    pub(crate) fn keeping(&self, target: &Target, lasting: &[usize]) -> Option<Keeping> {
        let Dispatch::Contract(run) = &self.dispatch else { return None };
        run.keeping(target.tiles, lasting)
    }

    /// Packs what is to be kept; see [`Kept::with`](Kept::with).
    pub(crate) fn pack(
        &self,
        target: &Target,
        team: &Team,
        operands: &Slots,
        to: &Packed,
        status: &AtomicU64,
    ) -> u16 {
        let Dispatch::Contract(run) = &self.dispatch else { return u16::MAX };
        run.pack(&self.code, team, target.tiles, operands, to, status)
    }

    /// True if a run is cut into parts for several threads.
    pub(crate) fn is_shared(&self, team: &Team) -> bool {
        let parts = match &self.dispatch {
            Dispatch::Nest(run) => run.parts(team),
            Dispatch::Contract(run) => run.parts(team),
            Dispatch::Scatter(run) => run.parts(team),
        };
        parts > 1
    }

    /// Runs it, with what an earlier run has kept. Raises checks in `status`.
    pub(crate) fn run(
        &self,
        target: &Target,
        team: &Team,
        operands: &Slots,
        prepared: &[Slots],
        kept: Option<&Packed>,
        status: &AtomicU64,
    ) {
        match &self.dispatch {
            Dispatch::Nest(run) => run.run(&self.code, team, operands, prepared, status),
            Dispatch::Contract(run) => {
                run.run(&self.code, team, target.tiles, operands, kept, status)
            }
            Dispatch::Scatter(run) => run.run(&self.code, team, operands, status),
        }
    }
}
