//! The phases of a row stage: loops over groups of sixteen positions, loops over single ones, and
//! tile calls.

use super::emitter::{Cut, Emitter, LANE_BYTES, Values, scalar_type, vector_type};
use super::memory::{Base, Group};
use super::reduce::Reduce;
use crate::plan::phases::{Class, Kind, Lanes, Phase, scratch_bytes};
use crate::plan::{Sink, Stage};
use cranelift::codegen::ir::BlockArg;
use cranelift::prelude::{InstBuilder, IntCC, Value, types};
use std::collections::HashMap;
use tracecast_ir::kernel::{Inst, Scalar, ScalarOp, Val};

/// A row stage being emitted.
pub(super) struct Row<'p> {
    pub(super) stage: &'p Stage,
    pub(super) cut: Cut<'p>,
    /// What is computed once per row.
    pub(super) uniforms: Values,
    /// Of the loads along the row.
    pub(super) bases: HashMap<Val, Base>,
    /// Of the sinks.
    pub(super) targets: HashMap<usize, Base>,
    /// Uniform values to store, in their format in memory.
    pub(super) bits: HashMap<usize, Value>,
    /// Whether the row is the first of its chunk, for column sinks.
    pub(super) first: HashMap<usize, Value>,
    /// The numbers of positions, at position 0.
    pub(super) starts: Values,
    /// By sink.
    pub(super) reductions: HashMap<usize, Reduce>,
    /// The accumulators, by where they are in the scratch, that vector loops begin with.
    pub(super) begun: Vec<i32>,
    /// The vector loops of phases.
    pub(super) wide: HashMap<usize, usize>,
}

/// One pass through a phase's code.
pub(super) struct At {
    pub(super) position: Value,
    /// The first position of the tile.
    low: Value,
    /// Where scratch values of 4 and 8 bytes are read.
    scratch: HashMap<i32, Value>,
    ones: Values,
    groups: HashMap<Val, Group>,
}

impl At {
    fn new(position: Value, low: Value) -> Self {
        At { position, low, scratch: HashMap::new(), ones: HashMap::new(), groups: HashMap::new() }
    }
}

impl<'p> Row<'p> {
    pub(super) fn new(em: &Emitter<'_>, stage: &'p Stage, cut: Cut<'p>) -> Self {
        let mut reductions = HashMap::new();
        for (i, sink) in stage.sinks.iter().enumerate() {
            if let Sink::Reduce { reduction, value, register } = sink {
                let at = em.state().lanes + (reductions.len() as i64 * LANE_BYTES) as i32;
                let ty = stage.body.ty(*value);
                reductions.insert(i, Reduce { reduction: *reduction, ty, register: *register, at });
            }
        }
        Row {
            stage,
            cut,
            uniforms: HashMap::new(),
            bases: HashMap::new(),
            targets: HashMap::new(),
            bits: HashMap::new(),
            first: HashMap::new(),
            starts: HashMap::new(),
            reductions,
            begun: Vec::new(),
            wide: HashMap::new(),
        }
    }

    /// The reductions, in the order of their sinks.
    pub(super) fn reductions(&self) -> Vec<Reduce> {
        (0..self.stage.sinks.len()).filter_map(|i| self.reductions.get(&i).copied()).collect()
    }

    pub(super) fn inst(&self, v: Val) -> &'p Inst {
        &self.stage.body.insts[v as usize]
    }

    pub(super) fn class(&self, v: Val) -> Class {
        self.cut.class[v as usize]
    }

    /// The type of an instruction's last operand.
    fn from(&self, inst: &Inst) -> Scalar {
        inst.args.last().map_or(inst.ty, |a| self.stage.body.ty(*a))
    }

    /// Everything that is the same along the row.
    pub(super) fn once_per_row(&mut self, em: &mut Emitter<'_>) {
        for at in 0..self.stage.body.insts.len() {
            let v = at as Val;
            let inst = self.inst(v);
            if let ScalarOp::Index(i) = inst.op {
                let affine = &em.plan.positions[i as usize];
                let start = em.at_row(affine.offset, &affine.strides);
                self.starts.insert(v, start);
            }
            if !self.cut.needed[at] {
                continue;
            }
            if let ScalarOp::Load(l) = inst.op {
                let source = &em.plan.loads[l as usize];
                let uniform = |i: usize| self.uniforms.get(&inst.args[i]).copied();
                let base =
                    em.base((source.slot, source.dtype, source.elements), &source.place, uniform);
                self.bases.insert(v, base);
            }
            if self.class(v) == Class::Uniform {
                let value = self.uniform(em, v, inst);
                self.uniforms.insert(v, value);
            }
        }
        for (i, sink) in self.stage.sinks.iter().enumerate() {
            self.target(em, i, sink);
        }
    }

    fn uniform(&self, em: &mut Emitter<'_>, v: Val, inst: &Inst) -> Value {
        match inst.op {
            ScalarOp::Load(_) => em.load_one(&self.bases[&v], None, &[]),
            ScalarOp::Index(_) => {
                let start = self.starts[&v];
                if inst.ty == Scalar::I32 { em.fb.ins().ireduce(types::I32, start) } else { start }
            }
            ScalarOp::Argument(number) => em.argument(number, inst.ty),
            ScalarOp::Register(r) => match em.state().registers.get(&(r as usize)) {
                Some(value) => *value,
                None => em.fail("a register that nothing has set", scalar_type(inst.ty)),
            },
            ScalarOp::Check(number) => {
                let found = inst.args.get(1).and_then(|found| self.uniforms.get(found));
                em.check_one(number, self.uniforms[&inst.args[0]], found.copied());
                self.uniforms[&inst.args[0]]
            }
            _ => {
                let args: Vec<Value> = inst.args.iter().map(|a| self.uniforms[a]).collect();
                em.compute(inst, self.from(inst), &args, false)
            }
        }
    }

    /// The positions from `low` to `high`; there is at least one, unless rows are empty.
    pub(super) fn positions(&self, em: &mut Emitter<'_>, low: Value, high: Value) {
        if em.plan.row() == 0 {
            return;
        }
        let phases = &self.cut.phases;
        if phases.len() == 1 && phases[0].kind != Kind::Tile {
            self.phase(em, 0, low, high);
            return;
        }
        let (head, exit) = (em.fb.create_block(), em.fb.create_block());
        let start = em.fb.append_block_param(head, types::I64);
        em.fb.ins().jump(head, &[BlockArg::from(low)]);
        em.fb.switch_to_block(head);
        let end = em.fb.ins().iadd_imm_s(start, self.cut.tile);
        let end = em.fb.ins().smin(end, high);
        for phase in 0..phases.len() {
            self.phase(em, phase, start, end);
        }
        let more = em.fb.ins().icmp(IntCC::SignedLessThan, end, high);
        em.fb.ins().brif(more, head, &[BlockArg::from(end)], exit, &[] as &[BlockArg]);
        em.fb.switch_to_block(exit);
    }

    /// A phase from `low` to `high`. Loops of `x86` find out themselves that there is nothing to
    /// do.
    fn phase(&self, em: &mut Emitter<'_>, number: usize, low: Value, high: Value) {
        let kind = self.cut.phases[number].kind;
        let own = kind == Kind::Vector && em.target.vector_width.is_some();
        if own || !em.plan.may_be_empty() {
            return self.loops(em, number, low, high);
        }
        let (some, after) = (em.fb.create_block(), em.fb.create_block());
        let any = em.fb.ins().icmp(IntCC::SignedLessThan, low, high);
        em.fb.ins().brif(any, some, &[], after, &[] as &[BlockArg]);
        em.fb.switch_to_block(some);
        self.loops(em, number, low, high);
        em.fb.ins().jump(after, &[]);
        em.fb.switch_to_block(after);
    }

    /// The loops of a phase; there is at least one position, unless they are those of `x86`.
    fn loops(&self, em: &mut Emitter<'_>, number: usize, low: Value, high: Value) {
        let phase = &self.cut.phases[number];
        match phase.kind {
            Kind::Vector if em.target.vector_width.is_some() => {
                // Without one, the function has failed already.
                if let Some(number) = self.wide.get(&number) {
                    em.call_wide(*number, low, high);
                }
            }
            Kind::Tile => self.tiles(em, phase, low, high),
            Kind::Scalar => match self.alternating(em, phase) {
                Some(turns) => {
                    self.grouped(em, phase, (low, high), turns.positions(), |em, middle| {
                        self.alternate(em, phase, &turns, (low, middle));
                    })
                }
                None => self.ones(em, phase, low, low, high),
            },
            Kind::Vector if em.plan.aligned => self.groups(em, phase, low, high),
            Kind::Vector if !em.plan.may_reach(16) => self.ones(em, phase, low, low, high),
            Kind::Vector => self.grouped(em, phase, (low, high), 16, |em, middle| {
                self.groups(em, phase, low, middle);
            }),
        }
    }

    /// Groups of `size` positions from `low` to a middle that `groups` is given, and single
    /// positions from there to `high`.
    fn grouped<'a>(
        &self,
        em: &mut Emitter<'a>,
        phase: &Phase,
        (low, high): (Value, Value),
        size: i64,
        groups: impl FnOnce(&mut Emitter<'a>, Value),
    ) {
        let length = em.fb.ins().isub(high, low);
        let whole = em.fb.ins().band_imm_s(length, -size);
        let middle = em.fb.ins().iadd(low, whole);
        let (grouped, rest) = (em.fb.create_block(), em.fb.create_block());
        let (single, done) = (em.fb.create_block(), em.fb.create_block());
        em.fb.ins().brif(whole, grouped, &[], rest, &[] as &[BlockArg]);
        em.fb.switch_to_block(grouped);
        groups(em, middle);
        em.fb.ins().jump(rest, &[]);
        em.fb.switch_to_block(rest);
        let more = em.fb.ins().icmp(IntCC::SignedLessThan, middle, high);
        em.fb.ins().brif(more, single, &[], done, &[] as &[BlockArg]);
        em.fb.switch_to_block(single);
        self.ones(em, phase, low, middle, high);
        em.fb.ins().jump(done, &[]);
        em.fb.switch_to_block(done);
    }

    /// A loop over groups of sixteen, of which there is at least one. Reductions are carried in
    /// registers, those lanes first that the next group goes to.
    fn groups(&self, em: &mut Emitter<'_>, phase: &Phase, low: Value, high: Value) {
        let splats = self.splats(em, phase);
        let carried: Vec<Reduce> =
            phase.sinks.iter().filter_map(|s| self.reductions.get(s).copied()).collect();
        let (head, exit) = (em.fb.create_block(), em.fb.create_block());
        let position = em.fb.append_block_param(head, types::I64);
        let mut args: Vec<BlockArg> = vec![low.into()];
        let mut lanes: HashMap<i32, Group> = HashMap::new();
        let mut others: HashMap<i32, Vec<Group>> = HashMap::new();
        for r in &carried {
            args.extend(em.load_lanes(r).into_iter().flatten().map(BlockArg::from));
            let mut all = em.lane_params(head, r);
            others.insert(r.at, all.split_off(1));
            lanes.extend(all.pop().map(|first| (r.at, first)));
            em.lane_params(exit, r);
        }
        em.fb.ins().jump(head, &args);
        em.fb.switch_to_block(head);
        let mut at = At::new(position, low);
        at.groups = splats;
        for v in &phase.insts {
            let group = self.group(em, &mut at, *v);
            if let Some(offset) = self.cut.temporaries[*v as usize] {
                let address = self.scratch_address(em, &mut at, 4);
                em.store_vectors(&group, address, em.temporaries + offset);
            }
            at.groups.insert(*v, group);
        }
        for i in &phase.sinks {
            self.sink_group(em, &mut at, *i, &mut lanes);
        }
        let next = em.fb.ins().iadd_imm_s(position, 16);
        let more = em.fb.ins().icmp(IntCC::SignedLessThan, next, high);
        let turned = |r: &Reduce| {
            let others = others[&r.at].iter().flatten().copied();
            others.chain(lanes[&r.at].iter().copied()).collect::<Vec<_>>()
        };
        let results: Vec<BlockArg> = carried.iter().flat_map(turned).map(BlockArg::from).collect();
        let mut again: Vec<BlockArg> = vec![next.into()];
        again.extend(results.iter().copied());
        em.fb.ins().brif(more, head, &again, exit, &results);
        em.fb.switch_to_block(exit);
        let finals = em.fb.block_params(exit).to_vec();
        for (r, values) in carried.iter().zip(finals.chunks(em.plan.lanes() / 4)) {
            em.store_lanes(r, values, high);
        }
    }

    /// A loop over single positions from `first` on, of which there is at least one.
    fn ones(&self, em: &mut Emitter<'_>, phase: &Phase, low: Value, first: Value, high: Value) {
        let (head, exit) = (em.fb.create_block(), em.fb.create_block());
        let position = em.fb.append_block_param(head, types::I64);
        em.fb.ins().jump(head, &[BlockArg::from(first)]);
        em.fb.switch_to_block(head);
        let mut at = At::new(position, low);
        for v in &phase.insts {
            let value = self.one(em, &mut at, *v);
            if let Some(offset) = self.cut.temporaries[*v as usize] {
                let ty = self.inst(*v).ty;
                let address = self.scratch_address(em, &mut at, scratch_bytes(ty));
                em.park_one(ty, value, address, em.temporaries + offset);
            }
            at.ones.insert(*v, value);
        }
        for i in &phase.sinks {
            self.sink_one(em, &mut at, *i);
        }
        let next = em.fb.ins().iadd_imm_s(position, 1);
        let more = em.fb.ins().icmp(IntCC::SignedLessThan, next, high);
        em.fb.ins().brif(more, head, &[BlockArg::from(next)], exit, &[] as &[BlockArg]);
        em.fb.switch_to_block(exit);
    }

    /// Uniform operands of a phase, in all lanes.
    fn splats(&self, em: &mut Emitter<'_>, phase: &Phase) -> HashMap<Val, Group> {
        let mut splats = HashMap::new();
        let of_insts = phase.insts.iter().flat_map(|v| match self.inst(*v).op {
            ScalarOp::Load(_) => [].iter(),
            _ => self.inst(*v).args.iter(),
        });
        let of_sinks = phase.sinks.iter().filter_map(|i| match &self.stage.sinks[*i] {
            Sink::Store { .. } | Sink::Set { .. } => None,
            Sink::Reduce { value, .. }
            | Sink::Keep { value, .. }
            | Sink::Column { value, .. }
            | Sink::Combine { value, .. } => Some(value),
        });
        for v in of_insts.chain(of_sinks) {
            let ty = self.stage.body.ty(*v);
            if self.class(*v) != Class::Uniform || splats.contains_key(v) || !Lanes::Bits32.hold(ty)
            {
                continue;
            }
            let value = match self.inst(*v).op {
                ScalarOp::Const(bits) => em.number(ty, bits, true),
                _ => em.splat(ty, self.uniforms[v]),
            };
            splats.insert(*v, [value; 4].into());
        }
        splats
    }

    /// Where this position's scratch values of that size are, without their offset.
    fn scratch_address(&self, em: &mut Emitter<'_>, at: &mut At, size: i32) -> Value {
        if let Some(address) = at.scratch.get(&size) {
            return *address;
        }
        let within = em.fb.ins().isub(at.position, at.low);
        let bytes = em.scaled(within, i64::from(size));
        let address = em.fb.ins().iadd(em.scratch, bytes);
        at.scratch.insert(size, address);
        address
    }

    /// Where this position's element of a row buffer is, without the buffer's offset.
    pub(super) fn buffer_address(
        &self,
        em: &mut Emitter<'_>,
        position: Value,
        ty: Scalar,
    ) -> Value {
        let bytes = em.scaled(position, i64::from(scratch_bytes(ty)));
        em.fb.ins().iadd(em.scratch, bytes)
    }

    pub(super) fn arg_group(&self, em: &mut Emitter<'_>, at: &mut At, v: Val) -> Group {
        if let Some(group) = at.groups.get(&v) {
            return group.clone();
        }
        let ty = vector_type(self.stage.body.ty(v));
        let offset = self.cut.temporaries[v as usize].unwrap_or(0);
        let address = self.scratch_address(em, at, 4);
        let group = em.vectors(ty, address, em.temporaries + offset);
        at.groups.insert(v, group.clone());
        group
    }

    pub(super) fn arg_one(&self, em: &mut Emitter<'_>, at: &mut At, v: Val) -> Value {
        if let Some(value) = self.uniforms.get(&v).or_else(|| at.ones.get(&v)) {
            return *value;
        }
        let ty = self.stage.body.ty(v);
        let offset = self.cut.temporaries[v as usize].unwrap_or(0);
        let address = self.scratch_address(em, at, scratch_bytes(ty));
        let value = em.unpark_one(ty, address, em.temporaries + offset);
        at.ones.insert(v, value);
        value
    }

    fn group(&self, em: &mut Emitter<'_>, at: &mut At, v: Val) -> Group {
        let inst = self.inst(v);
        match inst.op {
            ScalarOp::Load(_) => em.load_group(&self.bases[&v], at.position),
            ScalarOp::Index(_) if inst.ty != Scalar::I32 => {
                let what = format!("positions as vectors of {}", inst.ty.name());
                Group::from_elem(em.fail(what, vector_type(inst.ty)), 4)
            }
            ScalarOp::Row(_) if !em.can().keeps(inst.ty) => {
                let what = format!("a row buffer of vectors of {}", inst.ty.name());
                Group::from_elem(em.fail(what, vector_type(inst.ty)), 4)
            }
            ScalarOp::Index(i) => {
                let step = em.plan.positions[i as usize].strides.last().and_then(|s| s.number());
                let Some(step) = step else {
                    let what = "vectors of positions whose steps are names";
                    return Group::from_elem(em.fail(what, types::I32X4), 4);
                };
                let moved = em.scaled(at.position, step);
                let first = em.fb.ins().iadd(self.starts[&v], moved);
                let first = em.fb.ins().ireduce(types::I32, first);
                let first = em.fb.ins().splat(types::I32X4, first);
                (0..4)
                    .map(|u| {
                        let lane =
                            |l: i64| u128::from(((4 * u + l) * step) as i32 as u32) << (32 * l);
                        let steps = em.constant_bits(types::I32X4, (0..4).map(lane).sum());
                        em.fb.ins().iadd(first, steps)
                    })
                    .collect()
            }
            ScalarOp::Row(b) => {
                let address = self.buffer_address(em, at.position, inst.ty);
                em.vectors(vector_type(inst.ty), address, em.state().buffers[b as usize])
            }
            ScalarOp::Check(number) => {
                let group = self.arg_group(em, at, inst.args[0]);
                em.check_group(number, &group);
                group
            }
            _ => {
                let args: Vec<Group> =
                    inst.args.iter().map(|a| self.arg_group(em, at, *a)).collect();
                let from = self.from(inst);
                (0..4)
                    .map(|u| {
                        let args: Vec<Value> = args.iter().map(|a| a[u]).collect();
                        em.compute(inst, from, &args, true)
                    })
                    .collect()
            }
        }
    }

    fn one(&self, em: &mut Emitter<'_>, at: &mut At, v: Val) -> Value {
        let inst = self.inst(v);
        match inst.op {
            ScalarOp::Load(_) => {
                let base = &self.bases[&v];
                let index: Vec<Value> =
                    base.varying.iter().map(|(i, _)| self.arg_one(em, at, inst.args[*i])).collect();
                match self.cut.moved[v as usize] {
                    true => em.load_as_it_lies(base, at.position, &index),
                    false => em.load_one(base, Some(at.position), &index),
                }
            }
            ScalarOp::Index(i) => {
                let step =
                    em.plan.positions[i as usize].strides.last().copied().unwrap_or_default();
                let moved = em.steps(at.position, step, 1);
                let value = em.fb.ins().iadd(self.starts[&v], moved);
                if inst.ty == Scalar::I32 { em.fb.ins().ireduce(types::I32, value) } else { value }
            }
            ScalarOp::Row(b) => {
                let address = self.buffer_address(em, at.position, inst.ty);
                em.unpark_one(inst.ty, address, em.state().buffers[b as usize])
            }
            ScalarOp::Check(number) => {
                let value = self.arg_one(em, at, inst.args[0]);
                let found = inst.args.get(1).map(|found| self.arg_one(em, at, *found));
                em.check_one(number, value, found);
                value
            }
            _ => {
                let args: Vec<Value> = inst.args.iter().map(|a| self.arg_one(em, at, *a)).collect();
                em.compute(inst, self.from(inst), &args, false)
            }
        }
    }
}
