//! [`MemoryNote`], [`PeakNote`] and [`AgainNote`]: why a value is stored between kernels, when the
//! stored bytes peak, and what is rematerialised instead.

use crate::fuse::{Again, Keep, KernelCost, Peak, Stored, Weighed};
use std::cmp::Reverse;
use std::fmt;
use tracecast_ir::text::Names;
use tracecast_ir::{Graph, NodeId, TensorType};

/// A value that a kernel writes to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNote {
    /// The node of the traced program that it is a part of.
    pub node: NodeId,
    /// What it is, such as `%3`, `exp of %3` where the op is made of several, or
    /// `mul of the gradient of %3`.
    pub value: String,
    /// Its type.
    pub ty: TensorType,
    /// Its bytes, with the traced values of names.
    pub bytes: usize,
    /// The kernel that writes it.
    pub kernel: String,
    /// The kernels that read it.
    pub readers: Vec<String>,
    /// Why it is written.
    pub why: Keep,
    /// What storing and rematerialising it cost, if fusion had a choice.
    pub cost: Option<Weighed>,
}

/// When the values in memory between kernels take the most bytes. State and inputs are not among
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakNote {
    /// The first kernel that runs then.
    pub kernel: String,
    /// The bytes of all values.
    pub bytes: usize,
    /// What each is, as in [`MemoryNote::value`], and its bytes; the largest first.
    pub values: Vec<(String, usize)>,
    /// The most bytes if the kernels ran in the order of recording
    /// ([`Settings::plan_memory`](crate::fuse::Settings::plan_memory)).
    pub recorded: usize,
}

/// A step that several kernels compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgainNote {
    /// The node of the traced program that it is a part of.
    pub node: NodeId,
    /// What it is, as in [`MemoryNote::value`].
    pub value: String,
    /// The kernels.
    pub kernels: Vec<String>,
    /// What storing and rematerialising it cost, if fusion had a choice.
    pub cost: Option<Weighed>,
}

/// `sub of %3 f32[8, 10], 320 bytes, by @reduce_row for @contract: a contraction packs it from
/// memory`
impl fmt::Display for MemoryNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryNote { value, ty, bytes, kernel, readers, why, cost, .. } = self;
        write!(f, "{value} {ty}, {bytes} bytes, by @{kernel}")?;
        if !readers.is_empty() {
            write!(f, " for {}", list(readers))?;
        }
        write!(f, ": {why}")?;
        priced(f, cost.as_ref())
    }
}

/// `16384 bytes at @contract_2: 8192 of %3, 4096 of %4, 4096 of mul of %5`, and behind it
/// `; 20480 bytes in the order of recording` if that takes more.
impl fmt::Display for PeakNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.values.iter().map(|(value, bytes)| format!("{bytes} of {value}"));
        write!(f, "{} bytes at @{}: {}", self.bytes, self.kernel, first_few(shown))?;
        match self.recorded > self.bytes {
            true => write!(f, "; {} bytes in the order of recording", self.recorded),
            false => Ok(()),
        }
    }
}

/// `sub of %3 in @reduce_row, @reduce_row_2`
impl fmt::Display for AgainNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.value, list(&self.kernels))?;
        priced(f, self.cost.as_ref())
    }
}

/// Both sides, where there were two.
fn priced(f: &mut fmt::Formatter<'_>, cost: Option<&Weighed>) -> fmt::Result {
    cost.map_or(Ok(()), |cost| write!(f, " ({cost})"))
}

/// The first few kernels, and how many more there are.
fn list(kernels: &[String]) -> String {
    first_few(kernels.iter().map(|kernel| format!("@{kernel}")))
}

/// The first few texts, and how many more there are.
fn first_few(mut texts: impl ExactSizeIterator<Item = String>) -> String {
    const FEW: usize = 4;
    let shown: Vec<String> = texts.by_ref().take(FEW).collect();
    match texts.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// When the values between kernels take the most bytes. `None` if there are none.
pub(super) fn peak(
    traced: &Graph,
    names: &Names<'_>,
    placed: &Graph,
    kernels: &[KernelCost],
    peak: Peak,
) -> Option<PeakNote> {
    let kernel = kernels.get(peak.kernel)?.name.clone();
    let bytes = peak.values.iter().map(|(_, bytes)| bytes).sum();
    let value = |(node, bytes)| (called(traced, names, placed, node).1, bytes);
    let mut values: Vec<(String, usize)> = peak.values.into_iter().map(value).collect();
    values.sort_by_key(|(_, bytes)| Reverse(*bytes));
    (bytes > 0).then_some(PeakNote { kernel, bytes, values, recorded: peak.recorded })
}

/// The notes about values in memory.
pub(super) fn stored(
    traced: &Graph,
    names: &Names<'_>,
    placed: &Graph,
    all: &[Stored],
) -> Vec<MemoryNote> {
    let note = |stored: &Stored| {
        let (node, value) = called(traced, names, placed, stored.node);
        MemoryNote {
            node,
            value,
            ty: placed.node(stored.node).results[0].clone(),
            bytes: bytes(placed, &placed.node(stored.node).results[0]),
            kernel: stored.kernel.clone(),
            readers: stored.readers.clone(),
            why: stored.why.clone(),
            cost: stored.cost,
        }
    };
    all.iter().map(note).collect()
}

/// The bytes of a type in a program, with the traced values of names.
fn bytes(graph: &Graph, ty: &TensorType) -> usize {
    graph.hint(ty.bytes())
}

/// The notes about what several kernels compute.
pub(super) fn again(
    traced: &Graph,
    names: &Names<'_>,
    placed: &Graph,
    all: &[Again],
) -> Vec<AgainNote> {
    let note = |again: &Again| {
        let (node, value) = called(traced, names, placed, again.node);
        AgainNote { node, value, kernels: again.kernels.clone(), cost: again.cost }
    };
    all.iter().map(note).collect()
}

/// The traced node that a node is a part of, and what it is called.
fn called(traced: &Graph, names: &Names<'_>, placed: &Graph, id: NodeId) -> (NodeId, String) {
    let node = placed.node(id);
    let of = node.origin.node.unwrap_or(id);
    let name = names.node(of);
    let value = match (node.origin.backward, traced.node(of).op == node.op) {
        (true, _) => format!("{} of the gradient of {name}", node.op.name()),
        (false, true) => name.to_string(),
        (false, false) => format!("{} of {name}", node.op.name()),
    };
    (of, value)
}
