//! The cheapest way to make choices between wide and narrow versions of values: a minimum cut.
//!
//! Each choice reads some versions if it is made one way, and others if it is made the other way. A
//! version costs its bytes for every kernel that reads it, however many choices of that kernel do,
//! and once more for being written. The vertices are the choices, a vertex for each version and
//! kernel, and one for the writing of each version, with edges of infinite capacity from what is
//! chosen to what is then read and written; a choice on the side of the source is wide. All costs
//! are of pairs of vertices and submodular, so that a minimum cut is a cheapest way (Kolmogorov and
//! Zabih, "What energy functions can be minimized via graph cuts?", 2004). Choices that share no
//! version are cut by themselves.

use petgraph::algo::dinics;
use petgraph::graph::NodeIndex;
use petgraph::unionfind::UnionFind;
use petgraph::visit::EdgeRef;
use petgraph::{Graph, Incoming, Outgoing};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// More than all bytes together.
const NEVER: u64 = u64::MAX / 4;

/// A value in one dtype.
#[derive(Clone, Debug, Default)]
pub(super) struct Version {
    pub(super) bytes: u64,
    /// True if it is written whatever is chosen.
    pub(super) is_written: bool,
    /// The kernels that read it whatever is chosen.
    pub(super) readers: BTreeSet<usize>,
}

/// A version that is read, by its place among the versions, and the kernels that read it.
#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) version: usize,
    pub(super) kernels: SmallVec<[usize; 2]>,
}

/// What is read either way. A version is wide for all choices, or narrow for all.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub(super) wide: SmallVec<[Read; 1]>,
    pub(super) narrow: SmallVec<[Read; 1]>,
}

/// Choices, and the versions that they are about.
#[derive(Clone, Debug, Default)]
pub(super) struct Choices {
    pub(super) versions: Vec<Version>,
    pub(super) choices: Vec<Choice>,
}

impl Choices {
    /// The cheapest way: which choices are narrow. Of several, the one with the most.
    pub(super) fn cheapest(&self) -> Vec<bool> {
        let mut narrow = vec![true; self.choices.len()];
        for component in self.components() {
            let mut network = Network::new(component.len());
            for (wide, version, reads) in self.reads(&component) {
                network.read(wide, &self.versions[version], &reads);
            }
            let wide = network.wide_side().into_iter().map(NodeIndex::index);
            wide.filter_map(|vertex| component.get(vertex)).for_each(|i| narrow[*i] = false);
        }
        narrow
    }

    /// Choices that share versions with each other.
    fn components(&self) -> Vec<Vec<usize>> {
        let count = self.choices.len();
        let mut union = UnionFind::<usize>::new(count + self.versions.len());
        for (i, choice) in self.choices.iter().enumerate() {
            for read in choice.wide.iter().chain(&choice.narrow) {
                union.union(i, count + read.version);
            }
        }
        let mut components: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        (0..count).for_each(|i| components.entry(union.find(i)).or_default().push(i));
        components.into_values().collect()
    }

    /// The versions that the choices of a component are about: whether it is wide, which one it is,
    /// and for every kernel the choices, by their place in the component, that have it read there.
    fn reads(&self, component: &[usize]) -> Vec<(bool, usize, BTreeMap<usize, Vec<usize>>)> {
        let mut reads: BTreeMap<(bool, usize), BTreeMap<usize, Vec<usize>>> = BTreeMap::new();
        for (place, i) in component.iter().enumerate() {
            let Choice { wide, narrow } = &self.choices[*i];
            let wide = wide.iter().map(|read| (true, read));
            for (wide, read) in wide.chain(narrow.iter().map(|read| (false, read))) {
                let kernels = reads.entry((wide, read.version)).or_default();
                read.kernels.iter().for_each(|k| kernels.entry(*k).or_default().push(place));
            }
        }
        reads.into_iter().map(|((wide, version), kernels)| (wide, version, kernels)).collect()
    }
}

/// The first vertices are the choices.
struct Network {
    graph: Graph<(), u64>,
    source: NodeIndex,
    sink: NodeIndex,
}

impl Network {
    fn new(choices: usize) -> Self {
        let mut graph = Graph::new();
        (0..choices).for_each(|_| _ = graph.add_node(()));
        let (source, sink) = (graph.add_node(()), graph.add_node(()));
        Network { graph, source, sink }
    }

    /// Adds what a version costs that choices have read in these kernels.
    fn read(&mut self, wide: bool, version: &Version, reads: &BTreeMap<usize, Vec<usize>>) {
        let written = !version.is_written && version.readers.is_empty();
        let written = written.then(|| self.costs(wide, version.bytes));
        for (kernel, choices) in reads {
            let read = match version.readers.contains(kernel) {
                true => continue,
                false => self.costs(wide, version.bytes),
            };
            choices.iter().for_each(|choice| self.needs(wide, NodeIndex::new(*choice), read));
            written.into_iter().for_each(|written| self.needs(wide, read, written));
        }
    }

    /// A vertex that costs so much on that side.
    fn costs(&mut self, wide: bool, bytes: u64) -> NodeIndex {
        let vertex = self.graph.add_node(());
        match wide {
            true => self.graph.add_edge(vertex, self.sink, bytes),
            false => self.graph.add_edge(self.source, vertex, bytes),
        };
        vertex
    }

    /// What is on that side has the other there as well.
    fn needs(&mut self, wide: bool, vertex: NodeIndex, other: NodeIndex) {
        let (from, to) = if wide { (vertex, other) } else { (other, vertex) };
        self.graph.add_edge(from, to, NEVER);
    }

    /// The vertices on the side of the source of the minimum cut that has the fewest there: those
    /// to which the flow leaves a way open.
    fn wide_side(&self) -> Vec<NodeIndex> {
        let (_, flows) = dinics(&self.graph, self.source, self.sink);
        let mut seen = vec![false; self.graph.node_count()];
        seen[self.source.index()] = true;
        let mut found = vec![self.source];
        let mut next = 0;
        while let Some(&vertex) = found.get(next) {
            next += 1;
            let out_of = self.graph.edges_directed(vertex, Outgoing);
            let open = out_of.filter(|e| flows[e.id().index()] < *e.weight()).map(|e| e.target());
            let into = self.graph.edges_directed(vertex, Incoming);
            let back = into.filter(|e| flows[e.id().index()] > 0).map(|e| e.source());
            found.extend(
                open.chain(back).filter(|v| !std::mem::replace(&mut seen[v.index()], true)),
            );
        }
        found
    }
}

#[cfg(test)]
impl Choices {
    /// What the choices cost, from the definition: bytes, and choices that are wide.
    pub(super) fn cost(&self, is_narrow: impl Fn(usize) -> bool) -> (u64, usize) {
        let mut readers: Vec<_> = self.versions.iter().map(|v| v.readers.clone()).collect();
        for (i, choice) in self.choices.iter().enumerate() {
            let reads = if is_narrow(i) { &choice.narrow } else { &choice.wide };
            reads.iter().for_each(|read| readers[read.version].extend(&read.kernels));
        }
        let bytes = |(v, readers): (&Version, &BTreeSet<usize>)| {
            v.bytes * (readers.len() as u64 + u64::from(v.is_written || !readers.is_empty()))
        };
        let wide = (0..self.choices.len()).filter(|i| !is_narrow(*i)).count();
        (self.versions.iter().zip(&readers).map(bytes).sum(), wide)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::dice::Dice;
    use super::*;

    /// Choices between versions of a few values, some of which are read whatever is chosen.
    fn random(dice: &mut Dice) -> Choices {
        let (values, kernels) = (1 + dice.below(6), 1 + dice.below(6));
        let mut all = Choices::default();
        for _ in 0..values {
            let wide = 4 * (1 + dice.below(3) as u64);
            for bytes in [wide, wide / 2] {
                let known = if dice.below(2) == 0 { dice.below(3) } else { 0 };
                let readers = (0..known).map(|_| dice.below(kernels)).collect();
                all.versions.push(Version { bytes, is_written: dice.chance(33), readers });
            }
        }
        for _ in 0..1 + dice.below(12) {
            let mut choice = Choice::default();
            let mut at: SmallVec<[usize; 2]> =
                (0..dice.below(3)).map(|_| dice.below(kernels)).collect();
            at.sort_unstable();
            at.dedup();
            for _ in 0..1 + dice.below(3) {
                let version = 2 * dice.below(values);
                choice.wide.push(Read { version, kernels: at.clone() });
                choice.narrow.push(Read { version: version + 1, kernels: at.clone() });
            }
            all.choices.push(choice);
        }
        all
    }

    #[test]
    fn no_other_way_is_cheaper() {
        let (mut tried, mut mixed) = (0, 0);
        for seed in 0..1000 {
            let all = random(&mut Dice::new(seed));
            let cheapest = all.cheapest();
            let least = all.cost(|i| cheapest[i]);
            for way in 0..1_u32 << all.choices.len() {
                let other = all.cost(|i| way >> i & 1 == 1);
                assert!(least <= other, "seed {seed}: {least:?}, {other:?} by {way:b}: {all:?}");
                tried += 1;
            }
            mixed += usize::from(cheapest.contains(&true) && cheapest.contains(&false));
        }
        assert!(tried > 100_000 && mixed > 100, "{tried} ways, {mixed} mixed");
    }
}
