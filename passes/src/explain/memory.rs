//! [`MemoryNote`] and [`AgainNote`]: why a value lies in memory between kernels, and what is computed again instead.

use crate::fuse::{Again, Keep, Stored, Weighed};
use std::fmt;
use tracecast_ir::text::Names;
use tracecast_ir::{Graph, NodeId, TensorType};

/// A value that a kernel writes to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNote {
    /// The node of the traced program that it is a part of.
    pub node: NodeId,
    /// What it is, such as `%3`, `exp of %3` where the op is made of several, or `mul of the gradient of %3`.
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

/// `sub of %3 f32[8, 10], 320 bytes, by @reduce_row for @contract: a contraction packs it from memory`
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
    const FEW: usize = 4;
    let shown: Vec<String> = kernels.iter().take(FEW).map(|k| format!("@{k}")).collect();
    match kernels.len().saturating_sub(FEW) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
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
            why: stored.why,
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
