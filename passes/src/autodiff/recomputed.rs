//! Values of checkpoint regions, recorded again for the gradients that need them.
//!
//! ```text
//! traced:  checkpoint { %0 = exp %x; %1 = sin %0 }; %2 = mul %1, %y
//! before:  gradient of %1: mul %dy, %y; of %0: mul of that and cos %0
//! after:   the same with cos of exp %3, where %3 = barrier %x {number = 1}
//! ```
//!
//! A walk that comes to a region from behind records the region again up to there, in the order of
//! recording, and takes those values where it would take the first ones: so they are made when the
//! gradient of the region's results is there, and live until its own gradients are. Operands from
//! outside the region go through a `barrier`, so that passes take nothing from forward. What is
//! made of no operand is the same both times. What ranks exchange is kept, so that it is exchanged
//! once. A region in a region is recorded with the outer one, for what comes after it, and once
//! more when the walk comes to it.
//!
//! Gradients flow to the first values alone, in a second order too: which bits they have does not
//! depend on regions.

use tracecast_ir::hash::{FxHashMap, FxHashSet};
use tracecast_ir::op::Lower;
use tracecast_ir::ops::barrier::barrier;
use tracecast_ir::{Args, Graph, Node, NodeId, Reason, Results, Source, Tracer, ValueId, Var};

/// What backward has recorded of checkpoint regions.
#[derive(Default)]
pub(super) struct Recomputed {
    /// The values recorded so far, each with the first one that it repeats.
    repeats: FxHashMap<ValueId, ValueId>,
    /// What the walk at hand takes in the place of these values.
    taken: FxHashMap<ValueId, ValueId>,
    /// The regions that it is in or has recorded.
    entered: FxHashSet<u32>,
    barriers: i64,
}

impl Recomputed {
    /// Begins another walk: it takes first values, and in the regions that its gradients are
    /// recorded in all of them are there.
    pub(super) fn begin(&mut self, t: &Tracer) {
        self.taken.clear();
        self.entered = t.checkpoints().into_iter().collect();
    }

    /// The first of the values that repeat each other.
    pub(super) fn first(&self, value: ValueId) -> ValueId {
        self.repeats.get(&value).copied().unwrap_or(value)
    }

    /// What the walk takes in the place of a value.
    pub(super) fn taken<'t>(&self, t: &'t Tracer, value: Var<'t>) -> Var<'t> {
        self.taken.get(&value.id()).map_or(value, |id| t.var(*id))
    }

    /// Records the regions that the walk comes to at this node.
    pub(super) fn enter(&mut self, t: &Tracer, node: NodeId) {
        let regions: Vec<u32> = t.with_graph(|graph| graph.checkpoints_of(node).collect());
        for region in regions.into_iter().rev() {
            if self.entered.insert(region) {
                self.record(t, region, node);
            }
        }
    }

    /// Records what a region has up to `last`.
    fn record(&mut self, t: &Tracer, region: u32, last: NodeId) {
        self.barriers += 1;
        let mut known = Known::default();
        let is_repeated = |graph: &Graph, id: &NodeId| {
            let is_exchange =
                matches!(graph.node(*id).op.def().lowering(), Some(Lower::Exchange(_)));
            let is_inside = || graph.checkpoints_of(*id).any(|own| own == region);
            graph.node(*id).arity() > 0 && !is_exchange && is_inside()
        };
        let all = (0..=last.index()).map(NodeId::new);
        let nodes: Vec<NodeId> =
            t.with_graph(|graph| all.filter(|id| is_repeated(graph, id)).collect());
        for id in nodes {
            let (node, args) = t.with_graph(|graph| (graph.node(id).clone(), graph.args(id)));
            let results = in_backward(t, &node, || {
                let vars: Vec<Var<'_>> =
                    args.iter().map(|arg| self.operand(t, *arg, &mut known)).collect();
                t.again(&node, Args::grouped(&vars, &node.groups))
            });
            if t.error().is_some() {
                return;
            }
            for (result, again) in results.iter().enumerate() {
                let value = ValueId { node: id, result: result as u16 };
                known.made.insert(value, again.id());
                self.repeats.insert(again.id(), self.first(value));
            }
        }
        self.taken.extend(known.made);
    }

    /// An operand of what is recorded again: of the region, or from outside behind a barrier.
    fn operand<'t>(&mut self, t: &'t Tracer, value: ValueId, known: &mut Known) -> Var<'t> {
        if let Some(id) = known.made.get(&value).or_else(|| known.held.get(&value)) {
            return t.var(*id);
        }
        let outside = self.taken(t, t.var(value));
        let is_port = |graph: &Graph| graph.port_index(value.node).is_some();
        if t.with_graph(|graph| graph.node(value.node).arity() == 0 && !is_port(graph)) {
            return outside;
        }
        let held = barrier(outside, self.barriers);
        if !held.is_poison() {
            known.held.insert(value, held.id());
            self.repeats.insert(held.id(), self.first(value));
        }
        held
    }
}

/// What is recorded again of a region, by first value.
#[derive(Default)]
struct Known {
    made: FxHashMap<ValueId, ValueId>,
    /// Values from outside, behind barriers. Gradients take these values as they are.
    held: FxHashMap<ValueId, ValueId>,
}

/// Records a node of the forward part again, as a part of backward.
fn in_backward<'t>(
    t: &'t Tracer,
    node: &Node,
    record: impl FnOnce() -> Results<'t>,
) -> Results<'t> {
    let reason = |graph: &Graph| match node.origin.points.first() {
        Some(point) => graph.points()[*point as usize].reason,
        None => Reason::Gradient,
    };
    let reason = t.with_graph(reason);
    let source = Source::Text(format!("{}, recomputed", named(node)).into());
    let record = || t.gradient_of(&node.origin, || t.because(reason, record));
    let record = || t.scope_path(&node.scope, record);
    t.at(source, || match node.part_of {
        Some(op) => t.part_of(op, record),
        None => record(),
    })
}

/// What messages call a node: its source line, or else its op.
pub(super) fn named(node: &Node) -> String {
    match node.source.to_string() {
        line if line.is_empty() => node.op.name().to_string(),
        line => line,
    }
}
