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
mod recorder;
mod reductions;
mod share;
mod views;

pub(crate) use casts::{folds, is_exact};
pub(crate) use constants::{converted, splat};
pub(crate) use recorder::{Draft, Recorder, made};
pub(crate) use share::Shared;

use crate::pass::{Pass, error_at, need_decided, swept, without_dead_code};
use tracecast_ir::op::{Body, Intrinsic, Lower, View};
use tracecast_ir::{
    Args, Attrs, Graph, NodeId, OpRef, Promise, Reason, Results, Stage, TraceError, Tracer, Var,
    Verified,
};

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
    Recorder::new(tracer, shared).record(op, args, attrs)
}

/// Records a node of another graph on these operands, simpler if a rule knows how.
pub(crate) fn carried<'t>(
    tracer: &'t Tracer,
    shared: &mut Shared,
    (graph, id): (&Graph, NodeId),
    args: Args<'t>,
) -> Results<'t> {
    Recorder::new(tracer, shared).carry(graph, id, args)
}

impl<'t> Recorder<'_, 't> {
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
}
