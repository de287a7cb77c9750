//! Records one node of a program where its casts belong.

use super::copies::Takes;
use super::demand::{Demand, Through};
use super::points::Points;
use crate::simplify::{Shared, carried, converted, folds, is_exact, made, simply, splat};
use smallvec::SmallVec;
use tracecast_ir::op::{Intrinsic, Lower};
use tracecast_ir::ops::{cast, source};
use tracecast_ir::{Args, Attrs, DType, Graph, Node, NodeId, OpRef, Results, Tracer, Var};

/// Places one node. Values may be held narrower than the old graph has them: either their uses
/// round them, or they were only widened from there.
pub(super) struct Placer<'a, 't> {
    pub(super) tracer: &'t Tracer,
    pub(super) shared: &'a mut Shared,
    pub(super) graph: &'a Graph,
    pub(super) id: NodeId,
    pub(super) node: &'a Node,
    /// The operands' dtypes in the old graph.
    pub(super) wanted: SmallVec<[DType; 4]>,
    /// What the widenings that they may have skipped stand for.
    pub(super) widened: SmallVec<[&'a Points; 4]>,
    pub(super) demand: Demand,
    /// What the narrowing that is demanded stands for.
    pub(super) demanded: &'a Points,
    /// What it takes if it could take narrow copies of values that are wanted as they are.
    pub(super) takes: Option<&'a Takes>,
}

impl<'t> Placer<'_, 't> {
    /// `root`: what the widenings of a value that is wanted as a result stand for.
    pub(super) fn node(&mut self, args: Args<'t>, root: Option<&Points>) -> Results<'t> {
        if self.node.results.len() != 1 {
            return self.fixed(&args);
        }
        let dtype = self.node.results[0].dtype;
        let var = match self.node.op.intrinsic() {
            Some(Intrinsic::Cast) => self.cast(args.vars[0], dtype),
            Some(Intrinsic::RoundTo) => self.round_to(args.vars[0]),
            _ => match Through::of(self.node).and_then(|through| self.through(&through, &args)) {
                Some(var) => var,
                None => self.fixed(&args)[0],
            },
        };
        let var = match self.demand {
            Demand::Narrow(to) if to.bytes() < var.dtype().bytes() => {
                self.tracer.standing_for(self.demanded, || self.held_as(var, dtype, to))
            }
            _ => match root {
                Some(points) => {
                    self.tracer.standing_for(points, || self.held_as(var, dtype, dtype))
                }
                None => var,
            },
        };
        SmallVec::from_elem(var, 1)
    }

    /// Records an op; what casts no longer keep apart is simplified.
    fn record(&mut self, op: OpRef, args: Args<'t>, attrs: Attrs) -> Var<'t> {
        simply(self.tracer, self.shared, op, args, attrs)[0]
    }

    /// A held value of dtype `wanted` in dtype `to`.
    fn held_as(&mut self, held: Var<'t>, wanted: DType, to: DType) -> Var<'t> {
        if held.dtype() == to {
            return held;
        }
        if let Some(value) = splat(self.tracer, held) {
            let value = converted(converted(value, held.dtype(), wanted), wanted, to);
            let attrs = Attrs::new()
                .with("dtype", to)
                .with("shape", &held.shape()[..])
                .with("value", value);
            return self.record((&source::CONSTANT).into(), Args::new(), attrs);
        }
        let source = self.source(held);
        if source.dtype() == to && to.fits_in(wanted) {
            return source;
        }
        let from = if folds(source.dtype(), wanted, to) {
            source
        } else if held.dtype() == wanted {
            held
        } else {
            self.record((&cast::CAST).into(), Args::of(&[held]), Attrs::new().with("to", wanted))
        };
        self.record((&cast::CAST).into(), Args::of(&[from]), Attrs::new().with("to", to))
    }

    /// What the value was widened from, or the value.
    fn source(&self, held: Var<'t>) -> Var<'t> {
        match made(self.tracer, held) {
            Some(d)
                if d.op.intrinsic() == Some(Intrinsic::Cast)
                    && d.x().dtype().fits_in(held.dtype()) =>
            {
                d.x()
            }
            _ => held,
        }
    }

    /// The op as it was, on operands as they were.
    fn fixed(&mut self, args: &Args<'t>) -> Results<'t> {
        let wanted = self.wanted.clone();
        let mut vars: SmallVec<[Var<'t>; 4]> = SmallVec::new();
        for (i, (held, dtype)) in args.vars.iter().zip(wanted).enumerate() {
            let points = self.widened[i];
            vars.push(self.tracer.standing_for(points, || self.held_as(*held, dtype, dtype)));
        }
        let args = Args { vars, groups: args.groups.clone() };
        carried(self.tracer, self.shared, (self.graph, self.id), args)
    }

    /// A widening waits for its uses.
    fn cast(&mut self, x: Var<'t>, to: DType) -> Var<'t> {
        let (wanted, source) = (self.wanted[0], self.source(x));
        let from = source.dtype();
        if from.fits_in(to) && from.fits_in(wanted) && folds(from, wanted, to) {
            return source;
        }
        if wanted.fits_in(to) {
            return self.held_as(x, wanted, wanted);
        }
        self.copied(0, x, wanted, to)
    }

    /// An operand that is held, or a narrow copy of what lies in memory.
    fn copied(&mut self, operand: usize, held: Var<'t>, wanted: DType, to: DType) -> Var<'t> {
        match self.takes {
            Some(takes) if takes.copies => self.above(takes.views[operand], held, wanted, to),
            _ => self.held_as(held, wanted, to),
        }
    }

    /// A held value of dtype `wanted` in dtype `to`, converted above a number of views.
    fn above(&mut self, views: usize, held: Var<'t>, wanted: DType, to: DType) -> Var<'t> {
        let view = made(self.tracer, held).filter(|d| {
            views > 0 && held.dtype() == wanted && matches!(d.lowering(), Some(Lower::View(_)))
        });
        match view {
            Some(d) => {
                let x = self.above(views - 1, d.x(), wanted, to);
                self.record(d.op, Args::of(&[x]), d.attrs)
            }
            None => self.held_as(held, wanted, to),
        }
    }

    /// A narrowing, of which the old value is the widening.
    fn round_to(&mut self, x: Var<'t>) -> Var<'t> {
        let (wanted, to) = (self.wanted[0], self.node.attrs.dtype("to").unwrap_or(self.wanted[0]));
        let source = self.source(x);
        if source.dtype().fits_in(to) && source.dtype().fits_in(wanted) {
            source
        } else {
            self.cast(x, to)
        }
    }

    /// The op on narrow operands, if it may have them and should.
    fn through(&mut self, through: &Through, args: &Args<'t>) -> Option<Var<'t>> {
        if let Some(narrow) = self.widened_from(through, args) {
            return Some(self.in_dtype(through, args, narrow));
        }
        let Demand::Narrow(to) = self.demand else { return None };
        let data = &args.vars[through.data.clone()];
        let some_narrow = data.iter().any(|v| self.source(*v).dtype() == to);
        let all_known = data.iter().all(|v| splat(self.tracer, *v).is_some());
        let unless_wanted = || some_narrow || through.is_whole_view;
        let worthwhile = all_known || self.takes.map_or_else(unless_wanted, |takes| takes.copies);
        (through.rounds_either_way && worthwhile).then(|| self.in_dtype(through, args, to))
    }

    /// The dtype that all data operands were widened from, numbers known in advance aside.
    fn widened_from(&self, through: &Through, args: &Args<'t>) -> Option<DType> {
        let mut narrow = None;
        let mut numbers: SmallVec<[(f64, DType); 4]> = SmallVec::new();
        for i in through.data.clone() {
            let (held, wanted) = (args.vars[i], self.wanted[i]);
            if let Some(value) = splat(self.tracer, held) {
                numbers.push((converted(value, held.dtype(), wanted), wanted));
                continue;
            }
            let dtype = self.source(held).dtype();
            let fits = dtype.fits_in(wanted)
                && dtype.bytes() < wanted.bytes()
                && (dtype.is_float() || !through.is_selection);
            if !fits || narrow.is_some_and(|n| n != dtype) {
                return None;
            }
            narrow = Some(dtype);
        }
        let narrow = narrow?;
        if let Some(value) = self.node.attrs.float("value") {
            numbers.push((value, self.wanted[0]));
        }
        numbers.iter().all(|(value, from)| is_exact(*value, *from, narrow)).then_some(narrow)
    }

    /// The op with its data operands in that dtype.
    fn in_dtype(&mut self, through: &Through, args: &Args<'t>, to: DType) -> Var<'t> {
        let wanted = self.wanted.clone();
        let mut vars: SmallVec<[Var<'t>; 4]> = SmallVec::new();
        for (i, held) in args.vars.iter().enumerate() {
            let dtype = if through.data.contains(&i) { to } else { wanted[i] };
            let demanded = dtype != wanted[i] && self.source(*held).dtype() != dtype;
            let points = if demanded { self.demanded } else { self.widened[i] };
            let narrowed =
                self.tracer.standing_for(points, || self.copied(i, *held, wanted[i], dtype));
            vars.push(narrowed);
        }
        let mut attrs = self.node.attrs.clone();
        if let Some(value) = attrs.float("value") {
            attrs.set("value", converted(converted(value, DType::F64, wanted[0]), wanted[0], to));
        }
        let args = Args { vars, groups: args.groups.clone() };
        self.record(self.node.op.clone(), args, attrs)
    }
}
