//! Plans that do nothing but sum rows of a table, which indices take, in groups of neighbours: a
//! routine does all rows of a call.
//!
//! Its accumulators stay in registers from row to row, which vector loops of one row cannot have.

use super::emitter::{Emitter, MEMORY};
use crate::plan::{Place, Plan, Sink, Source, Stage};
use crate::routines::Routine;
use crate::status;
use cranelift::prelude::{InstBuilder, Value, types};
use tracecast_ir::kernel::{Access, COLUMN_CHUNK, Cmp, Inst, Reduction, Scalar, ScalarOp, Val};
use tracecast_ir::{DType, Size};

/// Such a plan.
pub(super) struct SummedRows {
    sums: usize,
    table: usize,
    indices: usize,
    /// Rows of a group.
    length: i64,
    /// Columns.
    width: i64,
    /// Rows of the table.
    rows: i64,
    /// The check of an index.
    check: u32,
}

/// The body of a stage, looked at.
struct Body<'a> {
    plan: &'a Plan,
    stage: &'a Stage,
}

impl Body<'_> {
    fn inst(&self, v: Val) -> &Inst {
        &self.stage.body.insts[v as usize]
    }

    fn constant(&self, v: Val) -> Option<i64> {
        match (self.inst(v).op, self.inst(v).ty) {
            (ScalarOp::Const(bits), Scalar::I64) => Some(bits as i64),
            _ => None,
        }
    }

    /// Where an instruction loads from, if nothing guards it, and its indices.
    fn load(&self, v: Val) -> Option<(&Source, &Access, &[Val])> {
        let inst = self.inst(v);
        let ScalarOp::Load(number) = inst.op else { return None };
        let source = &self.plan.loads[number as usize];
        let Place::At(access) = &source.place else { return None };
        let whole = access.guards.is_empty() && access.offset == 0;
        whole.then_some((source, access, &inst.args[..]))
    }

    /// An index, the check of it against a number of rows, and that number.
    fn checked(&self, v: Val) -> Option<(Val, u32, i64)> {
        let (ScalarOp::Select, [check, index, other]) = (self.inst(v).op, &self.inst(v).args[..])
        else {
            return None;
        };
        let (ScalarOp::Check(number), [holds, found]) =
            (self.inst(*check).op, &self.inst(*check).args[..])
        else {
            return None;
        };
        let (ScalarOp::And, [low, high]) = (self.inst(*holds).op, &self.inst(*holds).args[..])
        else {
            return None;
        };
        let (ScalarOp::Cmp(Cmp::Le), [zero, a]) = (self.inst(*low).op, &self.inst(*low).args[..])
        else {
            return None;
        };
        let (ScalarOp::Cmp(Cmp::Lt), [b, rows]) = (self.inst(*high).op, &self.inst(*high).args[..])
        else {
            return None;
        };
        let zeros = [other, zero].iter().all(|v| self.constant(**v) == Some(0));
        let alike = [found, a, b].iter().all(|v| *v == index);
        let rows = self.constant(*rows).filter(|_| zeros && alike)?;
        Some((*index, number, rows))
    }
}

impl SummedRows {
    /// What a plan sums, if that is all it does.
    pub(super) fn of(plan: &Plan) -> Option<SummedRows> {
        let [stage] = &plan.stages[..] else { return None };
        let [Sink::Column { reduction: Reduction::Sum, value, slot, keep, count, .. }] =
            &stage.sinks[..]
        else {
            return None;
        };
        let [_, length, width] = plan.extents[..] else { return None };
        let (length, width) = (length.number()?, width.number()?);
        let checks = stage.body.insts.iter().filter(|i| matches!(i.op, ScalarOp::Check(_)));
        let strides = |of: &[Size], are: [i64; 3]| of.iter().copied().eq(are.map(Size::from));
        let plain = !stage.once
            && !stage.first
            && (1..=COLUMN_CHUNK as i64).contains(&length)
            && strides(keep, [width, 0, 1])
            && strides(count, [0, 1, 0])
            && checks.count() == 1;
        let body = Body { plan, stage };
        let (table, access, [index]) = body.load(*value).filter(|_| plain)? else { return None };
        let (index, check, rows) = body.checked(*index)?;
        let (indices, place, []) = body.load(index)? else { return None };
        let fits = table.dtype == DType::F32
            && strides(&access.strides, [0, 0, 1])
            && access.indirect[..] == [Size::from(width)]
            && table.elements == Size::from(rows) * width
            && indices.dtype == DType::I64
            && place.indirect.is_empty()
            && strides(&place.strides, [length, 1, 0]);
        let (table, indices) = (table.slot, indices.slot);
        fits.then_some(SummedRows { sums: *slot, table, indices, length, width, rows, check })
    }
}

impl Emitter<'_> {
    /// All rows of the call.
    pub(super) fn sum_rows(&mut self, summed: &SummedRows) {
        let addresses = [summed.sums, summed.table, summed.indices].map(|slot| self.slots[slot]);
        let call = [self.status, self.begin, self.end, self.from, self.to];
        let identity = Reduction::Sum.identity(Scalar::F32) as i64;
        let word = status::word(summed.check);
        let numbers = [summed.length, summed.width, summed.rows, word, identity];
        let numbers = numbers.map(|number| self.fb.ins().iconst(types::I64, number));
        let task: Vec<Value> = [&addresses[..], &call, &numbers].concat();
        let at = self.scratch_bytes;
        for (number, value) in task.iter().enumerate() {
            self.fb.ins().store(MEMORY, *value, self.scratch, at + 8 * number as i32);
        }
        self.scratch_bytes += 8 * task.len() as i32;
        let task = self.fb.ins().iadd_imm_s(self.scratch, i64::from(at));
        self.call(Routine::SumRows, &[task], None);
        self.fb.ins().return_(&[]);
    }
}
