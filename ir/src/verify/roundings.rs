//! Which roundings of a program its results depend on.
//!
//! A rounding may go if what it rounds is known to fit already, if it works on numbers known in advance (then it was done), or if
//! nothing depends on it. The last is a matter of taste where an op may turn out not to need an operand: a choice under a known
//! condition, a slice of joined parts, a product with an integer zero. So a rounding counts as needed only if what leads from
//! it to a result cannot do without it ([`takes`]).

use super::compare::{casts, dtypes, is_rounding};
use super::dependence::{behind_views, known, lowering, takes};
use crate::DType;
use crate::graph::{Graph, NodeId};
use crate::op::{Body, Elements, Lower};

/// The floats that values can be known to fit in.
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// What the results of a program are known to be and to need.
pub(super) struct Roundings {
    /// For every node, the floats that hold its result exactly, one bit each.
    fits: Vec<u8>,
    /// True for values that may turn out to be known in advance.
    known: Vec<bool>,
    /// True for values that a result cannot do without.
    needed: Vec<bool>,
}

impl Roundings {
    pub(super) fn of(graph: &Graph) -> Self {
        let mut all = Roundings {
            fits: vec![0; graph.len()],
            known: known(graph),
            needed: vec![false; graph.len()],
        };
        for id in graph.nodes() {
            all.fits[id.index()] = all.fits_of(graph, id);
        }
        for root in graph.roots() {
            all.needed[root.node.index()] = true;
        }
        for id in graph.nodes().rev() {
            for (operand, arg) in graph.args(id).iter().enumerate() {
                let takes = all.needed[id.index()] && takes(graph, &all.known, id, operand);
                all.needed[arg.node.index()] |= takes;
            }
        }
        all
    }

    /// Every rounding that a cast stands for: the cast, and the number of the point.
    pub(super) fn all(graph: &Graph) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        casts(graph).flat_map(move |id| {
            let points = graph.node(id).origin.points.iter().copied();
            points.filter(|p| is_rounding(&graph.points()[*p as usize])).map(move |p| (id, p))
        })
    }

    /// The roundings of a program that reach a result through ops of which none may be taken apart: where nothing is rewritten, all
    /// of them stay.
    pub(super) fn live(graph: &Graph) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        let known = known(graph);
        let mut live = vec![false; graph.len()];
        graph.roots().for_each(|root| live[root.node.index()] = true);
        for id in graph.nodes().rev() {
            let is_whole = matches!(graph.node(id).op.def().body, Body::Core { .. });
            for (operand, arg) in graph.args(id).iter().enumerate() {
                let stays = is_whole || takes(graph, &known, id, operand);
                live[arg.node.index()] |= live[id.index()] && stays;
            }
        }
        Roundings::all(graph).filter(move |(id, _)| live[id.index()])
    }

    /// The roundings that must not be lost.
    pub(super) fn needed<'a>(
        &'a self,
        graph: &'a Graph,
    ) -> impl Iterator<Item = (NodeId, u32)> + 'a {
        Roundings::all(graph).filter(|(id, _)| {
            let x = graph.args(*id)[0].node.index();
            let (from, to) = dtypes(graph, *id);
            let changes = super::compare::rounds(from, to) && self.fits[x] & bit(to) == 0;
            changes && self.needed[id.index()] && !self.known[x]
        })
    }

    /// True for `x + 0`, `x * 1` and their like, which change a sign at most, and for what may turn out to be such.
    fn is_neutral(&self, graph: &Graph, id: NodeId) -> bool {
        let node = graph.node(id);
        let neutral = if matches!(node.op.name(), "mul" | "div") { 1.0 } else { 0.0 };
        let is_neutral = |c: f64| c.abs() == neutral;
        node.attrs.float("scalar").is_some_and(is_neutral)
            || graph
                .args(id)
                .iter()
                .any(|a| self.known[a.node.index()] && number(graph, a.node).is_none_or(is_neutral))
    }

    fn fits_of(&self, graph: &Graph, id: NodeId) -> u8 {
        let node = graph.node(id);
        let Some(result) = node.results.first() else { return 0 };
        let own = if result.numel() == 0 { u8::MAX } else { holders(result.dtype) };
        let args = graph.args(id);
        if matches!(node.op.name(), "cast" | "round_to") {
            let (from, to) = dtypes(graph, id);
            let before = self.fits[args[0].node.index()];
            let unchanged = from.fits_in(to) || before & bit(to) != 0;
            return own | holders(to) | if unchanged { before } else { 0 };
        }
        let data = match (lowering(graph, id), node.op.name()) {
            // What `pad` fills with is known in advance.
            (Some(Lower::View(_) | Lower::Gather | Lower::Pad), _) => &args[..1],
            (Some(Lower::Cat), _) => &args[..],
            (Some(Lower::Map(map)), _) if map.elements() != Elements::New => {
                &args[map.handed_on_from().unwrap_or(0)..]
            }
            (Some(Lower::ReduceRow | Lower::ReduceColumn), _)
                if graph.ty(args[0]).numel() == result.numel() =>
            {
                &args[..]
            }
            (_, "add" | "sub" | "rsub" | "mul" | "div") if self.is_neutral(graph, id) => &args[..],
            _ => return own,
        };
        own | data.iter().fold(u8::MAX, |all, a| {
            all & if self.known[a.node.index()] { u8::MAX } else { self.fits[a.node.index()] }
        })
    }
}

/// The number that all elements of a constant hold, perhaps behind views and casts.
fn number(graph: &Graph, id: NodeId) -> Option<f64> {
    let at = behind_views(graph, id);
    graph.node(at).attrs.float("value").filter(|_| graph.node(at).op.name() == "constant")
}

fn bit(dtype: DType) -> u8 {
    FLOATS.iter().position(|d| *d == dtype).map_or(0, |i| 1 << i)
}

/// The floats that hold every number of a dtype.
fn holders(dtype: DType) -> u8 {
    FLOATS.iter().filter(|to| dtype.fits_in(**to)).fold(0, |all, to| all | bit(*to))
}
