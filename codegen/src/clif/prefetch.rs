//! Prefetches what hardware does not foresee: lines of results one pass before they are written,
//! and rows of a table before they are taken.
//!
//! A store waits until its cache line is there. Hardware prefetches the lines of a loop that does
//! nothing but load and store; the results of the last of several passes along a row come in
//! bursts, which it does not foresee. Where a row with all that it needs overflows the first-level
//! cache, prefetched lines would be gone before their turn, so nothing is prefetched there.
//!
//! Rows that an index takes from a large table lie anywhere. Their indices are known ahead, and so
//! is which row will be taken some rows later.

use super::emitter::Emitter;
use super::row::Row;
use crate::plan::facts::Facts;
use crate::plan::phases::scratch_bytes;
use crate::plan::{Place, Plan, Sink, Source, Stage};
use crate::target::Target;
use crate::x86::Prefetched;
use cranelift::prelude::{InstBuilder, Value, types};
use tracecast_ir::kernel::{Access, ScalarOp, Val};
use tracecast_ir::{DType, Size};

/// The bytes of a row and what it needs: most of a small first-level cache.
const ROOM: i64 = 24 << 10;

/// Rows between the one that is taken and the one that is prefetched: more than fit the time that
/// memory takes.
const AHEAD: i64 = 8;

/// A row that is prefetched.
pub(super) struct Asked {
    slot: usize,
    dtype: DType,
    access: Access,
    /// How the index of a row of a table is found; `None` for a row of results.
    index: Option<Ahead>,
}

/// The load of an index, and how many elements lie between those of neighbouring rows.
#[derive(Clone, Copy)]
struct Ahead {
    load: Val,
    step: i64,
}

impl Asked {
    /// How the vector loop prefetches it.
    pub(super) fn prefetched(&self) -> Prefetched {
        Prefetched { bytes: self.dtype.bytes() as u8, written: self.index.is_none() }
    }
}

impl Emitter<'_> {
    /// What a pass along the row prefetches: results of the next pass, unless they are there
    /// already, and rows that later rows take.
    pub(super) fn asked(&self, stage: &Stage) -> Vec<Asked> {
        let results = self.choices.prefetches.then(|| results(self.plan, stage));
        let taken = self.choices.takes_ahead.then(|| taken(self.plan, stage));
        results.into_iter().chain(taken).flatten().collect()
    }

    /// The address of position 0 of such a row.
    pub(super) fn asked_row(&mut self, row: &Row<'_>, asked: &Asked) -> Value {
        let mut element = self.at_row(asked.access.offset, &asked.access.strides);
        if let Some(ahead) = asked.index {
            let index = self.index_ahead(row, ahead);
            let moved = self.times(index, asked.access.indirect[0]);
            element = self.fb.ins().iadd(element, moved);
        }
        let bytes = self.scaled(element, asked.dtype.bytes() as i64);
        self.fb.ins().iadd(self.slots[asked.slot], bytes)
    }

    /// The index that a later row of this call has; at its end, that of the last.
    fn index_ahead(&mut self, row: &Row<'_>, ahead: Ahead) -> Value {
        // What nothing else needs has no place.
        let Some(base) = row.bases.get(&ahead.load) else {
            return self.fb.ins().iconst(types::I64, 0);
        };
        let here = self.state().row;
        let later = self.fb.ins().iadd_imm_s(here, AHEAD);
        let last = self.fb.ins().iadd_imm_s(self.end, -1);
        let later = self.fb.ins().smin(later, last);
        let rows = self.fb.ins().isub(later, here);
        let bytes = self.scaled(rows, ahead.step * base.dtype().bytes() as i64);
        let address = self.address(base, None, &[]);
        let address = self.fb.ins().iadd(address, bytes);
        let index = self.read_one(base.dtype(), address);
        match base.dtype() {
            DType::I64 => index,
            _ => self.fb.ins().sextend(types::I64, index),
        }
    }
}

/// True if cache lines of results are to be prefetched.
pub(super) fn pays(target: &Target, plan: &Plan, facts: &Facts) -> bool {
    plan.stages.iter().any(|stage| !results(plan, stage).is_empty())
        && row_bytes(plan).is_some_and(|bytes| bytes <= ROOM)
        && !facts.asks(plan.goes_over_less(target.core_cache))
}

/// True if rows of a table are to be prefetched: it is too large for a cache of the core.
pub(super) fn takes_ahead(target: &Target, plan: &Plan, facts: &Facts) -> bool {
    let far = |asked: &Asked| {
        let tables = plan.loads.iter().filter(|source| source.slot == asked.slot);
        let elements = tables.map(|source| source.elements).next().unwrap_or_default();
        !facts.asks(Size::from(target.core_cache).at_least(elements * asked.dtype.bytes() + 1))
    };
    plan.stages.iter().any(|stage| taken(plan, stage).iter().any(far))
}

/// The rows of tables that a stage takes by an index which lies in memory, one for each row after
/// the other.
fn taken(plan: &Plan, stage: &Stage) -> Vec<Asked> {
    let loads = stage.body.insts.iter().filter_map(|inst| match (inst.op, &inst.args[..]) {
        (ScalarOp::Load(number), [index]) => Some((&plan.loads[number as usize], *index)),
        _ => None,
    });
    let rows = loads.filter_map(|(source, index)| {
        let Place::At(access) = &source.place else { return None };
        let whole = access.guards.is_empty() && source.place.row_stride() == 1;
        let index = index_of_row(plan, stage, index).filter(|_| whole)?;
        let access = access.clone();
        Some(Asked { slot: source.slot, dtype: source.dtype, access, index: Some(index) })
    });
    rows.collect()
}

/// The load that an index comes from, if rows have theirs one behind the other.
fn index_of_row(plan: &Plan, stage: &Stage, index: Val) -> Option<Ahead> {
    let inst = &stage.body.insts[index as usize];
    let load = match (inst.op, &inst.args[..]) {
        (ScalarOp::Convert, [from]) => *from,
        _ => index,
    };
    let ScalarOp::Load(number) = stage.body.insts[load as usize].op else { return None };
    let Source { place: Place::At(access), dtype, .. } = &plan.loads[number as usize] else {
        return None;
    };
    let plain = access.guards.is_empty() && access.indirect.is_empty();
    let integer = matches!(dtype, DType::I64 | DType::I32);
    let (row, outer) = access.strides.split_last()?;
    let step = outer.last()?.number().filter(|_| plain && integer && *row == 0)?;
    let mut next = Size::from(step);
    for (stride, extent) in outer.iter().zip(&plan.extents).rev() {
        if *stride != next {
            return None;
        }
        next *= *extent;
    }
    Some(Ahead { load, step })
}

/// The results of the pass after one.
fn results(plan: &Plan, stage: &Stage) -> Vec<Asked> {
    let next = next_pass(plan, stage).map_or(&[][..], |next| &next.sinks);
    let results = next.iter().filter_map(|sink| match sink {
        Sink::Store { slot, dtype, place: Place::At(access), .. } => {
            let access = access.clone();
            let dense = access.strides.last().is_some_and(|stride| *stride == 1);
            let asked = Asked { slot: *slot, dtype: *dtype, access, index: None };
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
