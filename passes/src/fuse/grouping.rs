//! Which nodes share a kernel.
//!
//! Nodes are taken in order. A node joins the kernel of an operand, the latest first, if it runs
//! over the same domain (or once per row of it) and reads that kernel's values at its own position
//! only; kernels it then ties together are merged. A contraction takes elementwise nodes of its
//! result's shape into its epilogue if that stores no more: the node replaces what it reads, or is
//! narrower; whole maps become epilogues in the end (`epilogues`). It takes sums of its result down
//! the columns where that leaves enough parts for threads (`column`), and the largest magnitude
//! with all that only leads there (`largest`). What a kernel makes that is only needed under
//! another shape is stored under that one. What only leads to new state (the optimizer) stays apart
//! from the rest, so that its kernels are the same for every parameter. No join may close a cycle
//! between kernels, and what stands behind a `barrier` joins no kernel that is needed before
//! (`late`).
//!
//! Groups are formed twice where a stored value had better be rematerialised (`rematerialise`).

use super::column::takes_columns;
use super::cost::Weighed;
use super::exchanges::Number;
use super::exchanges::is_exchange;
use super::largest::Magnitudes;
use super::late::Late;
use super::needs::Needs;
use super::reach::{At, Reach, Read, Reads};
use smallvec::SmallVec;
use std::borrow::Cow;
use tracecast_ir::hash::FxHashMap;
use tracecast_ir::kernel::build::{Group, domain, form, is_row, lowering};
use tracecast_ir::kernel::update::predicated;
use tracecast_ir::kernel::{FormKind, Joins};
use tracecast_ir::op::{Intrinsic, Lower, View};
use tracecast_ir::{Graph, NodeId, Shape, Size, ValueId};

pub(super) struct Growing {
    pub(super) group: Group,
    /// The form of its kernel.
    pub(super) form: FormKind,
    /// Later kernels have larger numbers. Merging may move a kernel to the place of another, but
    /// not change its number.
    pub(super) number: usize,
    pub(super) reduces: bool,
    /// True if it only leads to new state.
    pub(super) step: bool,
    /// True if it unscales a gradient: what is done with the check is not part of it, so that its
    /// kernels are the same for every gradient.
    pub(super) sweeps: bool,
    /// True if it is what ranks do together, which nothing joins.
    alone: bool,
    /// If its values lead to what ranks exchange: the last exchange that they depend on.
    pub(super) leads: Option<Number>,
    /// When it can run.
    pub(super) late: Late,
    /// The kernel that it became part of.
    pub(super) into: Option<usize>,
}

/// Nodes by kernel. Kernels are named by their place in `growing`.
pub(super) struct Groups<'a> {
    pub(super) graph: &'a Graph,
    pub(super) reach: Reach,
    pub(super) growing: Vec<Growing>,
    pub(super) needs: Needs,
    /// The kernel of each node that has one.
    pub(super) of: Vec<Option<usize>>,
    /// What each node of a kernel reads, over its own domain.
    pub(super) reads: Vec<Reads>,
    /// How many nodes of kernels read a node.
    pub(super) readers: Vec<u32>,
    /// The kernels that read a node when its readers came to them.
    siblings: Vec<SmallVec<[u32; 2]>>,
    /// The last barrier that each node stands behind.
    behind: Vec<NodeId>,
}

impl<'a> Groups<'a> {
    /// The kernels of a program whose values are stored or rematerialised as `reach` has it.
    pub(super) fn form(graph: &'a Graph, reach: Reach, reads: Vec<Reads>) -> Self {
        let mut readers = vec![0; graph.len()];
        for reads in &reads {
            for (i, read) in reads.iter().enumerate() {
                let again = reads[..i].iter().any(|other| other.node == read.node);
                readers[read.node.index()] += u32::from(!again);
            }
        }
        let mut groups = Groups {
            graph,
            reach,
            growing: Vec::new(),
            needs: Needs::default(),
            of: vec![None; graph.len()],
            reads,
            readers,
            siblings: vec![SmallVec::new(); graph.len()],
            behind: super::late::behind(graph),
        };
        for n in graph.nodes() {
            if groups.reach.is_member(graph, n) {
                groups.place(n);
            }
        }
        groups.take_epilogues();
        for g in &mut groups.growing {
            // An epilogue may compute with values recorded before the contraction that it belongs
            // to.
            let begins = |n: &NodeId| form(graph, *n).is_some_and(|f| f != FormKind::Nest);
            g.group.members.sort_unstable_by_key(|n| (!begins(n), *n));
        }
        groups
    }

    /// The groups, by number, what is rematerialised where it is needed, and what was weighed.
    pub(super) fn finished(self) -> (Vec<Group>, Vec<bool>, FxHashMap<NodeId, Weighed>) {
        let mut alive: Vec<Growing> =
            self.growing.into_iter().filter(|g| g.into.is_none()).collect();
        alive.sort_unstable_by_key(|g| g.number);
        (alive.into_iter().map(|g| g.group).collect(), self.reach.inline, self.reach.weighed)
    }

    /// What is rematerialised.
    pub(super) fn reach(&self) -> &Reach {
        &self.reach
    }

    fn magnitudes(&self) -> &Magnitudes {
        &self.reach.program.magnitudes
    }

    /// The bytes that kernels read and write.
    pub(super) fn bytes_moved(&self) -> usize {
        let stored = self.stored();
        let is_written = |n: &NodeId| stored[n.index()] && self.of[n.index()].is_some();
        self.graph.nodes().filter(is_written).map(|n| self.bytes(n)).sum::<usize>()
            + self.bytes_read()
    }

    /// The bytes of what a node makes, with the traced values of names.
    pub(super) fn bytes(&self, n: NodeId) -> usize {
        self.graph.hint(self.graph.node(n).results[0].bytes())
    }

    /// The bytes that kernels read.
    fn bytes_read(&self) -> usize {
        let mut sum = 0;
        let mut last_reader: Vec<u32> = vec![u32::MAX; self.graph.len()];
        for (k, growing) in self.growing.iter().enumerate() {
            for read in growing.group.members.iter().flat_map(|m| &self.reads[m.index()]) {
                let last = &mut last_reader[read.node.index()];
                if *last != k as u32 && self.of[read.node.index()] != Some(k) {
                    *last = k as u32;
                    sum += self.bytes(read.node);
                }
            }
        }
        sum
    }

    /// The results of the program, and the members whose values other kernels need.
    pub(super) fn stored(&self) -> Vec<bool> {
        let mut stored = self.reach.program.is_root.clone();
        for m in self.growing.iter().flat_map(|g| &g.group.members) {
            // A predicated update may be launched under its flag instead of reading the condition
            // made of it.
            let value = ValueId { node: *m, result: 0 };
            let flag = predicated(self.graph, value).map(|(found, _)| found.node);
            for read in self.reads[m.index()].iter().map(|read| read.node).chain(flag) {
                if self.of[read.index()] != self.of[m.index()] {
                    stored[read.index()] = true;
                }
            }
        }
        stored
    }

    /// What a node reads, in a kernel over `over`.
    fn reads(&self, n: NodeId, over: &Shape) -> Cow<'_, [Read]> {
        if over == domain(self.graph, n) {
            Cow::Borrowed(&self.reads[n.index()])
        } else {
            Cow::Owned(self.reach.reads(self.graph, n, over).into_vec())
        }
    }

    fn place(&mut self, n: NodeId) {
        let joined = self.candidates(n).into_iter().find(|&g| self.can_join(n, g));
        let mut g = joined.unwrap_or_else(|| self.start(n));
        let read = self.join(n, g);
        for node in read {
            let known = &mut self.siblings[node.index()];
            if known.last() != Some(&(g as u32)) {
                known.push(g as u32);
            }
            let maker = self.of[node.index()].filter(|p| *p != g);
            match maker {
                Some(p) if self.can_merge(p, g) => g = self.merge(p, g),
                Some(p) => self.growing[p].late.read_by(n),
                None => {}
            }
        }
    }

    /// The kernels that a node might join, the latest first.
    fn candidates(&self, n: NodeId) -> SmallVec<[usize; 4]> {
        let own = domain(self.graph, n);
        let reads = &self.reads[n.index()];
        let mut candidates: SmallVec<[usize; 4]> =
            reads.iter().filter_map(|r| self.of[r.node.index()]).collect();
        let swept = self.graph.node(n).op.intrinsic() == Some(Intrinsic::Unscaled);
        if is_reduction(self.graph, n) || swept || self.reach.program.step[n.index()] {
            let beside = |r: &&Read| {
                r.at == At::Loops && self.graph.node(r.node).results[0].shape == *own
                    || self.magnitudes().is_single(n) && is_in_order(r)
            };
            let others = reads.iter().filter(beside).flat_map(|r| &self.siblings[r.node.index()]);
            candidates.extend(others.map(|g| self.root(*g as usize)));
        }
        candidates.sort_unstable_by_key(|g| std::cmp::Reverse(self.growing[*g].number));
        candidates.dedup();
        candidates
    }

    /// The kernel that a merged kernel became part of.
    fn root(&self, g: usize) -> usize {
        let mut g = g;
        while let Some(into) = self.growing[g].into {
            g = into;
        }
        g
    }

    fn start(&mut self, n: NodeId) -> usize {
        let form = form(self.graph, n).unwrap_or(FormKind::Nest);
        let number = self.growing.len();
        self.needs.start();
        self.growing.push(Growing {
            group: Group { members: Vec::new(), domain: domain(self.graph, n).clone() },
            form,
            number,
            reduces: false,
            step: self.reach.program.step[n.index()],
            sweeps: false,
            alone: is_exchange(self.graph, n),
            leads: self.reach.program.exchanges.leads(n),
            late: Late::default(),
            into: None,
        });
        number
    }

    fn can_join(&self, n: NodeId, g: usize) -> bool {
        let growing = &self.growing[g];
        let is_early = !growing.late.may_stand_behind(self.behind[n.index()]);
        if growing.alone || is_early || !self.keeps_exchanges(n, g) {
            return false;
        }
        let into = &growing.group.domain;
        let shape = &self.graph.node(n).results[0].shape;
        let fits = match (growing.form.joins(), lowering(self.graph, n)) {
            (Joins::SameDomain, Some(Lower::ReduceRow)) if self.takes_whole(n, g) => {
                return !growing.step && self.stays_acyclic(n, g);
            }
            (Joins::SameDomain, Some(Lower::ReduceRow | Lower::ReduceColumn)) => {
                domain(self.graph, n) == into
            }
            (Joins::SameDomain, Some(Lower::View(View::Reshape)))
                if shape != into && !is_row(shape, into) =>
            {
                return self.takes_reshape(n, g);
            }
            (
                Joins::SameDomain,
                Some(
                    Lower::Map(_)
                    | Lower::Gather
                    | Lower::Cat
                    | Lower::Pad
                    | Lower::Windows
                    | Lower::View(_),
                ),
            ) => shape == into || into.rank() > 0 && is_row(shape, into) && !growing.sweeps,
            (Joins::Epilogue, Some(Lower::Map(_) | Lower::View(View::Reshape)))
                if shape != into =>
            {
                return !self.reach.program.step[n.index()]
                    && self
                        .reach
                        .takes_in_order(self.graph, n, into, &|m| self.of[m.index()] == Some(g))
                    && self.stores_no_more(n, g)
                    && self.stays_acyclic(n, g);
            }
            (Joins::Epilogue, Some(Lower::Map(_))) => {
                shape == into && (self.magnitudes().leads(n) || self.stores_no_more(n, g))
            }
            (Joins::Epilogue, Some(Lower::ReduceRow)) => return self.takes_largest(n, g),
            (Joins::Epilogue, Some(Lower::ReduceColumn)) => {
                let makes = |read: &Read| self.of[read.node.index()] == Some(g);
                self.reads[n.index()].iter().any(makes)
                    && domain(self.graph, n) == into
                    && takes_columns(self.graph, n, into, self.steps(g))
            }
            // Ops that begin a form of their own join nothing, and an epilogue loads nothing in
            // another order.
            (Joins::SameDomain | Joins::Epilogue | Joins::Nothing, _) => false,
        };
        let step = self.reach.program.step[n.index()];
        let kind = step == growing.step && (!step || shape == into);
        fits && kind && self.reads_at_own_position(n, g, into) && self.stays_acyclic(n, g)
    }

    /// The length of the axis that the contraction `g` sums over.
    pub(super) fn steps(&self, g: usize) -> usize {
        let mut members = self.growing[g].group.members.iter();
        let is_contraction =
            |n: &&NodeId| matches!(lowering(self.graph, **n), Some(Lower::Contract));
        let left = members.find(is_contraction).map(|n| self.graph.args(*n)[0]);
        left.and_then(|left| self.graph.ty(left).shape.last().map(|n| self.graph.hint(*n)))
            .unwrap_or(1)
    }

    /// True if `n` is on the way to the largest magnitude of what the contraction `g` makes, and
    /// reads nothing else.
    fn takes_largest(&self, n: NodeId, g: usize) -> bool {
        let own = |read: &Read| self.of[read.node.index()] == Some(g);
        let here = |read: &Read| own(read) && is_in_order(read);
        self.magnitudes().elements(n) == Some(self.growing[g].group.domain.numel())
            && self.reads[n.index()].iter().all(here)
    }

    /// True if `n` is a reshape of what the nest `g` makes at every position, which is stored under
    /// its shape instead.
    fn takes_reshape(&self, n: NodeId, g: usize) -> bool {
        let growing = &self.growing[g];
        let into = &growing.group.domain;
        let [read] = &self.reads[n.index()][..] else { return false };
        let shape = &self.graph.node(read.node).results[0].shape;
        // Kernels that read it under a shape of the same axes, those of size 1 aside, read it as it
        // is made, and may be merged with this one.
        let axes = |shape: &Shape| -> SmallVec<[Size; 4]> {
            shape.iter().copied().filter(|n| *n != 1).collect()
        };
        let is_other = axes(&self.graph.node(n).results[0].shape) != axes(into);
        (is_other || self.readers[n.index()] == 0)
            && !(growing.step || growing.sweeps || self.reach.program.step[n.index()])
            && self.of[read.node.index()] == Some(g)
            && shape == into
            && into.rank() > 0
            && self.reach.takes_in_order(self.graph, n, into, &|m| self.of[m.index()] == Some(g))
            && self.stores_no_more(n, g)
            && self.stays_acyclic(n, g)
    }

    /// True if `n` is the largest magnitude of something of the shape of the nest `g`, made there
    /// or read beside it.
    fn takes_whole(&self, n: NodeId, g: usize) -> bool {
        let into = &self.growing[g].group.domain;
        let here = |read: &Read| {
            let own = self.of[read.node.index()] == Some(g);
            self.graph.node(read.node).results[0].shape == *into
                && is_in_order(read)
                && !(own && is_reduction(self.graph, read.node))
        };
        self.magnitudes().is_single(n)
            && into.rank() > 1
            && self.magnitudes().elements(n) == Some(into.numel())
            && self.reads[n.index()].iter().all(here)
    }

    /// True if each member of `g` that `n` reads is read by nothing else, or is wider than `n`.
    fn stores_no_more(&self, n: NodeId, g: usize) -> bool {
        self.reads[n.index()].iter().filter(|r| self.of[r.node.index()] == Some(g)).all(|r| {
            let only =
                self.readers[r.node.index()] == 1 && !self.reach.program.is_root[r.node.index()];
            only || self.bytes(n) < self.bytes(r.node)
        })
    }

    /// True if `n` reads members of `g` only where they are made.
    fn reads_at_own_position(&self, n: NodeId, g: usize, over: &Shape) -> bool {
        let graph = self.graph;
        let n_is_row = !is_reduction(graph, n) && graph.node(n).results[0].shape != *over;
        self.reads(n, over).iter().filter(|r| self.of[r.node.index()] == Some(g)).all(|r| {
            let shape = &graph.node(r.node).results[0].shape;
            let full = shape == over && !is_reduction(graph, r.node);
            let column = matches!(lowering(graph, r.node), Some(Lower::ReduceColumn));
            let scalar = over.rank() == 0 && shape.rank() == 0;
            let here = scalar || r.at == At::Loops;
            here && !column && !(full && n_is_row)
        })
    }

    fn stays_acyclic(&self, n: NodeId, g: usize) -> bool {
        let reads = self.reads[n.index()].iter();
        reads.filter_map(|r| self.of[r.node.index()]).all(|p| p == g || !self.needs.needs(p, g))
    }

    /// Makes `n` a member of `g`: the nodes that it reads there.
    fn join(&mut self, n: NodeId, g: usize) -> SmallVec<[NodeId; 4]> {
        self.of[n.index()] = Some(g);
        let behind = self.behind[n.index()];
        let growing = &mut self.growing[g];
        growing.late.stand_behind(behind);
        growing.group.members.push(n);
        growing.reduces |= is_reduction(self.graph, n);
        growing.sweeps |= self.graph.node(n).op.intrinsic() == Some(Intrinsic::Unscaled);
        let over = match growing.form.joins() {
            Joins::SameDomain if !is_reshape(self.graph, n) => growing.group.domain.clone(),
            Joins::SameDomain | Joins::Epilogue | Joins::Nothing => domain(self.graph, n).clone(),
        };
        let read: SmallVec<[NodeId; 4]> = self.reads(n, &over).iter().map(|r| r.node).collect();
        for node in &read {
            if let Some(p) = self.of[node.index()].filter(|p| *p != g) {
                let apart = !self.reads_at_own_position(n, p, &over);
                self.needs.read(g, p, apart);
            }
        }
        read
    }

    /// True if nothing that ranks exchange comes to depend on more than it does in the program when
    /// `n` joins `g`.
    fn keeps_exchanges(&self, n: NodeId, g: usize) -> bool {
        let exchanges = &self.reach.program.exchanges;
        let Some(last) = self.growing[g].leads else { return exchanges.leads(n).is_none() };
        let known = |p: usize| {
            p == g || self.growing[p].alone || self.growing[p].leads.is_some_and(|l| l <= last)
        };
        match exchanges.leads(n) {
            Some(own) => own == last,
            None => {
                let mut reads = self.reads[n.index()].iter();
                exchanges.behind(n) <= last
                    && reads.all(|r| self.of[r.node.index()].is_none_or(known))
            }
        }
    }

    /// True if both run over one domain (or `p` once per row of `g`'s), neither reads the other
    /// elsewhere, and no third kernel lies between.
    fn can_merge(&self, p: usize, g: usize) -> bool {
        let (a, b) = (&self.growing[p], &self.growing[g]);
        if [a, b].iter().any(|g| g.alone || g.form.joins() != Joins::SameDomain) {
            return false;
        }
        let (da, db) = (&a.group.domain, &b.group.domain);
        if a.step != b.step || a.step && da != db || a.leads != b.leads || !a.late.fits(&b.late) {
            return false;
        }
        let rows = !a.reduces
            && db.rank() > 0
            && is_row(da, db)
            && db.split_last().is_some_and(|(_, outer)| outer == &da[..]);
        (da == db || rows)
            && !self.needs.are_apart(p, g)
            && !self.needs.leads_around(p, g)
            && !self.needs.leads_around(g, p)
            && (da == db || a.group.members.iter().all(|&m| self.reads_at_own_position(m, p, db)))
    }

    /// Makes one kernel of `p` and `g`, with the loops of `p`, and the domain and the number of
    /// `g`: its place.
    pub(super) fn merge(&mut self, p: usize, g: usize) -> usize {
        let size = |k: usize| self.growing[k].group.members.len() + self.needs.size(k);
        let (gone, kept) = if size(p) > size(g) { (g, p) } else { (p, g) };
        let (number, domain) = (self.growing[g].number, self.growing[g].group.domain.clone());
        let form = self.growing[p].form;
        self.needs.merge(gone, kept);
        let Growing { group, reduces, sweeps, late, into, .. } = &mut self.growing[gone];
        *into = Some(kept);
        let late = *late;
        let (members, reduces, sweeps) = (std::mem::take(&mut group.members), *reduces, *sweeps);
        for m in &members {
            self.of[m.index()] = Some(kept);
        }
        let growing = &mut self.growing[kept];
        growing.group.members.extend(members);
        growing.late.merge(&late);
        growing.reduces |= reduces;
        growing.sweeps |= sweeps;
        (growing.form, growing.number, growing.group.domain) = (form, number, domain);
        kept
    }
}

/// True if the elements of what is read are taken one after another, row by row.
fn is_in_order(read: &Read) -> bool {
    matches!(read.at, At::Loops | At::InOrder)
}

fn is_reshape(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::View(View::Reshape)))
}

fn is_reduction(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::ReduceRow | Lower::ReduceColumn))
}
