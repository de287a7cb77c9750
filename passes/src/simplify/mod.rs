//! `simplify`: the same values from fewer ops.
//!
//! Every rule is exact: whatever it removes or replaces, each bit of every result stays, the signs
//! of zeros and infinities included; only the payload of a NaN is nobody's. So there is no rule
//! that reassociates, none that drops a rounding (`f64 -> f32 -> bf16` stays as it is), and casts
//! that the user wrote keep their rounding points.
//!
//! Before: `%1 = cast %0 {to = f32}; %2 = permute %1 {dims = [1, 0]}; %3 = cast %2 {to = bf16}` for
//! a bf16 `%0`. After: `%1 = permute %0 {dims = [1, 0]}`.
//!
//! Each op is looked at when it is recorded again, with operands that are simple already; a rule
//! records simpler ops, which are looked at in turn. Equal ops are recorded once (`share`). Data
//! errors belong to ops whose results the program uses: dead code has none, and no rule lets go of
//! an operand that may raise one (`errors`).

mod arithmetic;
mod casts;
mod constants;
mod errors;
mod logic;
mod reductions;
mod share;
mod views;

pub(crate) use casts::{folds, is_exact};
pub(crate) use constants::{converted, splat};
pub(crate) use share::Shared;

use crate::pass::{Pass, error_at, need_decided, swept, without_dead_code};
use smallvec::SmallVec;
use tracecast_ir::op::{Body, Facts, InferCx, Intrinsic, Lower, View};
use tracecast_ir::ops::cast::CAST;
use tracecast_ir::{
    Args, Attrs, Graph, Must, NodeId, OpDef, OpRef, Promise, Reason, Results, Stage, TensorType,
    TraceError, Tracer, Var, Verified,
};

/// Rules that may fire one inside the other.
const DEPTH: usize = 64;

/// Exact rewrites: casts that cancel, numbers known in advance, views of views, equal values
/// shared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Simplify;

impl Simplify {
    /// The name of the pass.
    pub const NAME: &'static str = "simplify";
}

impl Pass for Simplify {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn promise(&self) -> Promise {
        Promise::Moves
    }

    fn run(&self, graph: &Verified) -> Result<Graph, TraceError> {
        rewritten(graph, simplified)
    }
}

/// Runs an exact rewrite on a graph in explicit form whose gradients have been taken. Kernels stay
/// as they are.
pub(crate) fn rewritten(
    graph: &Verified,
    rewrite: impl Fn(&Graph) -> Result<Graph, TraceError>,
) -> Result<Graph, TraceError> {
    need_decided(graph)?;
    let symbolic = |id: &NodeId| matches!(graph.node(*id).op.def().body, Body::Symbolic(_));
    if let Some(id) = graph.nodes().find(symbolic) {
        let why = "gradients are still to be taken, and they tell apart what is equal in value";
        return Err(error_at(graph.node(id), why));
    }
    match graph.stage() {
        Stage::Fused => Ok(Graph::clone(graph)),
        Stage::Traced => rewrite(&without_dead_code(graph)?),
        _ => rewrite(graph),
    }
}

/// Goes through the graph once, and sweeps up what the rules left behind.
///
/// Once is enough: every op is recorded on operands that are simple already, and no rule asks how
/// often a value is used.
fn simplified(graph: &Graph) -> Result<Graph, TraceError> {
    let mut shared = Shared::default();
    let next = graph.retrace(|tracer, id, _, args| {
        tracer.because(Reason::Rewrite, || carried(tracer, &mut shared, (graph, id), args))
    })?;
    swept(next)
}

/// Records an op, simpler if a rule knows how: for rewrites that move casts out of the way of other
/// rules.
pub(crate) fn simply<'t>(
    tracer: &'t Tracer,
    shared: &mut Shared,
    op: OpRef,
    args: Args<'t>,
    attrs: Attrs,
) -> Results<'t> {
    Recorder { tracer, shared, depth: 0 }.record(op, args, attrs)
}

/// Records a node of another graph on these operands, simpler if a rule knows how.
pub(crate) fn carried<'t>(
    tracer: &'t Tracer,
    shared: &mut Shared,
    (graph, id): (&Graph, NodeId),
    args: Args<'t>,
) -> Results<'t> {
    Recorder { tracer, shared, depth: 0 }.carry(graph, id, args)
}

/// Records ops, simpler if a rule knows how.
pub(crate) struct Recorder<'a, 't> {
    pub(crate) tracer: &'t Tracer,
    shared: &'a mut Shared,
    depth: usize,
}

/// An op about to be recorded, or recorded already.
pub(crate) struct Draft<'t> {
    pub(crate) op: OpRef,
    pub(crate) args: Args<'t>,
    pub(crate) attrs: Attrs,
}

impl<'t> Draft<'t> {
    /// The first operand.
    pub(crate) fn x(&self) -> Var<'t> {
        self.args.vars[0]
    }

    /// The second operand, if there are exactly two.
    pub(crate) fn y(&self) -> Option<Var<'t>> {
        if let [_, y] = self.args.vars[..] { Some(y) } else { None }
    }

    /// The number in place of a second operand.
    pub(crate) fn scalar(&self) -> Option<f64> {
        self.attrs.float("scalar").filter(|_| self.args.vars.len() == 1)
    }

    /// How the op becomes part of a kernel.
    pub(crate) fn lowering(&self) -> Option<&Lower> {
        self.op.def().lowering()
    }

    /// The type of the only result.
    fn result(&self) -> Option<TensorType> {
        let types: SmallVec<[TensorType; 4]> = self.args.vars.iter().map(|v| v.ty()).collect();
        let (groups, attrs) = (&self.args.groups, &self.attrs);
        self.args.vars.first()?.tracer().with_graph(|graph| {
            let must = Must::proven(graph.sizes());
            let cx = InferCx { types: &types, groups, attrs, must: &must };
            (self.op.def().infer)(&cx).ok()?.results.into_iter().next()
        })
    }
}

impl<'t> Recorder<'_, 't> {
    /// Records an op, or what is simpler and equal.
    pub(crate) fn record(&mut self, op: OpRef, args: Args<'t>, attrs: Attrs) -> Results<'t> {
        let draft = Draft { op, args, attrs };
        if let Some(var) = self.found(&draft) {
            return SmallVec::from_elem(var, 1);
        }
        self.shared.record(self.tracer, draft.op, draft.args, draft.attrs)
    }

    /// Records a node of another graph on these operands, or what is simpler and equal.
    pub(crate) fn carry(&mut self, graph: &Graph, id: NodeId, args: Args<'t>) -> Results<'t> {
        let node = graph.node(id);
        let draft = Draft { op: node.op.clone(), args, attrs: node.attrs.clone() };
        match self.found(&draft) {
            Some(var) => SmallVec::from_elem(var, 1),
            None => self.shared.carry(self.tracer, graph, id, draft.args),
        }
    }

    fn found(&mut self, draft: &Draft<'t>) -> Option<Var<'t>> {
        if self.depth == DEPTH || draft.args.vars.iter().any(|v| v.is_poison()) {
            return None;
        }
        self.depth += 1;
        let simpler = self.simpler(draft).filter(|simpler| self.keeps_errors(draft, *simpler));
        self.depth -= 1;
        simpler
    }

    /// What is simpler and equal: by the loops of the op if it moves or reduces, else by what the
    /// language or its facts say of it.
    fn simpler(&mut self, d: &Draft<'t>) -> Option<Var<'t>> {
        let lowering = d.lowering()?;
        if d.args.vars.is_empty() {
            return None;
        }
        if let Some(var) = constants::rule(self, d) {
            return Some(var);
        }
        match lowering {
            Lower::View(View::Identity) => Some(d.x()),
            Lower::View(_) | Lower::Cat | Lower::Pad => views::rule(self, d),
            Lower::ReduceRow | Lower::ReduceColumn => reductions::rule(self, d),
            Lower::Map(_) => self.simpler_map(d),
            // What no rule is about stays as it is, which is always right: an op of other loops
            // needs no line here.
            _ => None,
        }
    }

    fn simpler_map(&mut self, d: &Draft<'t>) -> Option<Var<'t>> {
        match d.op.intrinsic() {
            Some(Intrinsic::Cast) => casts::cast(self, d),
            Some(Intrinsic::RoundTo) => casts::round_to(self, d),
            Some(Intrinsic::Choice) => logic::chosen(self, d),
            Some(Intrinsic::Not) => logic::not(self, d),
            _ if d.op.facts().is_opaque() => None,
            _ => arithmetic::rule(self, d).or_else(|| logic::connected(self, d)),
        }
    }

    /// Records an op of the table whose operands are one value each.
    pub(crate) fn apply(&mut self, op: &'static OpDef, vars: &[Var<'t>], attrs: Attrs) -> Var<'t> {
        self.record(op.into(), Args::of(vars), attrs)[0]
    }

    /// Records an op with a number in place of the second operand.
    pub(crate) fn with_scalar(&mut self, op: &OpRef, x: Var<'t>, number: f64) -> Var<'t> {
        let groups = if op.def().schema.operands.len() > 1 {
            SmallVec::from_slice(&[1, 0])
        } else {
            SmallVec::from_slice(&[1])
        };
        let mut args = Args { vars: SmallVec::from_slice(&[x]), groups };
        let attrs = Attrs::new().with("scalar", number);
        args.vars[0] = self.as_asked(op, &args, &attrs);
        self.record(op.clone(), args, attrs)[0]
    }

    /// The only operand in the dtype that an op asks for. The tracer would record the cast by
    /// itself, each time anew.
    fn as_asked(&mut self, op: &OpRef, args: &Args<'t>, attrs: &Attrs) -> Var<'t> {
        let (x, types) = (args.vars[0], [args.vars[0].ty()]);
        let to = self.tracer.with_graph(|graph| {
            let must = Must::proven(graph.sizes());
            let cx = InferCx { types: &types, groups: &args.groups, attrs, must: &must };
            (op.def().infer)(&cx).ok()?.casts.first().copied().flatten()
        });
        match to.filter(|to| *to != x.dtype()) {
            Some(to) => self.apply(&CAST, &[x], Attrs::new().with("to", to)),
            None => x,
        }
    }

    /// Records the draft's op with other operands.
    pub(crate) fn again(&mut self, d: &Draft<'t>, vars: &[Var<'t>]) -> Var<'t> {
        self.record(d.op.clone(), Args::grouped(vars, &d.args.groups), d.attrs.clone())[0]
    }

    /// How a value was made; `None` for ports, which are no op's result.
    pub(crate) fn made(&self, v: Var<'t>) -> Option<Draft<'t>> {
        made(self.tracer, v)
    }

    /// How a value was made, if by an op that the language knows as that.
    pub(crate) fn made_as(&self, v: Var<'t>, intrinsic: Intrinsic) -> Option<Draft<'t>> {
        self.is_made(v, |facts| facts.intrinsic == Some(intrinsic)).then(|| self.made(v)).flatten()
    }

    /// How a value was made, if by an op with such loops.
    pub(crate) fn made_by(&self, v: Var<'t>, is: impl FnOnce(&Lower) -> bool) -> Option<Draft<'t>> {
        let op = |g: &Graph| g.node(v.id().node).op.def().lowering().is_some_and(is);
        (!v.is_poison() && self.tracer.with_graph(op)).then(|| self.made(v)).flatten()
    }

    /// True for the result of an op of which that is true.
    pub(crate) fn is_made(&self, v: Var<'t>, is: impl FnOnce(&Facts) -> bool) -> bool {
        !v.is_poison() && self.tracer.with_graph(|g| is(g.node(v.id().node).op.facts()))
    }
}

/// How a value was made; `None` for ports, which are no op's result.
pub(crate) fn made<'t>(tracer: &'t Tracer, v: Var<'t>) -> Option<Draft<'t>> {
    if v.is_poison() {
        return None;
    }
    let (op, attrs, groups, ids) = tracer.with_graph(|g| {
        let id = v.id().node;
        let node = g.node(id);
        (node.op.clone(), node.attrs.clone(), node.groups.clone(), g.args(id))
    });
    let vars = ids.into_iter().map(|id| tracer.var(id)).collect();
    let draft = Draft { op, args: Args { vars, groups }, attrs };
    let is_port = matches!(draft.lowering(), Some(Lower::Port));
    (!is_port).then_some(draft)
}
