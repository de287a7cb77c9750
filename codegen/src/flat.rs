//! Reductions of one long row: every thread takes some of its chunks, whose results are combined in order.
//!
//! The order of accumulation is cut into chunks anyway, so nothing changes but who does them. A plan
//!
//! ```text
//! along the row:  r0 = sum(x * x), store y    once:  store sqrt(r0)
//! ```
//!
//! becomes one for a chunk, whose last stage stores `r0` among the chunks' results, and one that finishes with what they amount to.

use crate::jit::{Code, Slots, combine, with_scratch, with_shared};
use crate::lower::memory_dtype;
use crate::plan::{Place, Plan, Sink, Source, Stage};
use crate::team::{Team, part};
use smallvec::{SmallVec, smallvec};
use std::sync::atomic::AtomicU64;
use tracecast_ir::kernel::{Access, Body, Inst, ROW_CHUNK, Reduction, Scalar, ScalarOp};

/// The bytes of a chunk's result.
const RESULT: usize = 8;

/// A row in chunks.
#[derive(Debug)]
pub(crate) struct FlatRun {
    row: usize,
    cost: usize,
    /// How the results of the chunks are combined.
    reductions: Vec<(Reduction, Scalar)>,
    /// The function that finishes.
    finish: usize,
}

/// The plans of a chunk and of the end, if the plan is one long row that is reduced once.
pub(crate) fn cut(plan: &Plan, cost: usize) -> Option<([Plan; 2], FlatRun)> {
    let row = usize::try_from(plan.row()).ok()?;
    let (first, rest) = plan.stages.split_first()?;
    let once = !first.once && rest.iter().all(|s| s.once);
    if plan.extents.len() != 1 || row < 2 * ROW_CHUNK || !once || !plan.buffers.is_empty() {
        return None;
    }
    let mut reductions = Vec::new();
    let mut registers = Vec::new();
    for sink in &first.sinks {
        match sink {
            Sink::Reduce { reduction: Reduction::ArgMax, .. } | Sink::Column { .. } => return None,
            Sink::Reduce { reduction, value, register } => {
                let scalar = first.body.ty(*value);
                if scalar == Scalar::Bool || registers.contains(register) {
                    return None;
                }
                reductions.push((*reduction, scalar));
                registers.push(*register);
            }
            _ => {}
        }
    }
    if reductions.is_empty() {
        return None;
    }
    let chunk = chunk(plan, &registers, &reductions);
    let finish = finish(plan, &registers, &reductions);
    Some(([chunk, finish], FlatRun { row, cost, reductions, finish: 1 }))
}

/// The one element at a slot.
fn only() -> Place {
    Place::At(Access { strides: smallvec![0], ..Access::default() })
}

/// The row stage, and a store of each register into a slot of its own.
fn chunk(plan: &Plan, registers: &[usize], reductions: &[(Reduction, Scalar)]) -> Plan {
    let mut body = Body::default();
    let mut sinks = Vec::new();
    for (i, (register, (_, scalar))) in registers.iter().zip(reductions).enumerate() {
        let value = body.push(ScalarOp::Register(*register as u32), &[], *scalar);
        let (slot, dtype) = (plan.slots + i, memory_dtype(*scalar));
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
        let (slot, dtype) = (plan.slots + i, memory_dtype(*scalar));
        finish.loads.push(Source { slot, dtype, place: only(), elements: 1, fixed: true });
    }
    finish.slots += registers.len();
    finish.extents = vec![1];
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

impl FlatRun {
    /// Into how many parts a run is cut.
    pub(crate) fn parts(&self, team: &Team) -> usize {
        team.parts(self.row * self.cost, self.row.div_ceil(ROW_CHUNK))
    }

    /// Runs it with the functions of its plans.
    pub(crate) fn run(&self, code: &[Code], team: &Team, operands: &Slots, status: &AtomicU64) {
        let chunks = self.row.div_ceil(ROW_CHUNK);
        with_shared(self.reductions.len() * chunks * RESULT, |memory| {
            let results = |i: usize, chunk: usize| {
                let size = memory_dtype(self.reductions[i].1).bytes();
                memory.offset((i * chunks * RESULT + chunk * size) as isize)
            };
            let slots = |chunk: usize| {
                let mut slots = operands.clone();
                (0..self.reductions.len()).for_each(|i| slots.push(results(i, chunk)));
                slots
            };
            let parts = self.parts(team);
            team.each(parts, |i| {
                with_scratch(|scratch| {
                    for chunk in part(chunks, 1, parts, i) {
                        let from = chunk * ROW_CHUNK;
                        let positions = from..(from + ROW_CHUNK).min(self.row);
                        code[0].call(&slots(chunk), 0..1, positions, scratch, status);
                    }
                });
            });
            for (i, (reduction, scalar)) in self.reductions.iter().enumerate() {
                combine(*reduction, *scalar, results(i, 0), chunks);
            }
            with_scratch(|scratch| code[self.finish].call(&slots(0), 0..1, 0..1, scratch, status));
        });
    }
}
