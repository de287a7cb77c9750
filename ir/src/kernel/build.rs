//! From a group of core nodes, or one node, to a [`Kernel`].
//!
//! A group is a list of nodes with one iteration domain. Members whose shape is the domain are computed at every position, members
//! one axis shorter (or with a last axis of size 1) once per row. Everything else a member needs is either computed again where it
//! is needed ([`Context::inline`]) or loaded.

use super::emit::{Collected, Emitter, Found};
use super::index::Index;
use super::{
    Access, Body, Contract, Factor, Form, Kernel, Load, Nest, Output, Over, Reduction, Scalar,
    ScalarOp, Scatter, Segment, Sink, Stage, Val,
};
use crate::Shape;
use crate::graph::{Graph, NodeId, ValueId};
use crate::op::{Body as OpBody, Lower};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeSet, HashMap};

/// Nodes that become one kernel.
#[derive(Clone, Debug)]
pub struct Group {
    /// In the order of recording.
    pub members: Vec<NodeId>,
    /// The iteration domain: of a contraction its result's shape, of a scatter its source's.
    pub domain: Shape,
}

/// What a group's surroundings say.
pub struct Context<'a> {
    /// The program.
    pub graph: &'a Graph,
    /// Whether a node outside the group is computed again where it is needed.
    pub inline: &'a dyn Fn(NodeId) -> bool,
    /// Whether a member's value is needed outside.
    pub stored: &'a dyn Fn(NodeId) -> bool,
}

/// A kernel and the values it reads and makes.
#[derive(Clone, Debug)]
pub struct Built {
    /// The kernel.
    pub kernel: Kernel,
    /// Its inputs, in order.
    pub inputs: Vec<ValueId>,
    /// Its outputs, in order.
    pub outputs: Vec<ValueId>,
}

/// How a core op takes part in a kernel.
pub fn lowering(graph: &Graph, node: NodeId) -> Option<&Lower> {
    match &graph.node(node).op.def().body {
        OpBody::Core { kernel, .. } | OpBody::Source(kernel) => Some(kernel),
        _ => None,
    }
}

/// The iteration domain of a node on its own.
pub fn domain(graph: &Graph, node: NodeId) -> Shape {
    match lowering(graph, node) {
        Some(Lower::ReduceRow | Lower::ReduceColumn) => graph.ty(graph.args(node)[0]).shape.clone(),
        Some(Lower::Scatter) => graph.ty(graph.args(node)[1]).shape.clone(),
        _ => graph.node(node).results[0].shape.clone(),
    }
}

/// The kernel of one core node whose operands lie in memory.
///
/// # Errors
/// If the node is not a core op that computes something.
pub fn single(graph: &Graph, node: NodeId) -> Result<Built, String> {
    let group = Group { members: vec![node], domain: domain(graph, node) };
    let cx = Context { graph, inline: &|_| false, stored: &|_| true };
    match lowering(graph, node) {
        Some(Lower::Contract | Lower::Scatter | Lower::Port | Lower::Fused) | None => {
            kernel(&cx, &group)
        }
        _ => unconditional(&cx, &group),
    }
}

/// The kernel of a group.
///
/// # Errors
/// If a member needs a value at an index that is not affine in the loops; then that value has to be in a group of its own.
pub fn kernel(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let first = group.members[0];
    let mut built = match lowering(cx.graph, first) {
        Some(Lower::Contract) => contract(cx, group)?,
        Some(Lower::Scatter) => scatter(cx, group)?,
        Some(Lower::Port | Lower::Fused) | None => {
            return Err(format!("{} does not become a kernel", cx.graph.node(first).op.name()));
        }
        _ => return nest(cx, group),
    };
    super::update::mark(cx.graph, &mut built);
    Ok(built)
}

/// A nest; if all it stores are predicated updates of state under one flag, the whole kernel is predicated instead.
fn nest(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let stored: Vec<NodeId> = group.members.iter().copied().filter(|m| (cx.stored)(*m)).collect();
    let updates: Option<Vec<(ValueId, ValueId)>> =
        stored.iter().map(|m| super::update::predicated(cx.graph, value_of(*m))).collect();
    // The flag is read from memory before the kernel runs, so it is to be a port's value or another kernel's.
    let in_memory = |v: ValueId| !(cx.inline)(v.node) && !group.members.contains(&v.node);
    let one_flag = |u: &Vec<(ValueId, ValueId)>| {
        u.first()
            .is_some_and(|first| in_memory(first.0) && u.iter().all(|(found, _)| *found == first.0))
    };
    if let Some(updates) = updates.filter(one_flag) {
        let new = stored.iter().zip(&updates).map(|(m, (_, new))| (*m, *new)).collect();
        let mut built = NestBuilder::new(cx, group).predicated(updates[0].0, new).build()?;
        super::update::mark(cx.graph, &mut built);
        let is_map = matches!(&built.kernel.form, Form::Nest(n) if n.is_map());
        if is_map && built.kernel.outputs.iter().all(|o| o.update.is_some()) {
            return Ok(built);
        }
    }
    unconditional(cx, group)
}

/// A nest that always runs, and reads what its members take.
fn unconditional(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let mut built = NestBuilder::new(cx, group).build()?;
    super::update::mark(cx.graph, &mut built);
    Ok(built)
}

/// A name made of the first few distinct ops.
fn name(cx: &Context<'_>, group: &Group) -> String {
    let mut ops: Vec<&str> = Vec::new();
    for &m in &group.members {
        let op = cx.graph.node(m).op.name();
        if !ops.contains(&op) && ops.len() < 4 {
            ops.push(op);
        }
    }
    ops.join("_")
}

fn finish(
    cx: &Context<'_>,
    group: &Group,
    collected: Collected,
    outputs: Vec<ValueId>,
    form: Form,
) -> Built {
    let kernel = Kernel {
        name: name(cx, group),
        inputs: collected.inputs.iter().map(|v| cx.graph.ty(*v).clone()).collect(),
        outputs: outputs
            .iter()
            .map(|v| Output { ty: cx.graph.ty(*v).clone(), update: None })
            .collect(),
        when: None,
        checks: collected.checks,
        form,
    };
    Built { kernel, inputs: collected.inputs, outputs }
}

fn value_of(node: NodeId) -> ValueId {
    ValueId { node, result: 0 }
}

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

struct NestBuilder<'a> {
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
    fn new(cx: &'a Context<'a>, group: &'a Group) -> Self {
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

    fn predicated(mut self, found: ValueId, new: HashMap<NodeId, ValueId>) -> Self {
        self.when = Some((found, new));
        self
    }

    fn build(mut self) -> Result<Built, String> {
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

/// True for the domain without its last axis, or with that axis of size 1.
pub fn is_row(shape: &Shape, domain: &Shape) -> bool {
    let Some((_, outer)) = domain.split_last() else { return false };
    &shape[..] == outer
        || shape.split_last().is_some_and(|(last, rest)| *last == 1 && rest == outer)
}

/// The index of a member over the loops of its kernel: each axis at its own loop, the last axis of a row value at 0.
pub fn own_index(shape: &Shape, domain: &Shape, rank: usize) -> Index {
    let mut index = Index::identity(shape.rank(), rank);
    if let (Index::Axes(axes), true) = (&mut index, shape != domain && shape.rank() == rank) {
        axes[rank - 1].strides[rank - 1] = 0;
    }
    index
}

/// A contraction with its epilogue.
fn contract(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let graph = cx.graph;
    let (anchor, shape) = (group.members[0], &group.domain);
    let args = graph.args(anchor);
    let rank = shape.rank();
    let (m, n) = (shape[rank - 2], shape[rank - 1]);
    let a_ty = graph.ty(args[0]);
    let k = a_ty.shape[a_ty.shape.rank() - 1];
    let acc =
        Scalar::of(a_ty.dtype).filter(|s| s.is_float()).ok_or("contractions are of floats")?;
    let members: BTreeSet<NodeId> = group.members.iter().copied().collect();
    let mut collected = Collected::default();
    let outside =
        |v: ValueId, _: &Index| Ok(if (cx.inline)(v.node) { Found::Compute } else { Found::Leaf });
    let mut factor = |value: ValueId| -> Result<Factor, String> {
        let mut loads = Vec::new();
        let mut emitter = Emitter::new(graph, rank, &mut loads, &mut collected, &outside);
        let value = emitter.emit(value, &factor_index(&graph.ty(value).shape, shape, rank))?;
        let body = emitter.body;
        Ok(Factor { loads, body, value })
    };
    let (a, b) = (factor(args[0])?, factor(args[1])?);
    let resolve = |v: ValueId, index: &Index| {
        if !members.contains(&v.node) {
            return outside(v, index);
        }
        if !index.is_identity(&graph.ty(v).shape, shape) {
            return Err("an epilogue reads its contraction elsewhere".to_owned());
        }
        Ok(if v.node == anchor { Found::Inst(ScalarOp::Acc, acc) } else { Found::Compute })
    };
    let (mut loads, mut outputs, mut sinks) = (Vec::new(), Vec::new(), Vec::new());
    let mut emitter = Emitter::new(graph, rank, &mut loads, &mut collected, &resolve);
    for &member in group.members.iter().filter(|m| (cx.stored)(**m)) {
        let value = emitter.emit(value_of(member), &Index::identity(rank, rank))?;
        let strides = shape.strides().iter().map(|&s| s as i64).collect();
        let dtype = graph.node(member).results[0].dtype;
        sinks.push(Sink::Store {
            output: outputs.len(),
            dtype,
            access: Access { strides, ..Access::default() },
            value,
        });
        outputs.push(value_of(member));
    }
    let epilogue = Stage { over: Over::Row, body: emitter.body, sinks };
    let form = Contract { batch: shape[..rank - 2].to_vec(), m, n, k, acc, a, b, loads, epilogue };
    Ok(finish(cx, group, collected, outputs, Form::Contract(form)))
}

/// The index of a factor over the loops (batch.., row, column of the factor): leading axes align at the right, size 1 repeats.
fn factor_index(shape: &Shape, result: &Shape, rank: usize) -> Index {
    let Index::Axes(loops) = Index::identity(rank, rank) else {
        unreachable!("identity is by axes")
    };
    let missing = rank - shape.rank();
    let axes = (0..shape.rank()).map(|i| {
        let mut p = loops[i + missing].clone();
        if i + missing + 2 < rank && shape[i] == 1 && result[i + missing] != 1 {
            p.strides[i + missing] = 0;
        }
        p
    });
    Index::Axes(axes.collect())
}

/// A scatter: base, index, source.
fn scatter(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let graph = cx.graph;
    let anchor = group.members[0];
    let args = graph.args(anchor);
    let (base, index, source) = (args[0], args[1], args[2]);
    let out = graph.node(anchor).results[0].clone();
    let rank = group.domain.rank().max(1);
    let extents = if group.domain.rank() == 0 { vec![1] } else { group.domain.to_vec() };
    let mut collected = Collected::default();
    let mut loads = Vec::new();
    let outside =
        |v: ValueId, _: &Index| Ok(if (cx.inline)(v.node) { Found::Compute } else { Found::Leaf });
    let axis = out.shape.axis(graph.node(anchor).attrs.int("dim").unwrap_or(0))?;
    let zeros = is_zeros(graph, base);
    let base = if zeros { None } else { Some(collected.input(base)) };
    let mut emitter = Emitter::new(graph, rank, &mut loads, &mut collected, &outside);
    let here = Index::identity(group.domain.rank(), rank);
    let value = emitter.emit(source, &here)?;
    let raw = emitter.emit(index, &here)?;
    let at = emitter.checked_index(anchor, raw, out.shape.get(axis).copied().unwrap_or(1));
    let body: Body = emitter.body;
    let mut place = Access { strides: smallvec![0; rank], ..Access::default() };
    for (i, stride) in out.shape.strides().iter().enumerate() {
        if i == axis {
            place.indirect.push(*stride as i64);
        } else {
            place.strides[i] = *stride as i64;
        }
    }
    if out.shape.rank() == 0 {
        place.indirect.push(1);
    }
    let form = Scatter { extents, loads, body, value, place, index: smallvec![at], base };
    Ok(finish(cx, group, collected, vec![value_of(anchor)], Form::Scatter(form)))
}

/// True for a constant of zeros.
pub fn is_zeros(graph: &Graph, value: ValueId) -> bool {
    let node = graph.node(value.node);
    node.op.name() == "constant"
        && node
            .attrs
            .float("value")
            .is_some_and(|v| v.to_bits() == 0 || (!node.results[0].dtype.is_float() && v == 0.0))
        || node.op.name() == "expand" && is_zeros(graph, graph.args(value.node)[0])
}
