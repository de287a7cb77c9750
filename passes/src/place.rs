//! `place`: casts where they cost least: values lie in memory as narrow as their uses allow.
//!
//! In the precision `exact` rounding points move only across ops that hand elements on unchanged, so every bit of every result stays.
//!
//! * *Narrowing moves up.* If every use of a value, through movement (`reshape`, `permute`, `expand`, `slice`, `cat`, `pad`,
//!   `gather`) and selection (`relu`, `neg`, `abs`, `where`), ends in a cast to the same narrower dtype, the value is cast right
//!   where it is made, once, and what lies between works on the narrow one. Rounding to nearest is monotone and odd, which is all
//!   that those selections need. `maximum` and `minimum` are not among them: two numbers of different sign may round to the two
//!   zeros, of which they then take the first.
//! * *Widening moves down*, through the same ops and through `maximum` and `minimum` as well, which find no new zeros among numbers
//!   that are merely widened, and ends in front of the arithmetic that needs it. `fuse` makes it part of a load, as often as needed.
//! * Where some use takes a value as it is, the value stays. Narrow copies stand beside it where that costs no bytes in the kernels
//!   that `fuse` would make, all uses taken together: a minimum cut finds the best way (`copies`).
//! * `round_to` becomes a narrowing, which can be stored, and a widening.
//!
//! No program moves more bytes than before in the kernels that `fuse` makes of it: these are forecast for both, and a program that
//! would lose stays as it was. Where every use of a value ends in the same 16 bits, no other way to place the casts moves fewer,
//! neither there nor with one kernel for each op. With f32 uses beside, kernels become others when casts move: 1 program in 40 could be
//! placed better, and the best ways, among those that widen nothing narrow again, move 0.6 % less (`tests/placement.rs` tries all).
//!
//! In the precision `optimised` values then stay in f32 between ops of one kernel, see `relax`.
//!
//! Before: `%1 = add %0, %0 : f32[4, 8]; %2 = permute %1 {dims = [1, 0]} : f32[8, 4]; %3 = cast %2 {to = bf16}`.
//! After: `%1 = add %0, %0 : f32[4, 8]; %2 = cast %1 {to = bf16}; %3 = permute %2 {dims = [1, 0]} : bf16[8, 4]`.

mod copies;
mod cut;
mod demand;
mod excess;
mod points;
mod precision;
mod relax;
#[cfg(test)]
mod tests;

pub use precision::Precision;

use crate::fuse::{Forecast, Foreseen};
use crate::pass::Pass;
use crate::simplify::{Shared, converted, folds, is_exact, made, rewritten, simply, splat, swept};
use copies::{Takes, copies};
use demand::{Demand, Through, demands};
use points::{Moved, Points};
use smallvec::SmallVec;
use std::collections::HashSet;
use tracecast_ir::hash::FxHashMap;
use tracecast_ir::op::Lower;
use tracecast_ir::ops::{cast, source};
use tracecast_ir::{
    Args, Attrs, DType, Graph, Node, NodeId, OpRef, Promise, Reason, Results, Stage, TraceError,
    Tracer, Var, Verified,
};

/// Moves casts to where the fewest bytes are stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    precision: Precision,
}

impl Place {
    /// The pass under that precision.
    pub fn new(precision: Precision) -> Self {
        Place { precision }
    }

    /// Which results it may change.
    pub fn precision(&self) -> Precision {
        self.precision
    }
}

impl Pass for Place {
    fn name(&self) -> &'static str {
        "place"
    }

    fn promise(&self) -> Promise {
        match self.precision {
            Precision::Exact => Promise::Moves,
            Precision::Optimised => Promise::Drops,
        }
    }

    fn run(&self, graph: &Verified) -> Result<Graph, TraceError> {
        // Before `decompose` there are no kernels to speak of.
        if graph.stage() != Stage::Core {
            return rewritten(graph, |graph| placed_twice(graph, None));
        }
        let before = Foreseen::of(graph);
        let placed = rewritten(graph, |graph| placed_twice(graph, Some(&before)))?;
        if is_same(graph, &placed) {
            return match self.precision {
                Precision::Exact => Ok(placed),
                Precision::Optimised => relax::relaxed(&placed, before.forecast()),
            };
        }
        let (placed, now) = settled(placed)?;
        match (self.precision, now.moved > before.forecast().moved) {
            (Precision::Exact, false) => Ok(placed),
            (Precision::Exact, true) => Ok(Graph::clone(graph)),
            (Precision::Optimised, false) => relax::relaxed(&placed, &now),
            (Precision::Optimised, true) => relax::relaxed(graph, before.forecast()),
        }
    }
}

/// So often kernels are looked at again.
const ROUNDS: usize = 4;

/// Kernels become others when casts move: the program with copies as they are best for those that it has now, and its kernels.
fn settled(mut graph: Graph) -> Result<(Graph, Forecast), TraceError> {
    let mut forecast = Forecast::of(&graph);
    for _ in 0..ROUNDS {
        let demands = demands(&graph);
        let copies = copies(&graph, &demands, || &forecast);
        if !copies.values().any(|takes| takes.copies) {
            break;
        }
        let next = placed_with(&graph, &demands, &copies)?;
        let now = Forecast::of(&next);
        if now.moved > forecast.moved || is_same(&graph, &next) {
            break;
        }
        (graph, forecast) = (next, now);
    }
    Ok((graph, forecast))
}

/// True if both programs have the same ops in the same order.
fn is_same(a: &Graph, b: &Graph) -> bool {
    let same = |id: NodeId| {
        let (x, y) = (a.node(id), b.node(id));
        x.op.name() == y.op.name() && x.attrs == y.attrs && a.args(id) == b.args(id)
    };
    a.len() == b.len() && a.nodes().all(same)
}

/// A value may be rounded from f64 to f32 and from there to 16 bits. The narrower rounding follows the wider one to where that goes.
fn placed_twice(graph: &Graph, kernels: Option<&Foreseen<'_>>) -> Result<Graph, TraceError> {
    let once = placed(graph, kernels)?;
    let rounds = |id: NodeId| -> Option<(DType, DType)> {
        let (node, from) = (once.node(id), once.ty(*once.args(id).first()?).dtype);
        node.attrs.dtype("to").filter(|to| to.is_float() && !from.fits_in(*to)).map(|to| (from, to))
    };
    let roundings: HashSet<_> = once.nodes().filter_map(rounds).collect();
    let follows = |(from, to): &(DType, DType)| {
        roundings.iter().any(|(_, wide)| wide == from && to.bytes() < from.bytes())
    };
    if roundings.iter().any(follows) {
        placed(&once, kernels.map(|_| Foreseen::of(&once)).as_ref())
    } else {
        Ok(once)
    }
}

/// `kernels`: those that `fuse` would make of the program, if they can be foreseen.
fn placed(graph: &Graph, kernels: Option<&Foreseen<'_>>) -> Result<Graph, TraceError> {
    let demands = demands(graph);
    let copies = kernels.map(|kernels| copies(graph, &demands, || kernels.forecast()));
    placed_with(graph, &demands, &copies.unwrap_or_default())
}

/// The program with casts where `demands` and `copies` have them.
fn placed_with(
    graph: &Graph,
    demands: &[Demand],
    copies: &FxHashMap<NodeId, Takes>,
) -> Result<Graph, TraceError> {
    let moved = Moved::of(graph, demands);
    let mut is_root = vec![false; graph.len()];
    graph.roots().for_each(|v| is_root[v.node.index()] = true);
    let mut shared = Shared::default();
    let next = graph.retrace(|tracer, id, node, args| {
        let wanted = graph.args(id).iter().map(|a| graph.ty(*a).dtype).collect();
        let widened = graph.args(id).iter().map(|a| &moved.widened[a.node.index()]).collect();
        let (demand, own) = (demands[id.index()], &moved.widened[id.index()]);
        let mut placer = Placer {
            tracer,
            shared: &mut shared,
            node,
            wanted,
            widened,
            demand,
            demanded: &moved.demanded[id.index()],
            takes: copies.get(&id),
        };
        let root = is_root[id.index()].then_some(own);
        tracer.because(Reason::Rewrite, || placer.node(args, root))
    })?;
    swept(next)
}

/// Places one node. Values may be held narrower than the old graph has them: either their uses round them, or they were only
/// widened from there.
struct Placer<'a, 't> {
    tracer: &'t Tracer,
    shared: &'a mut Shared,
    node: &'a Node,
    /// The operands' dtypes in the old graph.
    wanted: SmallVec<[DType; 4]>,
    /// What the widenings that they may have skipped stand for.
    widened: SmallVec<[&'a Points; 4]>,
    demand: Demand,
    /// What the narrowing that is demanded stands for.
    demanded: &'a Points,
    /// What it takes if it could take narrow copies of values that are wanted as they are.
    takes: Option<&'a Takes>,
}

impl<'t> Placer<'_, 't> {
    /// `root`: what the widenings of a value that is wanted as a result stand for.
    fn node(&mut self, args: Args<'t>, root: Option<&Points>) -> Results<'t> {
        if self.node.results.len() != 1 {
            return self.fixed(&args);
        }
        let dtype = self.node.results[0].dtype;
        let var = match self.node.op.name() {
            "cast" => self.cast(args.vars[0], dtype),
            "round_to" => self.round_to(args.vars[0]),
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
            Some(d) if d.name() == "cast" && d.x().dtype().fits_in(held.dtype()) => d.x(),
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
        simply(self.tracer, self.shared, self.node.op.clone(), args, self.node.attrs.clone())
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

    /// A held value of dtype `wanted` in dtype `to`, converted above so many views.
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
