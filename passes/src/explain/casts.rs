//! [`CastNote`]: where a cast comes from, and where it went.

use super::made::{HomeNote, Made, MadeCast, few, standing};
use crate::fuse::Housed;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;
use tracecast_ir::policy::{Decision, PolicySet, RuleId};
use tracecast_ir::text::Names;
use tracecast_ir::{DType, Graph, NodeId, PointId, Reason};

/// One cast that the program asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct CastNote {
    /// The number of its [point](tracecast_ir::Graph::points).
    pub point: PointId,
    /// The node of the traced program for whose sake it is made.
    pub node: NodeId,
    /// That node as the text of the program calls it, such as `%3`.
    pub value: String,
    /// What is cast, as far as it has a name in the traced program.
    pub operand: Option<String>,
    /// True if it belongs to the gradient of the node.
    pub backward: bool,
    /// Why.
    pub reason: Reason,
    /// The rule that decided, if a policy did.
    pub rule: Option<RuleId>,
    /// The table of that rule with its version, such as `torch-cpu 2.15.0`.
    pub table: Option<String>,
    /// The region of the node: its number in the text.
    pub region: u32,
    /// The module path of the node.
    pub scope: String,
    /// The line that recorded the node.
    pub source: String,
    /// The dtype before.
    pub from: DType,
    /// The dtype after.
    pub to: DType,
    /// What a kernel of its own would read and write.
    pub bytes: usize,
    /// What is read and written in a run only because of it. Notes about the same cast share these
    /// bytes.
    pub moved: usize,
    /// The casts that were made for it, often for others too; empty if nothing was left to do.
    pub made: SmallVec<[Arc<MadeCast>; 1]>,
    /// True for a rounding that the precision leaves away: who takes the value is in the kernel
    /// that makes it, and takes it in f32.
    pub dropped: bool,
}

impl CastNote {
    /// True if it is a kernel that does nothing else.
    pub fn is_standalone(&self) -> bool {
        self.made.iter().any(|cast| cast.is_standalone())
    }

    /// True if nothing was left to do: what is cast had been widened from that very dtype, or is
    /// computed in it.
    pub fn is_cancelled(&self) -> bool {
        self.homes().next().is_none() && !self.dropped
    }

    /// Where it is.
    pub fn homes(&self) -> impl Iterator<Item = &HomeNote> {
        self.made.iter().flat_map(|cast| &cast.homes)
    }

    /// The first few homes, and how many more there are; empty if it has none.
    pub fn first_homes(&self) -> String {
        few(self.made.iter().map(|cast| cast.homes.as_slice()), |_| true)
    }

    /// The first few of the other nodes for whose sake, or for the sake of whose gradients, the
    /// same cast is made, and how many more there are; empty if it is made for this one alone.
    pub fn first_sharers(&self) -> String {
        few(self.made.iter().map(|cast| cast.made_for(self.backward)), |user| *user != self.value)
    }

    /// True if both are about the very same casts.
    pub(super) fn is_made_as(&self, other: &CastNote) -> bool {
        let number = |cast: &Arc<MadeCast>| cast.number;
        !self.made.is_empty() && self.made.iter().map(number).eq(other.made.iter().map(number))
    }
}

/// A program on its way.
pub(super) struct Found<'a> {
    pub(super) traced: &'a Graph,
    /// Of core ops: which casts there are at all.
    pub(super) core: Option<&'a Graph>,
    /// Simplified and placed: what is left of them.
    pub(super) placed: &'a Graph,
    /// Placed so that every rounding stays, if `placed` is not: what is left of them then.
    pub(super) exact: Option<&'a Graph>,
    pub(super) housed: &'a [Housed],
}

impl Found<'_> {
    /// What the kernels read and write only because of casts.
    pub(super) fn moved(&self) -> usize {
        self.housed.iter().map(|h| h.moved).sum()
    }

    pub(super) fn notes(
        &self,
        policies: &PolicySet,
        decisions: &[Option<Decision>],
    ) -> Vec<CastNote> {
        let names = Names::new(self.traced);
        let left = Made::of(self.placed, self.housed, &names);
        let asked = self.core.map(standing).unwrap_or_default();
        let dropped = self.dropped(&left);
        let points = asked.keys().copied().chain(left.points()).chain(dropped.iter().copied());
        let points = points.collect::<BTreeSet<_>>();
        let mut notes = Vec::new();
        for point in points {
            let mut note = self.note(point, &names, left.for_point(point));
            if let (Reason::Policy { .. }, Some(Some(decision))) =
                (note.reason, decisions.get(note.node.index()))
            {
                note.table = table(policies, &decision.rule);
                note.rule = Some(decision.rule.clone());
            }
            note.dropped = dropped.contains(&point);
            notes.push(note);
        }
        notes
    }

    /// The roundings that would be left if all stayed, those of results by ops among them, and are
    /// not.
    fn dropped(&self, left: &Made) -> BTreeSet<PointId> {
        let Some(exact) = self.exact else { return BTreeSet::new() };
        let points = self.placed.points();
        let of_results = exact.points().len()..points.len();
        let rounds = |p: &PointId| {
            let point = points[*p as usize];
            point.from.is_float() && point.to.is_float() && !point.from.fits_in(point.to)
        };
        let all = standing(exact).into_keys().chain(of_results.map(|p| p as PointId));
        all.filter(|p| rounds(p) && left.for_point(*p).is_empty()).collect()
    }

    fn note(&self, id: PointId, names: &Names<'_>, made: &[Arc<MadeCast>]) -> CastNote {
        let point = self.placed.points()[id as usize];
        let node = self.traced.node(point.node);
        let args = self.traced.args(point.node);
        let elements = self.placed.hint(point.numel);
        let operand = match point.reason {
            Reason::Policy { operand } => args.get(usize::from(operand)),
            Reason::Written if !point.backward => args.first(),
            _ => None,
        };
        CastNote {
            point: id,
            node: point.node,
            value: names.node(point.node).to_string(),
            operand: operand.map(|v| names.value(*v).to_string()),
            backward: point.backward,
            reason: point.reason,
            rule: None,
            table: None,
            region: node.region,
            scope: node.scope.to_string(),
            source: node.source.to_string(),
            from: point.from,
            to: point.to,
            bytes: elements.saturating_mul(point.from.bytes() + point.to.bytes()),
            moved: made.iter().map(|cast| cast.moved).sum(),
            made: made.into(),
            dropped: false,
        }
    }
}

/// The table that a rule stands in, with its version.
pub(super) fn table(policies: &PolicySet, rule: &RuleId) -> Option<String> {
    let name = rule.as_str().split_once('/')?.0;
    let tables =
        tracecast_ir::policy::DeviceType::ALL.into_iter().filter_map(|d| policies.table(d));
    let found = tables.into_iter().find(|table| table.name() == name)?;
    Some(format!("{} {}", found.name(), found.version()))
}
