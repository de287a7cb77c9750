//! Calls of the vector loops that `x86` makes, and the cells of the scratch that they find
//! addresses and uniform values in.

use super::emitter::{Emitter, MEMORY, RowState};
use super::prefetch::Asked;
use super::row::Row;
use crate::machine::Width;
use crate::plan::phases::{Kind, Lanes};
use crate::x86::{self, CELL, Cell, Compiled, Task};
use cranelift::codegen::ir::{ExtFuncData, ExternalName, FuncRef, SigRef, UserExternalName};
use cranelift::prelude::{AbiParam, InstBuilder, Signature, Value, types};
use tracecast_ir::kernel::Scalar;

/// The namespace of the names of vector loops, which are their numbers within the function.
pub(crate) const LOOPS: u32 = 1;

impl Row<'_> {
    fn cell(&self, em: &mut Emitter<'_>, cell: Cell) -> Option<Value> {
        Some(match cell {
            Cell::Load(v) => em.safe_address(&self.bases[&v]),
            Cell::Sink(sink) => em.address(&self.targets[&sink], None, &[]),
            Cell::Uniform(v) => {
                let value = self.uniforms[&v];
                match self.stage.body.ty(v) {
                    Scalar::Bool if self.cut.lanes == Lanes::Bits64 => {
                        let mask = em.mask(value);
                        em.fb.ins().sextend(types::I64, mask)
                    }
                    Scalar::Bool => em.mask(value),
                    _ => value,
                }
            }
            Cell::Start(v) => em.fb.ins().ireduce(types::I32, self.starts[&v]),
            Cell::Guard(v) => match self.bases[&v].guard() {
                Some(holds) => em.mask(holds),
                None => em.fb.ins().iconst(types::I32, -1),
            },
            Cell::First(sink) => em.mask(self.first[&sink]),
            Cell::Pattern(sink) => em.repeated(self.bits[&sink])[0],
            Cell::Mask(_) | Cell::Prefetch(_) => return None,
        })
    }
}

impl Emitter<'_> {
    /// Compiles the vector phases of rows that are worked on together, and puts what they need into
    /// their cells.
    pub(super) fn prepare_wide(&mut self, rows: &mut [Row<'_>], width: Width) {
        let cut = rows[0].cut;
        let mut area = (self.temporaries + cut.bytes + 63) / 64 * 64;
        let asked = self.asked(rows[0].stage);
        for (number, phase) in cut.phases.iter().enumerate() {
            if phase.kind != Kind::Vector {
                continue;
            }
            let turn = |(row, turn): (&Row<'_>, &'_ RowState)| x86::RowScratch {
                buffers: turn.buffers.clone(),
                lanes: row.reductions.iter().map(|(sink, r)| (*sink, r.at)).collect(),
            };
            let task = Task {
                width,
                plan: self.plan,
                stage: rows[0].stage,
                cut,
                phase,
                rows: rows.iter().zip(&self.states).map(turn).collect(),
                temporaries: self.temporaries,
                prefetched: asked.iter().filter(|_| number == 0).map(Asked::prefetched).collect(),
                initialises: cut.phases.len() == 1,
                area,
                streams: self.choices.streams,
            };
            let compiled = match x86::compile(&task) {
                Ok(compiled) => compiled,
                Err(what) => {
                    self.fail(what, types::I64);
                    return;
                }
            };
            self.fill_cells(rows, &compiled, &asked, area);
            area += (compiled.area_bytes + 63) / 64 * 64;
            self.scratch_bytes = self.scratch_bytes.max(area);
            rows[0].begun.extend(&compiled.initialised);
            rows[0].wide.insert(number, self.loops.len());
            self.loops.push(compiled);
        }
    }

    fn fill_cells(&mut self, rows: &[Row<'_>], compiled: &Compiled, asked: &[Asked], area: i32) {
        for (number, (turn, cell)) in compiled.cells.iter().enumerate() {
            let value = match cell {
                Cell::Prefetch(number) => Some(self.asked_row(&rows[0], &asked[*number])),
                _ => rows[usize::from(*turn)].cell(self, *cell),
            };
            if let Some(value) = value {
                self.fb.ins().store(MEMORY, value, self.scratch, area + CELL * number as i32);
            }
        }
    }

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

    /// Calls a vector loop for the positions from `low` to `high`.
    pub(super) fn call_wide(&mut self, number: usize, low: Value, high: Value) {
        let conv = self.target.isa.default_call_conv();
        let mut signature = Signature::new(conv);
        signature.params.extend([types::I64; 3].map(AbiParam::new));
        let signature = self.fb.import_signature(signature);
        let function = self.import(UserExternalName::new(LOOPS, number as u32), signature);
        self.fb.ins().call(function, &[self.scratch, low, high]);
    }
}
