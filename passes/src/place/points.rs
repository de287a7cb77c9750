//! Which [points](tracecast_ir::Point) a cast stands for that `place` records elsewhere than it
//! was.

use super::demand::{Demand, Through, demand_of};
use smallvec::SmallVec;
use tracecast_ir::{Graph, NodeId, PointId, ValueId};

/// Numbers of points.
pub(super) type Points = SmallVec<[PointId; 2]>;

/// For every node of the old graph, what the casts above and below it stand for.
pub(super) struct Moved {
    /// The widenings that a value has skipped if it is held as narrow as it was made.
    pub(super) widened: Vec<Points>,
    /// The narrowings that all uses of a value ask for.
    pub(super) demanded: Vec<Points>,
}

impl Moved {
    pub(super) fn of(graph: &Graph, demands: &[Demand]) -> Self {
        let mut moved = Moved {
            widened: vec![Points::new(); graph.len()],
            demanded: vec![Points::new(); graph.len()],
        };
        for id in graph.nodes() {
            moved.widened[id.index()] = moved.above(graph, id);
        }
        let live = graph.live();
        for id in graph.nodes().rev().filter(|id| live[id.index()]) {
            for (operand, arg) in graph.args(id).into_iter().enumerate() {
                moved.ask(graph, id, operand, arg, demands);
            }
        }
        moved
    }

    /// What the widenings that lead to a node stand for.
    fn above(&self, graph: &Graph, id: NodeId) -> Points {
        let (node, args) = (graph.node(id), graph.args(id));
        let mut points = Points::new();
        if node.op.is_cast() {
            let widens = graph.ty(args[0]).dtype.fits_in(node.results[0].dtype);
            if widens {
                join(&mut points, &node.origin.points);
                join(&mut points, &self.widened[args[0].node.index()]);
            }
        } else if let Some(through) = Through::of(node) {
            for arg in &args[through.data] {
                join(&mut points, &self.widened[arg.node.index()]);
            }
        }
        points
    }

    /// Adds what a use of `arg` asks of it.
    fn ask(
        &mut self,
        graph: &Graph,
        user: NodeId,
        operand: usize,
        arg: ValueId,
        demands: &[Demand],
    ) {
        if !matches!(demands[arg.node.index()], Demand::Narrow(_)) {
            return;
        }
        let (node, own) = (graph.node(user), demands[user.index()]);
        let mut asked = Points::new();
        if demand_of(node, operand, graph.ty(arg).dtype, own) == demands[arg.node.index()] {
            join(&mut asked, &node.origin.points);
            join(&mut asked, &self.demanded[user.index()]);
        }
        join(&mut self.demanded[arg.node.index()], &asked);
    }
}

fn join(points: &mut Points, more: &[PointId]) {
    points.extend_from_slice(more);
    points.sort_unstable();
    points.dedup();
}
