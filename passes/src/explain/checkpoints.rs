//! [`CheckpointNote`]: what backward needs of a checkpoint region, and what it would need without
//! the region.

use crate::fuse::Stored;
use std::collections::BTreeMap;
use std::fmt;
use tracecast_ir::{Graph, NodeId};

/// A checkpoint region of the traced program. What lies in a region in it counts for both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointNote {
    /// The nodes of the traced program that lie in it.
    pub nodes: Vec<NodeId>,
    /// The module path that they have in common; empty at the top.
    pub scope: String,
    /// The bytes of its values that forward stores and backward reads.
    pub kept: usize,
    /// The same if none of the program's regions were one.
    pub without: usize,
}

/// `in block0, 14 ops: 4096 bytes kept for backward, 36864 without regions`
impl fmt::Display for CheckpointNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.scope.is_empty() {
            write!(f, "in {}, ", self.scope)?;
        }
        let (count, kept) = (self.nodes.len(), self.kept);
        write!(f, "{count} op{}: ", if count == 1 { "" } else { "s" })?;
        write!(f, "{kept} bytes kept for backward, {} without regions", self.without)
    }
}

/// The notes about the regions of a program, in the order of the program: `with` are the stored
/// values of what was made of it, `without` those of what was made of it without regions.
pub(super) fn notes(
    traced: &Graph,
    with: (&Graph, &[Stored]),
    without: (&Graph, &[Stored]),
) -> Vec<CheckpointNote> {
    let mut nodes: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
    for id in traced.nodes() {
        traced.checkpoints_of(id).for_each(|region| nodes.entry(region).or_default().push(id));
    }
    let (kept, without) = (bytes(traced, with), bytes(traced, without));
    let of = |bytes: &BTreeMap<u32, usize>, region| bytes.get(&region).copied().unwrap_or(0);
    let note = |(region, nodes): (u32, Vec<NodeId>)| CheckpointNote {
        scope: common(nodes.iter().map(|id| &*traced.node(*id).scope)),
        kept: of(&kept, region),
        without: of(&without, region),
        nodes,
    };
    nodes.into_iter().map(note).collect()
}

/// For each region the bytes that backward needs of it.
fn bytes(traced: &Graph, (placed, stored): (&Graph, &[Stored])) -> BTreeMap<u32, usize> {
    let mut bytes = BTreeMap::new();
    for value in stored.iter().filter(|value| value.for_backward) {
        let node = placed.node(value.node);
        let size = placed.hint(node.results[0].bytes());
        let of = node.origin.node.into_iter().flat_map(|id| traced.checkpoints_of(id));
        of.for_each(|region| *bytes.entry(region).or_default() += size);
    }
    bytes
}

/// The longest module path that all of these begin with.
fn common<'a>(mut scopes: impl Iterator<Item = &'a str>) -> String {
    let first = scopes.next().unwrap_or_default();
    let shared = |path: Vec<&'a str>, scope: &'a str| {
        let same = path.iter().zip(scope.split('.')).take_while(|(a, b)| **a == *b).count();
        path[..same].to_vec()
    };
    scopes.fold(first.split('.').collect(), shared).join(".")
}
