//! How the code of a row stage is cut into phases: vector loops, scalar loops, and calls of tile routines.
//!
//! ```text
//! t0 = load x; t1 = mul t0, c; t2 = exp t1; t3 = add t2, 1; store t3
//!   vector: t0 t1        ->  t1 goes to scratch
//!   tile:   t2 = exp(t1)     scratch to scratch
//!   vector: t3, store
//! ```
//!
//! Values that are the same along the row belong to no phase: they are computed once per row. Loads that are cheap to repeat are
//! emitted in every phase that needs them. With a single phase there are no tiles and no scratch.

use crate::doubles;
use crate::form::is_half;
use crate::plan::{Place, Plan, Sink, Source, Stage};
use crate::schedule::uniform;
use std::collections::BTreeSet;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Function, Inst, Reduction, Scalar, ScalarOp, Val};

/// How a value is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Once per row.
    Uniform,
    /// Wherever it is needed, by a vector or scalar loop, or read in place by a tile routine.
    Free,
    /// In a vector loop.
    Vector,
    /// In a scalar loop.
    Scalar,
    /// By a tile routine.
    Tile,
}

/// The code of one pass over a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Groups of 16 positions, then single ones.
    Vector,
    /// Single positions.
    Scalar,
    /// Calls of tile routines.
    Tile,
}

/// One pass over a tile.
#[derive(Debug)]
pub(crate) struct Phase {
    /// How it runs.
    pub(crate) kind: Kind,
    /// Its instructions in order.
    pub(crate) insts: Vec<Val>,
    /// The stage's sinks it feeds.
    pub(crate) sinks: Vec<usize>,
}

/// A stage, cut.
#[derive(Debug)]
pub(crate) struct Phases {
    /// Of every instruction.
    pub(crate) class: Vec<Class>,
    /// True for the instructions that anything needs.
    pub(crate) needed: Vec<bool>,
    /// In order.
    pub(crate) phases: Vec<Phase>,
    /// Where in the scratch a value waits between phases.
    pub(crate) waits: Vec<Option<i32>>,
    /// Positions of a tile.
    pub(crate) tile: i64,
    /// The scratch it needs.
    pub(crate) bytes: i32,
    /// Vectors have lanes of 64 bits.
    pub(crate) doubles: bool,
}

/// The bytes of a value in scratch. Truth values wait as masks of 32 bits.
pub(crate) fn scratch_bytes(ty: Scalar) -> i32 {
    match ty {
        Scalar::F64 | Scalar::I64 => 8,
        Scalar::F32 | Scalar::I32 | Scalar::Bool => 4,
    }
}

/// True for the types that vector loops compute in.
pub(crate) fn is_vector(ty: Scalar) -> bool {
    matches!(ty, Scalar::F32 | Scalar::I32 | Scalar::Bool)
}

/// What vector loops have instructions for, besides what they always have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Has {
    /// Rounding to integral floats.
    pub(crate) floor: bool,
    /// Everything the wide loops can do: 16-bit floats and most functions.
    pub(crate) wide: bool,
    /// Lanes of 64 bits.
    pub(crate) doubles: bool,
}

/// Cuts a row stage.
pub(crate) fn cut(plan: &Plan, stage: &Stage, has: Has) -> Phases {
    let mut cut = Cut::new(plan, stage, has);
    cut.prefer_scalar();
    cut.assign();
    cut.finish()
}

struct Cut<'a> {
    plan: &'a Plan,
    stage: &'a Stage,
    wide: bool,
    doubles: bool,
    class: Vec<Class>,
    needed: Vec<bool>,
    home: Vec<usize>,
    kinds: Vec<Kind>,
    sink_phase: Vec<usize>,
}

impl<'a> Cut<'a> {
    fn new(plan: &'a Plan, stage: &'a Stage, has: Has) -> Self {
        let body = &stage.body;
        let row = plan.row_axis();
        let still = uniform(body, &plan.loads, |i| plan.positions[i as usize].strides[row] == 0);
        let kept: Vec<usize> = stage
            .sinks
            .iter()
            .filter_map(|s| if let Sink::Keep { buffer, .. } = s { Some(*buffer) } else { None })
            .collect();
        let doubles = has.doubles && doubles::fits(plan, stage, &still);
        let classify = |(at, inst): (usize, &Inst)| {
            if still[at] {
                return Class::Uniform;
            }
            if doubles {
                return doubles::class(plan, inst);
            }
            match inst.op {
                ScalarOp::Load(l) => {
                    load_class(plan, &plan.loads[l as usize], inst, &still, has.wide)
                }
                ScalarOp::Index(_) => Class::Free,
                ScalarOp::Row(b) if is_vector(inst.ty) => {
                    if kept.contains(&(b as usize)) {
                        Class::Vector
                    } else {
                        Class::Free
                    }
                }
                ScalarOp::Floor if !has.floor => Class::Scalar,
                _ => {
                    let types = inst.args.iter().all(|a| is_vector(body.ty(*a)));
                    computed_class(plan, inst, (types, has.wide), |v: Val| {
                        (&body.insts[v as usize], still[v as usize])
                    })
                }
            }
        };
        let class = body.insts.iter().enumerate().map(classify).collect();
        let count = body.insts.len();
        let mut cut = Cut {
            plan,
            stage,
            wide: has.wide,
            doubles,
            class,
            needed: vec![false; count],
            home: vec![usize::MAX; count],
            kinds: Vec::new(),
            sink_phase: Vec::new(),
        };
        cut.mark_needed();
        cut
    }

    fn mark_needed(&mut self) {
        let body = &self.stage.body;
        for sink in &self.stage.sinks {
            for v in sink.values() {
                self.needed[v as usize] = true;
            }
        }
        for at in (0..body.insts.len()).rev() {
            let inst = &body.insts[at];
            self.needed[at] |= matches!(inst.op, ScalarOp::Check(_));
            if !self.needed[at] {
                continue;
            }
            for (i, a) in inst.args.iter().enumerate() {
                // A tile of random words starts from a number; the positions themselves are not needed.
                let counted = self.class[at] == Class::Tile
                    && matches!(inst.op, ScalarOp::Random { .. })
                    && i == 2;
                if !counted {
                    self.needed[*a as usize] = true;
                }
            }
        }
    }

    fn kind(&self, at: usize) -> Option<Kind> {
        match self.class[at] {
            Class::Uniform | Class::Free => None,
            Class::Vector => Some(Kind::Vector),
            Class::Scalar => Some(Kind::Scalar),
            Class::Tile => Some(Kind::Tile),
        }
    }

    /// A scalar loop that does a little more is better than two loops with a tile between them, unless it would widen f16 one by one.
    fn prefer_scalar(&mut self) {
        let widens = |i: usize| match self.stage.body.insts[i].op {
            ScalarOp::Load(l) => self.plan.loads[l as usize].dtype == DType::F16,
            _ => false,
        };
        if (0..self.class.len()).any(|i| self.class[i] == Class::Vector && widens(i)) {
            return;
        }
        let of = |c: &Self, class| {
            (0..c.class.len()).filter(|i| c.needed[*i] && c.class[*i] == class).count()
        };
        let scalar_sinks = self.stage.sinks.iter().any(|s| self.sink_kind(s) == Kind::Scalar);
        if (of(self, Class::Scalar) > 0 || scalar_sinks)
            && of(self, Class::Tile) == 0
            && of(self, Class::Vector) <= 2
        {
            for class in &mut self.class {
                if *class == Class::Vector {
                    *class = Class::Scalar;
                }
            }
        }
    }

    fn sink_kind(&self, sink: &Sink) -> Kind {
        if self.doubles {
            return Kind::Vector;
        }
        let class = |v: Val| self.class[v as usize];
        let ty = |v: Val| self.stage.body.ty(v);
        let vector_if = |v: Val, ok: bool| {
            if ok && class(v) != Class::Scalar { Kind::Vector } else { Kind::Scalar }
        };
        match sink {
            Sink::Store { dtype, place, value, .. } => {
                if place.row_stride() != 1 || Scalar::of(*dtype) != Some(ty(*value)) {
                    Kind::Scalar
                } else if class(*value) == Class::Uniform {
                    Kind::Vector
                } else if *dtype == DType::F16 && !self.wide {
                    if class(*value) == Class::Scalar { Kind::Scalar } else { Kind::Tile }
                } else {
                    vector_if(*value, is_vector(ty(*value)))
                }
            }
            Sink::Reduce { reduction: Reduction::ArgMax, .. } => Kind::Scalar,
            Sink::Reduce { value, .. } | Sink::Column { value, .. } => {
                vector_if(*value, matches!(ty(*value), Scalar::F32 | Scalar::I32))
            }
            Sink::Keep { value, .. } => vector_if(*value, is_vector(ty(*value))),
            Sink::Add { access, index, value, dtype, .. } => {
                let still = index.iter().all(|i| class(*i) == Class::Uniform);
                let dense = access.strides.last() == Some(&1)
                    && matches!(dtype, DType::F32 | DType::I32)
                    && Scalar::of(*dtype) == Some(ty(*value));
                vector_if(*value, still && dense)
            }
            Sink::Set { .. } => Kind::Scalar,
        }
    }

    /// The first phase where something of that kind can follow its operand.
    fn earliest(&self, operand: Val, kind: Kind) -> usize {
        match self.home[operand as usize] {
            usize::MAX => 0,
            home => home + usize::from(self.kinds[home] != kind),
        }
    }

    fn place(&mut self, from: usize, kind: Kind) -> usize {
        if let Some(found) = (from..self.kinds.len()).find(|p| self.kinds[*p] == kind) {
            return found;
        }
        self.kinds.push(kind);
        self.kinds.len() - 1
    }

    fn assign(&mut self) {
        let body = &self.stage.body;
        for at in 0..body.insts.len() {
            let Some(kind) = self.kind(at).filter(|_| self.needed[at]) else { continue };
            let from =
                body.insts[at].args.iter().map(|a| self.earliest(*a, kind)).max().unwrap_or(0);
            self.home[at] = self.place(from, kind);
        }
        for sink in &self.stage.sinks {
            let kind = self.sink_kind(sink);
            let mut from = sink.values().iter().map(|v| self.earliest(*v, kind)).max().unwrap_or(0);
            if let Sink::Store { after, .. } = sink {
                for (at, inst) in body.insts.iter().enumerate() {
                    if matches!(inst.op, ScalarOp::Load(l) if after.contains(&l)) {
                        from = from.max(self.earliest(at as Val, kind));
                    }
                }
            }
            let phase = self.place(from, kind);
            self.sink_phase.push(phase);
        }
    }

    fn finish(self) -> Phases {
        let body = &self.stage.body;
        let mut phases: Vec<Phase> = self
            .kinds
            .iter()
            .map(|k| Phase { kind: *k, insts: Vec::new(), sinks: Vec::new() })
            .collect();
        let mut last_use = vec![0; body.insts.len()];
        let mut crosses = vec![false; body.insts.len()];
        let mut insts: Vec<BTreeSet<Val>> = vec![BTreeSet::new(); phases.len()];
        let mut uses: Vec<(Val, usize)> = Vec::new();
        for (at, inst) in
            body.insts.iter().enumerate().filter(|(at, _)| self.home[*at] != usize::MAX)
        {
            insts[self.home[at]].insert(at as Val);
            uses.extend(inst.args.iter().map(|a| (*a, self.home[at])));
        }
        for (i, sink) in self.stage.sinks.iter().enumerate() {
            phases[self.sink_phase[i]].sinks.push(i);
            uses.extend(sink.values().iter().map(|v| (*v, self.sink_phase[i])));
        }
        for (v, phase) in uses {
            let at = v as usize;
            match self.class[at] {
                Class::Uniform => {}
                Class::Free if self.kinds[phase] == Kind::Tile => {}
                Class::Free => {
                    insts[phase].insert(v);
                }
                class => {
                    last_use[at] = last_use[at].max(phase);
                    crosses[at] |= self.home[at] != phase || class == Class::Tile;
                }
            }
        }
        for (phase, insts) in phases.iter_mut().zip(insts) {
            phase.insts = insts.into_iter().collect();
        }
        for at in 0..crosses.len() {
            // What a tile routine makes always goes to scratch, if only to be dropped.
            if self.class[at] == Class::Tile && self.needed[at] {
                crosses[at] = true;
                last_use[at] = last_use[at].max(self.home[at]);
            }
        }
        let tile = if self.has_half_tiles() { 256 } else { 128 };
        let (waits, bytes) = self.allot(&crosses, &last_use, tile);
        Phases {
            class: self.class,
            needed: self.needed,
            phases,
            waits,
            tile: i64::from(tile),
            bytes,
            doubles: self.doubles,
        }
    }

    fn has_half_tiles(&self) -> bool {
        let store = |s: &Sink| matches!(s, Sink::Store { dtype, .. } if is_half(*dtype));
        self.plan.loads.iter().any(|l| is_half(l.dtype)) || self.stage.sinks.iter().any(store)
    }

    /// Gives every waiting value a piece of scratch, again free once the value has been used last.
    fn allot(&self, crosses: &[bool], last_use: &[usize], tile: i32) -> (Vec<Option<i32>>, i32) {
        let mut waits = vec![None; crosses.len()];
        let mut pieces: Vec<(i32, i32, usize)> = Vec::new();
        let mut bytes = 0;
        let mut order: Vec<usize> = (0..crosses.len()).filter(|i| crosses[*i]).collect();
        order.sort_by_key(|i| self.home[*i]);
        for at in order {
            let size = scratch_bytes(self.stage.body.insts[at].ty) * tile;
            let free = pieces.iter_mut().find(|(_, s, until)| *s == size && *until < self.home[at]);
            let offset = match free {
                Some(piece) => {
                    piece.2 = last_use[at];
                    piece.0
                }
                None => {
                    pieces.push((bytes, size, last_use[at]));
                    bytes += size;
                    bytes - size
                }
            };
            waits[at] = Some(offset);
        }
        (waits, bytes)
    }
}

/// The class of a load. Wide loops read on when a guard of the row fails, and so need as many elements as the row has.
fn load_class(plan: &Plan, source: &Source, inst: &Inst, still: &[bool], wide: bool) -> Class {
    let dense = source.place.row_stride() == 1
        && inst.args.iter().all(|a| still[*a as usize])
        && match &source.place {
            Place::At(access) => {
                access.guards.iter().all(|g| g.strides.last().copied().unwrap_or(0) == 0)
            }
            Place::Stream | Place::Brought(_) => true,
        };
    let guarded = matches!(&source.place, Place::At(a) if !a.guards.is_empty());
    match source.dtype {
        _ if !dense || wide && guarded && source.elements < plan.row() => Class::Scalar,
        DType::F16 if wide => Class::Vector,
        DType::F32 | DType::I32 if source.fixed && !guarded => Class::Free,
        DType::F32 | DType::I32 | DType::BF16 | DType::U8 | DType::Bool => Class::Vector,
        DType::F16 if !guarded => Class::Tile,
        _ => Class::Scalar,
    }
}

/// The class of an instruction that computes with varying operands; `types` says that all of them are vector types.
fn computed_class<'a>(
    plan: &Plan,
    inst: &Inst,
    (types, wide): (bool, bool),
    of: impl Fn(Val) -> (&'a Inst, bool),
) -> Class {
    if let ScalarOp::Random { .. } = inst.op {
        let still = |i: usize| of(inst.args[i]).1;
        let one_by_one = match of(inst.args[2]).0.op {
            ScalarOp::Index(p) => plan.positions[p as usize].strides.last() == Some(&1),
            _ => false,
        };
        return if one_by_one && still(0) && still(1) { Class::Tile } else { Class::Scalar };
    }
    if !types || !is_vector(inst.ty) {
        return Class::Scalar;
    }
    match inst.op {
        ScalarOp::Call(Function::Sin | Function::Cos) => Class::Tile,
        ScalarOp::Call(_) | ScalarOp::Round(DType::F16) if !wide => Class::Tile,
        ScalarOp::Check(_) if wide || inst.args.len() > 1 => Class::Scalar,
        ScalarOp::Div if inst.ty != Scalar::F32 => Class::Scalar,
        ScalarOp::Rem | ScalarOp::Load(_) | ScalarOp::Row(_) => Class::Scalar,
        _ => Class::Vector,
    }
}
