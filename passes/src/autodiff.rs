//! Replaces `grad` where it stands by the ops that compute the gradient: reverse mode.
//!
//! ```text
//! before:  %0 = mul %x, %w : f32[3]
//!          %1 = sum %0 {dim = []} : f32[]
//!          %2 = grad %1, [%w] : f32[3]
//! after:   %0 = constant {dtype = f32, shape = [], value = 1.0} : f32[]
//!          %1 = reshape %0 {shape = [1]} : f32[1]
//!          %2 = expand %1 {shape = [3]} : f32[3]
//!          %3 = mul %2, %x : f32[3]
//! ```
//!
//! When the retrace reaches a `grad`, the forward part is recorded already and is walked backwards,
//! node by node, from the loss: only nodes that lie between the values asked for and the loss, so
//! the cost is linear in them. A composite with a gradient of its own uses it; one without is
//! differentiated through its parts, recorded for that purpose. An inner `grad` is replaced before
//! an outer one meets it, so gradients of gradients need nothing of their own. All `grad` nodes of
//! one loss share a walk.
//!
//! Gradients have the dtype of what they are the gradient of. A value used several times sums them
//! in that dtype, in the order in which eager PyTorch does: nodes are walked in the opposite order
//! of their recording, so the contribution of the last use comes first and each earlier use is
//! added to the sum so far. What ranks add up is not rounded to 16 bits before: see `unrounded`.
//! Gradients that are differentiated again promote operands anew: see `anew`.
//!
//! Where the walk comes to a checkpoint region, its values are recorded again, and rules compute
//! with those: see `recomputed`. No region is left behind this pass.
//!
//! What is recorded keeps the module path of the forward node, and its source is `grad of` the line
//! of that node.

mod anew;
mod recomputed;
mod unrounded;

use crate::decompose::{DEEPEST, record_parts};
use crate::pass::{Pass, Renamed, need_decided, swept, without_dead_code};
use recomputed::{Recomputed, named};
use std::ops::Range;
use tracecast_ir::hash::FxHashMap;
use tracecast_ir::op::{Body, Grad, GradCx, Grads, Intrinsic};
use tracecast_ir::ops::view::Views;
use tracecast_ir::{
    Args, Attrs, Graph, Node, NodeId, OpRef, Origin, Results, Source, Stage, TensorType,
    TraceError, Tracer, ValueId, Var, Verified,
};
use unrounded::unrounded;

/// Differentiates.
#[derive(Clone, Copy, Debug, Default)]
pub struct Autodiff;

impl Autodiff {
    /// The name of the pass.
    pub const NAME: &'static str = "autodiff";
}

impl Pass for Autodiff {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn ensures(&self, before: Stage) -> Stage {
        before.max(Stage::Cast)
    }

    fn run(&self, graph: &Verified) -> Result<Graph, TraceError> {
        need_decided(graph)?;
        let asked = Asked::of(graph);
        if asked.wrt.is_empty() {
            return Ok(without_dead_code(graph)?.without_checkpoints());
        }
        let again = anew::losses(graph);
        let mut renamed = Renamed::default();
        let mut walks: FxHashMap<ValueId, Adjoints> = FxHashMap::default();
        let mut recomputed = Recomputed::default();
        let joint = graph.retrace(|t, id, node, args| {
            let results = if node.op.intrinsic() == Some(Intrinsic::Gradient) {
                let loss = graph.args(id)[0];
                let adjoints = walks.entry(loss).or_insert_with(|| {
                    let wrt =
                        asked.of_loss(loss).iter().filter_map(|old| renamed.get(t, graph, *old));
                    recomputed.begin(t);
                    let wrt = wrt.collect::<Vec<_>>();
                    backward(t, args.vars[0], &wrt, again.contains(&loss), &mut recomputed)
                });
                args.vars[1..]
                    .iter()
                    .map(|wrt| adjoints.get(t, wrt.id()).unwrap_or_else(|| t.zeros_like(*wrt)))
                    .collect()
            } else {
                t.carry(graph, id, args)
            };
            renamed.note(id, &results);
            results
        })?;
        Ok(unrounded(swept(joint)?)?.without_checkpoints())
    }
}

/// What all `grad` nodes together ask for: for each loss, the values whose gradients are wanted.
///
/// A value that is not recorded yet when the first of them is reached comes after the loss, which
/// cannot depend on it.
struct Asked {
    wrt: FxHashMap<ValueId, Vec<ValueId>>,
}

impl Asked {
    fn of(graph: &Graph) -> Self {
        let mut wrt: FxHashMap<ValueId, Vec<ValueId>> = FxHashMap::default();
        for id in
            graph.nodes().filter(|id| graph.node(*id).op.intrinsic() == Some(Intrinsic::Gradient))
        {
            let args = graph.args(id);
            wrt.entry(args[0]).or_default().extend_from_slice(&args[1..]);
        }
        Asked { wrt }
    }

    fn of_loss(&self, loss: ValueId) -> &[ValueId] {
        self.wrt.get(&loss).map_or(&[], Vec::as_slice)
    }
}

/// The gradient of each value reached so far; ids, so that they outlive a step of the retrace.
#[derive(Default)]
struct Adjoints(FxHashMap<ValueId, ValueId>);

impl Adjoints {
    fn get<'t>(&self, t: &'t Tracer, value: ValueId) -> Option<Var<'t>> {
        self.0.get(&value).map(|&id| t.var(id))
    }

    fn add<'t>(&mut self, t: &'t Tracer, value: ValueId, gradient: Var<'t>) {
        let sum = self.get(t, value).map_or(gradient, |so_far| so_far + gradient);
        if !sum.is_poison() {
            self.0.insert(value, sum.id());
        }
    }
}

/// For each node, whether a value asked for is among its results or reaches them by a path that
/// carries gradients.
struct Reached {
    nodes: Vec<bool>,
    /// How many composites the nodes lie inside of.
    depth: usize,
    /// True for gradients that are differentiated again.
    again: bool,
}

impl Reached {
    fn from(
        t: &Tracer,
        wrt: &[Var<'_>],
        loss: NodeId,
        again: bool,
        recomputed: &Recomputed,
    ) -> Self {
        let nodes = vec![false; loss.index() + 1];
        let mut reached = Reached { nodes, depth: 0, again };
        for id in wrt.iter().map(|v| v.id().node).filter(|id| *id <= loss) {
            reached.nodes[id.index()] = true;
        }
        reached.follow(t, 0..loss.index() + 1, recomputed);
        reached
    }

    /// Extends the answer to more nodes, whose operands it knows.
    fn follow(&mut self, t: &Tracer, nodes: Range<usize>, recomputed: &Recomputed) {
        self.nodes.resize(self.nodes.len().max(nodes.end), false);
        t.with_graph(|graph| {
            for index in nodes {
                self.nodes[index] |= self.passes(graph, NodeId::new(index), recomputed);
            }
        });
    }

    /// True if gradients have to go through this node to one of its operands.
    fn passes(&self, graph: &Graph, id: NodeId, recomputed: &Recomputed) -> bool {
        let stops = matches!(
            &graph.node(id).op.def().body,
            Body::Core { grad: Grad::Zero, .. } | Body::Composite { grad: Some(Grad::Zero), .. }
        );
        let has = |a: &ValueId| self.has(recomputed.first(*a).node);
        !stops && graph.args(id).iter().any(|a| has(a) && graph.ty(*a).dtype.is_float())
    }

    fn has(&self, id: NodeId) -> bool {
        self.nodes.get(id.index()).copied().unwrap_or(false)
    }
}

/// A recorded node, copied out so that the tracer is free to record.
struct Step<'t> {
    op: OpRef,
    attrs: Attrs,
    /// What gradients flow to.
    args: Args<'t>,
    outs: Results<'t>,
    types: Vec<TensorType>,
    scope: String,
    source: Source,
    origin: Origin,
}

impl<'t> Step<'t> {
    fn read(t: &'t Tracer, id: NodeId, recomputed: &Recomputed) -> Self {
        let (node, args): (Node, _) = t.with_graph(|g| (g.node(id).clone(), g.args(id)));
        let vars: Vec<Var<'t>> = args.iter().map(|a| t.var(recomputed.first(*a))).collect();
        Step {
            args: Args::grouped(&vars, &node.groups),
            outs: (0..node.results.len() as u16)
                .map(|result| t.var(ValueId { node: id, result }))
                .collect(),
            types: node.results.to_vec(),
            source: Source::Text(format!("grad of {}", named(&node)).into()),
            scope: node.scope.to_string(),
            op: node.op,
            attrs: node.attrs,
            origin: node.origin,
        }
    }

    /// The operands that its gradient computes with, promoted anew or not.
    fn operands(&self, t: &'t Tracer, anew: bool, recomputed: &Recomputed) -> Vec<Var<'t>> {
        let taken = |x: Var<'t>| recomputed.taken(t, x);
        let promoted = |x: &Var<'t>| match anew {
            true => anew::promoted(t, &self.origin, *x, &taken),
            false => taken(*x),
        };
        self.args.vars.iter().map(promoted).collect()
    }
}

/// Walks what has been recorded so far back from `loss`, for gradients that are differentiated
/// `again` or not.
fn backward<'t>(
    t: &'t Tracer,
    loss: Var<'t>,
    wrt: &[Var<'t>],
    again: bool,
    recomputed: &mut Recomputed,
) -> Adjoints {
    let mut adjoints = Adjoints::default();
    if loss.is_poison() {
        return adjoints;
    }
    let last = loss.id().node;
    let reached = Reached::from(t, wrt, last, again, recomputed);
    adjoints.add(t, loss.id(), t.ones_like(loss));
    let mut walk = Walk { reached, adjoints, recomputed };
    walk.through(t, 0..last.index() + 1);
    walk.adjoints
}

/// One walk back from a loss.
struct Walk<'a> {
    reached: Reached,
    adjoints: Adjoints,
    recomputed: &'a mut Recomputed,
}

impl Walk<'_> {
    /// Takes the gradients of the results of these nodes to their operands, last node first.
    fn through(&mut self, t: &Tracer, nodes: Range<usize>) {
        for id in nodes.rev().map(NodeId::new) {
            if t.error().is_some() {
                return;
            }
            if !t.with_graph(|graph| self.reached.passes(graph, id, self.recomputed)) {
                continue;
            }
            let step = Step::read(t, id, self.recomputed);
            let dys: Vec<_> = step.outs.iter().map(|out| self.adjoints.get(t, out.id())).collect();
            if dys.iter().any(Option::is_some) {
                self.recomputed.enter(t, id);
                t.at(step.source.clone(), || {
                    t.scope_path(&step.scope, || {
                        t.gradient_of(&step.origin, || self.differentiate(t, &step, &dys))
                    })
                });
            }
        }
    }

    /// Takes the gradients of one node's results to its operands.
    fn differentiate<'t>(&mut self, t: &'t Tracer, step: &Step<'t>, dys: &[Option<Var<'t>>]) {
        match &step.op.def().body {
            Body::Core { grad: Grad::Rule(rule), .. }
            | Body::Composite { grad: Some(Grad::Rule(rule)), .. } => {
                let outs: Vec<Var<'t>> =
                    step.outs.iter().map(|out| self.recomputed.taken(t, *out)).collect();
                let cx = GradCx {
                    tracer: t,
                    args: &step.operands(t, self.reached.again, self.recomputed),
                    groups: &step.args.groups,
                    outs: &outs,
                    dys,
                    attrs: &step.attrs,
                };
                self.accumulate(t, step, rule(&cx));
            }
            Body::Composite { grad: None, .. } => self.through_parts(t, step, dys),
            Body::Symbolic(pass) => {
                t.fail(step.op.name(), format!("has no gradient: `{pass}` has to remove it first"));
            }
            Body::Source(_) | Body::Core { .. } | Body::Composite { .. } => {}
        }
    }

    /// Records what a composite is made of, and takes the gradients through that.
    fn through_parts<'t>(&mut self, t: &'t Tracer, step: &Step<'t>, dys: &[Option<Var<'t>>]) {
        if self.reached.depth == DEEPEST {
            let why = format!("lies inside {DEEPEST} composites: it seems to be made of itself");
            t.fail(step.op.name(), why);
            return;
        }
        let before = t.with_graph(Graph::len);
        let args = &step.args.vars;
        let own = apart(&step.operands(t, self.reached.again, self.recomputed));
        let own = Args::grouped(&own, &step.args.groups);
        let from = t.with_graph(Graph::len);
        let parts = record_parts(t, &step.op, &own, &step.attrs, &step.types);
        let to = t.with_graph(Graph::len);
        if t.error().is_some() {
            return;
        }
        self.reached.follow(t, before..to, self.recomputed);
        // One gradient goes along each operand: the sum of those of the parts, which is added to
        // what has arrived from elsewhere.
        let arrived: Vec<_> = args.iter().map(|x| self.adjoints.0.remove_entry(&x.id())).collect();
        for (part, dy) in parts.iter().zip(dys) {
            if let Some(dy) = dy {
                self.adjoints.add(t, part.id(), *dy);
            }
        }
        self.reached.depth += 1;
        self.through(t, from..to);
        self.reached.depth -= 1;
        let sum = |x: &Var<'t>| self.adjoints.0.remove(&self.recomputed.first(x.id()));
        let sums: Vec<_> = own.vars.iter().map(sum).collect();
        self.adjoints.0.extend(arrived.into_iter().flatten());
        for (x, sum) in args.iter().zip(sums) {
            if let Some(sum) = sum {
                self.adjoints.add(t, x.id(), t.var(sum));
            }
        }
    }

    /// Adds what a rule answered to the gradients of the operands that have one.
    fn accumulate<'t>(&mut self, t: &'t Tracer, step: &Step<'t>, grads: Grads<'t>) {
        let args = &step.args.vars;
        if t.error().is_some() {
            return;
        }
        if grads.len() != args.len() {
            t.fail(
                step.op.name(),
                format!("its gradient rule answers for {} operands of {}", grads.len(), args.len()),
            );
            return;
        }
        for (i, (arg, gradient)) in args.iter().zip(grads).enumerate() {
            let Some(gradient) = gradient.filter(|_| arg.dtype().is_float()) else { continue };
            if gradient.ty() != arg.ty() {
                t.fail(
                    step.op.name(),
                    format!(
                        "the gradient of operand {i} is {}, expected {}",
                        gradient.ty(),
                        arg.ty()
                    ),
                );
                return;
            }
            if self.reached.has(arg.id().node) {
                self.adjoints.add(t, arg.id(), gradient);
            }
        }
    }
}

/// Operands as values that differ: copies of those that stand in several places, whose gradients
/// are added in the order of the places.
fn apart<'t>(args: &[Var<'t>]) -> Vec<Var<'t>> {
    let is_repeated = |x: &Var<'t>| args.iter().filter(|y| y.id() == x.id()).count() > 1;
    let copy = |x: &Var<'t>| if is_repeated(x) { x.reshape(&x.shape()) } else { *x };
    args.iter().map(copy).collect()
}
