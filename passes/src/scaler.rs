//! Decides where gradients are unscaled and checked: in one sweep of their own, or in the kernels
//! around them.
//!
//! ```text
//! before:                      %5 = unscale %dw, %inv : f32[8, 2]
//!                              %6 = nonfinite %dw : f32[]
//! folded (the default):        the same
//! not folded:                  %5, %6 = unscale_check %dw, %inv : f32[8, 2], f32[]
//! ```
//!
//! Folded, an `unscale_check` becomes the pair, so that fusion can put the check into the kernel
//! that has the gradient in hand and the multiplication into the loads of those that read it: no
//! unscaled gradient is ever stored. Not folded, the pair becomes one op and the gradient is swept
//! once more, as eager PyTorch does. Both check the stored, still scaled gradient and multiply it
//! by the same number, so no bit of any result depends on the choice. An unscaled gradient that is
//! itself a result, or the new value of a state, has to be stored anyway: then one sweep is the
//! best there is, and it is taken in both.
//!
//! Steps are predicated already: the recorded scaler and optimizers choose between the old and the
//! new state by the check's answer.
//!
//! First it refuses programs that scale, unscale or step as no loss scaler means: see
//! `invariants.rs`.

use crate::pass::{Pass, Renamed, need_decided, swept};
use std::collections::HashMap;
use tracecast_ir::op::Intrinsic;
use tracecast_ir::ops::amp::{NONFINITE, UNSCALE, UNSCALE_CHECK};
use tracecast_ir::{Args, Attrs, Graph, NodeId, Stage, TraceError, ValueId, Verified};

/// Pairs unscaling and checking, or separates them.
#[derive(Clone, Copy, Debug)]
pub struct Scaler {
    /// True to leave unscaling and checking to the kernels around.
    pub fold: bool,
}

impl Default for Scaler {
    fn default() -> Self {
        Scaler { fold: true }
    }
}

impl Scaler {
    /// The name of the pass.
    pub const NAME: &'static str = "scaler";
}

impl Pass for Scaler {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn ensures(&self, before: Stage) -> Stage {
        before.max(Stage::Cast)
    }

    fn run(&self, graph: &Verified) -> Result<Graph, TraceError> {
        need_decided(graph)?;
        crate::invariants::check(graph)?;
        if !self.fold {
            return pair(graph, &|_| true);
        }
        let separated = separate(graph)?;
        let is_result = |of: NodeId| is_result(&separated, of);
        if pairs_of(&separated).iter().any(|p| is_result(p.unscale)) {
            return pair(&separated, &is_result);
        }
        Ok(separated)
    }
}

/// True if what a node computes first is an output or the new value of a state.
fn is_result(graph: &Graph, node: NodeId) -> bool {
    graph.roots().any(|value| value == ValueId { node, result: 0 })
}

/// Every `unscale_check` becomes `unscale` and `nonfinite`, unless the product is a result.
fn separate(graph: &Graph) -> Result<Graph, TraceError> {
    let separated = graph.retrace(|t, id, node, args| {
        if node.op.intrinsic() != Some(Intrinsic::UnscaleCheck) || is_result(graph, id) {
            return t.carry(graph, id, args);
        }
        let mut results = t.apply(&UNSCALE, Args::of(&args.vars[..2]), Attrs::new());
        results.extend(t.apply(&NONFINITE, Args::of(&args.vars[..1]), Attrs::new()));
        results
    })?;
    swept(separated)
}

/// One gradient's `unscale` and `nonfinite`.
#[derive(Clone, Copy)]
struct Pair {
    unscale: NodeId,
    check: NodeId,
    gradient: ValueId,
    inverse: ValueId,
}

/// Every gradient's first `unscale`, if it is to be, and first `nonfinite` become one
/// `unscale_check`, where the earlier of them stood.
fn pair(graph: &Graph, to_be: &dyn Fn(NodeId) -> bool) -> Result<Graph, TraceError> {
    let mut pairs = HashMap::new();
    for p in pairs_of(graph).into_iter().filter(|p| to_be(p.unscale)) {
        pairs.insert(p.unscale, p);
        pairs.insert(p.check, p);
    }
    let mut renamed = Renamed::default();
    let mut made: HashMap<NodeId, [ValueId; 2]> = HashMap::new();
    graph.retrace(|t, id, _, args| {
        let pair = pairs.get(&id).and_then(|p| {
            let both = [renamed.get(t, graph, p.gradient)?, renamed.get(t, graph, p.inverse)?];
            let ids = made.entry(p.unscale).or_insert_with(|| {
                let results = t.apply(&UNSCALE_CHECK, Args::of(&both), Attrs::new());
                [results[0].id(), results[1].id()]
            });
            Some(if id == p.unscale { ids[0] } else { ids[1] })
        });
        let results = match pair {
            Some(value) if t.error().is_none() => [t.var(value)].into_iter().collect(),
            _ => t.carry(graph, id, args),
        };
        renamed.note(id, &results);
        results
    })
}

/// The pairs whose reciprocal is recorded before either of them.
fn pairs_of(graph: &Graph) -> Vec<Pair> {
    let live = graph.live();
    let nodes = || graph.nodes().filter(|id| live[id.index()]);
    let mut checks: HashMap<ValueId, NodeId> = HashMap::new();
    for id in nodes().filter(|id| graph.node(*id).op.intrinsic() == Some(Intrinsic::NonFinite)) {
        checks.entry(graph.args(id)[0]).or_insert(id);
    }
    let mut pairs = Vec::new();
    for id in nodes().filter(|id| graph.node(*id).op.intrinsic() == Some(Intrinsic::Unscale)) {
        let args = graph.args(id);
        let (gradient, inverse) = (args[0], args[1]);
        if let Some(check) = checks.remove(&gradient).filter(|check| inverse.node < *check) {
            pairs.push(Pair { unscale: id, check, gradient, inverse });
        }
    }
    pairs
}
