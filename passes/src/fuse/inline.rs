//! Which nodes are inlined before kernels are formed: each kernel that reads one computes it in its
//! loads.
//!
//! Views, constants and widening casts are always inlined, and so is a cheap function of values in
//! memory that reads few bytes. One that a contraction would pack across its rows is stored. One
//! that it would pack through windows is inlined if rematerialising it costs less than storing it
//! (`cost`): windows multiply how often an element is read, and each element is computed by itself.
//! The gradient that a weight gradient multiplies with windows is stored: schedules that read
//! windows in place take both factors from memory.
//! Nodes are visited from results to operands, so that the readers of a node are decided before it.
//!
//! Before: a convolution of 3 × 3 reads `relu %c` through windows. Inlined, the relu runs for nine
//! taps with a guard each. After: the relu is stored, by the epilogue of the convolution that makes
//! `%c`, and packing reads it from memory.

use super::cost::{
    Cost, FEW_APART, LOAD, LONGEST_CHAIN, MOST_OPERATIONS, MOST_READ, SELECT, Weighed, operations,
};
use super::factors::Packed;
use super::reach::{Reach, steps_over, widens};
use super::users::is_given;
use smallvec::{SmallVec, smallvec};
use tracecast_ir::kernel::build::{domain, form, lowering};
use tracecast_ir::kernel::{FormKind, Joins};
use tracecast_ir::op::{Intrinsic, Lower, View};
use tracecast_ir::{Graph, NodeId, Shape, TensorType, ValueId};

/// What one element of a node takes where it is computed from memory.
#[derive(Clone, Default)]
struct Chain {
    /// Loads included.
    operations: usize,
    /// Elementwise ops.
    maps: usize,
    /// The values in memory.
    sources: SmallVec<[NodeId; 4]>,
}

/// What reads a value: a kernel, as far as one is foreseen before kernels are formed.
#[derive(Clone, Copy, PartialEq)]
enum Reader<'g> {
    /// Elementwise code and reductions over one domain share a kernel, forward and backward apart.
    Nest(&'g Shape, bool),
    /// Every other form begins a kernel of its own.
    Other(NodeId),
}

/// How often the elements of a value are read.
#[derive(Clone, Default)]
struct Reads<'g> {
    /// Elements that vector loops read.
    vector: usize,
    /// Elements that a contraction packs, among them those that are computed one at a time.
    packed: usize,
    single: usize,
    /// True if single elements need a guard.
    guarded: bool,
    readers: SmallVec<[Reader<'g>; 2]>,
}

impl<'g> Reads<'g> {
    fn add(&mut self, other: &Reads<'g>) {
        self.vector = self.vector.saturating_add(other.vector);
        self.packed = self.packed.saturating_add(other.packed);
        self.single = self.single.saturating_add(other.single);
        self.guarded |= other.guarded;
        for reader in &other.readers {
            if !self.readers.contains(reader) && self.readers.len() < LONGEST_CHAIN {
                self.readers.push(*reader);
            }
        }
    }
}

impl Reach {
    /// Marks views, constants and cheap functions of memory as inline, unless they are wanted as
    /// results.
    pub(super) fn choose_inline(&mut self, graph: &Graph) {
        let chains = self.chains(graph);
        let mut reads: Vec<Reads<'_>> = vec![Reads::default(); graph.len()];
        let live: Vec<NodeId> = graph
            .nodes()
            .filter(|n| self.program.live[n.index()] && !is_given(graph, *n))
            .collect();
        for &n in live.iter().rev() {
            let own = std::mem::take(&mut reads[n.index()]);
            let is_choice =
                is_choice(graph, n) && self.program.limits.holds(graph.node(n).results[0].dtype);
            if own.single > 0 && !own.guarded && self.inline[n.index()] && is_choice {
                self.inline[n.index()] = false;
            } else if own.guarded && self.inline[n.index()] && is_choice {
                let weighed = self.weigh(graph, n, &chains[n.index()], &own);
                let prices = &self.program.prices;
                let [stored, again] =
                    [&weighed.stored, &weighed.rematerialised].map(|cost| cost.price(prices));
                let stays =
                    again < stored || again == stored && !self.ends_product(graph, n, &chains);
                self.inline[n.index()] = stays;
                self.weighed.insert(n, weighed);
            }
            self.pass_on(graph, n, &own, &mut reads);
        }
        self.inline_flattened(graph, &live);
    }

    /// Marks everything that can be inlined, and finds what it is made of.
    fn chains(&mut self, graph: &Graph) -> Vec<Chain> {
        let program = self.program.clone();
        let mut chains = vec![Chain::default(); graph.len()];
        // The bytes of what kernels make that are read where a node is rematerialised.
        let mut read = vec![0usize; graph.len()];
        let bytes = |ty: &TensorType| graph.hint(ty.bytes());
        let wanted = |n: &NodeId| program.live[n.index()] && !program.is_root[n.index()];
        for n in graph.nodes().filter(wanted) {
            let args = graph.args(n);
            let maps =
                args.iter().fold(0usize, |sum, a| sum.saturating_add(chains[a.node.index()].maps));
            let maps =
                maps.saturating_add(usize::from(matches!(lowering(graph, n), Some(Lower::Map(_)))));
            read[n.index()] = args.iter().fold(0usize, |sum, a| {
                let is_made = !self.inline[a.node.index()] && !is_given(graph, a.node);
                sum.saturating_add(if is_made { bytes(graph.ty(*a)) } else { read[a.node.index()] })
            });
            let from_memory = |n: NodeId| is_given(graph, n) || self.inline[n.index()];
            let dtype = graph.node(n).results[0].dtype;
            let limits = &program.limits;
            let is_foreign = |arg: &ValueId| match is_given(graph, arg.node) {
                true => !limits.holds(graph.ty(*arg).dtype),
                false => self.inline[arg.node.index()] && self.foreign[arg.node.index()],
            };
            let is_native = limits.is_native(dtype);
            let is_made_of_foreign = args.iter().any(is_foreign);
            self.foreign[n.index()] = is_made_of_foreign || !is_native;
            self.inline[n.index()] = match lowering(graph, n) {
                Some(Lower::View(_) | Lower::Windows) => true,
                Some(Lower::Map(_)) if args.is_empty() || is_widening(graph, n) => true,
                // The memory of the device has no such elements.
                Some(Lower::Map(_)) if !limits.holds(dtype) => true,
                // Stored: the kernels that read it hold nothing foreign.
                Some(Lower::Map(_)) if is_made_of_foreign && is_native => false,
                Some(Lower::Map(map)) => {
                    let most = bytes(&graph.node(n).results[0]).saturating_mul(MOST_READ);
                    let is_apart = maps >= FEW_APART && self.is_stepped_over(graph, n);
                    map.is_cheap()
                        && maps <= MOST_OPERATIONS
                        && !is_apart
                        && read[n.index()] <= most
                        && args.iter().all(|arg| from_memory(arg.node))
                }
                _ => false,
            };
            if !self.inline[n.index()] {
                read[n.index()] = 0;
                continue;
            }
            let operations = operations(graph, n, &program.prices);
            let mut chain = Chain { operations, maps, ..Chain::default() };
            for (i, arg) in args.iter().enumerate() {
                let arg = arg.node;
                if args[..i].iter().any(|other| other.node == arg) {
                    continue;
                }
                let behind = &chains[arg.index()];
                let sources: &[NodeId] =
                    if self.inline[arg.index()] { &behind.sources } else { &[arg] };
                let taken = if self.inline[arg.index()] { behind.operations } else { LOAD };
                chain.operations = chain.operations.saturating_add(taken);
                let known = chain.sources.clone();
                chain.sources.extend(sources.iter().copied().filter(|s| !known.contains(s)));
            }
            let is_windows = matches!(lowering(graph, n), Some(Lower::Windows));
            if is_windows && chain.operations > LOAD {
                chain.operations = chain.operations.saturating_add(SELECT);
            }
            chains[n.index()] = chain;
        }
        chains
    }

    /// Hands the reads of an inlined node on to its operands, or those of the kernel of a node.
    fn pass_on<'g>(&self, graph: &'g Graph, n: NodeId, own: &Reads<'g>, reads: &mut [Reads<'g>]) {
        let args = graph.args(n);
        let numel = |n: NodeId| graph.hint(graph.node(n).results[0].numel());
        for (i, arg) in args.iter().enumerate() {
            if args[..i].iter().any(|other| other.node == arg.node) {
                continue;
            }
            let through = if self.inline[n.index()] {
                through(graph, n, own)
            } else {
                let reader = match form(graph, n).unwrap_or(FormKind::Nest) {
                    FormKind::Nest => Reader::Nest(domain(graph, n), graph.node(n).origin.backward),
                    _ => Reader::Other(n),
                };
                let mut through = Reads { readers: smallvec![reader], ..Reads::default() };
                match lowering(graph, n) {
                    Some(Lower::Contract) => through.packed = numel(arg.node),
                    Some(Lower::Map(_)) => through.vector = numel(n),
                    _ => through.vector = numel(arg.node),
                }
                through
            };
            reads[arg.node.index()].add(&through);
            if let Some(Lower::Contract) = lowering(graph, n)
                && let Some((top, packed)) = self.computed(graph, *arg)
                && (!matches!(packed, Packed::AlongRows | Packed::Unknown)
                    || self.is_beside_windows(graph, n, *arg))
            {
                let top = &mut reads[top.index()];
                top.single = top.single.saturating_add(numel(arg.node));
                top.guarded |= packed == Packed::ThroughWindows;
            }
        }
    }

    /// What storing and rematerialising `n` cost.
    fn weigh(&self, graph: &Graph, n: NodeId, chain: &Chain, reads: &Reads<'_>) -> Weighed {
        let prices = &self.program.prices;
        let numel = |n: NodeId| graph.hint(graph.node(n).results[0].numel());
        let bytes = |n: NodeId| graph.hint(graph.node(n).results[0].bytes());
        let kernels = reads.readers.len().max(1);
        let single = reads.single.min(reads.packed);
        let guard = if reads.guarded { prices.guard } else { 0 };
        let taken = [
            (reads.vector, chain.operations),
            (reads.packed - single, chain.operations.saturating_add(prices.pack)),
            (single, chain.operations.saturating_add(guard).saturating_mul(prices.lanes)),
        ];
        let taken = taken.iter().map(|(elements, each)| elements.saturating_mul(*each));
        let mut again =
            Cost { operations: taken.fold(0, usize::saturating_add), ..Cost::default() };
        let mut stored = Cost {
            written: bytes(n),
            read: bytes(n).saturating_mul(kernels),
            operations: chain
                .operations
                .saturating_mul(numel(n))
                .saturating_add(LOAD * (reads.vector.saturating_add(reads.packed))),
            launches: 0,
        };
        let mut joins = false;
        for &source in &chain.sources {
            again.read = again.read.saturating_add(bytes(source).saturating_mul(kernels));
            if self.leads_only_to(graph, source, n) {
                // Stored, `n` takes the place of its source.
                again.written = again.written.saturating_add(bytes(source));
                joins = true;
            } else {
                stored.read = stored.read.saturating_add(bytes(source));
            }
        }
        if !joins {
            stored.launches = 1;
        }
        Weighed { stored, rematerialised: again }
    }

    /// True if a kernel makes `source`, and nothing but `n` is made of it.
    fn leads_only_to(&self, graph: &Graph, source: NodeId, n: NodeId) -> bool {
        let mut at = source;
        while at != n {
            if is_given(graph, at) || self.program.is_root[at.index()] {
                return false;
            }
            let mut users = self.program.users.of(at).iter().copied();
            let mut users = users.by_ref().filter(|user| self.program.live[user.index()]);
            let Some(next) = users.next() else { return false };
            if users.any(|user| user != next) {
                return false;
            }
            at = next;
        }
        true
    }

    /// True if `n` is the only thing that is made of a contraction's result, whose epilogue it can
    /// become.
    fn ends_product(&self, graph: &Graph, n: NodeId, chains: &[Chain]) -> bool {
        chains[n.index()].sources.iter().any(|&source| {
            form(graph, source).is_some_and(|form| form.joins() == Joins::Epilogue)
                && self.leads_only_to(graph, source, n)
        })
    }

    /// True if all that is read of `n` are positions of its last axis that lie apart.
    fn is_stepped_over(&self, graph: &Graph, n: NodeId) -> bool {
        let users = self.program.users.of(n);
        !users.is_empty() && users.iter().all(|user| steps_over(graph, *user))
    }

    /// Inlines what only a flattened reduction reads: it is computed in the loads of that.
    fn inline_flattened(&mut self, graph: &Graph, live: &[NodeId]) {
        for &n in live.iter().rev().filter(|n| !self.program.is_root[n.index()]) {
            let [user] = *self.program.users.of(n) else { continue };
            let elementwise =
                matches!(lowering(graph, n), Some(Lower::Map(_))) && !self.foreign[n.index()];
            let only_flattened = self.inline[user.index()] && self.is_flattening(graph, user)
                || self.pulled(graph, n, user);
            if elementwise && only_flattened && self.ends_in_reduction(graph, user) {
                self.inline[n.index()] = true;
            }
        }
    }
}

/// True for what may be stored as well: no view, no constant, no conversion that is part of a load.
fn is_choice(graph: &Graph, n: NodeId) -> bool {
    matches!(lowering(graph, n), Some(Lower::Map(_)))
        && !graph.args(n).is_empty()
        && !is_widening(graph, n)
}

fn is_widening(graph: &Graph, n: NodeId) -> bool {
    graph.node(n).op.intrinsic() == Some(Intrinsic::Cast) && widens(graph, n)
}

/// The reads of an operand of the inlined node `n`.
fn through<'g>(graph: &Graph, n: NodeId, own: &Reads<'g>) -> Reads<'g> {
    let mut through = own.clone();
    // What is the same along the last axes is computed once in front of a loop.
    if let Some(Lower::View(View::Expand)) = lowering(graph, n) {
        let (from, to) = (&graph.ty(graph.args(n)[0]).shape, &graph.node(n).results[0].shape);
        let pairs = from.iter().rev().zip(to.iter().rev());
        let repeated = pairs.take_while(|(from, to)| from != to).count();
        let repeated = if repeated == from.rank() { to.rank() } else { repeated };
        let times = to.iter().rev().take(repeated).map(|size| graph.hint(*size));
        let times = times.fold(1, usize::saturating_mul).max(1);
        through.vector /= times;
        through.packed /= times;
        through.single /= times;
    }
    through
}
