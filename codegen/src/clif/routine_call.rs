//! Calls of the routines that compute a tile, and the checks on data.

use super::emitter::{Emitter, MEMORY};
use super::row::Row;
use crate::plan::Sink;
use crate::plan::phases::{Class, Phase};
use crate::routines::{NarrowFloat, Precision, Routine};
use crate::status;
use cranelift::codegen::ir::{AtomicRmwOp, BlockArg};
use cranelift::prelude::{Block, InstBuilder, Value, types};
use tracecast_ir::kernel::{Scalar, ScalarOp, Val};

impl Row<'_> {
    /// Calls of tile routines for the positions from `low` to `high`.
    pub(super) fn tiles(&self, em: &mut Emitter<'_>, phase: &Phase, low: Value, high: Value) {
        let count = em.fb.ins().isub(high, low);
        for v in &phase.insts {
            let inst = self.inst(*v);
            let offset = em.temporaries + self.cut.temporaries[*v as usize].unwrap_or(0);
            let to = em.fb.ins().iadd_imm_s(em.scratch, i64::from(offset));
            if let ScalarOp::Random { stream } = inst.op {
                let (key, step) = (self.uniforms[&inst.args[0]], self.uniforms[&inst.args[1]]);
                let stream = em.fb.ins().iconst(types::I32, i64::from(stream));
                let element = em.fb.ins().iadd(self.starts[&inst.args[2]], low);
                em.call(Routine::RandomTile, &[to, count, key, step, stream, element], None);
                continue;
            }
            let Some(routine) = self.tile_routine(*v) else {
                em.fail(format!("{} of a tile", inst.op.name()), types::I64);
                continue;
            };
            let from = match inst.op {
                ScalarOp::Load(_) => em.address(&self.bases[v], Some(low), &[]),
                _ => self.tile_source(em, inst.args[0], low),
            };
            em.call(routine, &[from, to, count], None);
        }
        for i in &phase.sinks {
            if let Sink::Store { dtype, value, .. } = &self.stage.sinks[*i] {
                let from = self.tile_source(em, *value, low);
                let to = em.address(&self.targets[i], Some(low), &[]);
                let Some(narrow) = NarrowFloat::of(*dtype) else {
                    em.fail(format!("narrowing a tile to {dtype}"), types::I64);
                    continue;
                };
                em.call(Routine::NarrowTile(narrow), &[from, to, count], None);
            }
        }
    }

    /// The routine that makes a value; `None` if there is none.
    fn tile_routine(&self, v: Val) -> Option<Routine> {
        match self.inst(v).op {
            ScalarOp::Call(function) => {
                Precision::of(self.inst(v).ty).map(|p| Routine::FunctionTile(function, p))
            }
            ScalarOp::Round(dtype) => NarrowFloat::of(dtype).map(Routine::RoundTile),
            ScalarOp::Load(_) => NarrowFloat::of(self.bases[&v].dtype()).map(Routine::WidenTile),
            _ => None,
        }
    }

    /// Where the values of a tile are: in scratch, or where they come from.
    fn tile_source(&self, em: &mut Emitter<'_>, v: Val, low: Value) -> Value {
        match (self.class(v), self.inst(v).op) {
            (Class::Free, ScalarOp::Load(_)) => em.address(&self.bases[&v], Some(low), &[]),
            (Class::Free, ScalarOp::Row(b)) => {
                let address = self.buffer_address(em, low, Scalar::F32);
                let buffer = em.state().buffers[b as usize];
                em.fb.ins().iadd_imm_s(address, i64::from(buffer))
            }
            _ => {
                let offset = em.temporaries + self.cut.temporaries[v as usize].unwrap_or(0);
                em.fb.ins().iadd_imm_s(em.scratch, i64::from(offset))
            }
        }
    }
}

impl Emitter<'_> {
    /// Raises a check that fails, for what it found.
    pub(super) fn check_one(&mut self, number: u32, holds: Value, found: Option<Value>) {
        let (raise, after) = (self.fb.create_block(), self.fb.create_block());
        self.fb.ins().brif(holds, after, &[] as &[BlockArg], raise, &[] as &[BlockArg]);
        self.raise(number, found, raise, after);
    }

    /// Raises a check that fails.
    pub(super) fn check_group(&mut self, number: u32, masks: &[Value]) {
        let low = self.fb.ins().band(masks[0], masks[1]);
        let high = self.fb.ins().band(masks[2], masks[3]);
        let all = self.fb.ins().band(low, high);
        let holds = self.fb.ins().vall_true(all);
        self.check_one(number, holds, None);
    }

    /// The status word keeps the least of all checks that failed.
    fn raise(&mut self, number: u32, found: Option<Value>, raise: Block, after: Block) {
        self.fb.set_cold_block(raise);
        self.fb.switch_to_block(raise);
        let check = self.fb.ins().iconst(types::I64, status::word(number));
        let word = found.map_or(check, |found| {
            let [low, high, bias] = [-status::LARGEST, status::LARGEST, status::BIAS]
                .map(|bound| self.fb.ins().iconst(types::I64, bound));
            let found = self.fb.ins().smax(found, low);
            let found = self.fb.ins().smin(found, high);
            let found = self.fb.ins().iadd(found, bias);
            self.fb.ins().iadd(check, found)
        });
        self.fb.ins().atomic_rmw(types::I64, MEMORY, AtomicRmwOp::Umin, self.status, word);
        self.fb.ins().jump(after, &[]);
        self.fb.switch_to_block(after);
    }
}
