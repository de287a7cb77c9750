//! Gives the instructions and sinks of a stage to phases: each follows its operands in the first
//! phase of its kind that can have it. What kind an instruction is of, `classify` says; where
//! values wait between phases, `scratch`.

use super::classify::{Classified, classify, is_moved};
use super::{Capability, Class, Kind, Lanes, Phase, Phases, VectorLoops};
use crate::plan::{Plan, Sink, Stage};
use std::collections::BTreeSet;
use tracecast_ir::DType;
use tracecast_ir::kernel::{ScalarOp, Val};

/// Cuts a row stage for a target with such vector loops.
pub(crate) fn cut(plan: &Plan, stage: &Stage, loops: VectorLoops) -> Phases {
    let mut cut = Cut::new(plan, stage, loops);
    cut.move_with_stores();
    cut.prefer_scalar();
    cut.assign();
    cut.finish()
}

/// A stage that is being cut.
pub(super) struct Cut<'a> {
    pub(super) plan: &'a Plan,
    pub(super) stage: &'a Stage,
    can: Capability,
    class: Vec<Class>,
    needed: Vec<bool>,
    /// The loads whose elements are stored unconverted, if the loop is scalar.
    moved: Vec<bool>,
    /// The phase of every instruction that has one.
    pub(super) home: Vec<usize>,
    kinds: Vec<Kind>,
    sink_phase: Vec<usize>,
}

impl<'a> Cut<'a> {
    /// Knows the class of every instruction, and which of them anything needs.
    fn new(plan: &'a Plan, stage: &'a Stage, loops: VectorLoops) -> Self {
        let Classified { class, lanes } = classify(plan, stage, loops);
        let count = stage.body.insts.len();
        let mut cut = Cut {
            plan,
            stage,
            can: Capability { loops, lanes },
            class,
            needed: vec![false; count],
            moved: (0..count).map(|at| is_moved(plan, stage, at)).collect(),
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
                // A tile of random words starts from a number; the positions themselves are not
                // needed.
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

    /// True if vector loops go through elements of a row one by one: those of 256 bits, if the row
    /// has fewer than sixteen elements of 16 bits.
    fn go_singly(&self, dtype: DType) -> bool {
        self.can.loops == VectorLoops::Avx2 && dtype.bytes() == 2 && !self.plan.may_reach(16)
    }

    /// Elements that are only moved are loaded in scalar loops if all their stores are there, or if
    /// vector loops would go through them one by one, and convert them.
    fn move_with_stores(&mut self) {
        let is_moved_singly = |at: usize| match self.stage.body.insts[at].op {
            ScalarOp::Load(l) => self.go_singly(self.plan.loads[l as usize].dtype),
            _ => false,
        };
        let goes = |c: &Self, at: usize| {
            let takes = |sink: &&Sink| sink.values().contains(&(at as Val));
            let mut stores = c.stage.sinks.iter().filter(takes);
            let varies = c.class[at] != Class::Uniform;
            let are_there = stores.all(|sink| c.sink_kind(sink) == Kind::Scalar);
            c.moved[at] && varies && (are_there || is_moved_singly(at))
        };
        let moved: Vec<usize> = (0..self.class.len()).filter(|at| goes(self, *at)).collect();
        moved.into_iter().for_each(|at| self.class[at] = Class::Scalar);
    }

    /// A scalar loop that does a little more is better than two loops with a tile between them,
    /// unless it would widen f16 one by one.
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
        let body = &self.stage.body;
        if self.can.lanes == Lanes::Bits64 {
            return Kind::Vector;
        }
        let class = |v: Val| self.class[v as usize];
        // The value comes last.
        let Some(value) = sink.values().last().copied() else { return Kind::Scalar };
        let dense = match sink {
            Sink::Store { place, .. } => place.row_stride() == 1,
            Sink::Combine { access, index, .. } => {
                let uniform = index.iter().all(|i| class(*i) == Class::Uniform);
                uniform && access.strides.last().is_some_and(|stride| *stride == 1)
            }
            Sink::Reduce { .. } | Sink::Keep { .. } | Sink::Column { .. } | Sink::Set { .. } => {
                true
            }
        };
        let is_one = class(value) == Class::Uniform;
        let singly = matches!(sink, Sink::Store { dtype, .. } if self.go_singly(*dtype));
        if !dense || class(value) == Class::Scalar || is_one && singly {
            return Kind::Scalar;
        }
        match self.can.takes(sink, body.ty(value), is_one) {
            Class::Vector | Class::Free | Class::Uniform => Kind::Vector,
            Class::Tile => Kind::Tile,
            Class::Scalar => Kind::Scalar,
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

    /// Gives every instruction and sink a phase.
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

    /// The phases, with scratch for what waits between them.
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
        let (temporaries, bytes) = self.allot(&crosses, &last_use, tile);
        let stays =
            |(at, moved): (usize, &bool)| *moved && self.class[at] == Class::Scalar && !crosses[at];
        let moved = self.moved.iter().enumerate().map(stays).collect();
        Phases {
            class: self.class,
            needed: self.needed,
            moved,
            phases,
            temporaries,
            tile: i64::from(tile),
            bytes,
            lanes: self.can.lanes,
        }
    }
}
