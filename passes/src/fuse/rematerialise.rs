//! Rematerialised or stored: what a cheap function of values that lie in memory anyway costs either
//! way, in bytes.
//!
//! Storing a value costs a write, and a read by each kernel that takes it. Computing it again costs
//! the reads of what it is made of, as far as a kernel does not read that anyway, and arithmetic
//! (`cost`). What a single node of another kernel takes, and nothing else, is not rematerialised
//! but computed there instead, whatever it is. What a contraction multiplies is stored, since it is
//! packed fastest from memory.
//!
//! Before: `z = sub (sub x m) l` with one `m` and `l` per row is stored for the gradient, which
//! reads it. After: the gradient reads `x`, `m` and `l`.

use super::cost::{Cost, LONGEST_CHAIN, SMALLER, Settings, Weighed, operations};
use super::grouping::Groups;
use super::program::Program;
use super::reach::Reach;
use super::users::is_given;
use std::sync::Arc;
use tracecast_ir::hash::{FxHashMap, FxHashSet};
use tracecast_ir::kernel::build::{domain, form, lowering};
use tracecast_ir::kernel::update::predicated;
use tracecast_ir::kernel::{FormKind, Operands};
use tracecast_ir::op::Lower;
use tracecast_ir::{Graph, NodeId, ValueId};

impl<'a> Groups<'a> {
    /// The kernels of a program, with values stored or rematerialised, whichever costs less.
    pub(super) fn of(graph: &'a Graph, settings: &Settings) -> Self {
        let mut reach = Reach::of(graph, Arc::new(Program::of(graph, settings)));
        let reads = reach.settle(graph);
        let mut groups = Groups::form(graph, reach, reads);
        let (again, weighed) = cheaper_rematerialised(&groups);
        groups.reach.weighed.extend(weighed);
        if again.is_empty() {
            return groups;
        }
        let (mut reach, mut reads) = (groups.reach.clone(), groups.reads.clone());
        reach.widen(graph, &again, &mut reads);
        let next = Groups::form(graph, reach, reads);
        // Kernels may have become others by it.
        if next.bytes_moved() < groups.bytes_moved() { next } else { groups }
    }
}

/// Values that kernels store for others although it costs less to compute them where they are read.
fn cheaper_rematerialised(groups: &Groups<'_>) -> (Vec<NodeId>, FxHashMap<NodeId, Weighed>) {
    let stored = groups.stored();
    let is_stored = |n: &NodeId| stored[n.index()];
    let candidates: Vec<NodeId> =
        groups.graph.nodes().filter(|n| is_stored(n) && is_candidate(groups, *n)).collect();
    if candidates.is_empty() {
        return (candidates, FxHashMap::default());
    }
    let mut prices = Prices::of(groups, stored);
    for n in candidates {
        prices.decide(n);
    }
    (prices.again.into_iter().collect(), prices.weighed)
}

/// True for elementwise code over floats or truth values, cheap or read once, whose result is none
/// of the program's.
fn is_candidate(groups: &Groups<'_>, n: NodeId) -> bool {
    let (graph, reach) = (groups.graph, groups.reach());
    let ty = &graph.node(n).results[0];
    groups.of[n.index()].is_some()
        && !ty.dtype.is_int()
        && !reach.program.is_root[n.index()]
        && !reach.program.step[n.index()]
        && !reach.foreign[n.index()]
        && matches!(lowering(graph, n), Some(Lower::Map(_)))
        && (is_cheap(graph, n) || groups.readers[n.index()] == 1)
}

fn is_cheap(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::Map(map)) if map.is_cheap())
}

/// What a value is made of.
#[derive(Default)]
struct Recipe {
    sources: FxHashSet<NodeId>,
    /// Members of kernels on the way.
    steps: Vec<NodeId>,
    /// The operations that are not moved, but done a further time.
    operations: usize,
}

struct Prices<'g, 'a> {
    groups: &'g Groups<'a>,
    stored: Vec<bool>,
    /// For each value the other kernels that read it, each with the number of positions at which
    /// the nodes of it do.
    readers: FxHashMap<NodeId, FxHashMap<usize, usize>>,
    /// Values that are read in place: factors, and flags under which kernels are launched.
    as_they_lie: FxHashSet<NodeId>,
    /// What each kernel reads or makes.
    known: FxHashSet<(usize, NodeId)>,
    /// What will be rematerialised.
    again: FxHashSet<NodeId>,
    weighed: FxHashMap<NodeId, Weighed>,
}

impl<'g, 'a> Prices<'g, 'a> {
    fn of(groups: &'g Groups<'a>, stored: Vec<bool>) -> Self {
        let (graph, of) = (groups.graph, &groups.of);
        let mut prices = Prices {
            groups,
            stored,
            readers: FxHashMap::default(),
            as_they_lie: FxHashSet::default(),
            known: FxHashSet::default(),
            again: FxHashSet::default(),
            weighed: FxHashMap::default(),
        };
        for reader in graph.nodes() {
            let Some(kernel) = of[reader.index()] else { continue };
            prices.known.insert((kernel, reader));
            let read = groups.reads[reader.index()].iter().map(|read| read.node);
            let flag = predicated(graph, ValueId { node: reader, result: 0 });
            let flag = flag.map(|(found, _)| found.node);
            prices.as_they_lie.extend(flag);
            let operands = form(graph, reader).map(FormKind::operands);
            let as_it_lies = |of: &Operands| {
                matches!(
                    of,
                    Operands::InOwnOrder { .. }
                        | Operands::InMemory { .. }
                        | Operands::SeenInMemory { .. }
                )
            };
            if operands.as_ref().is_some_and(as_it_lies) {
                prices.as_they_lie.extend(read.clone());
            }
            let positions = graph.hint(domain(graph, reader).numel());
            for node in read.chain(flag) {
                prices.known.insert((kernel, node));
                if of[node.index()] != Some(kernel) {
                    *prices.readers.entry(node).or_default().entry(kernel).or_default() +=
                        positions;
                }
            }
        }
        prices
    }

    fn bytes(&self, n: NodeId) -> usize {
        self.groups.bytes(n)
    }

    fn decide(&mut self, n: NodeId) {
        let Some(kernels) = self.readers.get(&n).filter(|_| !self.as_they_lie.contains(&n)) else {
            return;
        };
        let graph = self.groups.graph;
        let elements = graph.hint(graph.node(n).results[0].numel());
        let is_moved = self.groups.readers[n.index()] == 1
            && kernels.values().all(|positions| *positions <= elements);
        if !is_moved && !is_cheap(self.groups.graph, n) {
            return;
        }
        let mut recipe = Recipe::default();
        if !self.follow(n, n, is_moved, &mut recipe) {
            return;
        }
        let fresh = recipe.sources.iter().filter(|s| !self.is_in_memory(**s));
        let fresh: Vec<NodeId> = fresh.copied().collect();
        let written = fresh.iter().map(|s| self.bytes(*s)).sum();
        let mut again = Cost { written, ..Cost::default() };
        for (kernel, positions) in kernels {
            let read = recipe.sources.iter().filter(|s| !self.known.contains(&(*kernel, **s)));
            let read = read.map(|s| self.bytes(*s)).sum();
            let growing = &self.groups.growing[*kernel];
            // Rows are gone over at least twice.
            let is_row = growing.form == FormKind::Nest && growing.reduces;
            let passes = if is_row && !is_moved { 2 } else { 1 };
            let operations = positions * recipe.operations * passes;
            again += Cost { read, operations, ..Cost::default() };
        }
        let left = if is_moved { self.left(n, &recipe) } else { 0 };
        let read = self.bytes(n) * kernels.len() + left;
        let stored = Cost { written: self.bytes(n), read, ..Cost::default() };
        let prices = &self.groups.reach().program.prices;
        self.weighed.insert(n, Weighed { stored, rematerialised: again });
        if again.price(prices) < stored.price(prices) {
            let read = |kernel: &usize| recipe.sources.iter().map(|s| (*kernel, *s)).collect();
            let read: Vec<Vec<(usize, NodeId)>> = kernels.keys().map(read).collect();
            self.known.extend(read.into_iter().flatten());
            fresh.iter().for_each(|n| self.stored[n.index()] = true);
            self.again.extend(recipe.steps);
        }
    }

    /// The bytes that the kernel of `n` need not read if it is made elsewhere.
    fn left(&self, n: NodeId, recipe: &Recipe) -> usize {
        let groups = self.groups;
        let Some(own) = groups.of[n.index()] else { return 0 };
        let members = groups.growing[own].group.members.iter();
        let others = members.filter(|m| !recipe.steps.contains(m));
        let read: FxHashSet<NodeId> =
            others.flat_map(|m| &groups.reads[m.index()]).map(|read| read.node).collect();
        let is_left = |s: &&NodeId| groups.of[s.index()] != Some(own) && !read.contains(s);
        recipe.sources.iter().filter(is_left).map(|s| self.bytes(*s)).sum()
    }

    fn is_in_memory(&self, n: NodeId) -> bool {
        is_given(self.groups.graph, n) || self.stored[n.index()] && !self.again.contains(&n)
    }

    /// Adds what `at` takes to make, for `n`; false if it is not to be made where that is read.
    /// `is_moved` is true if nothing else reads it.
    fn follow(&self, n: NodeId, at: NodeId, is_moved: bool, recipe: &mut Recipe) -> bool {
        let (graph, reach) = (self.groups.graph, self.groups.reach());
        if self.groups.of[at.index()].is_some() {
            recipe.steps.push(at);
        }
        if !is_moved {
            recipe.operations += operations(graph, at, &reach.program.prices);
        }
        recipe.operations <= LONGEST_CHAIN
            && recipe.steps.len() <= LONGEST_CHAIN
            && graph.args(at).iter().all(|arg| {
                let source = arg.node;
                if reach.inline[source.index()] {
                    return self.follow(n, source, false, recipe);
                }
                if self.again.contains(&source) {
                    // What was moved to where it is read once may be dear, and does not go on to
                    // several places.
                    return (is_moved || is_cheap(graph, source))
                        && self.follow(n, source, false, recipe);
                }
                if self.is_in_memory(source) || self.bytes(source) * SMALLER <= self.bytes(n) {
                    recipe.sources.insert(source);
                    return true;
                }
                let is_moved = is_moved && self.groups.readers[source.index()] == 1;
                let is_map = matches!(lowering(graph, source), Some(Lower::Map(_)));
                is_map
                    && (is_moved || is_cheap(graph, source))
                    && self.follow(n, source, is_moved, recipe)
            })
    }
}
