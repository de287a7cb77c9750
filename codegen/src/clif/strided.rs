//! Calls of the routine that gathers strided rows (`plan::strided`), before the first of the rows
//! that it gathers.

use super::emitter::Emitter;
use crate::plan::{Neighbours, StridedRows};
use crate::routines::{ElementSize, Routine};
use cranelift::codegen::ir::BlockArg;
use cranelift::prelude::{InstBuilder, IntCC, Value, types};

impl Emitter<'_> {
    /// The place of the row among those that were brought with it.
    pub(super) fn gathered_row(&mut self, strided: &StridedRows) -> Value {
        match self.state().index.last().copied() {
            Some(at) if strided.rows > 1 => self.fb.ins().band_imm_u(at, strided.rows - 1),
            _ => self.fb.ins().iconst(types::I64, 0),
        }
    }

    /// Brings the rows from this one on, if it is the first of them or of the call.
    pub(super) fn gather(&mut self, number: usize, strided: &StridedRows) {
        if !strided.access.guards.is_empty() {
            self.gather_within(number, strided);
            return;
        }
        if strided.neighbours == Neighbours::Loads {
            let rows = self.fb.ins().iconst(types::I64, strided.rows);
            let row = self.fb.ins().iconst(types::I64, 0);
            self.gather_rows(number, strided, row, rows);
            return;
        }
        let row = self.gathered_row(strided);
        let is_first = self.fb.ins().icmp_imm_s(IntCC::Equal, row, 0);
        let at = self.state().row;
        let begins = self.fb.ins().icmp(IntCC::Equal, at, self.begin);
        let new = self.fb.ins().bor(is_first, begins);
        let (bring, after) = (self.fb.create_block(), self.fb.create_block());
        self.fb.ins().brif(new, bring, &[], after, &[] as &[BlockArg]);
        self.fb.switch_to_block(bring);
        let axis = self.plan.row_axis() - 1;
        let at = self.state().index[axis];
        let first = self.fb.ins().isub(at, row);
        let extent = self.size(self.plan.extents[axis]);
        let left = self.fb.ins().isub(extent, first);
        let most = self.fb.ins().iconst(types::I64, strided.rows);
        let rows = self.fb.ins().smin(left, most);
        self.gather_rows(number, strided, row, rows);
        self.fb.ins().jump(after, &[]);
        self.fb.switch_to_block(after);
    }

    /// Brings the row where its guards hold, and the fill elsewhere.
    fn gather_within(&mut self, number: usize, strided: &StridedRows) {
        let StridedRows { slot, size, access, .. } = strided;
        let zero = self.fb.ins().iconst(types::I64, 0);
        let length = self.fb.ins().isub(self.to, self.from);
        let (mut low, mut high) = (zero, length);
        for guard in &access.guards {
            let at = self.at_row(guard.offset, &guard.strides);
            let step = guard.strides.last().copied().unwrap_or_default();
            let Some(step) = step.number().filter(|step| *step > 0) else {
                let holds = self.compare_size(IntCC::UnsignedLessThan, at, guard.extent);
                high = self.fb.ins().select(holds, high, zero);
                continue;
            };
            // The positions of the call from which on it is not below zero, and not beyond its
            // extent.
            let moved = self.scaled(self.from, step);
            let at = self.fb.ins().iadd(at, moved);
            let before = self.fb.ins().ineg(at);
            let extent = self.size(guard.extent);
            let left = self.fb.ins().isub(extent, at);
            let [first, end] = [before, left].map(|count| self.steps_to(count, step));
            low = self.fb.ins().smax(low, first);
            high = self.fb.ins().smin(high, end);
        }
        let low = self.fb.ins().smin(low, length);
        let high = self.fb.ins().smax(high, low);
        let element = self.at_row(access.offset, &access.strides);
        let stride = access.strides.last().copied().unwrap_or_default();
        let moved = self.steps(self.from, stride, 1);
        let element = self.fb.ins().iadd(element, moved);
        let bytes = self.scaled(element, *size);
        let from = self.fb.ins().iadd(self.slots[*slot], bytes);
        let to = self.fb.ins().iadd_imm_s(self.scratch, i64::from(self.strided_at[number]));
        let one = self.fb.ins().iconst(types::I64, 1);
        let step = self.steps(one, stride, *size);
        let fill = self.fb.ins().iconst(types::I64, access.fill as i64);
        match ElementSize::of(*size) {
            Some(size) => {
                let args = [from, to, length, low, high, step, fill];
                self.call(Routine::GatherWithin(size), &args, None);
            }
            None => {
                self.fail(format!("copying elements of {size} bytes"), types::I64);
            }
        }
    }

    /// How many steps it takes to count so far, none if that is not ahead.
    fn steps_to(&mut self, count: Value, step: i64) -> Value {
        let zero = self.fb.ins().iconst(types::I64, 0);
        let count = self.fb.ins().smax(count, zero);
        if step == 1 {
            return count;
        }
        let up = self.fb.ins().iadd_imm_s(count, step - 1);
        match step & (step - 1) {
            0 => self.fb.ins().ushr_imm_u(up, i64::from(step.trailing_zeros())),
            _ => {
                let step = self.fb.ins().iconst(types::I64, step);
                self.fb.ins().udiv(up, step)
            }
        }
    }

    /// Brings that many rows, of which this is number `row`.
    fn gather_rows(&mut self, number: usize, strided: &StridedRows, row: Value, rows: Value) {
        let StridedRows { slot, size, access, .. } = strided;
        let step = access.strides.last().copied().unwrap_or_default();
        let element = self.at_row(access.offset, &access.strides);
        // Gathered rows are neighbours.
        let element = self.fb.ins().isub(element, row);
        let moved = self.steps(self.from, step, 1);
        let element = self.fb.ins().iadd(element, moved);
        let bytes = self.scaled(element, *size);
        let from = self.fb.ins().iadd(self.slots[*slot], bytes);
        let to = self.fb.ins().iadd_imm_s(self.scratch, i64::from(self.strided_at[number]));
        let length = self.fb.ins().isub(self.to, self.from);
        let pitch = self.fb.ins().iadd_imm_s(length, strided.pitch(0));
        let step = match step.number() {
            Some(step) => self.fb.ins().iconst(types::I64, step * size),
            None => {
                let step = self.size(step);
                self.scaled(step, *size)
            }
        };
        match ElementSize::of(*size) {
            Some(size) => {
                let args = [from, to, length, rows, step, pitch];
                self.call(Routine::GatherRows(size), &args, None);
            }
            None => {
                self.fail(format!("copying elements of {size} bytes"), types::I64);
            }
        }
    }
}
