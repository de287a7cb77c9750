//! Maps and rows: where each member of a group is computed, in stages along the row.

use super::{Built, Context, Group, finish, is_row, lowering, own_index, value_of};
use crate::graph::{NodeId, ValueId};
use crate::kernel::emit::{Collected, Emitter, Found};
use crate::kernel::index::Index;
use crate::kernel::{
    Access, Form, Load, Nest, Over, Reduction, Scalar, ScalarOp, Segment, Sink, Stage, Val,
};
use crate::op::Lower;
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeSet, HashMap};

/// The members that a node reads, itself or through inlined nodes.
fn member_reads(cx: &Context<'_>, members: &BTreeSet<NodeId>, node: NodeId) -> Vec<NodeId> {
    let mut found = Vec::new();
    let mut todo: Vec<NodeId> = cx.graph.args(node).iter().map(|a| a.node).collect();
    let mut seen = BTreeSet::new();
    while let Some(n) = todo.pop() {
        if !seen.insert(n) {
            continue;
        }
        if members.contains(&n) {
            found.push(n);
        } else if (cx.inline)(n) {
            todo.extend(cx.graph.args(n).iter().map(|a| a.node));
        }
    }
    found
}

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
    Column(Reduction),
}

pub(super) struct NestBuilder<'a> {
    cx: &'a Context<'a>,
    group: &'a Group,
    members: BTreeSet<NodeId>,
    extents: Vec<usize>,
    place: HashMap<NodeId, Place>,
    level: HashMap<NodeId, usize>,
    register: HashMap<NodeId, usize>,
    buffer: HashMap<NodeId, usize>,
    registers: Vec<Scalar>,
    buffers: Vec<Scalar>,
    /// The flag under which nothing is stored, and what each stored member stores otherwise.
    when: Option<(ValueId, HashMap<NodeId, ValueId>)>,
}

impl<'a> NestBuilder<'a> {
    pub(super) fn new(cx: &'a Context<'a>, group: &'a Group) -> Self {
        let extents = if group.domain.rank() == 0 { vec![1] } else { group.domain.to_vec() };
        NestBuilder {
            cx,
            group,
            members: group.members.iter().copied().collect(),
            extents,
            place: HashMap::new(),
            level: HashMap::new(),
            register: HashMap::new(),
            buffer: HashMap::new(),
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
        let mut loads: Vec<Load> = Vec::new();
        let mut stages: Vec<Stage> = Vec::new();
        let last = self.level.values().max().copied().unwrap_or(0) + 1;
        for level in 0..=last {
            for over in [Over::Once, Over::Row] {
                let stage = self.stage(over, level, &mut loads, &mut collected, &mut outputs)?;
                if !stage.sinks.is_empty() {
                    stages.push(stage);
                }
            }
        }
        let when = self.when.as_ref().map(|(found, new)| {
            for m in self.group.members.iter().filter(|m| new.contains_key(m)) {
                collected.input(self.cx.graph.args(*m)[1]);
            }
            collected.input(*found)
        });
        let nest = Nest {
            segments: vec![Segment {
                extents: self.extents.clone(),
                inputs: (0..collected.inputs.len()).collect(),
                outputs: (0..outputs.len()).collect(),
            }],
            loads,
            registers: self.registers,
            buffers: self.buffers,
            stages,
        };
        let mut built = finish(self.cx, self.group, collected, outputs, Form::Nest(nest));
        built.kernel.when = when;
        Ok(built)
    }

    /// Place and level of every member. A row value of level `l` is computed before the `l`-th pass along the row, a full value during it.
    fn place_members(&mut self) -> Result<(), String> {
        for &m in &self.group.members {
            let place = self.place_of(m)?;
            let mut level = 0;
            for read in member_reads(self.cx, &self.members, m) {
                let ready = match self.place[&read] {
                    Place::Reduced(_) => self.level[&read] + 1,
                    Place::Column(_) => {
                        return Err("a column's result is not there within its kernel".to_owned());
                    }
                    _ => self.level[&read],
                };
                level = level.max(ready);
            }
            self.place.insert(m, place);
            self.level.insert(m, level);
        }
        Ok(())
    }

    fn place_of(&self, node: NodeId) -> Result<Place, String> {
        let n = self.cx.graph.node(node);
        let kind = || match n.attrs.str("kind") {
            Some("max") => Reduction::Max,
            Some("min") => Reduction::Min,
            Some("argmax") => Reduction::ArgMax,
            _ => Reduction::Sum,
        };
        let (shape, domain) = (&n.results[0].shape, &self.group.domain);
        match lowering(self.cx.graph, node) {
            Some(Lower::ReduceRow) => Ok(Place::Reduced(kind())),
            Some(Lower::ReduceColumn) => Ok(Place::Column(kind())),
            _ if shape == domain => Ok(Place::Full),
            _ if is_row(shape, domain) => Ok(Place::Row),
            _ => Err(format!(
                "{} of shape {shape} has no place in a kernel over {domain}",
                n.op.name()
            )),
        }
    }

    /// Registers for row values that other stages read, buffers for full values that later passes read.
    fn assign_storage(&mut self) {
        let reads: Vec<(NodeId, Vec<NodeId>)> = self
            .group
            .members
            .iter()
            .map(|&m| (m, member_reads(self.cx, &self.members, m)))
            .collect();
        for (m, places) in reads {
            for read in places {
                let apart = self.level[&read] < self.level[&m] || self.place[&m] != Place::Row;
                match self.place[&read] {
                    Place::Row if apart => self.need_register(read),
                    Place::Full
                        if self.level[&read] < self.level[&m] && self.is_worth_keeping(read) =>
                    {
                        let ty = self.scalar(read);
                        let next = self.buffers.len();
                        self.buffer.entry(read).or_insert_with(|| {
                            self.buffers.push(ty);
                            next
                        });
                    }
                    _ => {}
                }
            }
        }
        for &m in &self.group.members {
            if matches!(self.place[&m], Place::Reduced(_)) {
                self.need_register(m);
            }
        }
    }

    fn need_register(&mut self, node: NodeId) {
        let ty = self.scalar(node);
        let next = self.registers.len();
        self.register.entry(node).or_insert_with(|| {
            self.registers.push(ty);
            next
        });
    }

    /// A cast of something in memory is cheaper to make again than to keep.
    fn is_worth_keeping(&self, node: NodeId) -> bool {
        let from_memory = member_reads(self.cx, &self.members, node).is_empty();
        !(from_memory && self.cx.graph.node(node).op.name() == "cast")
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
        let Some(place) = self.place.get(&node) else {
            return Ok(if (self.cx.inline)(node) { Found::Compute } else { Found::Leaf });
        };
        let shape = &self.cx.graph.node(node).results[0].shape;
        let rank_zero = self.group.domain.rank() == 0 && shape.rank() == 0;
        if !rank_zero && !index.is_identity(shape, &self.extents) {
            return Err(format!(
                "{} is needed at another position than it is made",
                self.cx.graph.node(node).op.name()
            ));
        }
        let register = |r: &usize| Found::Inst(ScalarOp::Register(*r as u32), self.registers[*r]);
        Ok(match (place, over) {
            (Place::Full, Over::Row)
                if self.level[&node] < level && self.buffer.contains_key(&node) =>
            {
                let b = self.buffer[&node];
                Found::Inst(ScalarOp::Row(b as u32), self.buffers[b])
            }
            (Place::Full, Over::Row) => Found::Compute,
            (Place::Row, Over::Once) if self.level[&node] == level => Found::Compute,
            (Place::Row | Place::Reduced(_), _) => {
                register(self.register.get(&node).ok_or("a row value has no register")?)
            }
            _ => return Err("a value of the row is needed outside of it".to_owned()),
        })
    }

    /// The code and the sinks of one stage.
    fn stage(
        &self,
        over: Over,
        level: usize,
        loads: &mut Vec<Load>,
        collected: &mut Collected,
        outputs: &mut Vec<ValueId>,
    ) -> Result<Stage, String> {
        let resolve = |v: ValueId, i: &Index| self.resolve(over, level, v, i);
        let mut emitter =
            Emitter::new(self.cx.graph, self.extents.len(), loads, collected, &resolve);
        let mut sinks = Vec::new();
        for &m in &self.group.members {
            self.sinks_of(m, over, level, &mut emitter, &mut sinks, outputs)?;
        }
        Ok(Stage { over, body: emitter.body, sinks })
    }

    fn sinks_of(
        &self,
        m: NodeId,
        over: Over,
        level: usize,
        emitter: &mut Emitter<'_>,
        sinks: &mut Vec<Sink>,
        outputs: &mut Vec<ValueId>,
    ) -> Result<(), String> {
        let stored = (self.cx.stored)(m);
        let mine = self.level[&m];
        let operand = |emitter: &mut Emitter<'_>| {
            let x = self.cx.graph.args(m)[0];
            let rank = self.cx.graph.ty(x).shape.rank();
            emitter.emit(x, &Index::identity(rank, self.extents.len()))
        };
        match (self.place[&m], over) {
            (Place::Full, Over::Row) if mine == level => {
                if let Some(&buffer) = self.buffer.get(&m) {
                    let value = self.own(m, emitter)?;
                    sinks.push(Sink::Keep { value, buffer });
                }
                if stored {
                    let value = self.own(m, emitter)?;
                    sinks.push(self.store(m, value, outputs));
                }
            }
            (Place::Row, Over::Once) if mine == level => {
                if let Some(&register) = self.register.get(&m) {
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
                sinks.push(Sink::Reduce { reduction, value, register: self.register[&m] });
            }
            (Place::Reduced(_), Over::Once) if mine + 1 == level && stored => {
                let value = self.own(m, emitter)?;
                sinks.push(self.store(m, value, outputs));
            }
            (Place::Column(reduction), Over::Row) if mine == level => {
                let value = operand(emitter)?;
                let axes = self.group.domain.axes(self.cx.graph.node(m).attrs.ints("dim"))?;
                let kept = (0..self.extents.len()).map(|a| !axes.contains(&a)).collect();
                let dtype = self.cx.graph.node(m).results[0].dtype;
                sinks.push(Sink::Column { reduction, value, output: outputs.len(), dtype, kept });
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
        let mut strides: SmallVec<[i64; 4]> = smallvec![0; self.extents.len()];
        for (s, stride) in strides.iter_mut().zip(ty.shape.strides()) {
            *s = stride as i64;
        }
        if ty.shape != self.group.domain {
            strides[self.extents.len() - 1] = 0;
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
