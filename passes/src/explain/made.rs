//! [`MadeCast`]: a cast that the passes left in a program. What asked for it refers to it, so a
//! weight that a thousand ops want cast is told once.

use crate::fuse::{Home, Housed};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use tracecast_ir::text::Names;
use tracecast_ir::{Graph, NodeId, PointId};

/// How many homes, or sharers, of a cast a line of text names.
const FEW: usize = 3;

/// A cast that is left in the program: one, however many ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeCast {
    /// Its number among those of the program.
    pub number: usize,
    /// Where it is.
    pub homes: Vec<HomeNote>,
    /// What is read and written in a run only because of it.
    pub moved: usize,
    /// The numbers of the points that it stands for.
    pub points: Vec<PointId>,
    /// The nodes for whose sake it is made, as the text of the program calls them.
    pub users: Vec<String>,
    /// The nodes for the sake of whose gradients it is made.
    pub backward: Vec<String>,
}

/// A home and the kernel that it is in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HomeNote {
    /// What the cast is a part of.
    pub home: Home,
    /// The name of the kernel.
    pub kernel: String,
}

impl MadeCast {
    /// The nodes for whose sake, or for the sake of whose gradients, it is made.
    pub(super) fn made_for(&self, backward: bool) -> &[String] {
        if backward { &self.backward } else { &self.users }
    }

    /// True if one of its homes is a kernel that does nothing else.
    pub fn is_standalone(&self) -> bool {
        self.homes.iter().any(|at| at.home == Home::Kernel)
    }
}

impl fmt::Display for HomeNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.home {
            Home::Kernel => write!(f, "stand-alone: @{}", self.kernel),
            home => write!(f, "{home} of @{}", self.kernel),
        }
    }
}

/// The first few entries of all lists together and how many more there are: `a, b, c and 7 more`.
/// No list has an entry twice.
pub(super) fn few<'a, T, L>(lists: L, keep: impl Fn(&T) -> bool) -> String
where
    T: fmt::Display + Ord + 'a,
    L: Iterator<Item = &'a [T]> + Clone,
{
    let several = lists.clone().nth(1).is_some();
    let (mut shown, mut count) = (Vec::new(), 0);
    let mut seen = BTreeSet::new();
    for entry in lists.flatten().filter(|entry| keep(entry)) {
        if several && !seen.insert(entry) {
            continue;
        }
        count += 1;
        if shown.len() < FEW {
            shown.push(entry.to_string());
        }
    }
    let more = count - shown.len();
    let end = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &end
}

/// The casts of a placed program, by the points that they stand for.
pub(super) struct Made(BTreeMap<PointId, Vec<Arc<MadeCast>>>);

impl Made {
    pub(super) fn of(placed: &Graph, housed: &[Housed], names: &Names<'_>) -> Made {
        let mut homes: BTreeMap<NodeId, Vec<&Housed>> = BTreeMap::new();
        for at in housed {
            homes.entry(at.cast).or_default().push(at);
        }
        let mut casts: BTreeMap<NodeId, Arc<MadeCast>> = BTreeMap::new();
        let mut made = Made(BTreeMap::new());
        for (point, nodes) in standing(placed) {
            for node in nodes {
                let number = casts.len();
                let homes = homes.get(&node).map_or(&[][..], Vec::as_slice);
                let cast = casts
                    .entry(node)
                    .or_insert_with(|| Arc::new(self::made(number, placed, node, homes, names)));
                made.0.entry(point).or_default().push(Arc::clone(cast));
            }
        }
        made
    }

    /// The casts that stand for a point.
    pub(super) fn for_point(&self, point: PointId) -> &[Arc<MadeCast>] {
        self.0.get(&point).map_or(&[], Vec::as_slice)
    }

    /// The points that casts stand for.
    pub(super) fn points(&self) -> impl Iterator<Item = PointId> {
        self.0.keys().copied()
    }
}

fn made(
    number: usize,
    placed: &Graph,
    cast: NodeId,
    housed: &[&Housed],
    names: &Names<'_>,
) -> MadeCast {
    let points = placed.node(cast).origin.points.to_vec();
    let users = |backward: bool| {
        let points = points.iter().map(|p| placed.points()[*p as usize]);
        let nodes: BTreeSet<NodeId> =
            points.filter(|p| p.backward == backward).map(|p| p.node).collect();
        nodes.into_iter().map(|node| names.node(node).to_string()).collect()
    };
    let homes: BTreeSet<HomeNote> =
        housed.iter().map(|at| HomeNote { home: at.home, kernel: at.kernel.clone() }).collect();
    MadeCast {
        number,
        homes: homes.into_iter().collect(),
        moved: housed.iter().map(|at| at.moved).sum(),
        users: users(false),
        backward: users(true),
        points,
    }
}

/// The live casts of a program that stand for each point.
pub(super) fn standing(graph: &Graph) -> BTreeMap<PointId, Vec<NodeId>> {
    let live = graph.live();
    let mut casts: BTreeMap<PointId, Vec<NodeId>> = BTreeMap::new();
    for id in graph.nodes().filter(|id| live[id.index()]) {
        for &point in &graph.node(id).origin.points {
            casts.entry(point).or_default().push(id);
        }
    }
    casts
}
