//! Losses that end at a margin.

use super::{Reduction, losses, weights};
use crate::nn::{Context, Layer};
use tracecast_ir::Var;
use tracecast_ir::ops::nn::{Margins, Regressions};
use tracecast_runtime::Tensor;

losses! {
    /// How far the first operand is from above the second by the margin where the target is 1,
    /// below it where it is -1:
    /// [`torch.nn.MarginRankingLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.MarginRankingLoss.html).
    MarginRankingLoss {
        /// With another margin than 0.
        margin: f64 = 0.0,
    } takes (x1, x2, target) = |own| {
        x1.margin_ranking_loss(x2, target, Some(own.margin), own.reduction.word())
    };

    /// The distance where the target is 1, and how far it is below the margin where it is -1:
    /// [`torch.nn.HingeEmbeddingLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.HingeEmbeddingLoss.html).
    HingeEmbeddingLoss {
        /// With another margin than 1.
        margin: f64 = 1.0,
    } takes (x, target) = |own| {
        x.hinge_embedding_loss(target, Some(own.margin), own.reduction.word())
    };

    /// `1 - cos` of two vectors where the target is 1, and how far `cos` is above the margin where
    /// it is -1:
    /// [`torch.nn.CosineEmbeddingLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.CosineEmbeddingLoss.html).
    CosineEmbeddingLoss {
        /// With another margin than 0.
        margin: f64 = 0.0,
    } takes (x1, x2, target) = |own| {
        x1.cosine_embedding_loss(x2, target, Some(own.margin), own.reduction.word())
    };

    /// `log(1 + exp(-target * x))` for targets of 1 and -1:
    /// [`torch.nn.SoftMarginLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.SoftMarginLoss.html).
    SoftMarginLoss {} takes (x, target) = |own| x.soft_margin_loss(target, own.reduction.word());

    /// How far the right class is from above each other one by the margin; indices of i64:
    /// [`torch.nn.MultiMarginLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiMarginLoss.html).
    MultiMarginLoss {
        /// With the square of each distance for 2 in the place of 1.
        p: f64 = 1.0,
        /// With another margin than 1.
        margin: f64 = 1.0,
    } weights {
        /// With a weight for each class, `[C]`.
        weight
    } takes (x, target) = |own| {
        x.multi_margin_loss(target, weight, Some(own.p), Some(own.margin), own.reduction.word())
    };

    /// How far each right class is from above each other one by 1; a row of indices of i64 ends
    /// with -1:
    /// [`torch.nn.MultiLabelMarginLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiLabelMarginLoss.html).
    MultiLabelMarginLoss {} takes (x, target) = |own| {
        x.multilabel_margin_loss(target, own.reduction.word())
    };

    /// The mean over classes of the cross entropy of logits, with 1 for each right class:
    /// [`torch.nn.MultiLabelSoftMarginLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiLabelSoftMarginLoss.html).
    MultiLabelSoftMarginLoss {} weights {
        /// With a weight for each class, `[C]`.
        weight
    } takes (x, target) = |own| {
        x.multilabel_soft_margin_loss(target, weight, own.reduction.word())
    };

    /// How far the distance from the positive example is from below that from the negative one by
    /// the margin; it takes vectors, positive and negative examples:
    /// [`torch.nn.TripletMarginLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.TripletMarginLoss.html).
    TripletMarginLoss {
        /// With another margin than 1.
        margin: f64 = 1.0,
        /// With distances of another order than 2.
        p: f64 = 2.0,
        /// With another number than 1e-6 added to each difference.
        eps: f64 = 1e-6,
        /// Whether the negative example may be compared with the positive one, where that is
        /// nearer; not by default.
        swap: bool = false,
    } takes (x, positive, negative) = |own| x.triplet_margin_loss(
        positive, negative, Some(own.margin), Some(own.p), Some(own.eps), own.swap, own.reduction.word(),
    );
}
