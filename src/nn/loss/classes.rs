//! Losses of classes: logits or logarithms of probabilities beside indices or probabilities.

use super::{Reduction, losses, weights};
use crate::nn::{Context, Layer};
use tracecast_ir::Var;
use tracecast_ir::ops::nn::{Losses, Regressions};
use tracecast_runtime::Tensor;

losses! {
    /// The cross entropy of logits `[N, C, …]` or `[C]`, against indices `[N, …]` of i64 or
    /// probabilities in the shape of the logits:
    /// [`torch.nn.CrossEntropyLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html).
    CrossEntropyLoss {
        /// Without the examples that have this index, in the place of -100.
        ignore_index: i64 = -100,
        /// With this share of the probability spread over all classes.
        label_smoothing: f64 = 0.0,
    } weights {
        /// With a weight for each class, `[C]`.
        weight
    } takes (x, target) = |own| x.cross_entropy_loss(
        target, weight, own.reduction.word(), Some(own.ignore_index), Some(own.label_smoothing),
    );

    /// The negative of the logarithm of a probability that a class has, in `[N, C, …]` or `[C]`,
    /// for indices `[N, …]` of i64:
    /// [`torch.nn.NLLLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html).
    NllLoss {
        /// Without the examples that have this index, in the place of -100.
        ignore_index: i64 = -100,
    } weights {
        /// With a weight for each class, `[C]`.
        weight
    } takes (x, target) = |own| {
        x.nll_loss(target, weight, own.reduction.word(), Some(own.ignore_index))
    };

    /// The cross entropy of probabilities beside probabilities:
    /// [`torch.nn.BCELoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.BCELoss.html).
    BceLoss {} weights {
        /// With a weight for each element, which broadcasts.
        weight
    } takes (x, target) = |own| x.binary_cross_entropy(target, weight, own.reduction.word());

    /// The cross entropy of logits, whose [`Sigmoid`](crate::nn::Sigmoid) are probabilities, beside
    /// probabilities:
    /// [`torch.nn.BCEWithLogitsLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html).
    BceWithLogitsLoss {} weights {
        /// With a weight for each element, which broadcasts.
        weight,
        /// With a weight of the positive examples of each class, which broadcasts.
        pos_weight
    } takes (x, target) = |own| {
        x.binary_cross_entropy_with_logits(target, weight, pos_weight, own.reduction.word())
    };
}
