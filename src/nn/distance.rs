//! Distances between the examples of two tensors: [`CosineSimilarity`] and [`PairwiseDistance`].

use crate::nn::{Context, Layer};
use crate::setters::setters;
use tracecast_ir::Var;
use tracecast_ir::ops::length::Lengths;

/// The cosine of the angle between vectors along an axis:
/// [`torch.nn.CosineSimilarity`](https://docs.pytorch.org/docs/stable/generated/torch.nn.CosineSimilarity.html).
///
/// The operands broadcast; the result lacks the axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineSimilarity {
    dim: i64,
    eps: f64,
}

impl CosineSimilarity {
    /// Along axis 1, with norms of at least 1e-8.
    pub fn new() -> Self {
        CosineSimilarity { dim: 1, eps: 1e-8 }
    }

    setters! {
        /// Along another axis.
        dim(dim: i64) => dim = dim;
        /// With another bound for norms.
        eps(eps: f64) => eps = eps;
    }
}

impl Default for CosineSimilarity {
    fn default() -> Self {
        CosineSimilarity::new()
    }
}

impl Layer for CosineSimilarity {
    type Input<'t> = (Var<'t>, Var<'t>);
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, (x1, x2): (Var<'t>, Var<'t>)) -> Var<'t> {
        cx.here(|| x1.cosine_similarity(x2, Some(self.dim), Some(self.eps)))
    }
}

/// The norm of order `p` of `x1 - x2 + eps` along the last axis:
/// [`torch.nn.PairwiseDistance`](https://docs.pytorch.org/docs/stable/generated/torch.nn.PairwiseDistance.html).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairwiseDistance {
    p: f64,
    eps: f64,
    keepdim: bool,
}

impl PairwiseDistance {
    /// Of order 2, with 1e-6 as `eps`; the result lacks the last axis.
    pub fn new() -> Self {
        PairwiseDistance { p: 2.0, eps: 1e-6, keepdim: false }
    }

    setters! {
        /// Of another order.
        p(p: f64) => p = p;
        /// With another number added to each difference.
        eps(eps: f64) => eps = eps;
        /// With the last axis kept, of size 1.
        keepdim() => keepdim = true;
    }
}

impl Default for PairwiseDistance {
    fn default() -> Self {
        PairwiseDistance::new()
    }
}

impl Layer for PairwiseDistance {
    type Input<'t> = (Var<'t>, Var<'t>);
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, (x1, x2): (Var<'t>, Var<'t>)) -> Var<'t> {
        cx.here(|| x1.pairwise_distance(x2, self.p, self.eps, self.keepdim))
    }
}
