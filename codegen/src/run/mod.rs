//! What a launch does with the functions of a compiled kernel: an [`Invocation`] says on what and
//! with what, and each form of kernels runs in a module of its own.

mod attention;
mod batches;
mod columns;
mod contract;
mod convolution;
mod copy;
mod depthwise_weight_grad;
mod epilogue;
mod factors;
mod implicit_gemm;
mod invocation;
mod lines;
mod max_abs;
mod memory;
mod merge;
mod need;
mod nest;
mod packed_weights;
mod scan;
mod scatter;
mod schedule;
mod scratch;
mod split_row;
mod thread_grid;
mod transposed;
mod weight_grad;

pub(crate) use contract::Driver;
pub(crate) use copy::BoundCopy;
pub(crate) use invocation::Invocation;
pub(crate) use memory::Slots;
pub(crate) use merge::merge;
pub(crate) use need::Need;
#[cfg(test)]
pub(crate) use packed_weights::RUNS;
pub(crate) use packed_weights::{AllPacked, PackedOperand, PackedWeights, Packing};
pub(crate) use schedule::schedule;
pub use schedule::schedule_text;

use crate::machine::Machine;
use crate::plan::{BoundDispatch, Dispatch};

/// Less is scratch of the launching thread, which all its kernels share.
const ROOM_FROM: usize = 64 * 1024;

/// The addresses that a run needs besides those of the operands: those for each segment of a nest.
pub(crate) fn prepare(dispatch: &BoundDispatch, operands: &Slots, prepared: &mut Vec<Slots>) {
    if let Dispatch::Nest(nest) = dispatch {
        nest::prepare(nest, operands, prepared);
    }
}

/// The bytes that threads share during a run, if they are many: a binding has room for them, so
/// that no run fails for want of memory half way through a step.
pub(crate) fn room(dispatch: &BoundDispatch, machine: &Machine) -> Option<usize> {
    Some(room_bytes(dispatch, machine)).filter(|bytes| *bytes >= ROOM_FROM)
}

/// The bytes that threads share during a run.
fn room_bytes(dispatch: &BoundDispatch, machine: &Machine) -> usize {
    match dispatch {
        Dispatch::Nest(nest) => {
            let row = nest.split_row.as_ref().map_or(0, split_row::bytes);
            row.max(columns::bytes(&nest.columns))
        }
        Dispatch::Contract(contract) => {
            columns::bytes(&contract.columns).max(contract::shared_bytes(contract, machine))
        }
        Dispatch::Scatter(scatter) => scatter::bytes(scatter),
        Dispatch::Lines(lines) => lines::bytes_of(lines, machine),
        Dispatch::Attention(_) | Dispatch::Transposed(_) => 0,
    }
}

/// How a run keeps something for the next one, if that is worth it and these inputs last.
pub(crate) fn packing(
    dispatch: &BoundDispatch,
    machine: &Machine,
    lasting: &[usize],
) -> Option<Packing> {
    let Dispatch::Contract(contract) = dispatch else { return None };
    contract::packing(contract, &machine.cpu, lasting)
}

/// The driver of a convolution, which does not change after it is bound; `None` for other kernels.
pub(crate) fn driver(dispatch: &BoundDispatch, machine: &Machine) -> Option<Driver> {
    let Dispatch::Contract(contract) = dispatch else { return None };
    contract::driver(contract, &machine.cpu)
}

/// True if a run is cut into parts for several threads.
pub(crate) fn is_shared(dispatch: &BoundDispatch, machine: &Machine) -> bool {
    let parts = match dispatch {
        Dispatch::Nest(nest) => nest::parts(nest, machine),
        Dispatch::Contract(contract) => thread_grid::parts(contract, machine),
        Dispatch::Scatter(scatter) => scatter::parts(scatter, machine),
        Dispatch::Lines(lines) => lines::parts(lines, machine),
        Dispatch::Attention(attention) => attention::parts(attention, machine),
        Dispatch::Transposed(transposed) => transposed::parts(transposed, machine),
    };
    parts > 1
}

impl Invocation<'_> {
    /// Packs what is to be kept; see [`PackedWeights::with`].
    pub(crate) fn pack(&self, to: &PackedOperand) -> u16 {
        let Dispatch::Contract(contract) = self.dispatch else { return u16::MAX };
        contract::pack(contract, self, to)
    }

    /// Runs the kernel, by its driver and with what an earlier run has kept.
    #[inline]
    pub(crate) fn run(&self, driver: Option<&Driver>, kept: Option<&PackedOperand>) {
        match self.dispatch {
            Dispatch::Nest(nest) => nest::run(nest, self),
            Dispatch::Contract(contract) => contract::run(contract, self, driver, kept),
            Dispatch::Scatter(scatter) => scatter::run(scatter, self),
            Dispatch::Lines(lines) => lines::run(lines, self),
            Dispatch::Attention(attention) => attention::run(attention, self),
            Dispatch::Transposed(transposed) => transposed::run(transposed, self),
        }
    }
}
