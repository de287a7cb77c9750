//! What a contraction multiplies: computed where it is packed, or stored before.
//!
//! Packing fills a block of a computed factor row by row, so what it loads should lie along those
//! rows. Where a load goes across them, as in the transposed product of two weights, elements are
//! computed one at a time, which takes ten times as long as storing the product in a map of its own
//! and packing that (0.9 ms for 512 × 512 elements, 0.1 stored). What lies in memory as it is,
//! widened or rounded at most, is packed fast whatever its strides.

use super::reach::{Place, Reach};
use smallvec::smallvec;
use tracecast_ir::kernel::build::lowering;
use tracecast_ir::kernel::index::{Index, linear, through};
use tracecast_ir::op::{Intrinsic, Lower};
use tracecast_ir::{Graph, NodeId, Shape, ValueId};

/// How the elements of a computed factor are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packed {
    /// In vectors along its rows.
    AlongRows,
    /// One at a time: something that they are made of lies across the rows.
    AcrossRows,
    /// One at a time, each with a guard.
    ThroughWindows,
    /// Through views without an index: how often elements are read is unknown.
    Unknown,
}

impl Reach {
    /// The first value that is computed for a factor, from the contraction on; none if it is packed
    /// from memory, with one rounding at most.
    pub(super) fn computed(&self, graph: &Graph, factor: ValueId) -> Option<(NodeId, Packed)> {
        let rank = graph.ty(factor).shape.rank();
        // Behind windows elements are found one by one, whatever their index.
        let mut at = (factor.node, Some(Index::identity(rank, rank)));
        let (mut rounded, mut windowed) = (None, false);
        while self.inline[at.0.index()] {
            let (node, index) = &at;
            let x = graph.args(*node).first().copied();
            let is_cast = graph.node(*node).op.intrinsic() == Some(Intrinsic::Cast);
            at = match (lowering(graph, *node), x, index) {
                (Some(Lower::View(_)), Some(x), Some(index)) => {
                    (x.node, through(graph, *node, index))
                }
                (Some(Lower::View(_)), Some(x), None) => (x.node, None),
                (Some(Lower::Windows), Some(x), _) => {
                    windowed = true;
                    (x.node, None)
                }
                (Some(Lower::Map(_)), Some(x), _) if is_cast => {
                    let fits = graph.ty(x).dtype.fits_in(graph.node(*node).results[0].dtype);
                    if !fits && let Some(first) = rounded.replace(at.clone()) {
                        return Some(self.packed(graph, first));
                    }
                    (x.node, at.1)
                }
                _ if at.1.is_none() && !windowed => {
                    return Some((rounded.unwrap_or(at).0, Packed::Unknown));
                }
                _ => return Some(self.packed(graph, rounded.unwrap_or(at))),
            };
        }
        None
    }

    /// True if the other factor of a contraction is seen through windows.
    pub(super) fn is_beside_windows(
        &self,
        graph: &Graph,
        contraction: NodeId,
        of: ValueId,
    ) -> bool {
        graph.args(contraction).iter().filter(|other| **other != of).any(|other| {
            let mut at = other.node;
            while let Some(Lower::View(_)) = lowering(graph, at) {
                at = graph.args(at)[0].node;
            }
            matches!(lowering(graph, at), Some(Lower::Windows))
        })
    }

    fn packed(&self, graph: &Graph, (top, index): (NodeId, Option<Index>)) -> (NodeId, Packed) {
        let packed = match index {
            None => Packed::ThroughWindows,
            Some(index) if self.goes_across(graph, top, &index) => Packed::AcrossRows,
            Some(_) => Packed::AlongRows,
        };
        (top, packed)
    }

    /// True if something that `top` is made of lies across the last axis of the factor.
    fn goes_across(&self, graph: &Graph, top: NodeId, index: &Index) -> bool {
        let mut across = false;
        let mut lies = |node: NodeId, place: &Place| {
            let Place::Index(index) = place else { return };
            let place = linear(index, &graph.node(node).results[0].shape);
            let step = place.and_then(|p| p.strides.last().copied());
            let step = step.and_then(|step| graph.sizes().hint(step).ok());
            across |= step.is_some_and(|step| step.abs() > 1);
        };
        // An index is known, so the domain of the loops is not asked for.
        let (domain, from) = (Shape::scalar(), smallvec![(top, Place::index(index.clone()))]);
        self.follow(graph, from, &domain, &mut lies, &mut |_| {});
        across
    }
}
