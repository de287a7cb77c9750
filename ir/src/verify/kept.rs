//! What a pass has left of a program in the one that it has made, told by what its nodes
//! [stand for](crate::Origin).

use super::casts::{bit, casts, dtypes, holders, is_cast, rounds};
use crate::DType;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::hash::{FxHashMap, FxHashSet};
use crate::kernel::build::lowering;
use crate::op::{Body, Intrinsic, Lower};
use smallvec::SmallVec;

/// Most removed nodes that a search passes through.
const GONE: usize = 16;

/// What a pass has left of a program in the one it has made.
pub(super) struct Kept {
    /// The nodes that are still there: the same op, recorded for the same node, and not dead.
    nodes: Vec<bool>,
    /// The floats that hold what they give now, one bit each: a choice or a view may have become
    /// one of rounded values.
    holders: Vec<u8>,
    /// Pairs of nodes of which the second now takes the first, of that dtype, and did not before.
    new_uses: FxHashSet<(NodeId, NodeId, DType)>,
}

impl Kept {
    /// What `after` has of `before`.
    pub(super) fn of(before: &Graph, after: &Graph) -> Self {
        let mut kept = Kept::unknown(before);
        let live = after.live();
        let mut gradients = Gradients::of(before);
        let old = |id: NodeId| -> SmallVec<[NodeId; 2]> {
            match after.port_index(id) {
                Some(port) => before.ports().get(port).map(|p| p.node).into_iter().collect(),
                None => after.node(id).origin.stands_for.clone(),
            }
        };
        for id in after.nodes().filter(|id| live[id.index()]) {
            let mut taken = Vec::new();
            for arg in after.args(id) {
                let is_value =
                    |x: &NodeId| x.index() < before.len() && is_value(before, *x, after, arg.node);
                let values = old(arg.node).into_iter().filter(is_value).collect();
                taken.push(Taken { values, dtype: after.ty(arg).dtype });
            }
            for user in old(id).into_iter().filter(|user| user.index() < before.len()) {
                kept.note(before, user, after.node(id), &taken);
                if after.node(id).origin.backward {
                    gradients.note(user, id, &taken);
                }
            }
        }
        kept.new_uses.extend(gradients.without_rounding(before, after));
        kept
    }

    /// Notes a node that stands for an old one and takes what stands for these.
    fn note(&mut self, before: &Graph, user: NodeId, node: &Node, taken: &[Taken]) {
        let was = before.node(user);
        let is_same = was.op == node.op && was.origin.backward == node.origin.backward;
        if is_same {
            self.nodes[user.index()] = true;
            self.holders[user.index()] |= node.results.first().map_or(0, |ty| holders(ty.dtype));
        }
        let mut took = before.args(user);
        // A widening may be recorded by whoever takes it.
        let is_widening = |arg: &ValueId| behind_widenings(before, arg.node) != arg.node;
        let widened = before.args(user).into_iter().filter(is_widening);
        let widened: SmallVec<[NodeId; 4]> =
            widened.map(|arg| behind_widenings(before, arg.node)).collect();
        for of in taken.iter() {
            let values = of.values.iter().copied().filter(|x| *x != user);
            let place = self.place_of(before, &took, values.clone());
            // What was found to be equal to an operand is that operand, but for what is rounded to
            // be it.
            let is_operand = place.is_some_and(|place| !is_rounding(before, took[place].node));
            let is_one = |x: NodeId| {
                took.iter().any(|arg| arg.node == x || self.may_have_become(before, arg.node, x))
            };
            let is_new = |x: &NodeId| !is_operand && !widened.contains(x) && !is_one(*x);
            let new: SmallVec<[NodeId; 2]> = values.filter(is_new).collect();
            self.new_uses.extend(new.into_iter().map(|x| (x, user, of.dtype)));
            if let Some(place) = place.filter(|_| is_same) {
                took.swap_remove(place);
            }
        }
    }

    /// Which of these operands one of the values is, or may have become: an op takes an operand
    /// once, what became of it as often as it likes.
    fn place_of(
        &self,
        before: &Graph,
        took: &[ValueId],
        values: impl Iterator<Item = NodeId> + Clone,
    ) -> Option<usize> {
        let is_one = |arg: &ValueId| values.clone().any(|x| x == arg.node);
        let plain = |arg: &ValueId| is_one(arg) && !is_rounding(before, arg.node);
        let became =
            |arg: &ValueId| values.clone().any(|x| self.may_have_become(before, arg.node, x));
        let place = took.iter().position(plain).or_else(|| took.iter().position(is_one));
        place.or_else(|| took.iter().position(became))
    }

    /// True if a rewrite may have found out that a node gives `x`: it is gone, and made of `x` by
    /// ops that are gone and round nothing.
    ///
    /// ```text
    /// before: %0 = round_to %x {to = f16}; %1 = mul %x, none {scalar = 1.0}; %2 = sub %0, %1
    /// after:  %0 = round_to %x {to = f16}; %2 = sub %0, %x
    /// ```
    fn may_have_become(&self, before: &Graph, id: NodeId, x: NodeId) -> bool {
        let mut seen: SmallVec<[NodeId; 8]> = SmallVec::new();
        let mut todo: SmallVec<[NodeId; 8]> = SmallVec::from_slice(&[id]);
        while let Some(id) = todo.pop() {
            if id == x {
                return true;
            }
            if !self.has(id) && !is_rounding(before, id) && !seen.contains(&id) && seen.len() < GONE
            {
                seen.push(id);
                todo.extend(before.args(id).iter().map(|arg| arg.node));
            }
        }
        false
    }

    /// Nothing of it, as far as is known.
    pub(super) fn unknown(graph: &Graph) -> Self {
        let (nodes, holders) = (vec![false; graph.len()], vec![0; graph.len()]);
        Kept { nodes, holders, new_uses: FxHashSet::default() }
    }

    /// True if the node is still there.
    pub(super) fn has(&self, id: NodeId) -> bool {
        self.nodes[id.index()]
    }

    /// The floats that hold what the node gives now, one bit each.
    pub(super) fn holders(&self, id: NodeId) -> u8 {
        self.holders[id.index()]
    }

    /// True if what the node gives now lies in a dtype that fits.
    pub(super) fn holds(&self, id: NodeId, to: DType) -> bool {
        self.holders(id) & bit(to) != 0
    }

    /// True if a user of a cast now takes what the cast was given.
    pub(super) fn is_passed_by(&self, before: &Graph, cast: NodeId) -> bool {
        let x = before.args(cast)[0];
        self.is_taken_behind(before, x, cast, before.node(cast).attrs.dtype("to"))
    }

    /// True if a user of a value, or of a cast of it, now takes `x`, and does not round it the same
    /// way itself.
    fn is_taken_behind(
        &self,
        before: &Graph,
        x: ValueId,
        value: NodeId,
        to: Option<DType>,
    ) -> bool {
        before.dag.neighbors(value).any(|user| {
            let is_cast = is_cast(before, user);
            let rounds = is_cast && before.node(user).attrs.dtype("to") == to;
            !rounds && self.new_uses.contains(&(x.node, user, before.ty(x).dtype))
                || is_cast && self.is_taken_behind(before, x, user, to)
        })
    }
}

/// An operand of a node, as the values of the program before that it stands for: equal ones have
/// become one.
#[derive(Clone)]
struct Taken {
    values: SmallVec<[NodeId; 2]>,
    dtype: DType,
}

/// Each of those values.
fn each(taken: &[Taken]) -> impl Iterator<Item = (NodeId, &Taken)> {
    taken.iter().flat_map(|of| of.values.iter().map(move |x| (*x, of)))
}

fn is_rounding(graph: &Graph, id: NodeId) -> bool {
    is_cast(graph, id) && {
        let (from, to) = dtypes(graph, id);
        rounds(from, to)
    }
}

/// What has become of ops that take a value and a rounding of it, in their gradients. These compute
/// with the operands as often as they like, so only what is the same says that the value was taken
/// in place of the rounding: two nodes of one op and operands.
struct Gradients {
    /// For each such op the value, and what the op takes of the rounding.
    ops: FxHashMap<NodeId, SmallVec<[(NodeId, NodeId); 1]>>,
    /// The nodes that stand for such an op in its gradient, and what they take of the program
    /// before.
    nodes: FxHashMap<NodeId, Vec<Taker>>,
}

/// A node, and what it takes.
type Taker = (NodeId, Vec<Taken>);

impl Gradients {
    fn of(before: &Graph) -> Self {
        let mut ops: FxHashMap<NodeId, SmallVec<[(NodeId, NodeId); 1]>> = FxHashMap::default();
        for cast in casts(before) {
            let (from, to) = dtypes(before, cast);
            if !rounds(from, to) {
                continue;
            }
            let x = before.args(cast)[0].node;
            for user in before.dag.neighbors(x) {
                let args = before.args(user);
                let of_cast = |arg: &&ValueId| behind_widenings(before, arg.node) == cast;
                if let Some(rounded) = args.iter().find(of_cast).filter(|_| user != cast) {
                    ops.entry(user).or_default().push((x, rounded.node));
                }
            }
        }
        Gradients { ops, nodes: FxHashMap::default() }
    }

    fn note(&mut self, op: NodeId, node: NodeId, taken: &[Taken]) {
        if self.ops.contains_key(&op) {
            self.nodes.entry(op).or_default().push((node, taken.to_vec()));
        }
    }

    /// The values, ops and dtypes of which a gradient takes the value twice in the same way, and
    /// the rounding nowhere.
    fn without_rounding(self, before: &Graph, after: &Graph) -> Vec<(NodeId, NodeId, DType)> {
        let mut found = Vec::new();
        for (op, nodes) in &self.nodes {
            for &(x, rounded) in &self.ops[op] {
                let is_taken = |value: NodeId| {
                    let takes =
                        move |(_, taken): &&Taker| each(taken).any(|(node, _)| node == value);
                    nodes.iter().filter(takes).map(|(node, _)| *node)
                };
                let rest: Vec<NodeId> = is_taken(x).collect();
                let is_same = |a: NodeId, b: NodeId| {
                    let (m, n) = (after.node(a), after.node(b));
                    m.op == n.op && m.attrs == n.attrs && after.args(a) == after.args(b)
                };
                let twice = |(i, a): (usize, &NodeId)| rest[..i].iter().any(|b| is_same(*a, *b));
                if is_taken(rounded).next().is_none() && rest.iter().enumerate().any(twice) {
                    found.push((x, *op, before.node(x).results[0].dtype));
                }
            }
        }
        found
    }
}

/// False for casts and views that a rewrite has put beside what it made of an op.
fn is_value(before: &Graph, old: NodeId, after: &Graph, new: NodeId) -> bool {
    let is_beside = || is_cast(after, new) || matches!(lowering(after, new), Some(Lower::View(_)));
    let is_composite = matches!(before.node(old).op.def().body, Body::Composite { .. });
    before.node(old).op == after.node(new).op || is_composite || !is_beside()
}

fn behind_widenings(graph: &Graph, mut id: NodeId) -> NodeId {
    while is_cast(graph, id) {
        let (from, to) = dtypes(graph, id);
        if !from.fits_in(to) || graph.node(id).op.intrinsic() == Some(Intrinsic::RoundTo) {
            break;
        }
        id = graph.args(id)[0].node;
    }
    id
}
