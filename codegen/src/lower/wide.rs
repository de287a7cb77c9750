//! Calls of wide loops: what they are given, and where from.

use super::row::Row;
use super::{Emitter, MEMORY};
use crate::phase::Kind;
use crate::wide::{self, CELL, Cell, Compiled, Task, Width};
use cranelift::codegen::ir::{ExtFuncData, ExternalName, FuncRef, SigRef, UserExternalName};
use cranelift::prelude::{AbiParam, InstBuilder, Signature, Value, types};
use tracecast_ir::kernel::Scalar;

/// The namespace of the names of wide loops, which are their numbers within the function.
pub(crate) const LOOPS: u32 = 1;

impl Row<'_> {
    /// Compiles the vector phases, and puts what they need into their cells.
    pub(super) fn prepare_wide(&mut self, em: &mut Emitter<'_>, width: Width) {
        let mut area = (em.waits + self.cut.bytes + 63) / 64 * 64;
        for (number, phase) in self.cut.phases.iter().enumerate() {
            if phase.kind != Kind::Vector {
                continue;
            }
            let task = Task {
                width,
                plan: em.plan,
                stage: self.stage,
                cut: self.cut,
                phase,
                buffers: &em.buffers,
                waits: em.waits,
                lanes: self.reductions.iter().map(|(sink, r)| (*sink, r.at)).collect(),
                begins: self.cut.phases.len() == 1,
                area,
                streams: em.plan.stages.len() == 1 && em.plan.traffic() >= em.target.streamed_from,
            };
            let compiled = match wide::compile(&task) {
                Ok(compiled) => compiled,
                Err(what) => {
                    em.fail(what, types::I64);
                    return;
                }
            };
            self.fill_cells(em, &compiled, area);
            area += (compiled.area_bytes + 63) / 64 * 64;
            em.scratch_bytes = em.scratch_bytes.max(area);
            self.begun.extend(&compiled.begun);
            self.wide.insert(number, em.loops.len());
            em.loops.push(compiled);
        }
    }

    fn fill_cells(&self, em: &mut Emitter<'_>, compiled: &Compiled, area: i32) {
        for (number, cell) in compiled.cells.iter().enumerate() {
            if let Some(value) = self.cell(em, *cell) {
                em.fb.ins().store(MEMORY, value, em.scratch, area + CELL * number as i32);
            }
        }
    }

    fn cell(&self, em: &mut Emitter<'_>, cell: Cell) -> Option<Value> {
        Some(match cell {
            Cell::Load(v) => em.safe_address(&self.bases[&v]),
            Cell::Sink(sink) => em.address(&self.targets[&sink], None, &[]),
            Cell::Uniform(v) => {
                let value = self.uniforms[&v];
                if self.stage.body.ty(v) == Scalar::Bool { em.mask(value) } else { value }
            }
            Cell::Start(v) => em.fb.ins().ireduce(types::I32, self.starts[&v]),
            Cell::Guard(v) => match self.bases[&v].guard() {
                Some(holds) => em.mask(holds),
                None => em.fb.ins().iconst(types::I32, -1),
            },
            Cell::First(sink) => em.mask(self.first[&sink]),
            Cell::Bits(sink) => em.repeated(self.bits[&sink])[0],
            Cell::Mask(_) => return None,
        })
    }
}

impl Emitter<'_> {
    /// A truth value as 32 bits.
    fn mask(&mut self, holds: Value) -> Value {
        let wide = self.fb.ins().uextend(types::I32, holds);
        self.fb.ins().ineg(wide)
    }

    /// A function that is somewhere else.
    pub(super) fn import(&mut self, name: UserExternalName, signature: SigRef) -> FuncRef {
        let name = self.fb.func.declare_imported_user_function(name);
        self.fb.import_function(ExtFuncData {
            name: ExternalName::user(name),
            signature,
            colocated: false,
            patchable: false,
        })
    }

    /// Calls a wide loop for the positions from `low` to `high`.
    pub(super) fn call_wide(&mut self, number: usize, low: Value, high: Value) {
        let conv = self.target.isa.default_call_conv();
        let mut signature = Signature::new(conv);
        signature.params.extend([types::I64; 3].map(AbiParam::new));
        let signature = self.fb.import_signature(signature);
        let function = self.import(UserExternalName::new(LOOPS, number as u32), signature);
        self.fb.ins().call(function, &[self.scratch, low, high]);
    }
}
