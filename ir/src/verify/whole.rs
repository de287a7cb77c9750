//! Roundings that moved above a choice or a concatenation: each of the parts is to be rounded, not
//! one of them.
//!
//! ```text
//! before: %2 = where %c, %a, %b; %3 = cast %2 {to = bf16}
//! after:  %3 = cast %a {to = bf16}; %4 = cast %b {to = bf16}; %5 = where %c, %3, %4
//! ```
//!
//! Both casts stand for the rounding, so one of them alone does not show that it is whole. What
//! handed the elements to the old cast does: if it is still there, what it gives now is narrow, or
//! made of what is rounded, or a cast that stands for the rounding comes after it.
//!
//! Of a choice that is rounded twice, the first rounding may have become a choice of its own,
//! beside the one that is still there:
//!
//! ```text
//! before: %2 = where %c, %a, %b : f64; %3 = cast %2 {to = f32}; %4 = cast %3 {to = f16}
//! after:  %2 = where %c, %a, %b : f64; %3 = where %c, %narrow_a, %narrow_b : f32; %4 = cast %3 {to = f16}
//! ```
//!
//! The second is whole if a cast that stands for it comes after every choice that stands for the
//! first.

use super::casts::{casts, dtypes, is_cast, points_to};
use super::kept::Kept;
use crate::DType;
use crate::graph::{Graph, NodeId, ValueId};
use crate::hash::{FxHashMap, FxHashSet};
use crate::kernel::build::lowering;
use crate::op::{Elements, Lower};
use smallvec::SmallVec;

/// A program that a pass has made, for questions about roundings of the one before.
pub(super) struct Whole<'a> {
    before: &'a Graph,
    kept: &'a Kept,
    after: &'a Graph,
    /// For each rounding the live casts that stand for it; made when it is first asked for.
    casts: Option<FxHashMap<u32, SmallVec<[NodeId; 2]>>>,
}

impl<'a> Whole<'a> {
    pub(super) fn of(before: &'a Graph, kept: &'a Kept, after: &'a Graph) -> Self {
        Whole { before, kept, after, casts: None }
    }

    /// True if the rounding of that number, which the cast stands for, is lost for a part of what
    /// it rounds.
    pub(super) fn misses_a_part(&mut self, cast: NodeId, number: u32) -> bool {
        let (_, to) = dtypes(self.before, cast);
        let Some((x, between)) =
            self.choice(cast).filter(|(x, _)| self.kept.has(*x) && !self.kept.holds(*x, to))
        else {
            return false;
        };
        let roundings = self.roundings(number);
        let is_made_of = |is_one: &dyn Fn(NodeId) -> bool| {
            roundings.iter().any(|rounding| self.is_made_of(*rounding, is_one))
        };
        let stays = |id: &NodeId| self.stands_for(*id, x, &[x]);
        if is_made_of(&|id| stays(&id))
            || self.after.nodes().filter(stays).any(|id| self.is_rounded(id, to))
        {
            return false;
        }
        let live = self.after.live();
        let narrowed = |id: &NodeId| live[id.index()] && self.stands_for(*id, x, &between);
        let mut choices = self.after.nodes().filter(narrowed).peekable();
        choices.peek().is_none() || !choices.all(|choice| is_made_of(&|id| id == choice))
    }

    /// The choice, or the concatenation, that hands a cast what it rounds, and what lies between
    /// the two.
    fn choice(&self, cast: NodeId) -> Option<(NodeId, SmallVec<[NodeId; 4]>)> {
        let (mut at, mut between) = (cast, SmallVec::new());
        loop {
            match data(self.before, at)[..] {
                [] => return None,
                [x] => at = x.node,
                _ => break,
            }
            between.push(at);
        }
        between.pop();
        Some((at, between))
    }

    /// True for an op such as `x` that stands for one of these.
    fn stands_for(&self, id: NodeId, x: NodeId, these: &[NodeId]) -> bool {
        let node = self.after.node(id);
        let stands_for = &node.origin.stands_for;
        node.op == self.before.node(x).op && these.iter().any(|old| stands_for.contains(old))
    }

    fn roundings(&mut self, number: u32) -> SmallVec<[NodeId; 2]> {
        let casts = self.casts.get_or_insert_with(|| {
            let mut found: FxHashMap<u32, SmallVec<[NodeId; 2]>> = FxHashMap::default();
            let live = self.after.live();
            for id in casts(self.after).filter(|id| live[id.index()]) {
                for point in points_to(self.after, id) {
                    found.entry(point).or_default().push(id);
                }
            }
            found
        });
        casts.get(&number).cloned().unwrap_or_default()
    }

    /// True if what a cast rounds are elements of such a node.
    fn is_made_of(&self, cast: NodeId, is_one: &dyn Fn(NodeId) -> bool) -> bool {
        let mut todo: Vec<NodeId> = vec![cast];
        let mut seen = FxHashSet::default();
        while let Some(id) = todo.pop() {
            if is_one(id) {
                return true;
            }
            if seen.insert(id) {
                todo.extend(data(self.after, id).iter().map(|arg| arg.node));
            }
        }
        false
    }

    /// True if all elements are rounded to that float before.
    fn is_rounded(&self, id: NodeId, to: DType) -> bool {
        let mut todo: Vec<NodeId> = vec![id];
        let mut seen = FxHashSet::default();
        while let Some(id) = todo.pop() {
            let node = self.after.node(id);
            let is_narrow = node.results[0].dtype.fits_in(to)
                || node.attrs.dtype("to").is_some_and(|narrow| narrow.fits_in(to));
            if is_narrow || !seen.insert(id) {
                continue;
            }
            match &data(self.after, id)[..] {
                [] => return false,
                parts => todo.extend(parts.iter().map(|part| part.node)),
            }
        }
        true
    }
}

/// The operands whose elements an op hands on, or changes the dtype of.
fn data(graph: &Graph, id: NodeId) -> SmallVec<[ValueId; 4]> {
    let args = graph.args(id);
    match lowering(graph, id) {
        Some(Lower::View(_) | Lower::Gather | Lower::Pad | Lower::Windows) => args[..1].into(),
        Some(Lower::Cat) => args,
        Some(Lower::Map(map)) if map.elements() != Elements::New => {
            args[map.handed_on_from().unwrap_or(0)..].into()
        }
        Some(Lower::Map(_)) if is_cast(graph, id) => args,
        _ => SmallVec::new(),
    }
}
