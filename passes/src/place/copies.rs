//! Where narrow copies of values that somebody takes as they are stand beside them.
//!
//! Everything that rounds such a value, or hands its elements on to what rounds them, takes either
//! a narrow copy, made where the value is made, or the value itself, and rounds what it makes of
//! it. Values that pass from one kernel to others cost their bytes for being written and for each
//! kernel that reads them; kernels are those that `fuse` would make of the program as it is. What
//! is read within a kernel costs nothing. [`Choices`] are made by a minimum cut, for `exact` and
//! `optimised` alike: both have the same in memory.
//!
//! Before, where another kernel reads the copy too: `%1 = sqrt %0; %2 = permute %1 {dims = [1, 0]};
//! %3 = cast %2 {to = bf16}`. After: `%1 = sqrt %0; %2 = cast %1 {to = bf16}; %3 = permute %2 {dims
//! = [1, 0]}`.

use super::cut::{Choice, Choices, Read, Version};
use super::demand::{Demand, Through, demand_of};
use crate::fuse::{Forecast, Users};
use smallvec::SmallVec;
use tracecast_ir::hash::{FxHashMap, FxHashSet};
use tracecast_ir::{DType, Graph, NodeId};

/// What one node takes that could take narrow copies.
#[derive(Clone, Debug)]
pub(super) struct Takes {
    /// True if it takes them.
    pub(super) copies: bool,
    /// For each operand the views between the value in memory and the node; they are recorded again
    /// on the copy.
    pub(super) views: SmallVec<[usize; 2]>,
}

/// For nodes that could take narrow copies of values that are wanted as they are, whether they do.
/// Others have nothing to gain by it.
pub(super) fn copies<'f>(
    graph: &Graph,
    demands: &[Demand],
    forecast: impl FnOnce() -> &'f Forecast,
) -> FxHashMap<NodeId, Takes> {
    let (choices, takers) = choices(graph, demands, forecast);
    let narrow = choices.cheapest();
    let takes = |Taker { node, choice, views }| {
        (node, Takes { copies: choice.is_some_and(|c: usize| narrow[c]), views })
    };
    takers.into_iter().map(takes).collect()
}

/// A node that could take narrow copies.
#[derive(Clone, Debug)]
pub(super) struct Taker {
    pub(super) node: NodeId,
    /// Its choice; without one it takes none.
    pub(super) choice: Option<usize>,
    /// As in [`Takes`].
    pub(super) views: SmallVec<[usize; 2]>,
}

/// The choices of a program, and whose they are.
pub(super) fn choices<'f>(
    graph: &Graph,
    demands: &[Demand],
    forecast: impl FnOnce() -> &'f Forecast,
) -> (Choices, Vec<Taker>) {
    let live = graph.live();
    let ask = |id: &NodeId| live[id.index()] && !asked(graph, demands, *id).is_empty();
    let askers: Vec<NodeId> = graph.nodes().filter(ask).collect();
    if askers.is_empty() {
        return (Choices::default(), Vec::new());
    }
    let mut table = Table::of(graph, &live, forecast());
    let mut takers = Vec::new();
    for node in askers {
        let (choice, views) = table.choice(node, &asked(graph, demands, node));
        let is_view = || Through::of(graph.node(node)).is_some_and(|through| through.is_whole_view);
        if choice.is_some() || is_view() {
            takers.push(Taker { node, choice, views });
        }
    }
    table.add_the_rest();
    (table.choices, takers)
}

/// The operands that a node rounds, or hands on to be rounded, while somebody else takes them as
/// they are; and the dtypes.
fn asked(graph: &Graph, demands: &[Demand], id: NodeId) -> SmallVec<[(usize, DType); 2]> {
    let node = graph.node(id);
    let mut asked = SmallVec::new();
    for (operand, arg) in graph.args(id).into_iter().enumerate() {
        let dtype = graph.ty(arg).dtype;
        if demands[arg.node.index()] != Demand::Wide || !dtype.is_float() {
            continue;
        }
        if let Demand::Narrow(to) = demand_of(node, operand, dtype, demands[id.index()]) {
            asked.push((operand, to));
        }
    }
    asked
}

/// The choices of a program, while they are found.
struct Table<'a> {
    graph: &'a Graph,
    forecast: &'a Forecast,
    users: Users,
    live: &'a [bool],
    roots: FxHashSet<NodeId>,
    /// The kernels that compute each node.
    kernels: Vec<SmallVec<[usize; 2]>>,
    choices: Choices,
    /// The place of each version among those of the choices.
    versions: FxHashMap<(NodeId, DType), usize>,
    /// The values in memory that choices are about.
    values: Vec<NodeId>,
    /// Nodes that choose, each with the values.
    taken: FxHashSet<(NodeId, NodeId)>,
}

impl<'a> Table<'a> {
    fn of(graph: &'a Graph, live: &'a [bool], forecast: &'a Forecast) -> Self {
        let users = Users::of_graph(graph);
        let mut kernels: Vec<SmallVec<[usize; 2]>> = vec![SmallVec::new(); graph.len()];
        for id in graph.nodes().rev().filter(|id| live[id.index()]) {
            let mut own: SmallVec<[usize; 2]> = forecast.kernel[id.index()].into_iter().collect();
            if forecast.inline[id.index()] && graph.node(id).arity() > 0 {
                let users = users.of(id).iter().filter(|user| live[user.index()]);
                users.for_each(|user| own.extend_from_slice(&kernels[user.index()]));
                own.sort_unstable();
                own.dedup();
            }
            kernels[id.index()] = own;
        }
        Table {
            graph,
            forecast,
            users,
            live,
            roots: graph.roots().map(|v| v.node).collect(),
            kernels,
            choices: Choices::default(),
            versions: FxHashMap::default(),
            values: Vec::new(),
            taken: FxHashSet::default(),
        }
    }

    /// Adds the choice of a node, if it has one: its place, and for each operand the views above.
    fn choice(
        &mut self,
        id: NodeId,
        asked: &[(usize, DType)],
    ) -> (Option<usize>, SmallVec<[usize; 2]>) {
        let args = self.graph.args(id);
        let mut views = SmallVec::from_elem(0, args.len());
        // What is rounded above a node that drops elements is more than what it needs.
        let through = Through::of(self.graph.node(id));
        if through.as_ref().is_some_and(|through| through.drops) {
            return (None, views);
        }
        let mut choice = Choice::default();
        for &(operand, to) in asked {
            let Some((value, above)) = self.in_memory(args[operand].node) else { continue };
            // Rounded where it is made it is a copy already.
            if through.is_none() && above == 0 {
                continue;
            }
            views[operand] = above;
            let dtype = self.graph.ty(args[operand]).dtype;
            let kernels = self.kernels[id.index()].clone();
            choice.wide.push(self.read(value, dtype, &kernels));
            choice.narrow.push(self.read(value, to, &kernels));
            self.taken.insert((id, value));
        }
        if choice.wide.is_empty() {
            return (None, views);
        }
        self.choices.choices.push(choice);
        (Some(self.choices.choices.len() - 1), views)
    }

    /// The value in memory, or in the hands of a kernel, that a node is a view of, and how many
    /// views lie between.
    fn in_memory(&self, mut id: NodeId) -> Option<(NodeId, usize)> {
        let mut views = 0;
        while self.forecast.inline[id.index()] {
            Through::of(self.graph.node(id)).filter(|through| through.is_whole_view)?;
            id = self.graph.args(id)[0].node;
            views += 1;
        }
        self.forecast.kernel[id.index()].map(|_| (id, views))
    }

    /// A read of a version of `value` by kernels other than its own.
    fn read(&mut self, value: NodeId, dtype: DType, by: &[usize]) -> Read {
        let own = self.forecast.kernel[value.index()];
        let kernels = by.iter().copied().filter(|k| Some(*k) != own).collect();
        let next = self.choices.versions.len();
        let version = *self.versions.entry((value, dtype)).or_insert(next);
        if version == next {
            let ty = &self.graph.node(value).results[0];
            let bytes = (self.graph.hint(ty.numel()).saturating_mul(dtype.bytes())) as u64;
            let is_written = ty.dtype == dtype && self.roots.contains(&value);
            self.choices.versions.push(Version { bytes, is_written, ..Version::default() });
            if ty.dtype == dtype {
                self.values.push(value);
            }
        }
        Read { version, kernels }
    }

    /// Adds what is read and written whatever is chosen.
    fn add_the_rest(&mut self) {
        for value in std::mem::take(&mut self.values) {
            let dtype = self.graph.node(value).results[0].dtype;
            let mut todo = vec![value];
            let mut seen = FxHashSet::default();
            while let Some(at) = todo.pop() {
                for user in self.users_of(at) {
                    if self.taken.contains(&(user, value)) || !seen.insert(user) {
                        continue;
                    }
                    let rounds = demand_of(self.graph.node(user), 0, dtype, Demand::Open);
                    match rounds {
                        Demand::Narrow(to) if at == value => self.add_copy(value, user, to),
                        _ if self.forecast.inline[user.index()] => todo.push(user),
                        _ => {
                            let kernels = self.kernels[user.index()].clone();
                            self.add_readers(value, dtype, &kernels);
                        }
                    }
                }
            }
        }
    }

    /// Adds what reads the copy that a narrowing of `value` is: one in another kernel is made of
    /// the value there, unless the copy lies in memory.
    fn add_copy(&mut self, value: NodeId, narrowing: NodeId, to: DType) {
        let dtype = self.graph.node(value).results[0].dtype;
        let users = self.users_of(narrowing);
        let mut readers: SmallVec<[usize; 2]> =
            users.iter().flat_map(|user| self.kernels[user.index()].clone()).collect();
        readers.sort_unstable();
        readers.dedup();
        let kernels = self.kernels[narrowing.index()].clone();
        let Some(&copy) = self.versions.get(&(value, to)) else {
            return self.add_readers(value, dtype, &kernels);
        };
        if self.forecast.kernel[narrowing.index()] == self.forecast.kernel[value.index()] {
            self.add_readers(value, to, &readers);
            self.choices.versions[copy].is_written |= self.roots.contains(&narrowing);
        } else {
            let wide = SmallVec::from_elem(self.read(value, dtype, &kernels), 1);
            let narrow = SmallVec::from_elem(self.read(value, to, &readers), 1);
            self.choices.choices.push(Choice { wide, narrow });
        }
    }

    /// These kernels read that version whatever is chosen.
    fn add_readers(&mut self, value: NodeId, dtype: DType, by: &[usize]) {
        if let Some(version) = self.versions.get(&(value, dtype)) {
            let own = self.forecast.kernel[value.index()];
            let kernels = by.iter().copied().filter(|k| Some(*k) != own);
            self.choices.versions[*version].readers.extend(kernels);
        }
    }

    fn users_of(&self, id: NodeId) -> SmallVec<[NodeId; 4]> {
        let users = self.users.of(id).iter().copied();
        users.filter(|user| self.live[user.index()]).collect()
    }
}
