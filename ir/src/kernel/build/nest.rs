//! Maps and rows: where each member of a group is computed, in stages along the row.

use super::{
    Built, Context, Group, column_sink, finish, is_row, largest, lowering, own_index, reduction,
    value_of,
};
use crate::Size;
use crate::graph::{NodeId, ValueId};
use crate::hash::{FxHashMap, FxHashSet};
use crate::kernel::emit::{Collected, Emitter, Found, Numbered};
use crate::kernel::index::{Index, linear};
use crate::kernel::{
    Access, Form, Load, Nest, Over, Reduction, Scalar, ScalarOp, Segment, Sink, Stage, Val,
};
use crate::op::{Intrinsic, Lower, View};
use smallvec::SmallVec;
use std::collections::HashMap;

/// Where in a nest a member is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// At every position.
    Full,
    /// Once per row.
    Row,
    /// A reduction along the row; its value is there once per row.
    Reduced(Reduction),
    /// A reduction down the columns.
    Column,
    /// The largest of all positions, which no other member reads.
    Largest(ValueId),
    /// At every position, in order: a reshape of another member, which no member reads.
    Flat,
}

/// A node of the group.
struct Member {
    node: NodeId,
    place: Place,
    /// A row value of level `l` is computed before the `l`-th pass along the row, a full value
    /// during it.
    level: usize,
    /// What it reads of the others.
    reads: Vec<usize>,
    /// Where a row value waits for other stages.
    register: Option<usize>,
    /// Where a full value waits for later passes.
    buffer: Option<usize>,
}

/// One way along the row, or what is done once before it.
struct Pass<'a> {
    over: Over,
    level: usize,
    members: &'a [usize],
}

pub(super) struct NestBuilder<'a> {
    cx: &'a Context<'a>,
    group: &'a Group,
    members: Vec<Member>,
    number: FxHashMap<NodeId, usize>,
    extents: Vec<Size>,
    registers: Vec<Scalar>,
    buffers: Vec<Scalar>,
    /// The flag under which nothing is stored, and what each stored member stores otherwise.
    when: Option<(ValueId, HashMap<NodeId, ValueId>)>,
}

impl<'a> NestBuilder<'a> {
    pub(super) fn new(cx: &'a Context<'a>, group: &'a Group) -> Self {
        let extents =
            if group.domain.rank() == 0 { vec![Size::from(1)] } else { group.domain.to_vec() };
        NestBuilder {
            cx,
            group,
            members: Vec::with_capacity(group.members.len()),
            number: group.members.iter().copied().zip(0..).collect(),
            extents,
            registers: Vec::new(),
            buffers: Vec::new(),
            when: None,
        }
    }

    pub(super) fn predicated(mut self, found: ValueId, new: HashMap<NodeId, ValueId>) -> Self {
        self.when = Some((found, new));
        self
    }

    pub(super) fn build(mut self) -> Result<Built, String> {
        self.place_members()?;
        self.assign_storage();
        let mut collected = Collected::default();
        let mut outputs: Vec<ValueId> = Vec::new();
        let mut loads: Numbered<Load> = Numbered::default();
        let mut stages: Vec<Stage> = Vec::new();
        for (level, members) in self.by_level().iter().enumerate() {
            for over in [Over::Once, Over::Row] {
                let stage = Pass { over, level, members };
                let stage = self.stage(&stage, &mut loads, &mut collected, &mut outputs)?;
                if !stage.sinks.is_empty() {
                    stages.push(stage);
                }
            }
        }
        let when = self.when.as_ref().map(|(found, new)| {
            for m in self.group.members.iter().filter(|m| new.contains_key(m)) {
                collected.inputs.number(self.cx.graph.args(*m)[1]);
            }
            collected.inputs.number(*found)
        });
        let nest = Nest {
            segments: vec![Segment {
                extents: self.extents.clone(),
                inputs: (0..collected.inputs.list.len()).collect(),
                outputs: (0..outputs.len()).collect(),
            }],
            loads: loads.list,
            registers: self.registers,
            buffers: self.buffers,
            stages,
        };
        let mut built = finish(self.cx, self.group, collected, outputs, Form::Nest(nest));
        built.kernel.when = when;
        Ok(built)
    }

    /// Place and level of every member.
    fn place_members(&mut self) -> Result<(), String> {
        for &node in &self.group.members {
            let place = self.place_of(node)?;
            let reads = self.reads_of(node);
            let mut level = 0;
            for read in reads.iter().map(|read| &self.members[*read]) {
                let ready = match read.place {
                    Place::Reduced(_) => read.level + 1,
                    Place::Column | Place::Largest(_) => {
                        return Err("a column's result is not there within its kernel".to_owned());
                    }
                    _ => read.level,
                };
                level = level.max(ready);
            }
            self.members.push(Member { node, place, level, reads, register: None, buffer: None });
        }
        Ok(())
    }

    /// The members that a node reads, itself or through inlined nodes.
    fn reads_of(&self, node: NodeId) -> Vec<usize> {
        let mut found = Vec::new();
        let mut todo: SmallVec<[NodeId; 4]> = SmallVec::new();
        let operands = |n: NodeId| self.cx.graph.args(n).into_iter().map(|a| a.node);
        todo.extend(operands(node));
        let mut seen = FxHashSet::default();
        while let Some(n) = todo.pop() {
            if let Some(member) = self.number.get(&n) {
                found.push(*member);
            } else if (self.cx.inline)(n) && seen.insert(n) {
                todo.extend(operands(n));
            }
        }
        found
    }

    /// For each level the members with something to do there; a reduction is stored one level after
    /// it is made.
    fn by_level(&self) -> Vec<Vec<usize>> {
        let last = self.members.iter().map(|m| m.level).max().unwrap_or(0) + 1;
        let mut members = vec![Vec::new(); last + 1];
        for (i, m) in self.members.iter().enumerate() {
            members[m.level].push(i);
            if matches!(m.place, Place::Reduced(_)) {
                members[m.level + 1].push(i);
            }
        }
        members
    }

    fn place_of(&self, node: NodeId) -> Result<Place, String> {
        let n = self.cx.graph.node(node);
        let (shape, domain) = (&n.results[0].shape, &self.group.domain);
        match lowering(self.cx.graph, node) {
            Some(Lower::ReduceRow) => {
                let reduced = Place::Reduced(reduction(self.cx.graph, node)?);
                Ok(self.largest_of(node).map_or(reduced, Place::Largest))
            }
            Some(Lower::ReduceColumn) => Ok(Place::Column),
            Some(Lower::View(View::Reshape)) if shape != domain && self.is_flat(node) => {
                Ok(Place::Flat)
            }
            _ if shape == domain => Ok(Place::Full),
            _ if is_row(shape, domain) => Ok(Place::Row),
            _ => Err(format!(
                "{} of shape {shape} has no place in a kernel over {domain}",
                n.op.name()
            )),
        }
    }

    /// True if a reshape has as many elements as there are positions, and is one of a member.
    fn is_flat(&self, node: NodeId) -> bool {
        let all = self.cx.graph.node(node).results[0].numel() == self.group.domain.numel();
        all && self.number.contains_key(&self.cx.graph.args(node)[0].node)
    }

    /// What a member is the largest of: of as many elements as there are positions, made by members
    /// before it or read beside them.
    fn largest_of(&self, node: NodeId) -> Option<ValueId> {
        let graph = self.cx.graph;
        let found = largest(graph, node).filter(|found| !found.is_stepwise(graph))?;
        let all = graph.ty(found.of).numel() == self.group.domain.numel();
        let begins = self.group.members.first() == Some(&node);
        let read = |m: &NodeId| self.reads_of(*m).contains(&self.number[&node]);
        let apart = all && !begins && self.group.domain.rank() > 0;
        (apart && !self.group.members.iter().any(read)).then_some(found.of)
    }

    /// Registers for row values that other stages read, buffers for full values that later passes
    /// read.
    fn assign_storage(&mut self) {
        for m in 0..self.members.len() {
            for i in 0..self.members[m].reads.len() {
                let read = self.members[m].reads[i];
                let (member, other) = (&self.members[m], &self.members[read]);
                let later = other.level < member.level;
                match other.place {
                    Place::Row if later || member.place != Place::Row => self.need_register(read),
                    Place::Full if later && self.is_worth_keeping(other) => self.need_buffer(read),
                    _ => {}
                }
            }
        }
        for m in 0..self.members.len() {
            if matches!(self.members[m].place, Place::Reduced(_)) {
                self.need_register(m);
            }
        }
    }

    fn need_register(&mut self, member: usize) {
        if self.members[member].register.is_none() {
            self.members[member].register = Some(self.registers.len());
            self.registers.push(self.scalar(self.members[member].node));
        }
    }

    fn need_buffer(&mut self, member: usize) {
        if self.members[member].buffer.is_none() {
            self.members[member].buffer = Some(self.buffers.len());
            self.buffers.push(self.scalar(self.members[member].node));
        }
    }

    /// A cast of something in memory is cheaper to make again than to keep.
    fn is_worth_keeping(&self, member: &Member) -> bool {
        let op = &self.cx.graph.node(member.node).op;
        !(member.reads.is_empty() && op.intrinsic() == Some(Intrinsic::Cast))
    }

    fn scalar(&self, node: NodeId) -> Scalar {
        Scalar::of(self.cx.graph.node(node).results[0].dtype).unwrap_or(Scalar::F32)
    }

    /// Where the code for a value comes from in a stage.
    fn resolve(
        &self,
        over: Over,
        level: usize,
        value: ValueId,
        index: &Index,
    ) -> Result<Found, String> {
        let node = value.node;
        let flattened = matches!(index, Index::Linear(_))
            && self.cx.graph.ty(value).shape == self.group.domain
            && Some(index) == self.in_order().as_ref();
        if flattened {
            return Ok(Found::Here);
        }
        let Some(member) = self.number.get(&node).map(|m| &self.members[*m]) else {
            return Ok(if (self.cx.inline)(node) { Found::Compute } else { Found::Leaf });
        };
        if member.place == Place::Flat {
            return Ok(Found::Compute);
        }
        let shape = &self.cx.graph.node(node).results[0].shape;
        let rank_zero = self.group.domain.rank() == 0 && shape.rank() == 0;
        if !rank_zero && !index.is_identity(shape, &self.extents) {
            return Err(format!(
                "{} is needed at another position than it is made",
                self.cx.graph.node(node).op.name()
            ));
        }
        Ok(match (member.place, over, member.buffer) {
            (Place::Full, Over::Row, Some(b)) if member.level < level => {
                Found::Inst(ScalarOp::Row(b as u32), self.buffers[b])
            }
            (Place::Full, Over::Row, _) => Found::Compute,
            (Place::Row, Over::Once, _) if member.level == level => Found::Compute,
            (Place::Row | Place::Reduced(_), ..) => {
                let register = member.register.ok_or("a row value has no register")?;
                Found::Inst(ScalarOp::Register(register as u32), self.registers[register])
            }
            _ => return Err("a value of the row is needed outside of it".to_owned()),
        })
    }

    /// The positions counted in order.
    fn in_order(&self) -> Option<Index> {
        let rank = self.extents.len();
        linear(&Index::identity(rank, rank), &self.group.domain).map(Index::Linear)
    }

    /// The code and the sinks of one stage.
    fn stage(
        &self,
        pass: &Pass<'_>,
        loads: &mut Numbered<Load>,
        collected: &mut Collected,
        outputs: &mut Vec<ValueId>,
    ) -> Result<Stage, String> {
        let Pass { over, level, members } = *pass;
        let resolve = |v: ValueId, i: &Index| self.resolve(over, level, v, i);
        let mut emitter =
            Emitter::new(self.cx.graph, self.extents.len(), loads, collected, &resolve);
        let mut sinks = Vec::new();
        for &m in members {
            self.sinks_of(&self.members[m], over, level, &mut emitter, &mut sinks, outputs)?;
        }
        Ok(Stage { over, body: emitter.body, sinks })
    }

    fn sinks_of(
        &self,
        member: &Member,
        over: Over,
        level: usize,
        emitter: &mut Emitter<'_>,
        sinks: &mut Vec<Sink>,
        outputs: &mut Vec<ValueId>,
    ) -> Result<(), String> {
        let Member { node: m, place, level: mine, register, buffer, .. } = *member;
        let stored = (self.cx.stored)(m);
        let operand = |emitter: &mut Emitter<'_>| {
            let x = self.cx.graph.args(m)[0];
            let rank = self.cx.graph.ty(x).shape.rank();
            emitter.emit(x, &Index::identity(rank, self.extents.len()))
        };
        match (place, over) {
            (Place::Full, Over::Row) if mine == level => {
                if let Some(buffer) = buffer {
                    let value = self.own(m, emitter)?;
                    sinks.push(Sink::Keep { value, buffer });
                }
                if stored {
                    let value = self.own(m, emitter)?;
                    sinks.push(self.store(m, value, outputs));
                }
            }
            (Place::Row, Over::Once) if mine == level => {
                if let Some(register) = register {
                    let value = self.own(m, emitter)?;
                    sinks.push(Sink::Set { value, register });
                }
                if stored {
                    let value = self.own(m, emitter)?;
                    sinks.push(self.store(m, value, outputs));
                }
            }
            (Place::Reduced(reduction), Over::Row) if mine == level => {
                let value = operand(emitter)?;
                let register = register.ok_or("a reduction has no register")?;
                sinks.push(Sink::Reduce { reduction, value, register });
            }
            (Place::Reduced(_), Over::Once) if mine + 1 == level && stored => {
                let value = self.own(m, emitter)?;
                sinks.push(self.store(m, value, outputs));
            }
            (Place::Largest(of), Over::Row) if mine == level => {
                let in_order = self.in_order().ok_or("positions have no order")?;
                let value = emitter.emit(of, &in_order)?;
                sinks.push(Sink::Largest { value, output: outputs.len() });
                outputs.push(value_of(m));
            }
            (Place::Flat, Over::Row) if mine == level && stored => {
                let in_order = self.in_order().ok_or("positions have no order")?;
                let value = emitter.emit(value_of(m), &in_order)?;
                let strides = self.group.domain.strides();
                let dtype = self.cx.graph.node(m).results[0].dtype;
                let access = Access { strides, ..Access::default() };
                sinks.push(Sink::Store { output: outputs.len(), dtype, access, value });
                outputs.push(value_of(m));
            }
            (Place::Column, Over::Row) if mine == level => {
                let value = operand(emitter)?;
                let into = (value, outputs.len());
                sinks.push(column_sink(self.cx.graph, m, &self.group.domain, into)?);
                outputs.push(value_of(m));
            }
            _ => {}
        }
        Ok(())
    }

    /// A member at its own position.
    fn own(&self, m: NodeId, emitter: &mut Emitter<'_>) -> Result<Val, String> {
        let shape = &self.cx.graph.node(m).results[0].shape;
        let value =
            self.when.as_ref().and_then(|(_, new)| new.get(&m).copied()).unwrap_or(value_of(m));
        emitter.emit(value, &own_index(shape, &self.group.domain, self.extents.len()))
    }

    fn store(&self, m: NodeId, value: Val, outputs: &mut Vec<ValueId>) -> Sink {
        let ty = &self.cx.graph.node(m).results[0];
        let mut strides = ty.shape.strides();
        strides.resize(self.extents.len(), Size::from(0));
        if ty.shape != self.group.domain {
            strides[self.extents.len() - 1] = Size::from(0);
        }
        outputs.push(value_of(m));
        Sink::Store {
            output: outputs.len() - 1,
            dtype: ty.dtype,
            access: Access { strides, ..Access::default() },
            value,
        }
    }
}
