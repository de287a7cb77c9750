//! Attention on one thread, as `tracecast_ir::kernel::attention` defines it: queries in tiles, keys
//! in blocks. Memory holds a tile and the keys and values of a head, never all weights.
//!
//! Products take whole blocks: a weight of zero adds zero times a number. Keys are taken one by one
//! only if an operand holds infinities or NaNs.

mod backward;
mod forward;
mod operands;
mod panels;
mod problem;
mod real;

pub(crate) use operands::{Dropped, Place};
pub(crate) use problem::{Gradients, Problem, QUERIES, Unit};

use super::engines::with_engine;
use super::micro::Engine;
use super::schedule::{Chosen, Load, Schedule};
use crate::machine::InstructionSet;
use panels::{Left, Panels, panel_room, product, weighed};
use problem::{Memory, SCORES, taken};
use real::Real;
use smallvec::smallvec;
use tracecast_ir::DType;
use tracecast_ir::kernel::attention::{Extents, KEYS, Pass};

/// Workspace of a unit, counted in f64.
pub(crate) fn numbers(extents: &Extents<usize>, pass: Pass, dtype: DType) -> usize {
    let numbers = match pass {
        Pass::Forward => forward::numbers(extents),
        Pass::Backward => backward::numbers(extents),
    };
    if dtype == DType::F64 { numbers } else { numbers.div_ceil(2) }
}

/// Schedule and blocking of any attention.
pub(crate) fn chosen_for_attention() -> Chosen {
    let blocks = smallvec![("queries", QUERIES), ("keys", KEYS)];
    Chosen { blocks, ..Chosen::new(Schedule::Attention, [Load::Packed; 2]) }
}

/// Computes a unit.
///
/// # Safety
///
/// The CPU must be this one. Operands must be readable and results writable for the sizes. Nobody
/// else may read or write the results of the unit meanwhile.
pub(crate) unsafe fn attend(problem: &Problem<'_>, unit: &Unit, memory: &mut [f64]) {
    let dtype = match problem.operands[0].dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    with_engine!(problem.cpu, dtype, false, E => {
        // SAFETY: the caller's contract.
        unsafe { run::<E>(problem, unit, Real::all(memory)) }
    });
}

/// # Safety
///
/// The CPU must be the engine's. Operands must be readable and results writable for the sizes, and
/// nobody else may use the results of the unit.
unsafe fn run<E: Engine<Num: Real>>(problem: &Problem<'_>, unit: &Unit, memory: &mut [E::Num]) {
    let run = match problem.pass {
        Pass::Forward => forward::run::<E>,
        Pass::Backward => backward::run::<E>,
    };
    // SAFETY: the caller's contract.
    unsafe { run(problem, unit, memory) }
}
