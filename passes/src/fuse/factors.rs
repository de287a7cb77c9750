//! What a contraction multiplies: computed where it is packed, or stored before.
//!
//! Packing fills a block of a computed factor row by row, so what it loads should lie along those rows. Where a load goes across them,
//! as in the transposed product of two weights, elements are computed one at a time, which takes ten times as long as
//! storing the product in a map of its own and packing that (0.9 ms for 512 × 512 elements, 0.1 stored). What lies in memory as it
//! is, widened or rounded at most, is packed fast whatever its strides.

use super::reach::{Place, Reach};
use smallvec::smallvec;
use tracecast_ir::kernel::build::lowering;
use tracecast_ir::kernel::index::{Index, linear, through};
use tracecast_ir::op::{Intrinsic, Lower};
use tracecast_ir::{Graph, NodeId, Shape, ValueId};

impl Reach {
    /// Takes out of `inline` what would be computed across the rows of a factor.
    pub(super) fn settle_factors(&mut self, graph: &Graph) {
        for n in graph.nodes().filter(|n| self.program.live[n.index()]) {
            if !matches!(lowering(graph, n), Some(Lower::Contract)) {
                continue;
            }
            for factor in graph.args(n) {
                if let Some((top, index)) = self.computed(graph, factor)
                    && self.goes_across(graph, top, &index)
                {
                    self.inline[top.index()] = false;
                }
            }
        }
    }

    /// The first thing that is computed for a factor, from the contraction on, and its index; none if it is packed as it lies, with one
    /// rounding at most.
    fn computed(&self, graph: &Graph, factor: ValueId) -> Option<(NodeId, Index)> {
        let rank = graph.ty(factor).shape.rank();
        let mut at = (factor.node, Index::identity(rank, rank));
        let mut rounded: Option<(NodeId, Index)> = None;
        while self.inline[at.0.index()] {
            let (node, index) = &at;
            let x = graph.args(*node).first().copied();
            let is_cast = graph.node(*node).op.intrinsic() == Some(Intrinsic::Cast);
            at = match (lowering(graph, *node), x) {
                (Some(Lower::View(_)), Some(x)) => (x.node, through(graph, *node, index)?),
                (Some(Lower::Map(_)), Some(x)) if is_cast => {
                    let fits = graph.ty(x).dtype.fits_in(graph.node(*node).results[0].dtype);
                    if !fits && let Some(first) = rounded.replace(at.clone()) {
                        return Some(first);
                    }
                    (x.node, at.1)
                }
                // Packing knows windows, whatever their steps.
                (Some(Lower::Windows), _) => return None,
                _ => return Some(rounded.unwrap_or(at)),
            };
        }
        None
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
