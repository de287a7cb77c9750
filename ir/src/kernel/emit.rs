//! Scalar code for one element of a value: loads at leaves, an op's own rule elsewhere, views as
//! index arithmetic.

use super::index::{Index, gathered, seen_through, through};
use super::{Access, Body, Check, Cmp, Guard, Inst, Load, Scalar, ScalarOp, Val};
use crate::graph::{Graph, NodeId, ValueId};
use crate::hash::FxHashMap;
use crate::op::{Body as OpBody, Lower, MapCx, Position};
use crate::ops::source::are_positions;
use crate::ops::view::PAD;
use crate::{DType, Number, Size, Source, TensorType};
use smallvec::{SmallVec, smallvec};
use std::fmt::Display;
use std::hash::Hash;
use std::rc::Rc;

/// Where the code for a value comes from.
pub(super) enum Found {
    /// It lies in memory.
    Leaf,
    /// Its op's rule is applied here.
    Compute,
    /// An instruction that reads it.
    Inst(ScalarOp, Scalar),
    /// It is the element at the kernel's own position, and known as that.
    Here,
}

/// Distinct things in the order in which they came.
pub(super) struct Numbered<T> {
    /// The things.
    pub(super) list: Vec<T>,
    numbers: FxHashMap<T, usize>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Numbered { list: Vec::new(), numbers: FxHashMap::default() }
    }
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    /// The number of a thing, a new one if it was not there.
    pub(super) fn number(&mut self, thing: T) -> usize {
        if let Some(number) = self.numbers.get(&thing) {
            return *number;
        }
        self.numbers.insert(thing.clone(), self.list.len());
        self.list.push(thing);
        self.list.len() - 1
    }
}

/// What a kernel collects while its code is put together.
#[derive(Default)]
pub(super) struct Collected {
    /// The kernel's inputs.
    pub(super) inputs: Numbered<ValueId>,
    /// The kernel's checks.
    pub(super) checks: Vec<Check>,
    /// The kernel's arguments.
    pub(super) arguments: Vec<Number>,
}

/// Puts one body together.
pub(super) struct Emitter<'a> {
    pub(super) graph: &'a Graph,
    /// The number of loop axes.
    pub(super) rank: usize,
    pub(super) body: Body,
    pub(super) loads: &'a mut Numbered<Load>,
    pub(super) collected: &'a mut Collected,
    /// Where a value's code comes from, asked at the index it is needed at.
    pub(super) resolve: &'a dyn Fn(ValueId, &Index) -> Result<Found, String>,
    /// The code there is, under the guards that hold now.
    memo: FxHashMap<(ValueId, Place), Val>,
    /// The indices that values are needed at: few, compared with the values.
    places: Numbered<Rc<Index>>,
    guards: SmallVec<[Guard; 1]>,
}

/// The number of an index among [`Emitter::places`].
type Place = usize;

impl<'a> Emitter<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        rank: usize,
        loads: &'a mut Numbered<Load>,
        collected: &'a mut Collected,
        resolve: &'a dyn Fn(ValueId, &Index) -> Result<Found, String>,
    ) -> Self {
        Emitter {
            graph,
            rank,
            body: Body::default(),
            loads,
            collected,
            resolve,
            memo: FxHashMap::default(),
            places: Numbered::default(),
            guards: SmallVec::new(),
        }
    }

    /// The element of `value` at `index`, in its scalar type; 16-bit floats are rounded already.
    pub(super) fn emit(&mut self, value: ValueId, index: &Index) -> Result<Val, String> {
        let place = self.place(index.clone());
        self.emit_at(value, place)
    }

    fn place(&mut self, index: Index) -> Place {
        self.places.number(Rc::new(index))
    }

    fn index(&self, place: Place) -> Rc<Index> {
        self.places.list[place].clone()
    }

    /// Operands come first, from a list of what is to do: a chain of ops may be longer than the
    /// stack of a thread is deep.
    fn emit_at(&mut self, value: ValueId, place: Place) -> Result<Val, String> {
        let mut todo: Vec<(ValueId, Place)> = vec![(value, place)];
        loop {
            let Some(key) = todo.pop() else { return Err(cannot("a value")) };
            let v = match self.memo.get(&key) {
                Some(v) => *v,
                None => {
                    let found = (self.resolve)(key.0, &self.places.list[key.1])?;
                    let mut missing = match &found {
                        Found::Compute => self.operands_of(key.0.node, key.1),
                        Found::Here => smallvec![(key.0, self.here())],
                        Found::Leaf | Found::Inst(..) => SmallVec::new(),
                    };
                    missing.retain(|operand| !self.memo.contains_key(operand));
                    if !missing.is_empty() {
                        todo.push(key);
                        todo.extend(missing.into_iter().rev());
                        continue;
                    }
                    let v = self.found(found, key.0, key.1)?;
                    self.memo.insert(key, v);
                    v
                }
            };
            if todo.is_empty() {
                return Ok(v);
            }
        }
    }

    fn here(&mut self) -> Place {
        self.place(Index::identity(self.rank, self.rank))
    }

    /// The operands of elementwise ops and views, and where they are needed. Other ops are never
    /// chained in one kernel.
    fn operands_of(&mut self, node: NodeId, place: Place) -> SmallVec<[(ValueId, Place); 2]> {
        let args = self.graph.args(node);
        match super::build::lowering(self.graph, node) {
            Some(Lower::Map(_)) => args.iter().map(|a| (*a, place)).collect(),
            Some(Lower::View(_)) => match through(self.graph, node, &self.index(place)) {
                Some(inner) => smallvec![(args[0], self.place(inner))],
                None => SmallVec::new(),
            },
            _ => SmallVec::new(),
        }
    }

    /// The code for a value whose operands are there.
    fn found(&mut self, found: Found, value: ValueId, place: Place) -> Result<Val, String> {
        match found {
            Found::Leaf => self.load(value, &self.index(place), 0),
            Found::Inst(op, ty) => {
                let v = self.body.push(op, &[], ty);
                Ok(if op == ScalarOp::Acc {
                    self.body.as_dtype(v, self.graph.ty(value).dtype)
                } else {
                    v
                })
            }
            Found::Compute => self.compute(value.node, place),
            Found::Here => {
                let here = (value, self.here());
                self.memo.get(&here).copied().ok_or_else(|| cannot("a value"))
            }
        }
    }

    /// Loads an element of a value in memory.
    fn load(&mut self, value: ValueId, index: &Index, fill: u64) -> Result<Val, String> {
        let ty = self.graph.ty(value);
        let scalar = Scalar::of(ty.dtype)
            .ok_or_else(|| format!("no kernels exist for dtype {}", ty.dtype))?;
        let mut access = Access {
            strides: smallvec![Size::from(0); self.rank],
            guards: self.guards.clone(),
            fill,
            ..Access::default()
        };
        let mut indices: SmallVec<[Val; 1]> = SmallVec::new();
        let mut add = |p: &Position, stride: Size| {
            access.offset += p.offset * stride;
            for (a, s) in access.strides.iter_mut().zip(&p.strides) {
                *a += *s * stride;
            }
            if let Some(i) = p.index {
                access.indirect.push(stride);
                indices.push(i);
            }
        };
        match index {
            Index::Linear(p) => add(p, Size::from(1)),
            Index::Axes(axes) => {
                axes.iter().zip(ty.shape.strides()).for_each(|(p, stride)| add(p, stride))
            }
        }
        let load = Load { input: self.collected.inputs.number(value), dtype: ty.dtype, access };
        let number = self.loads.number(load);
        Ok(self.body.push(ScalarOp::Load(number as u32), &indices, scalar))
    }

    /// Applies the rule of a node.
    fn compute(&mut self, node: NodeId, place: Place) -> Result<Val, String> {
        let def = self.graph.node(node).op.def();
        let (OpBody::Core { kernel, .. } | OpBody::Source(kernel)) = &def.body else {
            return Err(format!("{} is not a core op", def.name));
        };
        let args = self.graph.args(node);
        let index = &*self.index(place);
        match kernel {
            Lower::Map(rule) => {
                let operands = args
                    .iter()
                    .map(|a| self.emit_at(*a, place))
                    .collect::<Result<SmallVec<[Val; 4]>, _>>()?;
                let v = self.apply(node, index, &|cx| rule(cx, &operands));
                Ok(self.rounded(node, v))
            }
            Lower::View(_) => {
                let inner = through(self.graph, node, index).ok_or_else(|| cannot(def.name))?;
                self.emit(args[0], &inner)
            }
            Lower::Gather => self.gather(node, index),
            Lower::Cat => self.cat(node, index),
            Lower::Pad => self.pad(node, index),
            Lower::Windows => self.windows(node, index),
            _ => Err(cannot(def.name)),
        }
    }

    /// Runs an elementwise rule.
    fn apply(&mut self, node: NodeId, index: &Index, rule: &dyn Fn(&mut MapCx<'_>) -> Val) -> Val {
        let n = self.graph.node(node);
        let operands: SmallVec<[DType; 4]> =
            self.graph.args(node).iter().map(|a| self.graph.ty(*a).dtype).collect();
        let (position, number) = match index {
            Index::Axes(axes) => (&axes[..], None),
            Index::Linear(p) => (&[][..], Some(p)),
        };
        let mut cx = MapCx {
            body: &mut self.body,
            attrs: &n.attrs,
            result: &n.results[0],
            operands: &operands,
            origin: (n.part_of.unwrap_or(n.op.name()), n.source.clone()),
            checks: &mut self.collected.checks,
            arguments: &mut self.collected.arguments,
            position,
            number,
        };
        rule(&mut cx)
    }

    /// The result as its dtype holds it. Ops whose record says that they round nowhere give values
    /// of their operands' dtype.
    fn rounded(&mut self, node: NodeId, v: Val) -> Val {
        let n = self.graph.node(node);
        let dtype = n.results[0].dtype;
        if n.op.def().rounding.is_exact(dtype) { v } else { self.body.as_dtype(v, dtype) }
    }

    /// An element of an index operand as an i64 within `0..size`, raising a check outside unless it
    /// is known to lie there.
    pub(super) fn position(&mut self, node: NodeId, (of, raw): (ValueId, Val), size: Size) -> Val {
        match are_positions(self.graph, of, size) {
            true => self.body.convert(raw, Scalar::I64),
            false => self.checked_index(node, raw, size),
        }
    }

    /// An index operand as an i64 within `0..size`, raising a check outside.
    fn checked_index(&mut self, node: NodeId, raw: Val, size: Size) -> Val {
        let wide = self.body.convert(raw, Scalar::I64);
        self.apply(node, &Index::Axes(SmallVec::new()), &|cx| {
            let zero = cx.body.constant(Scalar::I64, 0.0);
            let end = cx.size(size);
            let (low, high) = (cx.body.cmp(Cmp::Le, zero, wide), cx.body.cmp(Cmp::Lt, wide, end));
            let inside = cx.body.binary(ScalarOp::And, low, high);
            let range = Some([Size::from(0), size]);
            let inside = cx.check_within(inside, Some(wide), "index out of range", range);
            cx.body.select(inside, wide, zero)
        })
    }

    fn gather(&mut self, node: NodeId, index: &Index) -> Result<Val, String> {
        let args = self.graph.args(node);
        let Index::Axes(axes) = index else { return Err(cannot("gather")) };
        let x = self.graph.ty(args[0]).clone();
        let axis = x.shape.axis(self.graph.node(node).attrs.int("dim").unwrap_or(0))?;
        let raw = self.emit(args[1], index)?;
        let size = x.shape.get(axis).copied().unwrap_or(Size::from(1));
        if size == 0 {
            return Err("gathers from an axis of size 0".to_owned());
        }
        let at = self.position(node, (args[1], raw), size);
        let strides = smallvec![Size::from(0); self.rank];
        let place = Position { strides, index: Some(at), ..Position::default() };
        self.emit(args[0], &gathered(&x.shape, axis, axes, place))
    }

    fn pad(&mut self, node: NodeId, index: &Index) -> Result<Val, String> {
        let Index::Axes(axes) = index else { return Err(cannot("pad")) };
        let n = self.graph.node(node);
        let x = self.graph.args(node)[0];
        let ty = self.graph.ty(x).clone();
        let (low, value) = (n.attrs.sizes("low"), n.attrs.float("value").unwrap_or(0.0));
        let mut inner = axes.clone();
        let mut conditions = Vec::new();
        for (axis, p) in inner.iter_mut().enumerate() {
            p.offset -= low[axis];
            if n.results[0].shape[axis] != ty.shape[axis] {
                conditions.push((p.clone(), ty.shape[axis]));
            }
        }
        let scalar = Scalar::of(ty.dtype).ok_or_else(|| cannot("pad"))?;
        let fill = self.body.constant(scalar, value);
        let fill = self.body.as_dtype(fill, ty.dtype);
        self.guarded(x, &Index::Axes(inner), &conditions, fill)
    }

    /// The operand where a window reads it, zero outside.
    fn windows(&mut self, node: NodeId, index: &Index) -> Result<Val, String> {
        let x = self.graph.args(node)[0];
        let (inner, bounds) = seen_through(self.graph, node, index)
            .ok_or_else(|| cannot("an element of a window"))?;
        let scalar =
            Scalar::of(self.graph.ty(x).dtype).ok_or_else(|| cannot("an element of a window"))?;
        if bounds.is_empty() {
            return self.emit(x, &inner);
        }
        let (before, from) = (self.guards.len(), self.body.insts.len());
        let guard = |(p, size): &(Position, Size)| Guard {
            offset: p.offset,
            strides: p.strides.clone(),
            extent: *size,
        };
        self.guards.extend(bounds.iter().map(guard));
        let unguarded = std::mem::take(&mut self.memo);
        let v = self.emit(x, &inner);
        self.memo = unguarded;
        self.guards.truncate(before);
        let v = v?;
        // What is not loaded is zero, and stays it where it is widened or rounded.
        let keeps_zero = |inst: &Inst| match inst.op {
            ScalarOp::Load(_) => true,
            // Of what was there before, such as a constant, it is another number.
            ScalarOp::Convert | ScalarOp::Round(_) => inst.args.iter().all(|a| *a as usize >= from),
            _ => false,
        };
        if self.body.insts[from..].iter().all(keeps_zero) && v as usize >= from {
            return Ok(v);
        }
        let mut holds = None;
        for (p, size) in &bounds {
            let inside = self.inside(p, *size);
            holds = Some(holds.map_or(inside, |h| self.body.binary(ScalarOp::And, h, inside)));
        }
        let zero = self.body.constant(scalar, 0.0);
        Ok(holds.map_or(v, |holds| self.body.select(holds, v, zero)))
    }

    /// The last operand that starts at or before the position.
    fn cat(&mut self, node: NodeId, index: &Index) -> Result<Val, String> {
        let Index::Axes(axes) = index else { return Err(cannot("cat")) };
        let ty = self.graph.node(node).results[0].clone();
        let axis = ty.shape.axis(self.graph.node(node).attrs.int("dim").unwrap_or(0))?;
        let scalar = Scalar::of(ty.dtype).ok_or_else(|| cannot("cat"))?;
        let mut result = self.body.constant(scalar, 0.0);
        let mut start = Size::from(0);
        for arg in self.graph.args(node) {
            let size = self.graph.ty(arg).shape[axis];
            if size != 0 {
                let mut inner = axes.clone();
                inner[axis].offset -= start;
                let condition = (inner[axis].clone(), size);
                result = self.guarded(arg, &Index::Axes(inner), &[condition], result)?;
            }
            start += size;
        }
        Ok(result)
    }

    /// The element where every position lies within its size, else `other`.
    fn guarded(
        &mut self,
        value: ValueId,
        index: &Index,
        conditions: &[(Position, Size)],
        other: Val,
    ) -> Result<Val, String> {
        let before = self.guards.len();
        let mut holds = None;
        for (p, size) in conditions {
            if p.index.is_some() {
                return Err(cannot("a padded value"));
            }
            self.guards.push(Guard { offset: p.offset, strides: p.strides.clone(), extent: *size });
            let inside = self.inside(p, *size);
            holds = Some(holds.map_or(inside, |h| self.body.binary(ScalarOp::And, h, inside)));
        }
        // What is loaded under a guard is its own: it may be missing elsewhere.
        let unguarded = std::mem::take(&mut self.memo);
        let v = self.emit(value, index);
        self.memo = unguarded;
        self.guards.truncate(before);
        Ok(match holds {
            Some(c) => self.body.select(c, v?, other),
            None => v?,
        })
    }

    fn inside(&mut self, p: &Position, size: Size) -> Val {
        let ty = TensorType::new(DType::I64, [size]);
        let mut checks = Vec::new();
        let attrs = crate::Attrs::new();
        let mut cx = MapCx {
            body: &mut self.body,
            attrs: &attrs,
            result: &ty,
            operands: &[],
            origin: (PAD.name, Source::Unknown),
            checks: &mut checks,
            arguments: &mut self.collected.arguments,
            position: std::slice::from_ref(p),
            number: None,
        };
        let at = cx.position(0);
        let zero = cx.body.constant(Scalar::I64, 0.0);
        let end = cx.size(size);
        let (low, high) = (cx.body.cmp(Cmp::Le, zero, at), cx.body.cmp(Cmp::Lt, at, end));
        cx.body.binary(ScalarOp::And, low, high)
    }
}

fn cannot(what: impl Display) -> String {
    format!("{what} cannot be computed at this index: its operand has to lie in memory")
}
