//! What a node reads from memory or from other kernels, and which nodes are rematerialised wherever
//! they are needed.

use super::cost::Weighed;
use super::program::Program;
use super::users::is_given;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use tracecast_ir::hash::FxHashMap;
use tracecast_ir::kernel::build::{domain, factors, is_zeros, lowering, own_index, seen};
use tracecast_ir::kernel::index::{self, Index, linear, seen_through, through};
use tracecast_ir::kernel::{FormKind, Operands};
use tracecast_ir::op::{Intrinsic, Lower, Position, View};
use tracecast_ir::{Graph, NodeId, Shape, Size};

/// Places so far apart are read by vectors.
const NEAR: i64 = 2;

/// The result of the analysis.
#[derive(Clone)]
pub(super) struct Reach {
    /// Nodes that belong to no kernel: each kernel that needs them computes them from what they
    /// read.
    pub(super) inline: Vec<bool>,
    /// Values of a dtype that the device does not compute in (`KernelLimits::is_native`), and
    /// values whose operands are inlined and foreign. The first native value behind them is
    /// stored, so that its readers are kernels of the device.
    pub(super) foreign: Vec<bool>,
    pub(super) program: Arc<Program>,
    /// Values of which both storing and inlining were possible.
    pub(super) weighed: FxHashMap<NodeId, Weighed>,
}

/// A value that a node reads, behind inlined nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    /// A port, or a node of a kernel.
    pub(super) node: NodeId,
    pub(super) at: At,
}

/// Where a value is read, seen from the loops of the reader's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// At the position of the loops: axis by axis, for all axes of the value or all but a last one
    /// of size 1.
    Loops,
    /// Elements one after another, row by row, although the axes are others.
    InOrder,
    /// At another place, or at no single one: an index from a tensor, a shifted position.
    Elsewhere,
}

/// What a node reads.
pub(super) type Reads = SmallVec<[Read; 4]>;

/// The place of an element over the axes of a kernel. An index is made only where a view asks for
/// it.
#[derive(Clone, PartialEq)]
pub(super) enum Place {
    /// The position of the loops, in a value of the shape of their domain.
    Loops,
    Index(Arc<Index>),
    Nowhere,
}

impl Place {
    pub(super) fn index(index: Index) -> Self {
        Place::Index(Arc::new(index))
    }

    /// Where that is, for a reader over `domain` of a value of that shape.
    fn seen(&self, shape: &Shape, domain: &Shape) -> At {
        match self {
            Place::Loops => At::Loops,
            Place::Nowhere => At::Elsewhere,
            Place::Index(index) if index.is_identity(shape, domain) => At::Loops,
            Place::Index(index) => match &**index {
                Index::Linear(p) if p.offset == 0 && p.strides[..] == [1] => At::InOrder,
                _ => At::Elsewhere,
            },
        }
    }
}

impl Reach {
    pub(super) fn of(graph: &Graph, program: Arc<Program>) -> Self {
        let (inline, foreign) = (vec![false; graph.len()], vec![false; graph.len()]);
        let mut reach = Reach { inline, foreign, program, weighed: FxHashMap::default() };
        reach.choose_inline(graph);
        reach
    }

    /// True if `n` is an operand, of the same shape, of an elementwise node that is computed in a
    /// reduction's loads.
    pub(super) fn pulled(&self, graph: &Graph, n: NodeId, user: NodeId) -> bool {
        self.inline[user.index()]
            && matches!(lowering(graph, user), Some(Lower::Map(_)))
            && graph.node(user).results[0].shape == graph.node(n).results[0].shape
    }

    pub(super) fn is_flattening(&self, graph: &Graph, n: NodeId) -> bool {
        let rank = graph.node(n).results[0].shape.rank();
        matches!(through(graph, n, &Index::identity(rank, rank)), Some(Index::Linear(_)))
    }

    pub(super) fn ends_in_reduction(&self, graph: &Graph, from: NodeId) -> bool {
        let mut at = from;
        while self.inline[at.index()] {
            let [next] = *self.program.users.of(at) else { return false };
            at = next;
        }
        matches!(lowering(graph, at), Some(Lower::ReduceRow | Lower::ReduceColumn))
    }

    /// Takes out of `inline` what cannot be computed at the index it is needed at, and finds what
    /// every node reads in a kernel of its own.
    pub(super) fn settle(&mut self, graph: &Graph) -> Vec<Reads> {
        let mut reads: Vec<Reads> = vec![Reads::new(); graph.len()];
        let all = graph.nodes().filter(|n| self.program.live[n.index()] && !is_given(graph, *n));
        self.settle_among(graph, all.collect(), &mut reads);
        reads
    }

    /// Computes more nodes again where they are needed, as far as that is possible: `reads` are of
    /// before.
    pub(super) fn widen(&mut self, graph: &Graph, more: &[NodeId], reads: &mut [Reads]) {
        more.iter().for_each(|n| self.inline[n.index()] = true);
        let of_more =
            |n: &NodeId| reads[n.index()].iter().any(|read| self.inline[read.node.index()]);
        self.settle_among(graph, graph.nodes().filter(of_more).collect(), reads);
        more.iter().filter(|n| self.inline[n.index()]).for_each(|n| reads[n.index()].clear());
    }

    /// As [`settle`](Reach::settle), where only these nodes may read what cannot be computed.
    fn settle_among(&mut self, graph: &Graph, nodes: Vec<NodeId>, reads: &mut [Reads]) {
        let mut todo = nodes;
        todo.retain(|n| !self.inline[n.index()]);
        let (mut stuck, mut changed) = (Vec::new(), false);
        while let Some(n) = todo.pop() {
            let own = &mut reads[n.index()];
            own.clear();
            self.walk(graph, n, domain(graph, n), &mut |read| own.push(read), &mut |at| {
                stuck.push(at)
            });
            for node in stuck.drain(..) {
                if std::mem::take(&mut self.inline[node.index()]) {
                    changed = true;
                    todo.push(node);
                    todo.push(n);
                    if matches!(lowering(graph, node), Some(Lower::Windows)) {
                        // Contractions that read through it are over other axes now.
                        todo.extend(graph.nodes().filter(|n| self.contracts(graph, *n)));
                    }
                }
            }
        }
        if changed {
            // Whoever read through a node that is in a kernel after all reads that node.
            for n in graph.nodes().filter(|n| self.is_member(graph, *n)) {
                reads[n.index()] = self.reads(graph, n, domain(graph, n));
            }
        }
    }

    fn contracts(&self, graph: &Graph, n: NodeId) -> bool {
        self.program.live[n.index()] && matches!(lowering(graph, n), Some(Lower::Contract))
    }

    /// True for nodes that are to be part of a kernel.
    pub(super) fn is_member(&self, graph: &Graph, n: NodeId) -> bool {
        self.program.live[n.index()] && !self.inline[n.index()] && !is_given(graph, n)
    }

    /// What `n` reads in a kernel over `domain`.
    pub(super) fn reads(&self, graph: &Graph, n: NodeId, domain: &Shape) -> Reads {
        let mut reads = Reads::new();
        self.walk(graph, n, domain, &mut |read| reads.push(read), &mut |_| {});
        reads
    }

    /// True if `n` takes values of that domain, which `made` says are made there, element by
    /// element in order, although its axes are others; and everything else that it takes can be
    /// read in that order as well.
    pub(super) fn takes_in_order(
        &self,
        graph: &Graph,
        n: NodeId,
        domain: &Shape,
        made: &dyn Fn(NodeId) -> bool,
    ) -> bool {
        let result = &graph.node(n).results[0];
        let order = linear(&Index::identity(domain.rank(), domain.rank()), domain);
        let Some(order) = order.filter(|_| result.numel() == domain.numel()) else { return false };
        if needs_axes(graph, n) {
            return false;
        }
        let place = Place::index(Index::Linear(order));
        let todo = graph.args(n).iter().map(|arg| (arg.node, place.clone())).collect();
        let (mut fits, mut stuck) = (true, false);
        let mut read = |node: NodeId, at: &Place| {
            let is_whole = graph.node(node).results[0].numel() == domain.numel();
            fits &= !made(node) || *at == place && is_whole && !is_reduction(graph, node);
        };
        self.follow(graph, todo, domain, &mut read, &mut |_| stuck = true);
        fits && !stuck
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
        let shape = &graph.node(n).results[0].shape;
        let rank = domain.rank().max(1);
        let own = || match shape == domain {
            true => Place::Loops,
            false => Place::index(own_index(shape, domain, rank)),
        };
        let mut todo: Todo = Todo::new();
        let mut whole = false;
        match lowering(graph, n) {
            Some(Lower::Map(_)) => {
                let own = own();
                todo.extend(args.iter().map(|a| (a.node, own.clone())));
            }
            Some(Lower::View(_)) => todo.push((args[0].node, behind(graph, n, &own(), domain))),
            Some(Lower::Windows) => {
                todo.push((args[0].node, behind_windows(graph, n, &own(), domain)));
            }
            Some(Lower::ReduceRow | Lower::ReduceColumn) => {
                let operand = &graph.ty(args[0]).shape;
                let place = match operand == domain {
                    true => Place::Loops,
                    false => Place::index(Index::identity(domain.rank(), rank)),
                };
                todo.push((args[0].node, place));
            }
            Some(Lower::Gather) => {
                let own = own_index(shape, domain, rank);
                let data = gathered(graph, n, &own, rank).map_or(Place::Nowhere, Place::index);
                todo.push((args[0].node, data));
                todo.push((args[1].node, Place::index(own)));
            }
            Some(lower) if takes_base(lower) => {
                let own = Place::index(Index::identity(domain.rank(), rank));
                if !is_zeros(graph, args[0]) {
                    if self.inline[args[0].node.index()] {
                        stuck(args[0].node);
                    }
                    todo.push((args[0].node, Place::Nowhere));
                }
                todo.extend(args[1..].iter().map(|source| (source.node, own.clone())));
            }
            Some(lower) if takes_seen(lower) => {
                for arg in args {
                    match seen(graph, arg, &|at| self.inline[at.index()]) {
                        Ok((leaf, _)) => read(Read { node: leaf.node, at: At::Elsewhere }),
                        Err(node) => stuck(node),
                    }
                }
                return;
            }
            Some(lower) if takes_memory(lower) => {
                for arg in args {
                    if self.inline[arg.node.index()] {
                        stuck(arg.node);
                    }
                    todo.push((arg.node, Place::Nowhere));
                }
            }
            Some(Lower::Contract) => {
                for factor in factors(graph, n, &|at| self.inline[at.index()]) {
                    let at = factor.value.node;
                    let seen =
                        &mut |node: NodeId, _: &Place| read(Read { node, at: At::Elsewhere });
                    let domain = &graph.node(at).results[0].shape;
                    self.follow(graph, smallvec![(at, Place::Loops)], domain, seen, stuck);
                }
                return;
            }
            // All others take their operands as a whole, as far as is known here: nothing is read
            // at one place.
            _ => {
                whole = true;
                todo.extend(args.iter().rev().map(|a| (a.node, Place::Loops)));
            }
        }
        if !whole {
            let seen = &mut |node: NodeId, place: &Place| {
                let at = place.seen(&graph.node(node).results[0].shape, domain);
                read(Read { node, at });
            };
            return self.follow(graph, todo, domain, seen, stuck);
        }
        while let Some((factor, place)) = todo.pop() {
            let domain = &graph.node(factor).results[0].shape;
            let seen = &mut |node: NodeId, _: &Place| read(Read { node, at: At::Elsewhere });
            self.follow(graph, smallvec![(factor, place)], domain, seen, stuck);
        }
    }

    /// Visits what is read behind inlined nodes, and the inlined nodes that cannot be computed
    /// where they are needed. `domain` is that of the loops.
    pub(super) fn follow(
        &self,
        graph: &Graph,
        mut todo: Todo,
        domain: &Shape,
        read: &mut dyn FnMut(NodeId, &Place),
        stuck: &mut dyn FnMut(NodeId),
    ) {
        let mut seen: Todo = Todo::new();
        while let Some((node, place)) = todo.pop() {
            if !self.inline[node.index()] {
                read(node, &place);
                continue;
            }
            // What has one use is reached once.
            if self.program.users.of(node).len() > 1 {
                let at = (node, place.clone());
                if seen.contains(&at) {
                    continue;
                }
                seen.push(at);
            }
            let args = graph.args(node);
            match (lowering(graph, node), &place) {
                (_, Place::Nowhere) => {
                    todo.extend(args.iter().map(|a| (a.node, Place::Nowhere)));
                }
                (Some(Lower::View(_)), _) => match behind(graph, node, &place, domain) {
                    Place::Nowhere => stuck(node),
                    inner => todo.push((args[0].node, inner)),
                },
                (Some(Lower::Windows), _) => match behind_windows(graph, node, &place, domain) {
                    Place::Nowhere => stuck(node),
                    inner => todo.push((args[0].node, inner)),
                },
                (Some(Lower::Map(_)), Place::Index(index))
                    if matches!(**index, Index::Linear(_)) && needs_axes(graph, node) =>
                {
                    stuck(node);
                }
                _ => todo.extend(args.iter().map(|a| (a.node, place.clone()))),
            }
        }
    }
}

/// Nodes, each with the place where it is read.
pub(super) type Todo = SmallVec<[(NodeId, Place); 8]>;

/// The place in the operand of a view for one in its result; nowhere if it is not a function of
/// this form.
fn behind(graph: &Graph, view: NodeId, place: &Place, domain: &Shape) -> Place {
    let index = match place {
        Place::Nowhere => return Place::Nowhere,
        Place::Index(index) => through(graph, view, index),
        Place::Loops => {
            let rank = domain.rank();
            through(graph, view, &Index::identity(rank, rank.max(1)))
        }
    };
    index.map_or(Place::Nowhere, Place::index)
}

/// The place in the operand of windows for one in their result.
fn behind_windows(graph: &Graph, windows: NodeId, place: &Place, domain: &Shape) -> Place {
    let rank = domain.rank();
    let inner = match place {
        Place::Nowhere => None,
        Place::Index(index) => seen_through(graph, windows, index),
        Place::Loops => seen_through(graph, windows, &Index::identity(rank, rank.max(1))),
    };
    inner.map_or(Place::Nowhere, |(index, _)| Place::index(index))
}

/// The index of a gather's data operand: some number that is known only when running, along `dim`.
fn gathered(graph: &Graph, n: NodeId, own: &Index, rank: usize) -> Option<Index> {
    let Index::Axes(axes) = own else { return None };
    let x = graph.ty(graph.args(n)[0]);
    let axis = x.shape.axis(graph.node(n).attrs.int("dim")?).ok()?;
    let strides = smallvec![Size::from(0); rank];
    let place = Position { strides, index: Some(0), ..Position::default() };
    Some(index::gathered(&x.shape, axis, axes, place))
}

/// True for an op that takes its operands as wholes, in place.
fn takes_memory(lower: &Lower) -> bool {
    FormKind::begun_by(lower)
        .is_some_and(|form| matches!(form.operands(), Operands::InMemory { .. }))
}

/// True for an op that takes its operands as they are seen in memory through views.
fn takes_seen(lower: &Lower) -> bool {
    FormKind::begun_by(lower)
        .is_some_and(|form| matches!(form.operands(), Operands::SeenInMemory { .. }))
}

/// True for an op that takes its first operand as a whole and the others at the position of its
/// loops.
fn takes_base(lower: &Lower) -> bool {
    FormKind::begun_by(lower).is_some_and(|form| form.operands() == Operands::BaseAndSources)
}

/// Casts that lose nothing cost nothing in a load.
pub(super) fn widens(graph: &Graph, n: NodeId) -> bool {
    let from = graph.ty(graph.args(n)[0]).dtype;
    from.fits_in(graph.node(n).results[0].dtype)
}

fn is(graph: &Graph, n: NodeId, kind: Intrinsic) -> bool {
    graph.node(n).op.intrinsic() == Some(kind)
}

/// True for a view of positions of the last axis further apart than [`NEAR`].
pub(super) fn steps_over(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    let is_slice = matches!(lowering(graph, n), Some(Lower::View(View::Slice)));
    let last = || node.results[0].shape.axis(node.attrs.int("dim")?).ok();
    let step = || node.attrs.int("step");
    is_slice
        && last().is_some_and(|axis| axis + 1 == node.results[0].shape.rank())
        && step().is_some_and(|step| step > NEAR)
}

fn is_reduction(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::ReduceRow | Lower::ReduceColumn))
}

/// Rules that ask for positions along axes.
fn needs_axes(graph: &Graph, n: NodeId) -> bool {
    is(graph, n, Intrinsic::Positions)
}
