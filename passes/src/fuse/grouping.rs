//! Which nodes share a kernel.
//!
//! Nodes are taken in order. A node joins the kernel of an operand, the latest first, if it runs over the same domain (or once per
//! row of it) and reads that kernel's values at its own position only; kernels it then ties together are merged. A contraction takes
//! elementwise nodes of its result's shape into its epilogue if that stores no more: the node replaces what it reads, or is
//! narrower. It takes the largest magnitude of its result as well, and all that only leads there (`largest`). What only leads to new state (the optimizer) stays apart from the rest, so that its kernels are the same for every
//! parameter. No join may close a cycle between kernels.

use super::largest::Magnitudes;
use super::reach::{Reach, Read, is_port};
use std::collections::{HashMap, HashSet};
use tracecast_ir::kernel::build::{Group, domain, is_row, lowering};
use tracecast_ir::kernel::index::Index;
use tracecast_ir::kernel::update::predicated;
use tracecast_ir::op::Lower;
use tracecast_ir::ops::amp::UNSCALED;
use tracecast_ir::{Graph, NodeId, Shape, ValueId};

/// A set of kernel numbers.
#[derive(Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    fn set(&mut self, i: usize) {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn covers(&self, other: &Bits) -> bool {
        other.0.iter().enumerate().all(|(i, w)| w & !self.0.get(i).copied().unwrap_or(0) == 0)
    }

    fn add(&mut self, other: &Bits) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }
}

/// The loops of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loops {
    Nest,
    Contract,
    Scatter,
}

struct Growing {
    group: Group,
    loops: Loops,
    /// Kernels it reads, directly.
    preds: HashSet<usize>,
    /// Kernels it reads at another position than its own: never to be merged with.
    apart: HashSet<usize>,
    /// Kernels it needs, directly or not.
    needs: Bits,
    reduces: bool,
    /// True if it only leads to new state.
    step: bool,
    /// False once it is part of another.
    alive: bool,
}

/// Nodes by kernel.
pub(super) struct Groups {
    growing: Vec<Growing>,
    of: HashMap<NodeId, usize>,
    /// How many nodes of kernels read a node.
    readers: HashMap<NodeId, usize>,
    magnitudes: Magnitudes,
}

impl Groups {
    pub(super) fn form(graph: &Graph, reach: &Reach) -> Self {
        let nodes: Vec<NodeId> = graph
            .nodes()
            .filter(|n| reach.live[n.index()] && !reach.inline[n.index()] && !is_port(graph, *n))
            .collect();
        let mut groups = Groups {
            growing: Vec::new(),
            of: HashMap::new(),
            readers: HashMap::new(),
            magnitudes: Magnitudes::of(graph, reach),
        };
        for &n in &nodes {
            let read: HashSet<NodeId> =
                reach.reads(graph, n, &domain(graph, n)).iter().map(|r| r.node).collect();
            for node in read {
                *groups.readers.entry(node).or_default() += 1;
            }
        }
        let mut siblings: HashMap<NodeId, Vec<usize>> = HashMap::new();
        for n in nodes {
            groups.place(graph, reach, n, &mut siblings);
        }
        groups
    }

    /// The finished groups.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.growing.iter().filter(|g| g.alive).map(|g| &g.group)
    }

    /// The bytes that kernels read.
    pub(super) fn bytes_read(&self, graph: &Graph, reach: &Reach) -> usize {
        let read = |g: &Growing| {
            let own: HashSet<NodeId> = g.group.members.iter().copied().collect();
            let of = |m: &NodeId| reach.reads(graph, *m, &self.over(g, graph, *m));
            let all: HashSet<NodeId> = own.iter().flat_map(of).map(|read| read.node).collect();
            all.difference(&own).map(|n| graph.node(*n).results[0].bytes()).sum::<usize>()
        };
        self.growing.iter().filter(|g| g.alive).map(read).sum()
    }

    /// The members whose values other kernels, outputs or updates need.
    pub(super) fn stored(&self, graph: &Graph, reach: &Reach) -> HashSet<NodeId> {
        let mut stored = reach.roots.clone();
        for g in self.growing.iter().filter(|g| g.alive) {
            for &m in &g.group.members {
                let reads = reach.reads(graph, m, &self.over(g, graph, m));
                // A predicated update may be launched under its flag instead of reading the condition made of it.
                let flag =
                    predicated(graph, ValueId { node: m, result: 0 }).map(|(found, _)| found.node);
                for read in reads.iter().map(|read| read.node).chain(flag) {
                    if self.of.get(&read) != self.of.get(&m) {
                        stored.insert(read);
                    }
                }
            }
        }
        stored
    }

    /// The loops that a member is computed in.
    fn over(&self, g: &Growing, graph: &Graph, m: NodeId) -> Shape {
        if g.loops == Loops::Nest { g.group.domain.clone() } else { domain(graph, m) }
    }

    fn place(
        &mut self,
        graph: &Graph,
        reach: &Reach,
        n: NodeId,
        siblings: &mut HashMap<NodeId, Vec<usize>>,
    ) {
        let own = domain(graph, n);
        let reads = reach.reads(graph, n, &own);
        let mut candidates: Vec<usize> =
            reads.iter().filter_map(|r| self.of.get(&r.node).copied()).collect();
        let is_reduction =
            matches!(lowering(graph, n), Some(Lower::ReduceRow | Lower::ReduceColumn));
        let swept = graph.node(n).op.is(&UNSCALED);
        if is_reduction || swept || reach.step[n.index()] {
            let beside = |r: &&Read| {
                let shape = &graph.node(r.node).results[0].shape;
                *shape == own && r.index.as_ref().is_some_and(|i| i.is_identity(shape, &own))
            };
            let others =
                reads.iter().filter(beside).filter_map(|r| siblings.get(&r.node)).flatten();
            candidates.extend(others.copied().map(|g| self.root(g)));
        }
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        candidates.dedup();
        let joined = candidates.into_iter().find(|&g| self.can_join(graph, reach, n, g));
        let g = joined.unwrap_or_else(|| self.start(graph, n, own));
        self.join(graph, reach, n, g);
        let over = self.over(&self.growing[g], graph, n);
        for read in reach.reads(graph, n, &over) {
            siblings.entry(read.node).or_default().push(g);
            let maker = self.of.get(&read.node).copied().filter(|p| *p != g);
            if let Some(p) = maker.filter(|&p| self.can_merge(graph, reach, p, g)) {
                self.merge(p, g);
            }
        }
    }

    /// The kernel that a merged kernel became part of.
    fn root(&self, g: usize) -> usize {
        if self.growing[g].alive {
            g
        } else {
            self.growing[g].group.members.first().map_or(g, |m| self.of[m])
        }
    }

    fn start(&mut self, graph: &Graph, n: NodeId, domain: Shape) -> usize {
        let loops = match lowering(graph, n) {
            Some(Lower::Contract) => Loops::Contract,
            Some(Lower::Scatter) => Loops::Scatter,
            _ => Loops::Nest,
        };
        self.growing.push(Growing {
            group: Group { members: Vec::new(), domain },
            loops,
            preds: HashSet::new(),
            apart: HashSet::new(),
            needs: Bits::default(),
            reduces: false,
            step: false,
            alive: true,
        });
        self.growing.len() - 1
    }

    fn can_join(&self, graph: &Graph, reach: &Reach, n: NodeId, g: usize) -> bool {
        let growing = &self.growing[g];
        let into = &growing.group.domain;
        let shape = &graph.node(n).results[0].shape;
        let fits = match (growing.loops, lowering(graph, n)) {
            (Loops::Nest, Some(Lower::ReduceRow | Lower::ReduceColumn)) => {
                domain(graph, n) == *into
            }
            (
                Loops::Nest,
                Some(Lower::Map(_) | Lower::Gather | Lower::Cat | Lower::Pad | Lower::View(_)),
            ) => shape == into || into.rank() > 0 && is_row(shape, into),
            (Loops::Contract, Some(Lower::Map(_))) => {
                shape == into
                    && (self.magnitudes.leads(n) || self.stores_no_more(graph, reach, n, g))
            }
            (Loops::Contract, Some(Lower::ReduceRow)) => {
                return self.takes_largest(graph, reach, n, g);
            }
            _ => false,
        };
        let step = reach.step[n.index()];
        let kind = step == growing.step && (!step || shape == into);
        fits && kind
            && self.reads_at_own_position(graph, reach, n, g, into)
            && self.stays_acyclic(graph, reach, n, g)
    }

    /// True if `n` is on the way from members of the contraction `g` to the largest of their magnitudes.
    fn takes_largest(&self, graph: &Graph, reach: &Reach, n: NodeId, g: usize) -> bool {
        let over = domain(graph, n);
        let in_order = |read: &Read| match &read.index {
            Some(Index::Linear(p)) => p.offset == 0 && p.strides[..] == [1],
            Some(index) => index.is_identity(&graph.node(read.node).results[0].shape, &over),
            None => false,
        };
        self.magnitudes.elements(n) == Some(self.growing[g].group.domain.numel())
            && reach
                .reads(graph, n, &over)
                .iter()
                .all(|read| self.of.get(&read.node) == Some(&g) && in_order(read))
    }

    /// True if each member of `g` that `n` reads is read by nothing else, or is wider than `n`.
    fn stores_no_more(&self, graph: &Graph, reach: &Reach, n: NodeId, g: usize) -> bool {
        let bytes = |n: NodeId| graph.node(n).results[0].bytes();
        reach
            .reads(graph, n, &domain(graph, n))
            .iter()
            .filter(|r| self.of.get(&r.node) == Some(&g))
            .all(|r| {
                let replaced =
                    self.readers.get(&r.node) == Some(&1) && !reach.roots.contains(&r.node);
                replaced || bytes(n) < bytes(r.node)
            })
    }

    /// True if `n` reads members of `g` only where they are made.
    fn reads_at_own_position(
        &self,
        graph: &Graph,
        reach: &Reach,
        n: NodeId,
        g: usize,
        over: &Shape,
    ) -> bool {
        let n_is_row = !is_reduction(graph, n) && graph.node(n).results[0].shape != *over;
        reach.reads(graph, n, over).iter().filter(|r| self.of.get(&r.node) == Some(&g)).all(|r| {
            let shape = &graph.node(r.node).results[0].shape;
            let full = shape == over && !is_reduction(graph, r.node);
            let column = matches!(lowering(graph, r.node), Some(Lower::ReduceColumn));
            let scalar = over.rank() == 0 && shape.rank() == 0;
            let here = scalar || r.index.as_ref().is_some_and(|i| i.is_identity(shape, over));
            here && !column && !(full && n_is_row)
        })
    }

    fn stays_acyclic(&self, graph: &Graph, reach: &Reach, n: NodeId, g: usize) -> bool {
        reach
            .reads(graph, n, &domain(graph, n))
            .iter()
            .filter_map(|r| self.of.get(&r.node))
            .all(|&p| p == g || !self.growing[p].needs.has(g))
    }

    fn join(&mut self, graph: &Graph, reach: &Reach, n: NodeId, g: usize) {
        self.of.insert(n, g);
        self.growing[g].group.members.push(n);
        self.growing[g].reduces |= is_reduction(graph, n);
        self.growing[g].step = reach.step[n.index()];
        let over = self.over(&self.growing[g], graph, n);
        for read in reach.reads(graph, n, &over) {
            if let Some(&p) = self.of.get(&read.node).filter(|p| **p != g) {
                self.growing[g].preds.insert(p);
                if !self.reads_at_own_position(graph, reach, n, p, &over) {
                    self.growing[g].apart.insert(p);
                }
                let mut gained = self.growing[p].needs.clone();
                gained.set(p);
                self.gain(g, &gained);
            }
        }
    }

    /// `g`, and every kernel that needs it, now needs these too.
    fn gain(&mut self, g: usize, gained: &Bits) {
        if self.growing[g].needs.covers(gained) {
            return;
        }
        self.growing[g].needs.add(gained);
        for other in self.growing.iter_mut().filter(|k| k.alive && k.needs.has(g)) {
            other.needs.add(gained);
        }
    }

    /// True if both run over one domain (or `p` once per row of `g`'s), neither reads the other elsewhere, and no third kernel lies
    /// between.
    fn can_merge(&self, graph: &Graph, reach: &Reach, p: usize, g: usize) -> bool {
        let (a, b) = (&self.growing[p], &self.growing[g]);
        if a.loops != Loops::Nest || b.loops != Loops::Nest {
            return false;
        }
        let (da, db) = (&a.group.domain, &b.group.domain);
        if a.step != b.step || a.step && da != db {
            return false;
        }
        let rows = !a.reduces
            && db.rank() > 0
            && is_row(da, db)
            && db.split_last().is_some_and(|(_, outer)| outer == &da[..]);
        if da != db && !rows || a.apart.contains(&g) || b.apart.contains(&p) {
            return false;
        }
        let between = |from: usize, to: &Growing| {
            to.preds.iter().any(|&h| {
                h != from && h != g && h != p && self.growing[self.root(h)].needs.has(from)
            })
        };
        if between(p, b) || between(g, a) {
            return false;
        }
        b.group.members.iter().all(|&m| self.reads_at_own_position(graph, reach, m, p, db))
            && a.group
                .members
                .iter()
                .all(|&m| da == db || self.reads_at_own_position(graph, reach, m, p, db))
    }

    /// Makes `p` part of `g`.
    fn merge(&mut self, p: usize, g: usize) {
        let (members, preds, apart, needs, reduces) = {
            let a = &mut self.growing[p];
            a.alive = false;
            (a.group.members.clone(), a.preds.clone(), a.apart.clone(), a.needs.clone(), a.reduces)
        };
        for &m in &members {
            self.of.insert(m, g);
        }
        let b = &mut self.growing[g];
        b.group.members.extend(members);
        b.group.members.sort_unstable();
        b.preds.extend(preds);
        b.apart.extend(apart);
        b.reduces |= reduces;
        b.preds.remove(&p);
        b.preds.remove(&g);
        let mut gained = needs;
        gained.set(p);
        self.gain(g, &gained);
        let all = self.growing[g].needs.clone();
        for other in self.growing.iter_mut().filter(|k| k.alive) {
            if other.preds.remove(&p) {
                other.preds.insert(g);
            }
            if other.apart.remove(&p) {
                other.apart.insert(g);
            }
            if other.needs.has(p) {
                other.needs.set(g);
                other.needs.add(&all);
            }
        }
        self.growing[g].preds.remove(&g);
    }
}

fn is_reduction(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::ReduceRow | Lower::ReduceColumn))
}
