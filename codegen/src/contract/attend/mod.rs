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

use super::driver::Run;
use super::engines::with_engine;
use super::schedule::{Chosen, Load, Schedule};
use crate::machine::InstructionSet;
use panels::{Left, Panels, panel_room, product, weighed};
use problem::{SCORES, carve, taken};
use real::Real;
use smallvec::smallvec;
use tracecast_ir::DType;
use tracecast_ir::kernel::attention::{Extents, KEYS, Pass};

/// Workspace of a unit, counted in f64.
pub(crate) fn numbers(extents: &Extents<usize>, pass: Pass, dtype: DType) -> usize {
    let numbers = match pass {
        Pass::Forward => taken(&forward::pieces(extents)),
        Pass::Backward => taken(&backward::pieces(extents)),
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
        let run = unsafe { Run::<Problem<'_>, E>::new(problem) };
        match problem.pass {
            Pass::Forward => run.forward(unit, Real::all(memory)),
            Pass::Backward => run.backward(unit, Real::all(memory)),
        }
    });
}
