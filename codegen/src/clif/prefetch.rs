//! Prefetches lines of results one pass before they are written.
//!
//! A store waits until its cache line is there. Hardware prefetches the lines of a loop that does nothing but load and store; the results
//! of the last of several passes along a row come in bursts, which it does not foresee. Where a row with all that it needs overflows the
//! first-level cache, prefetched lines would be gone before their turn, so nothing is prefetched there.

use super::Emitter;
use super::choices::goes_over_less;
use crate::plan::facts::Facts;
use crate::plan::phases::scratch_bytes;
use crate::plan::{Place, Plan, Sink, Stage};
use crate::target::Target;
use cranelift::prelude::{InstBuilder, Value};
use tracecast_ir::DType;
use tracecast_ir::kernel::Access;

/// The bytes of a row and what it needs: most of a small first-level cache.
const ROOM: i64 = 24 << 10;

/// A row of results.
pub(super) struct Asked {
    slot: usize,
    pub(super) dtype: DType,
    access: Access,
}

impl Emitter<'_> {
    /// What a pass along the row asks for: results of the next pass, unless they are there already.
    pub(super) fn asked(&self, stage: &Stage) -> Vec<Asked> {
        if self.choices.prefetches { results(self.plan, stage) } else { Vec::new() }
    }

    /// The address of position 0 of such a row.
    pub(super) fn asked_row(&mut self, asked: &Asked) -> Value {
        let element = self.at_row(asked.access.offset, &asked.access.strides);
        let bytes = self.scaled(element, asked.dtype.bytes() as i64);
        self.fb.ins().iadd(self.slots[asked.slot], bytes)
    }
}

/// True if lines of results are to be asked for.
pub(super) fn pays(target: &Target, plan: &Plan, facts: &Facts) -> bool {
    plan.stages.iter().any(|stage| !results(plan, stage).is_empty())
        && row_bytes(plan).is_some_and(|bytes| bytes <= ROOM)
        && !goes_over_less(plan, target.core_cache, facts)
}

/// The results of the pass after one.
fn results(plan: &Plan, stage: &Stage) -> Vec<Asked> {
    let next = next_pass(plan, stage).map_or(&[][..], |next| &next.sinks);
    let results = next.iter().filter_map(|sink| match sink {
        Sink::Store { slot, dtype, place: Place::At(access), .. } => {
            let dense = access.strides.last().is_some_and(|stride| *stride == 1);
            let asked = Asked { slot: *slot, dtype: *dtype, access: access.clone() };
            (dense && plan.fresh.contains(slot)).then_some(asked)
        }
        _ => None,
    });
    results.collect()
}

/// The bytes of what a row reads, keeps and writes, at most.
fn row_bytes(plan: &Plan) -> Option<i64> {
    let loads = plan.loads.iter().filter(|l| l.place.row_stride() != 0).map(|l| l.dtype.bytes());
    let stores = plan.stages.iter().flat_map(|s| &s.sinks).filter_map(|sink| match sink {
        Sink::Store { dtype, place, .. } if place.row_stride() != 0 => Some(dtype.bytes()),
        _ => None,
    });
    let kept = plan.buffers.iter().map(|ty| scratch_bytes(*ty) as usize);
    let position = loads.chain(stores).chain(kept).sum::<usize>() as i64;
    plan.row_at_most().map(|most| most.saturating_mul(position))
}

/// The pass along every row that comes after one.
fn next_pass<'a>(plan: &'a Plan, stage: &Stage) -> Option<&'a Stage> {
    let mut passes = plan.stages.iter().filter(|s| !s.once && !s.first);
    passes.find(|pass| std::ptr::eq(*pass, stage))?;
    passes.next()
}
