//! Splits the reduction of one long row into chunks that several threads can take.
//!
//! The order of accumulation is defined in chunks, so results keep their bits. A plan
//!
//! ```text
//! along the row:  r0 = sum(x * x), store y    once:  store sqrt(r0)
//! ```
//!
//! becomes one for a chunk, which stores `r0` among the results of all chunks, and one that
//! finishes with their combination.

use super::facts::Facts;
use super::numbers::Numbers;
use super::{Place, Plan, Sink, Source, Stage};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::Size;
use tracecast_ir::kernel::{Access, Body, Inst, ROW_CHUNK, Reduction, Scalar, ScalarOp};

/// A shorter row is not split.
pub(crate) const LEAST: usize = 2 * ROW_CHUNK;

/// A row in chunks.
#[derive(Clone, Debug)]
pub(crate) struct SplitRow<C = Size> {
    /// Its length.
    pub(crate) row: C,
    /// The function of a chunk.
    pub(crate) chunk: usize,
    /// The function that finishes.
    pub(crate) finish: usize,
    /// In cheap operations per position.
    pub(crate) cost: usize,
    /// How the results of the chunks are combined.
    pub(crate) reductions: Vec<(Reduction, Scalar)>,
}

impl SplitRow {
    /// For the sizes of a binding; `None` if the row is too short to be split.
    ///
    /// # Errors
    /// If a name has no value.
    pub(super) fn at(
        &self,
        sizes: &Numbers<'_>,
    ) -> std::result::Result<Option<SplitRow<usize>>, String> {
        let SplitRow { row, chunk, finish, cost, reductions } = self.clone();
        let row = sizes.count(row)?;
        let split = SplitRow { row, chunk, finish, cost, reductions };
        Ok((row >= LEAST).then_some(split))
    }
}

/// Replaces one long row that is reduced once, and nothing else, by the plans of a chunk and of the
/// end. If the length of the row is a name, they stand beside the plan of the whole, and a run
/// takes what is better.
pub(super) fn split(plans: &mut Vec<Plan>, facts: &Facts) -> Option<SplitRow> {
    let (parts, mut split) = cut(&plans[0], facts)?;
    if !plans[0].row().has_names() {
        plans.clear();
    }
    split.chunk += plans.len();
    split.finish += plans.len();
    plans.extend(parts);
    Some(split)
}

/// The plans of a chunk and of the end, if the plan is one long row that is reduced once.
fn cut(plan: &Plan, facts: &Facts) -> Option<([Plan; 2], SplitRow)> {
    let row = plan.row();
    let short = facts.proves(Size::from(LEAST - 1).at_least(row));
    let (first, rest) = plan.stages.split_first()?;
    let once = !first.once && rest.iter().all(|s| s.once);
    if plan.extents.len() != 1 || short || !once || !plan.buffers.is_empty() {
        return None;
    }
    let mut reductions = Vec::new();
    let mut registers = Vec::new();
    for sink in &first.sinks {
        match sink {
            Sink::Reduce { reduction, .. } if reduction.is_position() => return None,
            Sink::Column { .. } => return None,
            Sink::Reduce { reduction, value, register } => {
                let scalar = first.body.ty(*value);
                if scalar == Scalar::Bool || registers.contains(register) {
                    return None;
                }
                reductions.push((*reduction, scalar));
                registers.push(*register);
            }
            Sink::Store { .. } | Sink::Keep { .. } | Sink::Set { .. } | Sink::Combine { .. } => {}
        }
    }
    if reductions.is_empty() {
        return None;
    }
    let chunk = chunk(plan, &registers, &reductions);
    let finish = finish(plan, &registers, &reductions);
    let split = SplitRow { row, chunk: 0, finish: 1, cost: plan.cost(), reductions };
    Some(([chunk, finish], split))
}

/// The one element at a slot.
fn only() -> Place {
    Place::At(Access { strides: smallvec![Size::from(0)], ..Access::default() })
}

/// The row stage, and a store of each register into a slot of its own.
fn chunk(plan: &Plan, registers: &[usize], reductions: &[(Reduction, Scalar)]) -> Plan {
    let mut body = Body::default();
    let mut sinks = Vec::new();
    for (i, (register, (_, scalar))) in registers.iter().zip(reductions).enumerate() {
        let value = body.push(ScalarOp::Register(*register as u32), &[], *scalar);
        let (slot, dtype) = (plan.slots + i, scalar.dtype());
        sinks.push(Sink::Store { slot, dtype, place: only(), value, after: SmallVec::new() });
    }
    let mut chunk = plan.clone();
    chunk.slots += registers.len();
    chunk.stages.truncate(1);
    chunk.stages.push(Stage { once: true, first: false, body, sinks });
    chunk
}

/// The other stages, which find the registers in memory.
fn finish(plan: &Plan, registers: &[usize], reductions: &[(Reduction, Scalar)]) -> Plan {
    let mut finish = plan.clone();
    let first = finish.loads.len();
    for (i, (_, scalar)) in reductions.iter().enumerate() {
        let (slot, dtype) = (plan.slots + i, scalar.dtype());
        finish.loads.push(Source::new(slot, dtype, only(), Size::from(1), true));
    }
    finish.slots += registers.len();
    finish.extents = vec![Size::from(1)];
    finish.stages.remove(0);
    for stage in &mut finish.stages {
        let found = |inst: &Inst| match inst.op {
            ScalarOp::Register(r) => registers.iter().position(|known| *known == r as usize),
            _ => None,
        };
        for inst in &mut stage.body.insts {
            if let Some(i) = found(inst) {
                inst.op = ScalarOp::Load((first + i) as u32);
            }
        }
    }
    finish
}
