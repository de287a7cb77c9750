//! The phases of a row stage: loops over groups of sixteen positions, loops over single ones, and tile calls.

use super::memory::{Base, Group};
use super::reduce::{LANE_BYTES, Reduce, identity_bits};
use super::{Cut, Emitter, MEMORY, Values, scalar_type, vector_type};
use crate::phase::{Class, Kind, Phase, is_vector, scratch_bytes};
use crate::plan::{Place, Sink, Stage};
use cranelift::codegen::ir::BlockArg;
use cranelift::prelude::{InstBuilder, IntCC, Value, types};
use std::collections::HashMap;
use tracecast_ir::DType;
use tracecast_ir::kernel::{COLUMN_CHUNK, Inst, Scalar, ScalarOp, Val};

/// A row stage being emitted.
pub(super) struct Row<'p> {
    stage: &'p Stage,
    cut: Cut<'p>,
    /// What is computed once per row.
    uniforms: Values,
    /// Of the loads along the row.
    bases: HashMap<Val, Base>,
    /// Of the sinks.
    targets: HashMap<usize, Base>,
    /// Uniform values to store, as they lie in memory.
    bits: HashMap<usize, Value>,
    /// Whether the row is the first of its chunk, for column sinks.
    first: HashMap<usize, Value>,
    /// The numbers of positions, at position 0.
    starts: Values,
    /// By sink.
    reductions: HashMap<usize, Reduce>,
}

/// One pass through a phase's code.
struct At {
    position: Value,
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
                let at = em.lanes + (reductions.len() as i64 * LANE_BYTES) as i32;
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
        }
    }

    /// The reductions, in the order of their sinks.
    pub(super) fn reductions(&self) -> Vec<Reduce> {
        (0..self.stage.sinks.len()).filter_map(|i| self.reductions.get(&i).copied()).collect()
    }

    fn inst(&self, v: Val) -> &'p Inst {
        &self.stage.body.insts[v as usize]
    }

    fn class(&self, v: Val) -> Class {
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
                let still = |i: usize| self.uniforms.get(&inst.args[i]).copied();
                let base = em.base(source.slot, source.dtype, &source.place, still);
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
            ScalarOp::Register(r) => match em.registers.get(&(r as usize)) {
                Some(value) => *value,
                None => em.fail("a register that nothing has set", scalar_type(inst.ty)),
            },
            ScalarOp::Check(number) => {
                em.check_one(number, self.uniforms[&inst.args[0]]);
                self.uniforms[&inst.args[0]]
            }
            _ => {
                let args: Vec<Value> = inst.args.iter().map(|a| self.uniforms[a]).collect();
                em.compute(inst, self.from(inst), &args, false)
            }
        }
    }

    fn target(&mut self, em: &mut Emitter<'_>, i: usize, sink: &Sink) {
        match sink {
            Sink::Store { slot, dtype, place, value, .. } => {
                let base = em.base(*slot, *dtype, place, |_| None);
                self.targets.insert(i, base);
                if let Some(v) = self.uniforms.get(value) {
                    let bits = em.narrowed(*dtype, *v);
                    self.bits.insert(i, bits);
                }
            }
            Sink::Column { value, slot, keep, count, size, .. } => {
                let number = em.at_row(0, count);
                let chunk = em.fb.ins().ushr_imm_u(number, i64::from(COLUMN_CHUNK.trailing_zeros()));
                let access = tracecast_ir::kernel::Access {
                    strides: keep.clone(),
                    indirect: smallvec::smallvec![*size],
                    ..Default::default()
                };
                let dtype = memory_dtype(self.stage.body.ty(*value));
                let base = em.base(*slot, dtype, &Place::At(access), |_| Some(chunk));
                self.targets.insert(i, base);
                let within = em.fb.ins().band_imm_u(number, COLUMN_CHUNK as i64 - 1);
                let first = em.fb.ins().icmp_imm_s(IntCC::Equal, within, 0);
                self.first.insert(i, first);
            }
            Sink::Add { slot, dtype, access, index, .. } => {
                let still = |n: usize| self.uniforms.get(&index[n]).copied();
                let base = em.base(*slot, *dtype, &Place::At(access.clone()), still);
                self.targets.insert(i, base);
            }
            Sink::Reduce { .. } | Sink::Keep { .. } | Sink::Set { .. } => {}
        }
    }

    /// The positions from `low` to `high`; there is at least one, unless rows are empty.
    pub(super) fn positions(&self, em: &mut Emitter<'_>, low: Value, high: Value) {
        if em.plan.row() == 0 {
            return;
        }
        let phases = &self.cut.phases;
        if phases.len() == 1 && phases[0].kind != Kind::Tile {
            self.phase(em, &phases[0], low, high);
            return;
        }
        let (head, exit) = (em.fb.create_block(), em.fb.create_block());
        let start = em.fb.append_block_param(head, types::I64);
        em.fb.ins().jump(head, &[BlockArg::from(low)]);
        em.fb.switch_to_block(head);
        let end = em.fb.ins().iadd_imm_s(start, self.cut.tile);
        let end = em.fb.ins().smin(end, high);
        for phase in phases {
            self.phase(em, phase, start, end);
        }
        let more = em.fb.ins().icmp(IntCC::SignedLessThan, end, high);
        em.fb.ins().brif(more, head, &[BlockArg::from(end)], exit, &[] as &[BlockArg]);
        em.fb.switch_to_block(exit);
    }

    fn phase(&self, em: &mut Emitter<'_>, phase: &Phase, low: Value, high: Value) {
        match phase.kind {
            Kind::Tile => self.tiles(em, phase, low, high),
            Kind::Scalar => self.ones(em, phase, low, low, high),
            Kind::Vector if em.plan.aligned => self.groups(em, phase, low, high),
            Kind::Vector if em.plan.row() < 16 => self.ones(em, phase, low, low, high),
            Kind::Vector => {
                let length = em.fb.ins().isub(high, low);
                let whole = em.fb.ins().band_imm_s(length, -16);
                let middle = em.fb.ins().iadd(low, whole);
                let (grouped, rest) = (em.fb.create_block(), em.fb.create_block());
                let (single, done) = (em.fb.create_block(), em.fb.create_block());
                em.fb.ins().brif(whole, grouped, &[], rest, &[] as &[BlockArg]);
                em.fb.switch_to_block(grouped);
                self.groups(em, phase, low, middle);
                em.fb.ins().jump(rest, &[]);
                em.fb.switch_to_block(rest);
                let more = em.fb.ins().icmp(IntCC::SignedLessThan, middle, high);
                em.fb.ins().brif(more, single, &[], done, &[] as &[BlockArg]);
                em.fb.switch_to_block(single);
                self.ones(em, phase, low, middle, high);
                em.fb.ins().jump(done, &[]);
                em.fb.switch_to_block(done);
            }
        }
    }

    /// A loop over groups of sixteen, of which there is at least one. Reductions are carried in registers.
    fn groups(&self, em: &mut Emitter<'_>, phase: &Phase, low: Value, high: Value) {
        let splats = self.splats(em, phase);
        let carried: Vec<Reduce> = phase.sinks.iter().filter_map(|s| self.reductions.get(s).copied()).collect();
        let (head, exit) = (em.fb.create_block(), em.fb.create_block());
        let position = em.fb.append_block_param(head, types::I64);
        let mut args: Vec<BlockArg> = vec![low.into()];
        let mut lanes: HashMap<i32, Group> = HashMap::new();
        for r in &carried {
            args.extend(em.load_lanes(r).into_iter().map(BlockArg::from));
            let ty = vector_type(r.ty);
            lanes.insert(r.at, (0..4).map(|_| em.fb.append_block_param(head, ty)).collect());
            (0..4).for_each(|_| {
                em.fb.append_block_param(exit, ty);
            });
        }
        em.fb.ins().jump(head, &args);
        em.fb.switch_to_block(head);
        let mut at = At::new(position, low);
        at.groups = splats;
        for v in &phase.insts {
            let group = self.group(em, &mut at, *v);
            if let Some(offset) = self.cut.waits[*v as usize] {
                let address = self.scratch_address(em, &mut at, 4);
                em.store_vectors(&group, address, em.waits + offset);
            }
            at.groups.insert(*v, group);
        }
        for i in &phase.sinks {
            self.sink_group(em, &mut at, *i, &mut lanes);
        }
        let next = em.fb.ins().iadd_imm_s(position, 16);
        let more = em.fb.ins().icmp(IntCC::SignedLessThan, next, high);
        let results: Vec<BlockArg> =
            carried.iter().flat_map(|r| lanes[&r.at].clone()).map(BlockArg::from).collect();
        let mut again: Vec<BlockArg> = vec![next.into()];
        again.extend(results.iter().copied());
        em.fb.ins().brif(more, head, &again, exit, &results);
        em.fb.switch_to_block(exit);
        let finals = em.fb.block_params(exit).to_vec();
        for (r, values) in carried.iter().zip(finals.chunks(4)) {
            em.store_vectors(values, em.scratch, r.at);
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
            if let Some(offset) = self.cut.waits[*v as usize] {
                let ty = self.inst(*v).ty;
                let address = self.scratch_address(em, &mut at, scratch_bytes(ty));
                em.park_one(ty, value, address, em.waits + offset);
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
            Sink::Reduce { value, .. } | Sink::Keep { value, .. } | Sink::Column { value, .. } | Sink::Add { value, .. } => {
                Some(value)
            }
        });
        for v in of_insts.chain(of_sinks) {
            let ty = self.stage.body.ty(*v);
            if self.class(*v) != Class::Uniform || splats.contains_key(v) || !is_vector(ty) {
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
    fn buffer_address(&self, em: &mut Emitter<'_>, position: Value, ty: Scalar) -> Value {
        let bytes = em.scaled(position, i64::from(scratch_bytes(ty)));
        em.fb.ins().iadd(em.scratch, bytes)
    }

    fn arg_group(&self, em: &mut Emitter<'_>, at: &mut At, v: Val) -> Group {
        if let Some(group) = at.groups.get(&v) {
            return group.clone();
        }
        let ty = vector_type(self.stage.body.ty(v));
        let offset = self.cut.waits[v as usize].unwrap_or(0);
        let address = self.scratch_address(em, at, 4);
        let group = em.vectors(ty, address, em.waits + offset);
        at.groups.insert(v, group.clone());
        group
    }

    fn arg_one(&self, em: &mut Emitter<'_>, at: &mut At, v: Val) -> Value {
        if let Some(value) = self.uniforms.get(&v).or_else(|| at.ones.get(&v)) {
            return *value;
        }
        let ty = self.stage.body.ty(v);
        let offset = self.cut.waits[v as usize].unwrap_or(0);
        let address = self.scratch_address(em, at, scratch_bytes(ty));
        let value = em.unpark_one(ty, address, em.waits + offset);
        at.ones.insert(v, value);
        value
    }

    fn group(&self, em: &mut Emitter<'_>, at: &mut At, v: Val) -> Group {
        let inst = self.inst(v);
        match inst.op {
            ScalarOp::Load(_) => em.load_group(&self.bases[&v], at.position),
            ScalarOp::Index(i) => {
                let step = em.plan.positions[i as usize].strides.last().copied().unwrap_or(0);
                let moved = em.scaled(at.position, step);
                let first = em.fb.ins().iadd(self.starts[&v], moved);
                let first = em.fb.ins().ireduce(types::I32, first);
                let first = em.fb.ins().splat(types::I32X4, first);
                (0..4)
                    .map(|u| {
                        let lane = |l: i64| u128::from(((4 * u + l) * step) as i32 as u32) << (32 * l);
                        let steps = em.constant_bits(types::I32X4, (0..4).map(lane).sum());
                        em.fb.ins().iadd(first, steps)
                    })
                    .collect()
            }
            ScalarOp::Row(b) => {
                let address = self.buffer_address(em, at.position, inst.ty);
                em.vectors(vector_type(inst.ty), address, em.buffers[b as usize])
            }
            ScalarOp::Check(number) => {
                let group = self.arg_group(em, at, inst.args[0]);
                em.check_group(number, &group);
                group
            }
            _ => {
                let args: Vec<Group> = inst.args.iter().map(|a| self.arg_group(em, at, *a)).collect();
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
                em.load_one(base, Some(at.position), &index)
            }
            ScalarOp::Index(i) => {
                let step = em.plan.positions[i as usize].strides.last().copied().unwrap_or(0);
                let moved = em.scaled(at.position, step);
                let value = em.fb.ins().iadd(self.starts[&v], moved);
                if inst.ty == Scalar::I32 { em.fb.ins().ireduce(types::I32, value) } else { value }
            }
            ScalarOp::Row(b) => {
                let address = self.buffer_address(em, at.position, inst.ty);
                em.unpark_one(inst.ty, address, em.buffers[b as usize])
            }
            ScalarOp::Check(number) => {
                let value = self.arg_one(em, at, inst.args[0]);
                em.check_one(number, value);
                value
            }
            _ => {
                let args: Vec<Value> = inst.args.iter().map(|a| self.arg_one(em, at, *a)).collect();
                em.compute(inst, self.from(inst), &args, false)
            }
        }
    }

    fn sink_group(&self, em: &mut Emitter<'_>, at: &mut At, i: usize, lanes: &mut HashMap<i32, Group>) {
        match &self.stage.sinks[i] {
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
                em.store_vectors(&group, address, em.buffers[*buffer]);
            }
            Sink::Column { reduction, value, .. } => {
                let ty = self.stage.body.ty(*value);
                let group = self.arg_group(em, at, *value);
                let address = em.address(&self.targets[&i], Some(at.position), &[]);
                let before = em.vectors(vector_type(ty), address, 0);
                let start = em.number(ty, identity_bits(*reduction, ty), true);
                let mask = em.splat(Scalar::Bool, self.first[&i]);
                let mask = em.bitcast(vector_type(ty), mask);
                let before: Group = before.into_iter().map(|b| em.fb.ins().bitselect(mask, start, b)).collect();
                let after: Group =
                    before.into_iter().zip(group).map(|(b, v)| em.combine(*reduction, ty, true, b, v)).collect();
                em.store_vectors(&after, address, 0);
            }
            Sink::Add { value, .. } => {
                let ty = self.stage.body.ty(*value);
                let group = self.arg_group(em, at, *value);
                let address = em.address(&self.targets[&i], Some(at.position), &[]);
                let before = em.vectors(vector_type(ty), address, 0);
                let sum = tracecast_ir::kernel::Reduction::Sum;
                let after: Group =
                    before.into_iter().zip(group).map(|(b, v)| em.combine(sum, ty, true, b, v)).collect();
                em.store_vectors(&after, address, 0);
            }
            Sink::Set { .. } => {
                em.fail("a register set in a row stage", types::I64);
            }
        }
    }

    fn sink_one(&self, em: &mut Emitter<'_>, at: &mut At, i: usize) {
        match &self.stage.sinks[i] {
            Sink::Store { dtype, value, .. } => {
                let address = em.address(&self.targets[&i], Some(at.position), &[]);
                if let Some(bits) = self.bits.get(&i) {
                    em.fb.ins().store(MEMORY, *bits, address, 0);
                } else {
                    let value = self.arg_one(em, at, *value);
                    em.write_one(*dtype, value, address);
                }
            }
            Sink::Reduce { value, .. } => {
                let value = self.arg_one(em, at, *value);
                em.reduce_one(&self.reductions[&i], at.position, value);
            }
            Sink::Keep { value, buffer } => {
                let ty = self.stage.body.ty(*value);
                let value = self.arg_one(em, at, *value);
                let address = self.buffer_address(em, at.position, ty);
                em.park_one(ty, value, address, em.buffers[*buffer]);
            }
            Sink::Column { reduction, value, .. } => {
                let ty = self.stage.body.ty(*value);
                let value = self.arg_one(em, at, *value);
                let address = em.address(&self.targets[&i], Some(at.position), &[]);
                let before = em.fb.ins().load(scalar_type(ty), MEMORY, address, 0);
                let start = em.number(ty, identity_bits(*reduction, ty), false);
                let before = em.fb.ins().select(self.first[&i], start, before);
                let after = em.combine(*reduction, ty, false, before, value);
                em.fb.ins().store(MEMORY, after, address, 0);
            }
            Sink::Add { dtype, index, value, .. } => {
                let base = &self.targets[&i];
                let index: Vec<Value> = base.varying.iter().map(|(n, _)| self.arg_one(em, at, index[*n])).collect();
                let value_ty = self.stage.body.ty(*value);
                let value = self.arg_one(em, at, *value);
                let address = em.address(base, Some(at.position), &index);
                let before = em.read_one(*dtype, address);
                let sum = tracecast_ir::kernel::Reduction::Sum;
                let after = em.combine(sum, value_ty, false, before, value);
                em.write_one(*dtype, after, address);
            }
            Sink::Set { .. } => {
                em.fail("a register set in a row stage", types::I64);
            }
        }
    }

    /// Calls of tile routines for the positions from `low` to `high`.
    fn tiles(&self, em: &mut Emitter<'_>, phase: &Phase, low: Value, high: Value) {
        let count = em.fb.ins().isub(high, low);
        let tiles = em.target.tiles;
        for v in &phase.insts {
            let inst = self.inst(*v);
            let offset = em.waits + self.cut.waits[*v as usize].unwrap_or(0);
            let to = em.fb.ins().iadd_imm_s(em.scratch, i64::from(offset));
            if let ScalarOp::Random { stream } = inst.op {
                let (key, step) = (self.uniforms[&inst.args[0]], self.uniforms[&inst.args[1]]);
                let stream = em.fb.ins().iconst(types::I32, i64::from(stream));
                let element = em.fb.ins().iadd(self.starts[&inst.args[2]], low);
                let address = tiles.random as *const () as usize;
                em.call("random_tile", address, &[to, count, key, step, stream, element], None);
                continue;
            }
            let (name, routine) = match inst.op {
                ScalarOp::Call(f) => (format!("{f:?}_tile").to_lowercase(), Some(tiles.function(f).tile)),
                ScalarOp::Round(dtype) => (format!("round_{dtype}_tile"), tiles.round(dtype)),
                _ => ("f16_to_f32_tile".to_owned(), tiles.widen(DType::F16)),
            };
            let from = match inst.op {
                ScalarOp::Load(_) => em.address(&self.bases[v], Some(low), &[]),
                _ => self.tile_source(em, inst.args[0], low),
            };
            let Some(routine) = routine else {
                em.fail(name, types::I64);
                continue;
            };
            em.call(&name, routine as *const () as usize, &[from, to, count], None);
        }
        for i in &phase.sinks {
            if let Sink::Store { dtype, value, .. } = &self.stage.sinks[*i] {
                let from = self.tile_source(em, *value, low);
                let to = em.address(&self.targets[i], Some(low), &[]);
                match tiles.narrow(*dtype) {
                    Some(routine) => {
                        let address = routine as *const () as usize;
                        em.call(&format!("f32_to_{dtype}_tile"), address, &[from, to, count], None);
                    }
                    None => {
                        em.fail(format!("tiles of {dtype}"), types::I64);
                    }
                }
            }
        }
    }

    /// Where the f32 values of a tile are: in scratch, or where they come from.
    fn tile_source(&self, em: &mut Emitter<'_>, v: Val, low: Value) -> Value {
        match (self.class(v), self.inst(v).op) {
            (Class::Free, ScalarOp::Load(_)) => em.address(&self.bases[&v], Some(low), &[]),
            (Class::Free, ScalarOp::Row(b)) => {
                let address = self.buffer_address(em, low, Scalar::F32);
                em.fb.ins().iadd_imm_s(address, i64::from(em.buffers[b as usize]))
            }
            _ => {
                let offset = em.waits + self.cut.waits[v as usize].unwrap_or(0);
                em.fb.ins().iadd_imm_s(em.scratch, i64::from(offset))
            }
        }
    }
}

/// The dtype that lies in memory as the scalar does in a register.
pub(crate) fn memory_dtype(ty: Scalar) -> DType {
    match ty {
        Scalar::F32 => DType::F32,
        Scalar::F64 => DType::F64,
        Scalar::I32 => DType::I32,
        Scalar::I64 => DType::I64,
        Scalar::Bool => DType::Bool,
    }
}

impl<'a> Emitter<'a> {
    /// A stage that runs once per row, at position 0.
    pub(super) fn once(&mut self, stage: &'a Stage) {
        let body = &stage.body;
        let count = body.insts.len();
        let cut = crate::phase::Phases {
            class: vec![Class::Uniform; count],
            needed: vec![true; count],
            phases: Vec::new(),
            waits: vec![None; count],
            tile: 0,
            bytes: 0,
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
                    self.registers.insert(*register, row.uniforms[value]);
                }
                _ => {
                    self.fail("a reduction once per row", types::I64);
                }
            }
        }
    }

    fn check_one(&mut self, number: u32, holds: Value) {
        let (raise, after) = (self.fb.create_block(), self.fb.create_block());
        self.fb.ins().brif(holds, after, &[] as &[BlockArg], raise, &[] as &[BlockArg]);
        self.raise(number, raise, after);
    }

    fn check_group(&mut self, number: u32, masks: &[Value]) {
        let low = self.fb.ins().band(masks[0], masks[1]);
        let high = self.fb.ins().band(masks[2], masks[3]);
        let all = self.fb.ins().band(low, high);
        let holds = self.fb.ins().vall_true(all);
        self.check_one(number, holds);
    }

    /// The status word keeps the first check that failed, plus 1.
    fn raise(&mut self, number: u32, raise: cranelift::prelude::Block, after: cranelift::prelude::Block) {
        self.fb.set_cold_block(raise);
        self.fb.switch_to_block(raise);
        let before = self.fb.ins().load(types::I32, MEMORY, self.status, 0);
        let this = self.fb.ins().iconst(types::I32, i64::from(number) + 1);
        let word = self.fb.ins().select(before, before, this);
        self.fb.ins().store(MEMORY, word, self.status, 0);
        self.fb.ins().jump(after, &[]);
        self.fb.switch_to_block(after);
    }
}
