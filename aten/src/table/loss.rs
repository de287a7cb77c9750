//! Losses.

use super::entry::{reduction, unless};
use super::table;
use tracecast_ir::ops::prelude::*;

table! {
    "mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor" =>
        (x: tensor, y: tensor, over: int) x.mse_loss(y, Some(reduction(over)?));
    "l1_loss(Tensor self, Tensor target, int reduction=1) -> Tensor" =>
        (x: tensor, y: tensor, over: int) x.l1_loss(y, Some(reduction(over)?));
    "smooth_l1_loss(Tensor self, Tensor target, int reduction=1, float beta=1.) -> Tensor" =>
        (x: tensor, y: tensor, over: int, beta: float) x.smooth_l1_loss(y, Some(reduction(over)?), beta);
    "huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.) -> Tensor" =>
        (x: tensor, y: tensor, over: int, delta: float) x.huber_loss(y, Some(reduction(over)?), delta);
    "soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor" =>
        (x: tensor, y: tensor, over: int) x.soft_margin_loss(y, Some(reduction(over)?));
    "binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1) -> Tensor" =>
        (x: tensor, y: tensor, weight: some_tensor, over: int) x.binary_cross_entropy(y, weight, Some(reduction(over)?));
    "binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=1) -> Tensor" =>
        (x: tensor, y: tensor, weight: some_tensor, positive: some_tensor, over: int) x.binary_cross_entropy_with_logits(y, weight, positive, Some(reduction(over)?));
    "cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100, float label_smoothing=0.) -> Tensor" =>
        (x: tensor, y: tensor, weight: some_tensor, over: int, ignored: int, smoothing: float) x.cross_entropy_loss(y, weight, Some(reduction(over)?), ignored, unless(smoothing, 0.0));
    "nll_loss_nd(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor" =>
        (x: tensor, y: tensor, weight: some_tensor, over: int, ignored: int) x.nll_loss(y, weight, Some(reduction(over)?), ignored);
    "nll_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor" =>
        (x: tensor, y: tensor, weight: some_tensor, over: int, ignored: int) x.nll_loss(y, weight, Some(reduction(over)?), ignored);
    "nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)" =>
        (x: tensor, y: tensor, weight: some_tensor, over: int, ignored: int) x.nll_loss(y, weight, Some(reduction(over)?), ignored).results();
    "nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)" =>
        (x: tensor, y: tensor, weight: some_tensor, over: int, ignored: int) x.nll_loss(y, weight, Some(reduction(over)?), ignored).results();
    "kl_div(Tensor self, Tensor target, int reduction=1, *, bool log_target=False) -> Tensor" =>
        (x: tensor, y: tensor, over: int, log: flag) x.kl_div(y, Some(reduction(over)?), log);
    "poisson_nll_loss(Tensor input, Tensor target, bool log_input, bool full, float eps, int reduction) -> Tensor" =>
        (x: tensor, y: tensor, log: flag, full: flag, eps: float, over: int) x.poisson_nll_loss(y, log, full, eps, Some(reduction(over)?));
    "hinge_embedding_loss(Tensor self, Tensor target, float margin=1., int reduction=1) -> Tensor" =>
        (x: tensor, y: tensor, margin: float, over: int) x.hinge_embedding_loss(y, margin, Some(reduction(over)?));
    "cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, float margin=0., int reduction=1) -> Tensor" =>
        (a: tensor, b: tensor, y: tensor, margin: float, over: int) a.cosine_embedding_loss(b, y, margin, Some(reduction(over)?));
    "margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, float margin=0., int reduction=1) -> Tensor" =>
        (a: tensor, b: tensor, y: tensor, margin: float, over: int) a.margin_ranking_loss(b, y, margin, Some(reduction(over)?));
    "multilabel_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor" =>
        (x: tensor, y: tensor, over: int) x.multilabel_margin_loss(y, Some(reduction(over)?));
    "multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None, int reduction=1) -> Tensor" =>
        (x: tensor, y: tensor, p: float, margin: float, weight: some_tensor, over: int) x.multi_margin_loss(y, weight, p, margin, Some(reduction(over)?));
    "triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, float margin=1., float p=2., float eps=1e-06, bool swap=False, int reduction=1) -> Tensor" =>
        (a: tensor, p: tensor, n: tensor, margin: float, order: float, eps: float, swap: flag, over: int) a.triplet_margin_loss(p, n, margin, order, eps, swap, Some(reduction(over)?));
}
