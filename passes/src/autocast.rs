//! Makes the casts that follow from the autocast decisions of the tracer, and every implicit
//! promotion and broadcast.
//!
//! ```text
//! before:  %0 = matmul %x, %w : bf16[8, 2] @#1          decision: both operands to bf16
//! after:   %0 = cast %x {to = bf16} : bf16[8, 4]
//!          %1 = cast %w {to = bf16} : bf16[4, 2]
//!          %2 = matmul %0, %1 : bf16[8, 2]
//! ```
//!
//! Nothing is decided here: the tracer has decided when the op was recorded, so that user code saw
//! the type it would get, and this pass refuses to end up with another one.
//!
//! The number of casts is PyTorch's, because it fixes in which dtype gradients are summed. A cast
//! is shared only where eager autocast finds it in its weight cache: the operand is an f32 leaf
//! that requires a gradient, no view of one, and the cache is on; then there is one cast for each
//! leaf, dtype and cache scope. Everything else is cast once per use; equal casts become one after
//! differentiation, where that is free of consequences. An op that no result needs takes no part:
//! eager mode would run it, and a weight that it is the first to cast would have its gradients
//! added up in another order.

use crate::pass::Pass;
use std::sync::Arc;
use tracecast_ir::hash::FxHashMap;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::policy::{Decision, PolicySet};
use tracecast_ir::{
    Args, DType, Graph, Node, NodeId, Promise, Reason, Results, Stage, TraceError, Tracer, ValueId,
    Var, Verified,
};

/// Turns autocast decisions into casts.
#[derive(Clone, Debug, Default)]
pub struct Autocast {
    policies: Option<Arc<PolicySet>>,
}

/// The casts that stand in for the weight cache: leaf of the old graph, dtype and cache scope, to
/// the cast in the new one.
type Cache = FxHashMap<(ValueId, DType, u32), ValueId>;

impl Autocast {
    /// The name of the pass.
    pub const NAME: &'static str = "autocast";

    /// Takes a graph traced under any policies.
    pub fn new() -> Self {
        Autocast::default()
    }

    /// Refuses a graph traced under other policies than these.
    pub fn under(policies: Arc<PolicySet>) -> Self {
        Autocast { policies: Some(policies) }
    }

    fn check_policies(&self, graph: &Graph) -> Result<(), TraceError> {
        let Some(expected) = self.policies.as_ref().map(|p| p.hash()) else { return Ok(()) };
        let found = graph.policy_hash();
        if found == 0 || found == expected {
            return Ok(());
        }
        let message = format!(
            "@{} was traced under policy set {found:016x}, expected {expected:016x}: trace it under the policies that it is compiled or \
             explained with, with `trace_with` and the same options",
            graph.name()
        );
        Err(TraceError {
            op: Self::NAME.to_owned(),
            message,
            source_line: String::new(),
            scope: String::new(),
        })
    }
}

impl Pass for Autocast {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn ensures(&self, before: Stage) -> Stage {
        before.max(Stage::Cast)
    }

    fn promise(&self) -> Promise {
        Promise::Casts
    }

    fn run(&self, graph: &Verified) -> Result<Graph, TraceError> {
        self.check_policies(graph)?;
        let mut cache = Cache::default();
        graph.retrace(|t, id, node, args| {
            let results = match &node.decision {
                Some(decision) => decided(t, graph, id, decision, args, &mut cache),
                None => t.carry(graph, id, args),
            };
            keeps_types(t, node, &results);
            results
        })
    }
}

/// Records a node as its decision says.
fn decided<'t>(
    t: &'t Tracer,
    graph: &Graph,
    id: NodeId,
    decision: &Decision,
    mut args: Args<'t>,
    cache: &mut Cache,
) -> Results<'t> {
    let node = graph.node(id);
    for (i, (old, cast)) in graph.args(id).iter().zip(&decision.casts).enumerate() {
        let Some(to) = cast.filter(|to| *to != args.vars[i].dtype()) else { continue };
        let leaf = args.vars[i];
        args.vars[i] =
            t.because(Reason::Policy { operand: i as u16 }, || match is_cached(graph, id, *old) {
                true => shared(t, cache, (*old, to, graph.region(id).scope()), leaf),
                false => leaf.cast(to),
            });
    }
    let mut attrs = node.attrs.clone();
    if let Some(dtype) = decision.dtype_arg {
        attrs.set("dtype", dtype);
    }
    t.apply(node.op.clone(), args, attrs)
}

/// True if eager autocast would look this operand up in its weight cache.
fn is_cached(graph: &Graph, user: NodeId, operand: ValueId) -> bool {
    let leaf = graph.port_of(operand.node);
    graph.region(user).cache()
        && leaf.is_some_and(|port| port.requires_grad() && port.ty.dtype == DType::F32)
}

/// The one cast of a leaf in a cache scope, recorded at its first use.
fn shared<'t>(
    t: &'t Tracer,
    cache: &mut Cache,
    key: (ValueId, DType, u32),
    leaf: Var<'t>,
) -> Var<'t> {
    if let Some(&id) = cache.get(&key) {
        t.also_stands(t.var(id));
        return t.var(id);
    }
    let low = leaf.cast(key.1);
    if !low.is_poison() {
        cache.insert(key, low.id());
    }
    low
}

/// Fails if an op does not get the type that user code saw when it was traced.
fn keeps_types(t: &Tracer, node: &Node, results: &Results<'_>) {
    if t.error().is_some() {
        return;
    }
    if let Some((was, is)) = node.results.iter().zip(results).find(|(was, is)| **was != is.ty()) {
        t.fail(node.op.name(), format!("was traced as {was}, its casts make it {}", is.ty()));
    }
}
