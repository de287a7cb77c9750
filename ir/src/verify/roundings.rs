//! Which roundings of a program its results depend on.
//!
//! A rounding may go if what it rounds is known to fit already, if it works on numbers known in
//! advance (then it was done), or if nothing depends on it. The last is a matter of taste where an
//! op may turn out not to need an operand: a choice under a known condition, a slice of joined
//! parts, a product with an integer zero. So a rounding counts as needed only if what leads from it
//! to a result cannot do without it ([`takes`]).

use super::casts::{bit, casts, dtypes, holders, is_rounding, points_to, rounds};
use super::dependence::{known, number, takes};
use super::kept::Kept;
use crate::DType;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::kernel::build::lowering;
use crate::kernel::{Scalar, narrow};
use crate::op::{Body, Elements, Intrinsic, Lower};
use crate::ops::reduce::reduction;

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
    /// Those of a program of which a rewrite has left these nodes in place.
    pub(super) fn of_rewritten(graph: &Graph, kept: &Kept) -> Self {
        let mut all =
            Roundings { fits: vec![0; graph.len()], known: known(graph, kept), needed: Vec::new() };
        for id in graph.nodes() {
            all.fits[id.index()] = all.fits_of(graph, kept, id);
        }
        all.needed = reaching(graph, &|id, operand| takes(graph, &all.known, kept, id, operand));
        all
    }

    /// Those of a program to which code was only added: nothing turns out to be known or to fit,
    /// and all stay that reach a result through ops of which none may be taken apart.
    pub(super) fn of_whole(graph: &Graph) -> Self {
        let kept = Kept::unknown(graph);
        let known = known(graph, &kept);
        let is_core = |id| matches!(graph.node(id).op.def().body, Body::Core { .. });
        let stays = |id, operand| is_core(id) || takes(graph, &known, &kept, id, operand);
        let needed = reaching(graph, &stays);
        Roundings { fits: vec![0; graph.len()], known: vec![false; graph.len()], needed }
    }

    /// Every rounding that a cast stands for: the cast, and the number of the point.
    pub(super) fn all(graph: &Graph) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        casts(graph).flat_map(move |id| {
            let is_one = |p: &u32| is_rounding(&graph.points()[*p as usize]);
            points_to(graph, id).filter(is_one).map(move |p| (id, p))
        })
    }

    /// True if a result depends on this rounding.
    pub(super) fn needs(&self, graph: &Graph, cast: NodeId) -> bool {
        let x = graph.args(cast)[0].node;
        self.changes(graph, cast) && self.needed[cast.index()] && !self.known[x.index()]
    }

    /// True if a user of the rounded value now takes the one before the rounding.
    pub(super) fn is_passed_by(&self, graph: &Graph, kept: &Kept, cast: NodeId) -> bool {
        self.changes(graph, cast) && kept.is_passed_by(graph, cast)
    }

    fn changes(&self, graph: &Graph, cast: NodeId) -> bool {
        let (from, to) = dtypes(graph, cast);
        rounds(from, to) && self.fits[graph.args(cast)[0].node.index()] & bit(to) == 0
    }

    /// True for `x * 1`, `x - 0` and their like, which change a sign at most, and for what may turn
    /// out to be such.
    fn is_neutral(&self, graph: &Graph, kept: &Kept, id: NodeId) -> bool {
        let node = graph.node(id);
        let facts = node.op.facts();
        // A positive zero added makes a negative one positive, so signs of zeros count.
        let is = |c: f64, known: Option<f64>| known.is_some_and(|k| k.to_bits() == c.to_bits());
        let is_neutral = |c: f64| is(c, facts.neutral) || is(c, facts.negating);
        if let Some(c) = node.attrs.float("scalar") {
            return is_neutral(c);
        }
        if node.attrs.number("scalar").is_some() {
            return false;
        }
        let may_be = |a: &ValueId| {
            self.known[a.node.index()] && number(graph, a.node).is_none_or(is_neutral)
        };
        !kept.has(id) && graph.args(id).iter().any(may_be)
    }

    fn fits_of(&self, graph: &Graph, kept: &Kept, id: NodeId) -> u8 {
        let node = graph.node(id);
        let Some(result) = node.results.first() else { return 0 };
        let own = if result.numel() == 0 { u8::MAX } else { holders(result.dtype) };
        let args = graph.args(id);
        if node.op.intrinsic() == Some(Intrinsic::Constant) {
            let (value, data) = (node.attrs.float("value"), node.attrs.floats("data"));
            if value.is_none() && node.attrs.number("value").is_some() {
                return own;
            }
            return own
                | holders_of(result.dtype, value.as_slice()) & holders_of(result.dtype, data);
        }
        if node.op.is_cast() {
            let (from, to) = dtypes(graph, id);
            let before = self.fits[args[0].node.index()];
            let unchanged = from.fits_in(to) || before & bit(to) != 0;
            return own | holders(to) | if unchanged { before } else { 0 };
        }
        let data = match lowering(graph, id) {
            Some(Lower::View(_) | Lower::Gather | Lower::Pad | Lower::Windows) => &args[..1],
            Some(Lower::Cat) => &args[..],
            Some(Lower::Map(map)) if map.elements() != Elements::New => {
                &args[map.handed_on_from().unwrap_or(0)..]
            }
            // A sum starts from zero, which is not the same.
            Some(Lower::ReduceRow | Lower::ReduceColumn)
                if graph.ty(args[0]).numel() == result.numel() && keeps_single(node) =>
            {
                &args[..]
            }
            _ if self.is_neutral(graph, kept, id) => &args[..],
            _ => return own,
        };
        own | kept.holders(id) | self.fits_of_data(graph, kept, id, data)
    }

    /// The floats that hold all that a node hands on. A choice that is gone has left one of its
    /// values.
    fn fits_of_data(&self, graph: &Graph, kept: &Kept, id: NodeId, data: &[ValueId]) -> u8 {
        let fits = data.iter().map(|a| {
            let is_folded = self.known[a.node.index()] && graph.node(a.node).arity() > 0;
            if is_folded { u8::MAX } else { self.fits[a.node.index()] }
        });
        let node = graph.node(id);
        match lowering(graph, id) {
            Some(Lower::Pad) if kept.has(id) => {
                let value = node.attrs.float("value").unwrap_or(0.0);
                let is_empty = graph.ty(data[0]).numel() == 0;
                let filled = holders_of(node.results[0].dtype, &[value]);
                if is_empty { 0 } else { fits.fold(filled, |all, a| all & a) }
            }
            // Zeros, and perhaps nothing else.
            Some(Lower::Windows) if graph.ty(data[0]).numel() == 0 => 0,
            Some(Lower::Cat) if !kept.has(id) => fits.fold(0, |any, a| any | a),
            Some(Lower::Map(map)) if !kept.has(id) && map.elements() != Elements::New => {
                fits.fold(0, |any, a| any | a)
            }
            _ => fits.fold(u8::MAX, |all, a| all & a),
        }
    }
}

/// True if a reduction of one value gives the value.
fn keeps_single(node: &Node) -> bool {
    let scalar = Scalar::of(node.results[0].dtype);
    reduction(&node.attrs).is_ok_and(|r| scalar.is_some_and(|scalar| r.keeps_single(scalar)))
}

/// The floats that hold all these numbers, as a dtype holds them: low-precision ones are written by
/// way of f32.
fn holders_of(dtype: DType, numbers: &[f64]) -> u8 {
    let rounded = |x: f64, to: DType| narrow::round_f64(to, x);
    let written = |x: f64| if dtype.is_low() { rounded(x, DType::F32) } else { x };
    let holds = |to: &&DType| {
        numbers.iter().all(|number| {
            let x = rounded(written(*number), dtype);
            x.is_nan() || rounded(x, **to) == x
        })
    };
    DType::FLOATS.iter().filter(holds).fold(holders(dtype), |all, to| all | bit(*to))
}

/// For each node, whether a result is reached from it through operands that are taken.
fn reaching(graph: &Graph, takes: &dyn Fn(NodeId, usize) -> bool) -> Vec<bool> {
    let mut reaches = vec![false; graph.len()];
    for root in graph.roots() {
        reaches[root.node.index()] = true;
    }
    for id in graph.nodes().rev() {
        for (operand, arg) in graph.args(id).iter().enumerate() {
            let is_taken = reaches[id.index()] && takes(id, operand);
            reaches[arg.node.index()] |= is_taken;
        }
    }
    reaches
}
