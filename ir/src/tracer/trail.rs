//! [`Trail`]: what the nodes that a tracer records stand for, and the points of their casts.

use crate::graph::point::{Origin, Point, PointId, Reason};
use crate::graph::{Graph, Node, NodeId};
use crate::{DType, Tracer, Var};
use smallvec::SmallVec;
use std::sync::Arc;

/// What the next nodes of a tracer stand for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trail {
    origin: Origin,
    reason: Option<Reason>,
}

impl Tracer {
    /// Runs `body` with new casts recorded for that reason.
    pub fn because<R>(&self, reason: Reason, body: impl FnOnce() -> R) -> R {
        let before = self.trail.borrow_mut().reason.replace(reason);
        let out = body();
        self.trail.borrow_mut().reason = before;
        out
    }

    /// Runs `body` with casts recorded as standing for these points; for none of them, for new
    /// ones.
    pub fn standing_for<R>(&self, points: &[PointId], body: impl FnOnce() -> R) -> R {
        let points = SmallVec::from_slice(points);
        let before = std::mem::replace(&mut self.trail.borrow_mut().origin.points, points);
        let out = body();
        self.trail.borrow_mut().origin.points = before;
        out
    }

    /// Runs `body`, which records the gradient of a node of that origin.
    pub fn gradient_of<R>(&self, origin: &Origin, body: impl FnOnce() -> R) -> R {
        let origin = Origin { backward: true, points: SmallVec::new(), ..origin.clone() };
        self.following(Trail { origin, reason: Some(Reason::Gradient) }, body)
    }

    /// Runs `body`, which records what stands for a node of another graph.
    pub(crate) fn standing_in<R>(&self, graph: &Graph, id: NodeId, body: impl FnOnce() -> R) -> R {
        let mut origin = graph.node(id).origin.clone();
        origin.node = origin.node.or(Some(id));
        if graph.settled {
            origin.stands_for = SmallVec::from_elem(id, 1);
        }
        let reason = self.trail.borrow().reason;
        self.following(Trail { origin, reason }, body)
    }

    fn following<R>(&self, trail: Trail, body: impl FnOnce() -> R) -> R {
        let before = self.trail.replace(trail);
        let out = body();
        self.trail.replace(before);
        out
    }

    /// Lets a node that is recorded already stand for the one that would be recorded here as well;
    /// a cast, for its points too.
    pub fn also_stands(&self, value: Var<'_>) {
        if value.is_poison() {
            return;
        }
        let trail = self.trail.borrow();
        let node = value.id().node;
        self.with_graph_mut(|graph| {
            union(&mut graph.dag[node].origin.stands_for, &trail.origin.stands_for);
        });
        if trail.origin.points.is_empty() && trail.reason == Some(Reason::Rewrite) {
            return;
        }
        self.with_graph_mut(|graph| {
            if !changes_dtype(graph.node(node)) {
                return;
            }
            let from = graph.ty(graph.args(node)[0]).dtype;
            let target = graph.node(node).clone();
            let points = self.points_of(graph, &trail, &target, from, node);
            union(&mut graph.dag[node].origin.points, &points);
        });
    }

    /// Notes what a node about to be recorded stands for.
    pub(crate) fn mark(&self, graph: &mut Graph, node: &mut Node, from: Option<DType>) {
        let trail = self.trail.borrow();
        node.origin.node = trail.origin.node;
        node.origin.backward = trail.origin.backward;
        node.origin.stands_for = trail.origin.stands_for.clone();
        if let Some(from) = from.filter(|_| changes_dtype(node)) {
            let id = NodeId::new(graph.len());
            node.origin.points = self.points_of(graph, &trail, node, from, id);
        }
    }

    /// The points that are carried along, or a new one.
    fn points_of(
        &self,
        graph: &mut Graph,
        trail: &Trail,
        node: &Node,
        from: DType,
        id: NodeId,
    ) -> SmallVec<[PointId; 2]> {
        if !trail.origin.points.is_empty() {
            return trail.origin.points.clone();
        }
        let reason = match (trail.reason, node.part_of) {
            (Some(reason), _) => reason,
            (None, Some(op)) => Reason::Inside(op),
            (None, None) if self.is_explicit() => Reason::Promotion,
            (None, None) => Reason::Written,
        };
        let to = node.attrs.dtype("to").unwrap_or(from);
        let (node_id, backward) = (trail.origin.node.unwrap_or(id), trail.origin.backward);
        let numel = node.results[0].numel();
        let points = Arc::make_mut(&mut graph.points);
        points.push(Point { reason, node: node_id, backward, from, to, numel });
        SmallVec::from_elem(points.len() as PointId - 1, 1)
    }
}

/// Adds numbers to a sorted list that holds each once.
fn union<T: Copy + Ord>(list: &mut SmallVec<[T; 2]>, more: &[T]) {
    list.extend_from_slice(more);
    list.sort_unstable();
    list.dedup();
}

/// True for the ops that stand for points.
fn changes_dtype(node: &Node) -> bool {
    node.op.is_cast()
}
