//! Splits kernels that are beyond the limits of the device ([`KernelLimits`]) into kernels within
//! them.
//!
//! A group is cut in the order of its members: the longest run of members whose kernel the device
//! takes becomes a kernel, then the next. A member that it takes in no kernel is left to another
//! device, together with its neighbours of that kind. What crosses a cut is stored.
//!
//! Before: one kernel of 10 operands updates two moments and a weight, and the device takes 6.
//! After: a kernel for each.

use super::forecast::Forecast;
use std::borrow::Cow;
use std::ops::Range;
use tracecast_ir::hash::{FxHashMap, FxHashSet};
use tracecast_ir::kernel::build::{self, Built, Context, Group, domain, form, is_row, lowering};
use tracecast_ir::kernel::update::predicated;
use tracecast_ir::kernel::{FormKind, KernelLimits};
use tracecast_ir::op::Lower;
use tracecast_ir::{Graph, NodeId, ValueId};

/// A group and its kernel.
pub(super) type Grouped<'f> = (Cow<'f, Group>, Built);

/// A node for which there is no kernel, and why.
pub(super) type Unbuilt = (NodeId, String);

/// The same kernels, or several in the place of one that is beyond the limits: `apart` gets the
/// members of that one, and the reason.
pub(super) fn within<'f>(
    graph: &Graph,
    forecast: &Forecast,
    kernels: Vec<Grouped<'f>>,
    apart: &mut FxHashMap<NodeId, String>,
) -> Result<Vec<Grouped<'f>>, Unbuilt> {
    if forecast.settings.limits.are_none() {
        return Ok(kernels);
    }
    let mut out = Vec::with_capacity(kernels.len());
    for (group, built) in kernels {
        match forecast.settings.limits.refuse(&built.kernel) {
            Some(why) if group.members.len() > 1 => {
                let pieces = Cutting::of(graph, forecast, &group).pieces()?;
                if pieces.len() < 2 {
                    out.push((group, built));
                    continue;
                }
                group.members.iter().for_each(|m| drop(apart.insert(*m, why.clone())));
                out.extend(pieces.into_iter().map(|(group, built)| (Cow::Owned(group), built)));
            }
            _ => out.push((group, built)),
        }
    }
    Ok(out)
}

/// A group that is cut.
struct Cutting<'g> {
    graph: &'g Graph,
    forecast: &'g Forecast,
    group: &'g Group,
    /// For each member, by its place, the members that it reads.
    reads: Vec<Vec<NodeId>>,
}

impl<'g> Cutting<'g> {
    fn of(graph: &'g Graph, forecast: &'g Forecast, group: &'g Group) -> Self {
        let reads = group.members.iter().map(|m| reads(graph, forecast, group, *m)).collect();
        Cutting { graph, forecast, group, reads }
    }

    fn limits(&self) -> &KernelLimits {
        &self.forecast.settings.limits
    }

    fn pieces(&self) -> Result<Vec<(Group, Built)>, Unbuilt> {
        let count = self.group.members.len();
        // Ranges of members, and whether the device takes their kernel.
        let mut cuts: Vec<(Range<usize>, bool)> = Vec::new();
        let mut begin = 0;
        while begin < count {
            let is_taken = |end: &usize| {
                let built = self.build(begin..*end);
                built.is_ok_and(|(_, built)| self.limits().refuse(&built.kernel).is_none())
            };
            let taken = (begin + 1..=count).rev().find(is_taken);
            let range = begin..taken.unwrap_or(begin + 1);
            begin = range.end;
            match cuts.last_mut() {
                Some((last, false)) if taken.is_none() && self.build(last.start..begin).is_ok() => {
                    last.end = begin;
                }
                _ => cuts.push((range, taken.is_some())),
            }
        }
        let built = |(range, _): (Range<usize>, bool)| {
            let first = self.group.members[range.start];
            self.build(range).map_err(|message| (first, message))
        };
        cuts.into_iter().map(built).collect()
    }

    /// The kernel of some members, one behind another.
    fn build(&self, range: Range<usize>) -> Result<(Group, Built), String> {
        let members = self.group.members[range.clone()].to_vec();
        let domain = self.domain(&members).ok_or("its members run over several domains")?;
        let is_read = |n: NodeId| {
            let others = self.reads.iter().enumerate().filter(|(at, _)| !range.contains(at));
            others.flat_map(|(_, read)| read).any(|read| *read == n)
        };
        let stored = |n: NodeId| self.forecast.is_stored(n) || is_read(n);
        let inline = |n: NodeId| self.forecast.inline[n.index()];
        let group = Group { members, domain: domain.clone() };
        let built = build::kernel(
            &Context { graph: self.graph, inline: &inline, stored: &stored },
            &group,
        )?;
        Ok((group, built))
    }

    /// What a kernel of these members runs over, if that is one domain.
    fn domain(&self, members: &[NodeId]) -> Option<&'g tracecast_ir::Shape> {
        let graph = self.graph;
        let whole = &self.group.domain;
        let is_whole = members.iter().any(|m| domain(graph, *m) == whole);
        let over = if is_whole { whole } else { domain(graph, members[0]) };
        let is_nest = form(graph, members[0]) == Some(FormKind::Nest);
        let fits = |m: &NodeId| {
            let reduces =
                matches!(lowering(graph, *m), Some(Lower::ReduceRow | Lower::ReduceColumn));
            let row = is_nest && !reduces && is_row(&graph.node(*m).results[0].shape, over);
            domain(graph, *m) == over || row
        };
        members.iter().all(fits).then_some(over)
    }
}

/// The members that a member reads, behind what is rematerialised: with the flag under which its
/// kernel may be launched.
fn reads(graph: &Graph, forecast: &Forecast, group: &Group, member: NodeId) -> Vec<NodeId> {
    let (mut read, mut seen) = (Vec::new(), FxHashSet::default());
    let flag = predicated(graph, ValueId { node: member, result: 0 });
    let flag = flag.map(|(found, _)| found.node);
    let mut todo: Vec<NodeId> = graph.args(member).iter().map(|a| a.node).chain(flag).collect();
    while let Some(node) = todo.pop() {
        if !seen.insert(node) {
            continue;
        }
        if group.members.contains(&node) {
            read.push(node);
        } else if forecast.inline[node.index()] {
            todo.extend(graph.args(node).iter().map(|a| a.node));
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::super::{Forecast, Fused, Settings};
    use tracecast_ir::DType;
    use tracecast_ir::kernel::KernelLimits;
    use tracecast_ir::text::parse;

    /// Each of 64 values is read twice by the next, and none of them has a place in memory: what a
    /// member reads is found once, not along each of 2^64 ways.
    #[test]
    fn a_kernel_is_cut_behind_a_long_chain_of_rematerialised_values() {
        let mut text = "graph @g(%x: f32[8], %a: f32[8], %b: f32[8]) {
          %0 = cast %x {to = f64} : f64[8]\n"
            .to_owned();
        for n in 1..=64 {
            text += &format!("  %{n} = add %{}, %{} : f64[8]\n", n - 1, n - 1);
        }
        text += "  %65 = cast %64 {to = f32} : f32[8]
          %66 = mul %65, %a : f32[8]
          %67 = mul %66, %b : f32[8]
          return y = %66, z = %67
        }";
        let limits = KernelLimits { dtypes: &[DType::F32], most_operands: 3, ..KernelLimits::NONE };
        let settings = Settings { limits, ..Settings::default() };
        let graph = parse(&text).unwrap();
        let forecast = Forecast::of(&graph, &settings);
        let fused = Fused::of(&graph, &forecast).unwrap();
        assert_eq!(fused.kernels.len(), 2);
        assert!(fused.kernels.iter().all(|built| limits.refuse(&built.kernel).is_none()));
    }
}
