//! Lines of results that are asked for before they are written.
//!
//! A store waits for its line of the cache, and every store and much else waits for it. In a loop that does nothing but load and store the
//! processor asks for lines ahead by itself; where results come in bursts, in the last of several passes along a row, it does not. So the
//! pass before asks for them: layer norm of 4096 rows of 1024 takes 0.6 to 0.8 of the time.

use super::Emitter;
use crate::plan::{Place, Plan, Sink, Stage};
use cranelift::prelude::{InstBuilder, Value};
use tracecast_ir::DType;
use tracecast_ir::kernel::Access;

/// A row of results.
pub(super) struct Asked {
    slot: usize,
    pub(super) dtype: DType,
    access: Access,
}

impl Emitter<'_> {
    /// What a pass along the row asks for: results of the next pass, unless they are there already.
    pub(super) fn asked(&self, stage: &Stage) -> Vec<Asked> {
        let plan = self.plan;
        if plan.traffic() < self.target.near {
            return Vec::new();
        }
        let next = next_pass(plan, stage).map_or(&[][..], |next| &next.sinks);
        let results = next.iter().filter_map(|sink| match sink {
            Sink::Store { slot, dtype, place: Place::At(access), .. } => {
                let dense = access.strides.last() == Some(&1) && plan.fresh.contains(slot);
                let stays = plan.row() * dtype.bytes() as i64 <= self.target.near / 8;
                let asked = Asked { slot: *slot, dtype: *dtype, access: access.clone() };
                (dense && stays).then_some(asked)
            }
            _ => None,
        });
        results.collect()
    }

    /// The address of position 0 of such a row.
    pub(super) fn asked_row(&mut self, asked: &Asked) -> Value {
        let element = self.at_row(asked.access.offset, &asked.access.strides);
        let bytes = self.scaled(element, asked.dtype.bytes() as i64);
        self.fb.ins().iadd(self.slots[asked.slot], bytes)
    }
}

/// The pass along every row that comes after one.
fn next_pass<'a>(plan: &'a Plan, stage: &Stage) -> Option<&'a Stage> {
    let mut passes = plan.stages.iter().filter(|s| !s.once && !s.first);
    passes.find(|pass| std::ptr::eq(*pass, stage))?;
    passes.next()
}
