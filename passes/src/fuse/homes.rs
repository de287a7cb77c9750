//! Where fusion puts casts: which of them are part of a load, a store, the packing or the epilogue
//! of a contraction, or of what a kernel has in registers; and which are a kernel of their own.

use super::cost::Settings;
use super::exchanges::is_exchange;
use super::memory::{Again, Stored, memory};
use super::order::Peak;
use super::{Forecast, Fused};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use tracecast_ir::kernel::Cost;
use tracecast_ir::kernel::build::{Built, Group, lowering};
use tracecast_ir::op::Lower;
use tracecast_ir::{Graph, NodeId, TraceError, ValueId};

/// What a cast is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Home {
    /// A value is converted when it is read from memory.
    Load,
    /// A factor of a contraction is converted while it is packed.
    Pack,
    /// A value never leaves the registers.
    Register,
    /// What a contraction has summed is converted before it is stored.
    Epilogue,
    /// A value is converted when it is written to memory.
    Store,
    /// The cast is a kernel that does nothing else.
    Kernel,
}

impl Home {
    /// The name used in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Home::Load => "load",
            Home::Pack => "pack",
            Home::Register => "register",
            Home::Epilogue => "epilogue",
            Home::Store => "store",
            Home::Kernel => "stand-alone",
        }
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A cast in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Housed {
    /// The `cast` or `round_to` of the program that is fused.
    pub cast: NodeId,
    /// What it is a part of.
    pub home: Home,
    /// The name of the kernel.
    pub kernel: String,
    /// The bytes that the kernel reads and writes only because of the cast.
    pub moved: usize,
}

/// The casts of a program in its kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Homes {
    /// Kernel after kernel. A cast that several kernels compute is there several times.
    pub casts: Vec<Housed>,
    /// The kernels in the order of the program.
    pub kernels: Vec<KernelCost>,
    /// What they write, kernel after kernel.
    pub stored: Vec<Stored>,
    /// What several of them compute.
    pub again: Vec<Again>,
    /// What is in memory between them when that takes the most bytes.
    pub peak: Peak,
}

/// What a kernel takes at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCost {
    /// Its name.
    pub name: String,
    /// The form, such as `map`, `rows` or `contraction`.
    pub form: &'static str,
    /// Bytes and operations of one run.
    pub cost: Cost,
}

/// `@contract_relu, contraction: 224 bytes read, 64 written, 512 operations`
impl fmt::Display for KernelCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { read, written, flops } = self.cost;
        let plural = |n: u64| if n == 1 { "" } else { "s" };
        write!(f, "@{}, {}: {read} byte{} read, ", self.name, self.form, plural(read))?;
        write!(f, "{written} written, {flops} operation{}", plural(flops))
    }
}

/// The homes of all casts of a program of core ops, which is about to be fused.
///
/// # Errors
/// As the pass [`Fuse`](super::Fuse).
pub fn homes(graph: &Graph, settings: &Settings) -> Result<Homes, TraceError> {
    let forecast = Forecast::known(graph, settings);
    let fused = Fused::of(graph, &forecast)?;
    let names = fused.names();
    let kernel_of: HashMap<ValueId, usize> = fused
        .kernels
        .iter()
        .enumerate()
        .flat_map(|(i, kernel)| kernel.outputs.iter().map(move |v| (*v, i)))
        .collect();
    let mut casts = Vec::new();
    for (group, outputs) in &fused.groups {
        let Some(&kernel) = outputs.first().and_then(|v| kernel_of.get(v)) else { continue };
        let stored = outputs.iter().map(|v| v.node).collect();
        let kernel_group = KernelGroup {
            graph,
            inline: fused.inline,
            group,
            stored,
            kernel: &fused.kernels[kernel],
        };
        for (cast, home) in kernel_group.casts() {
            let moved = kernel_group.moved(cast, home);
            casts.push(Housed { cast, home, kernel: names[kernel].clone(), moved });
        }
    }
    let cost = |i: &usize| {
        let kernel = &fused.kernels[*i].kernel;
        let together = is_exchange(graph, fused.kernels[*i].outputs[0].node);
        let form = if together { "exchange" } else { kernel.form_name() };
        KernelCost { name: names[*i].clone(), form, cost: kernel.cost() }
    };
    let (stored, again) = memory(graph, &fused, &names);
    let kernels = fused.order.iter().map(cost).collect();
    Ok(Homes { casts, kernels, stored, again, peak: fused.peak })
}

/// A group of nodes that became a kernel.
struct KernelGroup<'a> {
    graph: &'a Graph,
    inline: &'a [bool],
    group: &'a Group,
    stored: HashSet<NodeId>,
    kernel: &'a Built,
}

impl KernelGroup<'_> {
    /// The casts that the kernel computes, each with its homes.
    fn casts(&self) -> BTreeSet<(NodeId, Home)> {
        let mut casts = BTreeSet::new();
        let alone = self.kernel.kernel.only_casts();
        let anchor = self.group.members.first().copied();
        let contracts = anchor
            .is_some_and(|anchor| matches!(lowering(self.graph, anchor), Some(Lower::Contract)));
        for &member in &self.group.members {
            if is_cast(self.graph, member) {
                let home = match (alone, contracts, self.stored.contains(&member)) {
                    (true, ..) => Home::Kernel,
                    (_, true, _) => Home::Epilogue,
                    (_, _, true) => Home::Store,
                    _ => Home::Register,
                };
                casts.insert((member, home));
            }
            let packs = contracts && Some(member) == anchor;
            self.below(member, |cast| {
                let home = match (alone, packs, contracts) {
                    (true, ..) => Home::Kernel,
                    (_, true, _) => Home::Pack,
                    (_, _, true) => Home::Epilogue,
                    _ if self.reads_memory(cast) => Home::Load,
                    _ => Home::Register,
                };
                casts.insert((cast, home));
            });
        }
        casts
    }

    /// Visits the casts that a member computes again from what it reads.
    fn below(&self, member: NodeId, mut visit: impl FnMut(NodeId)) {
        let mut todo: Vec<NodeId> = self.graph.args(member).iter().map(|a| a.node).collect();
        let mut seen = HashSet::new();
        while let Some(node) = todo.pop() {
            let again = self.inline[node.index()] && !self.group.members.contains(&node);
            if !again || !seen.insert(node) {
                continue;
            }
            if is_cast(self.graph, node) {
                visit(node);
            }
            todo.extend(self.graph.args(node).iter().map(|a| a.node));
        }
    }

    /// True if only views lie between a cast and memory.
    fn reads_memory(&self, cast: NodeId) -> bool {
        let mut at = self.graph.args(cast)[0].node;
        while self.inline[at.index()] && matches!(lowering(self.graph, at), Some(Lower::View(_))) {
            at = self.graph.args(at)[0].node;
        }
        !self.inline[at.index()] && !self.group.members.contains(&at)
    }

    /// What is read and written only because of a cast: all of it by a kernel of its own, a second
    /// copy by a store beside another.
    fn moved(&self, cast: NodeId, home: Home) -> usize {
        let operand = self.graph.args(cast)[0];
        let written = self.graph.hint(self.graph.node(cast).results[0].bytes());
        match home {
            Home::Kernel => self.graph.hint(self.graph.ty(operand).bytes()) + written,
            Home::Store | Home::Epilogue
                if self.stored.contains(&cast)
                    && (self.stored.contains(&operand.node) || self.reads_memory(cast)) =>
            {
                written
            }
            _ => 0,
        }
    }
}

fn is_cast(graph: &Graph, node: NodeId) -> bool {
    graph.node(node).op.is_cast()
}
