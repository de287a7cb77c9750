//! What a node reads from memory or from other kernels, and which nodes are computed again wherever they are needed.

use super::steps::steps;
use smallvec::smallvec;
use tracecast_ir::hash::FxHashSet;
use tracecast_ir::kernel::build::{domain, is_zeros, lowering, own_index};
use tracecast_ir::kernel::index::{Index, through};
use tracecast_ir::kernel::{FormKind, Operands};
use tracecast_ir::op::{Intrinsic, Lower, Position};
use tracecast_ir::{Graph, NodeId, Shape, Size, ValueId};

/// A function of memory that takes more ops is stored once and not computed again.
const MOST_AGAIN: usize = 64;

/// The result of the analysis.
#[derive(Clone)]
pub(super) struct Reach {
    /// Nodes that belong to no kernel: each kernel that needs them computes them from what they read.
    pub(super) inline: Vec<bool>,
    /// Nodes that an output or an update needs.
    pub(super) live: Vec<bool>,
    /// Nodes whose value an output or an update is.
    pub(super) roots: FxHashSet<NodeId>,
    /// The optimizer (see `steps`).
    pub(super) step: Vec<bool>,
}

/// A value that a node reads, behind inlined nodes.
#[derive(Clone)]
pub(super) struct Read {
    /// A port, or a node of a kernel.
    pub(super) node: NodeId,
    /// Where, over the axes of the reader's kernel; `None` if not at one place (an index from a tensor, a shifted position).
    pub(super) index: Option<Index>,
}

impl Reach {
    pub(super) fn of(graph: &Graph) -> Self {
        let live = graph.live();
        let roots: FxHashSet<NodeId> = graph.roots().map(|v| v.node).collect();
        let step = steps(graph, &live);
        let mut reach = Reach { inline: vec![false; graph.len()], live, roots, step };
        reach.choose_inline(graph);
        reach.settle_factors(graph);
        reach.settle(graph);
        reach
    }

    /// Views, constants and cheap functions of memory, unless they are wanted as results.
    fn choose_inline(&mut self, graph: &Graph) {
        let users = graph.users();
        // How many ops are computed again where a node is needed.
        let mut cost = vec![0usize; graph.len()];
        for n in graph.nodes().filter(|n| self.live[n.index()] && !self.roots.contains(n)) {
            let args = graph.args(n);
            let is_map = matches!(lowering(graph, n), Some(Lower::Map(_)));
            let below = args.iter().fold(0usize, |sum, a| sum.saturating_add(cost[a.node.index()]));
            cost[n.index()] = below.saturating_add(usize::from(is_map));
            let from_memory = |v: &ValueId| is_port(graph, v.node) || self.inline[v.node.index()];
            self.inline[n.index()] = match lowering(graph, n) {
                Some(Lower::View(_)) => true,
                Some(Lower::Map(_)) if args.is_empty() => true,
                Some(Lower::Map(_)) if is(graph, n, Intrinsic::Cast) && widens(graph, n) => true,
                Some(Lower::Map(map)) => {
                    let is_cheap = map.is_cheap() && cost[n.index()] <= MOST_AGAIN;
                    is_cheap && args.iter().all(from_memory)
                }
                _ => false,
            };
            if !self.inline[n.index()] {
                cost[n.index()] = 0;
            }
        }
        // What only a flattened reduction reads is computed in its loads.
        for n in graph.nodes().rev().filter(|n| self.live[n.index()] && !self.roots.contains(n)) {
            let [(user, _)] = users[n.index()][..] else { continue };
            let elementwise = matches!(lowering(graph, n), Some(Lower::Map(_)));
            let only_flattened = self.inline[user.index()] && self.is_flattening(graph, user)
                || self.pulled(graph, n, user);
            if elementwise && only_flattened && self.ends_in_reduction(graph, &users, user) {
                self.inline[n.index()] = true;
            }
        }
    }

    /// True if `n` is an operand, of the same shape, of an elementwise node that is computed in a reduction's loads.
    fn pulled(&self, graph: &Graph, n: NodeId, user: NodeId) -> bool {
        self.inline[user.index()]
            && matches!(lowering(graph, user), Some(Lower::Map(_)))
            && graph.node(user).results[0].shape == graph.node(n).results[0].shape
    }

    fn is_flattening(&self, graph: &Graph, n: NodeId) -> bool {
        let rank = graph.node(n).results[0].shape.rank();
        matches!(through(graph, n, &Index::identity(rank, rank)), Some(Index::Linear(_)))
    }

    fn ends_in_reduction(
        &self,
        graph: &Graph,
        users: &[smallvec::SmallVec<[(NodeId, tracecast_ir::Use); 4]>],
        from: NodeId,
    ) -> bool {
        let mut at = from;
        while self.inline[at.index()] {
            let [(next, _)] = users[at.index()][..] else { return false };
            at = next;
        }
        matches!(lowering(graph, at), Some(Lower::ReduceRow | Lower::ReduceColumn))
    }

    /// Takes out of `inline` what cannot be computed at the index it is needed at.
    pub(super) fn settle(&mut self, graph: &Graph) {
        let mut todo: Vec<NodeId> = graph
            .nodes()
            .filter(|n| self.live[n.index()] && !self.inline[n.index()] && !is_port(graph, *n))
            .collect();
        while let Some(n) = todo.pop() {
            let mut stuck = Vec::new();
            self.walk(graph, n, &domain(graph, n), &mut |_| {}, &mut |node| stuck.push(node));
            for node in stuck {
                if std::mem::take(&mut self.inline[node.index()]) {
                    todo.push(node);
                    todo.push(n);
                }
            }
        }
    }

    /// What `n` reads in a kernel over `domain`.
    pub(super) fn reads(&self, graph: &Graph, n: NodeId, domain: &Shape) -> Vec<Read> {
        let mut reads = Vec::new();
        self.walk(graph, n, domain, &mut |read| reads.push(read), &mut |_| {});
        reads
    }

    fn walk(
        &self,
        graph: &Graph,
        n: NodeId,
        domain: &Shape,
        read: &mut dyn FnMut(Read),
        stuck: &mut dyn FnMut(NodeId),
    ) {
        let args = graph.args(n);
        let rank = domain.rank().max(1);
        let mut todo: Vec<(NodeId, Option<Index>)> = Vec::new();
        match lowering(graph, n) {
            Some(Lower::Map(_)) => {
                let own = own_index(&graph.node(n).results[0].shape, domain, rank);
                todo.extend(args.iter().map(|a| (a.node, Some(own.clone()))));
            }
            Some(Lower::View(_)) => {
                let own = own_index(&graph.node(n).results[0].shape, domain, rank);
                match through(graph, n, &own) {
                    Some(index) => todo.push((args[0].node, Some(index))),
                    None => todo.push((args[0].node, None)),
                }
            }
            Some(Lower::ReduceRow | Lower::ReduceColumn) => {
                todo.push((args[0].node, Some(Index::identity(domain.rank(), rank))));
            }
            Some(Lower::Gather) => {
                let own = own_index(&graph.node(n).results[0].shape, domain, rank);
                todo.push((args[0].node, gathered(graph, n, &own)));
                todo.push((args[1].node, Some(own)));
            }
            Some(lower) if takes_base(lower) => {
                let own = Index::identity(domain.rank(), rank);
                if !is_zeros(graph, args[0]) {
                    if self.inline[args[0].node.index()] {
                        stuck(args[0].node);
                    }
                    todo.push((args[0].node, None));
                }
                todo.extend(args[1..].iter().map(|source| (source.node, Some(own.clone()))));
            }
            // All others take their operands as a whole, as far as is known here: nothing is read at one place.
            _ => {
                for a in &args {
                    let axes = graph.ty(*a).shape.rank();
                    self.follow(
                        graph,
                        vec![(a.node, Some(Index::identity(axes, axes)))],
                        &mut |r| read(Read { index: None, ..r }),
                        stuck,
                    );
                }
            }
        }
        self.follow(graph, todo, read, stuck);
    }

    pub(super) fn follow(
        &self,
        graph: &Graph,
        mut todo: Vec<(NodeId, Option<Index>)>,
        read: &mut dyn FnMut(Read),
        stuck: &mut dyn FnMut(NodeId),
    ) {
        let mut seen = FxHashSet::default();
        while let Some((node, index)) = todo.pop() {
            if !self.inline[node.index()] {
                read(Read { node, index });
                continue;
            }
            if !seen.insert((node, index.clone())) {
                continue;
            }
            let args = graph.args(node);
            match (lowering(graph, node), &index) {
                (_, None) => todo.extend(args.iter().map(|a| (a.node, None))),
                (Some(Lower::View(_)), Some(at)) => match through(graph, node, at) {
                    Some(inner) => todo.push((args[0].node, Some(inner))),
                    None => stuck(node),
                },
                (Some(Lower::Map(_)), Some(Index::Linear(_))) if needs_axes(graph, node) => {
                    stuck(node)
                }
                (_, Some(at)) => todo.extend(args.iter().map(|a| (a.node, Some(at.clone())))),
            }
        }
    }
}

/// The index of a gather's data operand: some number that is known only when running, along `dim`.
fn gathered(graph: &Graph, n: NodeId, own: &Index) -> Option<Index> {
    let Index::Axes(axes) = own else { return None };
    let x = graph.ty(graph.args(n)[0]);
    let axis = x.shape.axis(graph.node(n).attrs.int("dim")?).ok()?;
    let mut axes = axes.clone();
    let strides = smallvec![Size::from(0); axes[axis].strides.len()];
    axes[axis] = Position { strides, index: Some(0), ..Position::default() };
    Some(Index::Axes(axes))
}

/// True for an op that takes its first operand as a whole and the others at the position of its loops.
fn takes_base(lower: &Lower) -> bool {
    FormKind::begun_by(lower).is_some_and(|form| form.operands() == Operands::BaseAndSources)
}

/// True for a value from outside.
pub(super) fn is_port(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::Port))
}

/// Casts that lose nothing cost nothing in a load.
fn widens(graph: &Graph, n: NodeId) -> bool {
    let from = graph.ty(graph.args(n)[0]).dtype;
    from.fits_in(graph.node(n).results[0].dtype)
}

fn is(graph: &Graph, n: NodeId, kind: Intrinsic) -> bool {
    graph.node(n).op.intrinsic() == Some(kind)
}

/// Rules that ask for positions along axes.
fn needs_axes(graph: &Graph, n: NodeId) -> bool {
    is(graph, n, Intrinsic::Positions)
}
