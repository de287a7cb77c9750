//! Re-tracing: how a pass makes a new graph from an old one.

use crate::Tracer;
use crate::args::{Args, Results};
use crate::error::TraceError;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::policy::PolicySet;
use smallvec::SmallVec;
use std::sync::Arc;

/// The new values of the old graph's nodes; ids, so that it does not depend on the tracer's
/// lifetime.
pub type Mapping = Vec<SmallVec<[ValueId; 1]>>;

impl Graph {
    /// Traces the graph again, explicitly (see [`Tracer::explicit`]): ports first, then for every
    /// live node in order whatever `rule` records in its place, then outputs and updates.
    ///
    /// Source line, module path, checkpoint region and the op it is a part of are those of what the
    /// rule records; autocast regions are off.
    ///
    /// # Errors
    /// The first op that could not be recorded.
    pub fn retrace(
        &self,
        rule: impl for<'t> FnMut(&'t Tracer, NodeId, &Node, Args<'t>) -> Results<'t>,
    ) -> Result<Graph, TraceError> {
        let tracer = Tracer::explicit(&self.name);
        self.retrace_into(&tracer, rule)?;
        tracer.finish()
    }

    /// Every node recorded again under other policies: in its own region, or in `ambient` if it
    /// lies in none.
    ///
    /// An op that was expanded when it was recorded stays the parts that it was expanded into
    /// there, with the dtypes they have got. For the graph that user code would give elsewhere,
    /// record that code again; [`text::parse_under`](crate::text::parse_under) does so for a text.
    ///
    /// # Errors
    /// The first op that could not be recorded.
    pub fn retrace_under(
        &self,
        policies: Arc<PolicySet>,
        ambient: &crate::policy::Region,
    ) -> Result<Graph, TraceError> {
        let tracer = Tracer::with_policies(&self.name, policies);
        self.retrace_into(&tracer, |t, _, node, args| {
            let own = &self.regions[node.region as usize];
            t.in_region(if node.region == 0 { ambient } else { own }, || t.again(node, args))
        })?;
        tracer.finish()
    }

    /// Re-traces into a tracer that holds nothing yet; returns the new values of the old nodes.
    ///
    /// # Errors
    /// The first op that could not be recorded.
    pub fn retrace_into(
        &self,
        tracer: &Tracer,
        mut rule: impl for<'t> FnMut(&'t Tracer, NodeId, &Node, Args<'t>) -> Results<'t>,
    ) -> Result<Mapping, TraceError> {
        let mut mapping: Mapping = vec![SmallVec::new(); self.len()];
        tracer.take_sizes(self);
        tracer.with_graph_mut(|graph| {
            graph.checkpoints.clone_from(&self.checkpoints);
            graph.dag.reserve_nodes(self.dag.node_count());
            graph.dag.reserve_edges(self.dag.edge_count());
        });
        // A user's tracer asks for every cast anew.
        let carries = tracer.is_explicit();
        if carries {
            tracer.with_graph_mut(|graph| graph.points = self.points.clone());
        }
        for port in &self.ports {
            let old = &self.dag[port.node];
            let var = tracer.at(old.source.clone(), || {
                tracer.port(&port.name, port.ty.clone(), port.role, port.grad, port.device)
            });
            mapping[port.node.index()].push(var.id());
        }
        let live = self.live();
        for id in self.nodes().filter(|id| live[id.index()]) {
            let node = &self.dag[id];
            if matches!(node.op.def().body, crate::op::Body::Source(crate::op::Lower::Port)) {
                continue;
            }
            if tracer.has_failed() {
                break;
            }
            let args = self.args(id);
            let vars = args.iter().map(|a| tracer.var(mapping[a.node.index()][a.result as usize]));
            let args = Args { vars: vars.collect(), groups: node.groups.clone() };
            let results = tracer.in_place_of(self, id, || match carries {
                true => tracer.standing_in(self, id, || rule(tracer, id, node, args)),
                false => rule(tracer, id, node, args),
            });
            mapping[id.index()] = results.iter().map(|v| v.id()).collect();
        }
        if let Some(error) = tracer.error() {
            return Err(error);
        }
        let new = |v: &ValueId| tracer.var(mapping[v.node.index()][v.result as usize]);
        for (name, value) in &self.outputs {
            tracer.output(name, new(value));
        }
        for (port, value) in &self.updates {
            tracer.update(tracer.var(mapping[self.ports[*port].node.index()][0]), new(value));
        }
        Ok(mapping)
    }
}

impl Tracer {
    /// Records a node of another graph as it is on these operands. As [`again`](Tracer::again), and
    /// at less cost where they have the types that the node's own operands have: its results then
    /// have theirs.
    pub fn carry<'t>(&'t self, graph: &Graph, id: NodeId, args: Args<'t>) -> Results<'t> {
        let node = graph.node(id);
        match self.takes_alike(graph, id, &args) {
            true => self.push(self.copy_of(node), &args),
            false => self.again(node, args),
        }
    }

    /// Records a node of another graph as it is.
    pub fn again<'t>(&'t self, node: &Node, args: Args<'t>) -> Results<'t> {
        self.apply(node.op.clone(), args, node.attrs.clone())
    }
}
