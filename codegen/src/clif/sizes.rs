//! Arithmetic with sizes: immediates where they are numbers, else what the call finds in front of
//! its table of addresses, read once.

use super::emitter::{Emitter, MEMORY, scalar_type};
use crate::plan::numbers::Entry;
use cranelift::codegen::cursor::{Cursor, FuncCursor};
use cranelift::prelude::{InstBuilder, IntCC, Type, Value, types};
use tracecast_ir::Size;
use tracecast_ir::kernel::Scalar;

impl Emitter<'_> {
    /// A size as a value.
    pub(super) fn size(&mut self, size: Size) -> Value {
        match size.number() {
            Some(number) => self.fb.ins().iconst(types::I64, number),
            None => self.entry(Entry::Size(size), types::I64),
        }
    }

    /// An argument of the kernel as a number of that type.
    pub(super) fn argument(&mut self, number: u32, ty: Scalar) -> Value {
        self.entry(Entry::Argument(number, ty), scalar_type(ty))
    }

    fn entry(&mut self, entry: Entry, ty: Type) -> Value {
        let Some(number) = self.table.position(entry) else {
            return self.fail(format!("{entry:?}, which is in no table"), ty);
        };
        if let Some(value) = self.entries.get(&number) {
            return *value;
        }
        let mut cursor = FuncCursor::new(self.fb.func).at_first_insertion_point(self.entry_block);
        let value = cursor.ins().load(ty, MEMORY, self.slots_at, -8 * (number as i32 + 1));
        self.entries.insert(number, value);
        value
    }

    /// `v * by`.
    pub(super) fn times(&mut self, v: Value, by: Size) -> Value {
        match by.number() {
            Some(number) => self.fb.ins().imul_imm_s(v, number),
            None => {
                let by = self.size(by);
                self.fb.ins().imul(v, by)
            }
        }
    }

    /// `v * step` elements of `bytes` bytes.
    pub(super) fn steps(&mut self, v: Value, step: Size, bytes: i64) -> Value {
        match step.number() {
            Some(step) => self.scaled(v, step * bytes),
            None => {
                let moved = self.times(v, step);
                self.scaled(moved, bytes)
            }
        }
    }

    /// `v + by`.
    pub(super) fn plus(&mut self, v: Value, by: Size) -> Value {
        match by.number() {
            Some(number) => self.fb.ins().iadd_imm_s(v, number),
            None => {
                let by = self.size(by);
                self.fb.ins().iadd(v, by)
            }
        }
    }

    /// Whether `v` and a size compare so.
    pub(super) fn compare_size(&mut self, how: IntCC, v: Value, with: Size) -> Value {
        match with.number() {
            Some(number) => self.fb.ins().icmp_imm_s(how, v, number),
            None => {
                let with = self.size(with);
                self.fb.ins().icmp(how, v, with)
            }
        }
    }
}
