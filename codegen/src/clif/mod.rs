//! From a [`Plan`] to a function of Cranelift's IR.
//!
//! `rows` emits the rows of a call and the stages of a row, `row` the phases of a stage, `memory`
//! loads and stores, `reduce` the accumulators, `scalar` the instructions, `low_precision` the
//! 16-bit floats, `alternate` rows that alternate in memory.
//!
//! The function is `fn(slots, begin, end, from, to, scratch, status)`: for the rows from `begin` to
//! `end`, counted row-major over the outer axes, it does the positions from `from` to `to`. Values
//! of a row are plain SSA values; loops carry what changes as block parameters.

mod alternate;
mod choices;
mod emitter;
mod low_precision;
mod memory;
mod prefetch;
mod reduce;
mod routine_call;
mod row;
mod row_pairs;
mod rows;
mod scalar;
mod sink;
mod sizes;
mod strided;
mod sum_rows;
#[cfg(test)]
mod tests;
mod vector_call;

pub(crate) use emitter::{Choices, ROUTINES};
pub(crate) use vector_call::LOOPS;

use crate::plan::Plan;
use crate::plan::numbers::SizeTable;
use crate::routines::Routine;
use crate::target::{Target, signature};
use crate::x86::Compiled;
use cranelift::codegen::ir::Function;
use cranelift::prelude::{FunctionBuilder, FunctionBuilderContext};
use emitter::Emitter;

/// A function of Cranelift's IR.
pub(crate) struct Lowered {
    /// The function.
    pub(crate) function: Function,
    /// The scratch that a call needs.
    pub(crate) scratch: usize,
    /// The routines it calls, by the number in their names.
    pub(crate) routines: Vec<Routine>,
    /// The vector loops it calls, by the number in their names.
    pub(crate) loops: Vec<Compiled>,
}

/// Emits a plan, with what was chosen for it and the table of what it reads of the sizes of a
/// binding.
///
/// # Errors
/// If it asks for what has no code; what that is.
pub(crate) fn lower(
    target: &Target,
    (plan, choices): (&Plan, Choices),
    table: &SizeTable,
    context: &mut FunctionBuilderContext,
) -> Result<Lowered, String> {
    let mut function = Function::new();
    function.signature = signature(target.isa.default_call_conv());
    let fb = FunctionBuilder::new(&mut function, context);
    let mut emitter = Emitter::new(fb, target, (plan, choices), table);
    match sum_rows::SummedRows::of(plan) {
        Some(summed) => emitter.sum_rows(&summed),
        None => emitter.rows(),
    }
    let Emitter { mut fb, scratch_bytes, routines, loops, failed, .. } = emitter;
    fb.seal_all_blocks();
    fb.finalize(target.isa.frontend_config());
    match failed {
        Some(what) => Err(what),
        None => Ok(Lowered { function, scratch: scratch_bytes as usize, routines, loops }),
    }
}
