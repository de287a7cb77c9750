//! The order in which a program launches its kernels: as recorded, or the order that holds fewer
//! bytes between them.
//!
//! A training step records all gradients before the first update. In that order every gradient is
//! in memory when the updates begin. The planned order updates a parameter once its gradient is
//! computed and no other kernel has to read the old value.

use super::cost::Settings;
use super::exchanges::is_exchange;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use tracecast_ir::hash::{FxHashMap, FxHashSet};
use tracecast_ir::kernel::build::Built;
use tracecast_ir::{Graph, NodeId, ValueId};

/// A kernel whose results have at most this number of bytes runs as soon as it can: others may wait
/// for its numbers, such as a loss scale.
const LITTLE: usize = 256;

/// Kernels in order.
pub(super) struct Order {
    /// Their numbers.
    pub(super) kernels: Vec<usize>,
    /// What is in memory between them when that takes the most bytes.
    pub(super) peak: Peak,
}

/// The values between kernels when they take the most bytes. State and inputs are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// The place of the kernel that runs then.
    pub kernel: usize,
    /// The nodes of the values and their bytes, in the order of the kernels.
    pub values: Vec<(NodeId, usize)>,
    /// The most bytes if the kernels ran in the order of recording.
    pub recorded: usize,
}

impl Order {
    /// The planned order if it holds fewer bytes and the settings ask for it, else the recorded
    /// one.
    pub(super) fn of(graph: &Graph, kernels: &[Built], settings: &Settings) -> Self {
        let (waits, lives) = (Waits::of(graph, kernels), Lives::of(graph, kernels));
        let (order, recorded) = waits.run(lives.clone(), false);
        let planned = settings.plan_memory.then(|| waits.run(lives.clone(), true));
        let kernels = match planned.filter(|(_, most)| *most < recorded) {
            Some((planned, _)) => planned,
            None => order,
        };
        let (kernel, values) = lives.peak(&kernels);
        Order { kernels, peak: Peak { kernel, values, recorded } }
    }
}

/// Which kernels wait for which.
struct Waits {
    /// For each kernel those that read its results.
    users: Vec<Vec<usize>>,
    /// For each kernel how many others it waits for.
    missing: Vec<usize>,
    /// For each kernel its place in the order of recording.
    place: Vec<usize>,
    /// True for exchanges between ranks and what depends on them. These keep their places: ranks
    /// with other sizes would plan other orders.
    exchanged: Vec<bool>,
}

impl Waits {
    fn of(graph: &Graph, kernels: &[Built]) -> Self {
        let mut maker: Vec<Option<usize>> = vec![None; graph.len()];
        for (i, kernel) in kernels.iter().enumerate() {
            kernel.outputs.iter().for_each(|v| maker[v.node.index()] = Some(i));
        }
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); kernels.len()];
        let mut missing = vec![0usize; kernels.len()];
        for (i, kernel) in kernels.iter().enumerate() {
            let mut from: SmallVec<[usize; 8]> =
                kernel.inputs.iter().filter_map(|v| maker[v.node.index()]).collect();
            from.sort_unstable();
            from.dedup();
            missing[i] = from.len();
            from.into_iter().for_each(|maker| users[maker].push(i));
        }
        // Ranks may have other kernels, as their batches have other sizes, but exchange the same in
        // the same order.
        let exchanges = |i: &usize| is_exchange(graph, kernels[*i].outputs[0].node);
        let mut together: Vec<usize> = (0..kernels.len()).filter(exchanges).collect();
        together.sort_unstable_by_key(|i| kernels[*i].outputs[0].node);
        for pair in together.windows(2) {
            users[pair[0]].push(pair[1]);
            missing[pair[1]] += 1;
        }
        let last = |of: &[ValueId]| of.iter().map(|v| v.node.index()).max().unwrap_or(0);
        // An exchange begins as soon as its operand is computed.
        let place = |i: usize| match kernels[i].inputs[..] {
            [operand] if exchanges(&i) => {
                maker[operand.node.index()].map_or(0, |m| last(&kernels[m].outputs))
            }
            _ => last(&kernels[i].outputs),
        };
        let place = (0..kernels.len()).map(place).collect();
        let (mut exchanged, mut todo) = (vec![false; kernels.len()], together);
        while let Some(i) = todo.pop() {
            if !std::mem::replace(&mut exchanged[i], true) {
                todo.extend(&users[i]);
            }
        }
        Waits { users, missing, place, exchanged }
    }

    /// The kernels in an order in which each finds its operands made, and the most bytes between
    /// them. Of those that can run, the first recorded runs; if `plans`, the first that lowers the
    /// bytes goes before it.
    fn run(&self, mut lives: Lives, plans: bool) -> (Vec<usize>, usize) {
        let mut missing = self.missing.clone();
        let mut order = Vec::with_capacity(missing.len());
        let ready = (0..missing.len()).filter(|i| missing[*i] == 0);
        let mut ready: BTreeSet<(usize, usize)> = ready.map(|i| (self.place[i], i)).collect();
        while let Some(&first) = ready.first() {
            let lowers = |(_, i): &&(usize, usize)| !self.exchanged[*i] && lives.lowers(*i);
            let early = if plans { ready.iter().find(lowers) } else { None };
            let next = *early.unwrap_or(&first);
            ready.remove(&next);
            order.push(next.1);
            lives.run(next.1);
            for &user in &self.users[next.1] {
                missing[user] -= 1;
                if missing[user] == 0 {
                    ready.insert((self.place[user], user));
                }
            }
        }
        (order, lives.most)
    }
}

/// The values between kernels while these run one after the other. A value lives from its kernel to
/// the last of its readers, a result of the program to the end. New state overwrites the old.
#[derive(Clone)]
struct Lives {
    /// The node of each value.
    nodes: Vec<NodeId>,
    /// For each value its bytes; none for what the program is given and for state.
    bytes: Vec<usize>,
    /// For each value how many kernels have still to read it.
    readers: Vec<usize>,
    /// For each kernel the values that it makes.
    makes: Vec<SmallVec<[usize; 2]>>,
    /// For each kernel the values that it reads, each once.
    reads: Vec<SmallVec<[usize; 4]>>,
    /// For each kernel the old state that it overwrites.
    overwrites: Vec<SmallVec<[usize; 1]>>,
    /// The bytes in memory now.
    now: usize,
    /// The most bytes so far.
    most: usize,
}

impl Lives {
    fn of(graph: &Graph, kernels: &[Built]) -> Self {
        let results: FxHashSet<ValueId> = graph.outputs().iter().map(|(_, v)| *v).collect();
        let state: FxHashSet<ValueId> = graph.updates().iter().map(|(_, v)| *v).collect();
        let mut lives = Lives {
            nodes: Vec::new(),
            bytes: Vec::new(),
            readers: Vec::new(),
            makes: Vec::with_capacity(kernels.len()),
            reads: Vec::with_capacity(kernels.len()),
            overwrites: Vec::with_capacity(kernels.len()),
            now: 0,
            most: 0,
        };
        let mut numbers: FxHashMap<ValueId, usize> = FxHashMap::default();
        for kernel in kernels {
            let mut number = |v: &ValueId| {
                *numbers.entry(*v).or_insert_with(|| {
                    lives.nodes.push(v.node);
                    lives.bytes.push(0);
                    // A result always has one more reader: the caller.
                    lives.readers.push(usize::from(results.contains(v)));
                    lives.bytes.len() - 1
                })
            };
            let made: SmallVec<[usize; 2]> = kernel.outputs.iter().map(&mut number).collect();
            let inputs: SmallVec<[usize; 4]> = kernel.inputs.iter().map(&mut number).collect();
            for (value, number) in kernel.outputs.iter().zip(&made) {
                if results.contains(value) || !state.contains(value) {
                    lives.bytes[*number] = graph.hint(graph.ty(*value).bytes());
                }
            }
            let updates = kernel.kernel.outputs.iter().filter_map(|output| output.update);
            lives.overwrites.push(updates.map(|input| inputs[input]).collect());
            let mut read = inputs;
            read.sort_unstable();
            read.dedup();
            read.iter().for_each(|v| lives.readers[*v] += 1);
            lives.makes.push(made);
            lives.reads.push(read);
        }
        lives
    }

    /// The bytes of the results of a kernel.
    fn taken(&self, kernel: usize) -> usize {
        self.makes[kernel].iter().map(|v| self.bytes[*v]).sum()
    }

    /// The bytes that no kernel needs once this one has run.
    fn freed(&self, kernel: usize) -> usize {
        let last = self.reads[kernel].iter().filter(|v| self.readers[**v] == 1);
        let unread = self.makes[kernel].iter().filter(|v| self.readers[**v] == 0);
        last.chain(unread).map(|v| self.bytes[*v]).sum()
    }

    /// True if the kernel frees more bytes than it takes, or takes at most [`LITTLE`], and no other
    /// kernel has to read the state that it overwrites.
    fn lowers(&self, kernel: usize) -> bool {
        let taken = self.taken(kernel);
        (taken <= LITTLE || self.freed(kernel) > taken)
            && self.overwrites[kernel].iter().all(|v| self.readers[*v] == 1)
    }

    fn run(&mut self, kernel: usize) {
        self.now += self.taken(kernel);
        self.most = self.most.max(self.now);
        self.now -= self.freed(kernel);
        for i in 0..self.reads[kernel].len() {
            self.readers[self.reads[kernel][i]] -= 1;
        }
    }

    /// The place of the kernel during which values take the most bytes, and these values.
    fn peak(mut self, order: &[usize]) -> (usize, Vec<(NodeId, usize)>) {
        let mut place = 0;
        let mut all = self.clone();
        for (i, kernel) in order.iter().enumerate() {
            let most = all.most;
            all.run(*kernel);
            place = if all.most > most { i } else { place };
        }
        let (before, there) = order.split_at(place);
        before.iter().for_each(|kernel| self.run(*kernel));
        let waiting = before.iter().flat_map(|kernel| &self.makes[*kernel]);
        let waiting = waiting.filter(|v| self.readers[**v] > 0);
        let made = there.first().into_iter().flat_map(|kernel| &self.makes[*kernel]);
        let values = waiting.chain(made).filter(|v| self.bytes[**v] > 0);
        (place, values.map(|v| (self.nodes[*v], self.bytes[*v])).collect())
    }
}
