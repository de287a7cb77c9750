//! What a row stage does with its results, and stages that run once per row.

use super::emitter::{Emitter, MEMORY, scalar_type, vector_type};
use super::memory::Group;
use super::row::{At, Row};
use crate::plan::phases::{Class, Lanes, Phases};
use crate::plan::{Place, Sink, Stage};
use cranelift::prelude::{InstBuilder, IntCC, Value, types};
use smallvec::smallvec;
use std::collections::HashMap;
use tracecast_ir::kernel::{Access, COLUMN_CHUNK, Scalar, Val};
use tracecast_ir::{DType, Size};

impl Row<'_> {
    /// What is the same along the row of a sink.
    pub(super) fn target(&mut self, em: &mut Emitter<'_>, i: usize, sink: &Sink) {
        match sink {
            Sink::Store { slot, dtype, place, value, .. } => {
                let base = em.base((*slot, *dtype, Size::from(0)), place, |_| None);
                self.targets.insert(i, base);
                if let Some(v) = self.uniforms.get(value) {
                    let bits = em.narrowed(*dtype, self.stage.body.ty(*value), *v);
                    self.bits.insert(i, bits);
                }
            }
            Sink::Column { value, slot, keep, count, size, .. } => {
                let number = em.at_row(Size::from(0), count);
                let chunk =
                    em.fb.ins().ushr_imm_u(number, i64::from(COLUMN_CHUNK.trailing_zeros()));
                let access = Access {
                    strides: keep.clone(),
                    indirect: smallvec![*size],
                    ..Default::default()
                };
                let dtype = self.stage.body.ty(*value).dtype();
                let base =
                    em.base((*slot, dtype, Size::from(0)), &Place::At(access), |_| Some(chunk));
                self.targets.insert(i, base);
                let within = em.fb.ins().band_imm_u(number, COLUMN_CHUNK as i64 - 1);
                let first = em.fb.ins().icmp_imm_s(IntCC::Equal, within, 0);
                self.first.insert(i, first);
            }
            Sink::Combine { slot, dtype, access, index, elements, .. } => {
                let uniform = |n: usize| self.uniforms.get(&index[n]).copied();
                let base = em.base((*slot, *dtype, *elements), &Place::At(access.clone()), uniform);
                self.targets.insert(i, base);
            }
            Sink::Reduce { .. } | Sink::Keep { .. } | Sink::Set { .. } => {}
        }
    }

    /// True if the table has such a sink of vectors.
    fn takes_group(&self, em: &Emitter<'_>, i: usize, sink: &Sink) -> bool {
        let value = sink.values().last().map(|v| self.stage.body.ty(*v));
        let uniform = self.bits.contains_key(&i);
        value.is_some_and(|ty| em.can().takes(sink, ty, uniform) == Class::Vector)
    }

    /// Sixteen positions. Reductions go into `lanes`.
    pub(super) fn sink_group(
        &self,
        em: &mut Emitter<'_>,
        at: &mut At,
        i: usize,
        lanes: &mut HashMap<i32, Group>,
    ) {
        let sink = &self.stage.sinks[i];
        if !self.takes_group(em, i, sink) {
            em.fail("a sink of vectors that loops do not have", types::I64);
            return;
        }
        match sink {
            Sink::Store { dtype, value, .. } => {
                let address = em.address(&self.targets[&i], Some(at.position), &[]);
                if let Some(bits) = self.bits.get(&i) {
                    let vectors = em.repeated(*bits);
                    em.store_vectors(&vectors, address, 0);
                } else {
                    let group = self.arg_group(em, at, *value);
                    em.write_group(*dtype, &group, address);
                }
            }
            Sink::Reduce { value, .. } => {
                let r = self.reductions[&i];
                let group = self.arg_group(em, at, *value);
                let lanes = lanes.get_mut(&r.at).expect("every reduction of the phase is carried");
                for (lane, v) in lanes.iter_mut().zip(group) {
                    *lane = em.combine(r.reduction, r.ty, true, *lane, v);
                }
            }
            Sink::Keep { value, buffer } => {
                let group = self.arg_group(em, at, *value);
                let address = self.buffer_address(em, at.position, self.stage.body.ty(*value));
                em.store_vectors(&group, address, em.state().buffers[*buffer]);
            }
            Sink::Column { reduction, value, .. } => {
                let ty = self.stage.body.ty(*value);
                let group = self.arg_group(em, at, *value);
                let address = em.address(&self.targets[&i], Some(at.position), &[]);
                let before = em.vectors(vector_type(ty), address, 0);
                let start = em.number(ty, reduction.identity(ty), true);
                let mask = em.splat(Scalar::Bool, self.first[&i]);
                let mask = em.bitcast(vector_type(ty), mask);
                let before: Group =
                    before.into_iter().map(|b| em.fb.ins().bitselect(mask, start, b)).collect();
                let after: Group = before
                    .into_iter()
                    .zip(group)
                    .map(|(b, v)| em.combine(*reduction, ty, true, b, v))
                    .collect();
                em.store_vectors(&after, address, 0);
            }
            Sink::Combine { combiner, dtype, value, .. } => {
                let ty = self.stage.body.ty(*value);
                let group = self.arg_group(em, at, *value);
                let address = em.address(&self.targets[&i], Some(at.position), &[]);
                let Some(op) = combiner.combines(ty) else {
                    return em.write_group(*dtype, &group, address);
                };
                let before = em.vectors(vector_type(ty), address, 0);
                let both = before.into_iter().zip(group);
                let after: Group = both.map(|(b, v)| em.binary(op, ty, true, &[b, v])).collect();
                em.store_vectors(&after, address, 0);
            }
            Sink::Set { .. } => {
                em.fail("a register set in a row stage", types::I64);
            }
        }
    }

    /// What a store of one position puts in memory, in the format of memory.
    fn stored(
        &self,
        em: &mut Emitter<'_>,
        at: &mut At,
        (i, dtype, value): (usize, DType, Val),
    ) -> Value {
        if let Some(bits) = self.bits.get(&i) {
            return *bits;
        }
        let one = self.arg_one(em, at, value);
        if self.cut.moved[value as usize] {
            return one;
        }
        em.narrowed(dtype, self.stage.body.ty(value), one)
    }

    /// One position.
    pub(super) fn sink_one(&self, em: &mut Emitter<'_>, at: &mut At, i: usize) {
        match &self.stage.sinks[i] {
            Sink::Store { dtype, value, .. } => {
                let bits = self.stored(em, at, (i, *dtype, *value));
                let address = em.address(&self.targets[&i], Some(at.position), &[]);
                em.fb.ins().store(MEMORY, bits, address, 0);
            }
            Sink::Reduce { value, .. } => {
                let value = self.arg_one(em, at, *value);
                em.reduce_one(&self.reductions[&i], at.position, value);
            }
            Sink::Keep { value, buffer } => {
                let ty = self.stage.body.ty(*value);
                let value = self.arg_one(em, at, *value);
                let address = self.buffer_address(em, at.position, ty);
                em.park_one(ty, value, address, em.state().buffers[*buffer]);
            }
            Sink::Column { reduction, value, .. } => {
                let ty = self.stage.body.ty(*value);
                let value = self.arg_one(em, at, *value);
                let address = em.address(&self.targets[&i], Some(at.position), &[]);
                let before = em.fb.ins().load(scalar_type(ty), MEMORY, address, 0);
                let start = em.number(ty, reduction.identity(ty), false);
                let before = em.fb.ins().select(self.first[&i], start, before);
                let after = em.combine(*reduction, ty, false, before, value);
                em.fb.ins().store(MEMORY, after, address, 0);
            }
            Sink::Combine { combiner, dtype, index, value, .. } => {
                let base = &self.targets[&i];
                let index: Vec<Value> =
                    base.varying.iter().map(|(n, _)| self.arg_one(em, at, index[*n])).collect();
                let from = self.stage.body.ty(*value);
                let to = Scalar::of(*dtype).unwrap_or(from);
                let value = self.arg_one(em, at, *value);
                let address = em.address(base, Some(at.position), &index);
                let Some(op) = combiner.combines(to) else {
                    return em.write_one(*dtype, from, value, address);
                };
                let value = em.convert(from, to, value, false);
                let before = em.read_one(*dtype, address);
                let after = em.binary(op, to, false, &[before, value]);
                em.write_one(*dtype, to, after, address);
            }
            Sink::Set { .. } => {
                em.fail("a register set in a row stage", types::I64);
            }
        }
    }
}

impl<'a> Emitter<'a> {
    /// A stage that runs once per row, at position 0.
    pub(super) fn once(&mut self, stage: &'a Stage) {
        let body = &stage.body;
        let count = body.insts.len();
        let cut = Phases {
            class: vec![Class::Uniform; count],
            needed: vec![true; count],
            moved: vec![false; count],
            phases: Vec::new(),
            temporaries: vec![None; count],
            tile: 0,
            bytes: 0,
            lanes: Lanes::Bits32,
        };
        let mut row = Row::new(self, stage, &cut);
        row.once_per_row(self);
        for (i, sink) in stage.sinks.iter().enumerate() {
            match sink {
                Sink::Store { .. } => {
                    let address = self.address(&row.targets[&i], None, &[]);
                    let bits = row.bits[&i];
                    self.fb.ins().store(MEMORY, bits, address, 0);
                }
                Sink::Set { value, register } => {
                    self.state_mut().registers.insert(*register, row.uniforms[value]);
                }
                _ => {
                    self.fail("a reduction once per row", types::I64);
                }
            }
        }
    }
}
