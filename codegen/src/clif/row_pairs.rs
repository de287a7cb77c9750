//! Unroll-and-jam: two rows at a time in one loop.
//!
//! A sum along a row is a few chains of additions that each wait for the one before, and later
//! stages wait for the sum. Two rows have nothing to wait for of each other, and share what a loop
//! costs to begin and end. It pays for rows that stay in a cache; from memory two rows come slower
//! than one after the other. In the last pair of a call with an odd number of rows one row is done
//! twice, so this is for kernels that do not write what they read.

use super::emitter::{Emitter, RowState, is_shared};
use crate::plan::facts::Facts;
use crate::plan::phases::{self, Kind};
use crate::plan::{Plan, Sink, Stage};
use crate::target::Target;
use cranelift::prelude::{InstBuilder, IntCC, Value, types};
use tracecast_ir::Size;
use tracecast_ir::kernel::ROW_CHUNK;

/// With fewer rows, calls may be of one row.
const LEAST: i64 = 16;

/// The bytes of all row buffers: most of a small first-level cache.
const ROOM: i64 = 24 << 10;

/// How many rows to work on at a time.
pub(super) fn rows(target: &Target, plan: &Plan, facts: &Facts) -> usize {
    let along = || plan.stages.iter().filter(|s| !s.once);
    let sums = |s: &Sink| matches!(s, Sink::Reduce { .. });
    let fits = |s: &Sink| match s {
        Sink::Reduce { reduction, .. } => !reduction.is_position(),
        Sink::Store { .. } | Sink::Keep { .. } | Sink::Set { .. } => true,
        Sink::Column { .. } | Sink::Combine { .. } => false,
    };
    let size = |(number, ty)| {
        let copies = if is_shared(plan, number) { 1 } else { 2 };
        let most = plan.row_at_most().unwrap_or(0);
        copies * most * i64::from(phases::scratch_bytes(ty))
    };
    let alike = target.vector_width.is_some()
        && !facts.proves(Size::from(LEAST - 1).at_least(plan.rows()))
        && plan.row() != 0
        && !plan.may_reach(ROW_CHUNK as i64 + 1)
        && plan.strided.is_empty()
        && plan.loads.iter().all(|l| l.read_only)
        && along().any(|s| s.sinks.iter().any(sums))
        && plan.stages.iter().flat_map(|s| &s.sinks).all(fits)
        && plan.buffers.iter().copied().enumerate().map(size).sum::<i64>() <= ROOM;
    let in_one_loop = |s: &Stage| {
        let phases = phases::cut(plan, s, target.vector_loops()).phases;
        phases.len() == 1 && phases[0].kind == Kind::Vector
    };
    let pays = || facts.asks(plan.goes_over_less(target.core_cache));
    if alike && along().all(in_one_loop) && pays() { 2 } else { 1 }
}

impl Emitter<'_> {
    /// What the row at hand has of its own.
    pub(super) fn state(&self) -> &RowState {
        &self.states[self.at]
    }

    /// As [`Emitter::state`].
    pub(super) fn state_mut(&mut self) -> &mut RowState {
        &mut self.states[self.at]
    }

    /// Does something for each row of a number of rows.
    pub(super) fn each_row<T>(
        &mut self,
        rows: usize,
        mut each: impl FnMut(&mut Self, usize) -> T,
    ) -> Vec<T> {
        let all = (0..rows).map(|turn| {
            self.at = turn;
            each(self, turn)
        });
        let all = all.collect();
        self.at = 0;
        all
    }

    /// Goes to the rows from this one on. Returns the last of them, or what it would be with enough
    /// rows, and its position along each outer axis.
    pub(super) fn start_rows(&mut self, row: Value, index: Vec<Value>) -> (Value, Vec<Value>) {
        let (mut next, mut ahead) = (row, index.clone());
        (self.states[0].row, self.states[0].index) = (row, index);
        for turn in 1..self.states.len() {
            (next, ahead) = self.after(next, &ahead);
            let more = self.fb.ins().icmp(IntCC::SignedLessThan, next, self.end);
            let before = self.states[turn - 1].clone();
            let at = ahead.iter().zip(&before.index);
            let index = at.map(|(new, old)| self.fb.ins().select(more, *new, *old)).collect();
            self.states[turn].row = self.fb.ins().select(more, next, before.row);
            self.states[turn].index = index;
        }
        (next, ahead)
    }

    /// The row after one, and its position along each outer axis.
    pub(super) fn after(&mut self, row: Value, index: &[Value]) -> (Value, Vec<Value>) {
        let mut next = index.to_vec();
        let mut carry = None;
        for axis in (0..index.len()).rev() {
            let at = match carry {
                None => self.fb.ins().iadd_imm_s(index[axis], 1),
                Some(carry) => self.fb.ins().iadd(index[axis], carry),
            };
            if axis == 0 {
                next[0] = at;
                break;
            }
            let full = self.compare_size(IntCC::Equal, at, self.plan.extents[axis]);
            let zero = self.fb.ins().iconst(types::I64, 0);
            next[axis] = self.fb.ins().select(full, zero, at);
            carry = Some(self.fb.ins().uextend(types::I64, full));
        }
        (self.fb.ins().iadd_imm_s(row, 1), next)
    }
}
