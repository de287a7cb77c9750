//! Calls of the routine that gathers strided rows (`plan::strided`), before the first of the rows that it gathers.

use super::Emitter;
use crate::plan::StridedRows;
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
        if strided.rows == 1 {
            let one = self.fb.ins().iconst(types::I64, 1);
            let row = self.fb.ins().iconst(types::I64, 0);
            self.gather_rows(number, strided, row, one);
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

    /// Brings that many rows, of which this is number `row`.
    fn gather_rows(&mut self, number: usize, strided: &StridedRows, row: Value, rows: Value) {
        let StridedRows { slot, size, access, .. } = strided;
        let step = access.strides.last().copied().unwrap_or_default();
        let element = self.at_row(access.offset, &access.strides);
        // Rows that are brought together are neighbours.
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
