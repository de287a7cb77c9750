//! Losses and distances that PyTorch itself composes of ops.

use super::named;
use crate::ops::cast::Cast;
use crate::ops::elementwise::Elementwise;
use crate::ops::length::Lengths;
use crate::ops::listed::{Listed, NATIVE_LAYER_NORM};
use crate::ops::nn::Curves;
use crate::ops::reduce::Reductions;
use crate::{Args, Attrs, DType, IntoDims, Var};

impl<'t> Var<'t> {
    /// The losses as their mean, their sum or as they are, for `reduction` `"mean"`, `"sum"` or
    /// `"none"`.
    #[track_caller]
    fn reduced(self, name: &'static str, reduction: Option<&str>) -> Var<'t> {
        named(self, name, || match reduction.unwrap_or("mean") {
            "mean" => Ok(self.mean(())),
            "sum" => Ok(self.sum(())),
            "none" => Ok(self),
            other => Err(format!("`reduction` is {other:?}")),
        })
    }

    /// Half of `log(variance) + (x - target)² / variance`, the variance at least `eps`:
    /// [`torch.nn.functional.gaussian_nll_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.gaussian_nll_loss.html).
    #[track_caller]
    pub fn gaussian_nll_loss(
        self,
        target: Var<'t>,
        variance: Var<'t>,
        full: bool,
        eps: f64,
        reduction: Option<&str>,
    ) -> Var<'t> {
        named(self, "gaussian_nll_loss", || {
            let variance =
                if variance.rank() + 1 == self.rank() { variance.unsqueeze(-1) } else { variance };
            let fits = |(mine, own): (&crate::Size, &crate::Size)| mine == own || *own == 1;
            let is_alike = variance.rank() == self.rank()
                && self.shape().iter().zip(variance.shape().iter()).all(fits);
            if !is_alike && variance.rank() > 0 {
                return Err(format!("the variance is {}", variance.ty()));
            }
            // The bound has no gradient, and the variance its own below it.
            let low = variance.sub(variance.detach()).add(eps);
            let bounded = variance.lt(eps).choose(low, variance);
            let gap = self.sub(target);
            let each = bounded.log().add(gap.square().div(bounded)).mul(0.5);
            let each = if full { each.add(0.5 * std::f64::consts::TAU.ln()) } else { each };
            Ok(each.reduced("gaussian_nll_loss", reduction))
        })
    }

    /// The mean over classes of `-(target * log(sigmoid(x)) + (1 - target) * log(sigmoid(-x)))`:
    /// [`torch.nn.functional.multilabel_soft_margin_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.multilabel_soft_margin_loss.html).
    #[track_caller]
    pub fn multilabel_soft_margin_loss(
        self,
        target: Var<'t>,
        weight: Option<Var<'t>>,
        reduction: Option<&str>,
    ) -> Var<'t> {
        named(self, "multilabel_soft_margin_loss", || {
            let other = target.rsub(1.0).mul(self.neg().log_sigmoid());
            let each = target.mul(self.log_sigmoid()).add(other).neg();
            let each = weight.map_or(each, |weight| each.mul(weight));
            Ok(each.mean(-1).reduced("multilabel_soft_margin_loss", reduction))
        })
    }

    /// The norm of order `p` of `x1 - x2 + eps` along the last axis:
    /// [`torch.nn.functional.pairwise_distance`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.pairwise_distance.html).
    #[track_caller]
    pub fn pairwise_distance(self, other: Var<'t>, p: f64, eps: f64, keepdim: bool) -> Var<'t> {
        named(self, "pairwise_distance", || {
            let gap = self.sub(other);
            let gap = if gap.dtype().is_float() { gap } else { gap.to(DType::F32) };
            Ok(gap.add(eps).vector_norm([-1].kept(keepdim), p))
        })
    }

    /// Divided by its norm of order `p` along an axis, which is at least `eps`:
    /// [`torch.nn.functional.normalize`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html).
    #[track_caller]
    pub fn normalize(self, p: f64, dim: i64, eps: f64) -> Var<'t> {
        named(self, "normalize", || {
            let length = self.vector_norm([dim].keep(), p);
            Ok(self.div(length.clamp_to(Some(eps), None)))
        })
    }

    /// The norm of a matrix in two axes: `"fro"`, or of order 1, -1 and of the infinities the
    /// extreme sum of sizes along an axis:
    /// [`torch.linalg.matrix_norm`](https://docs.pytorch.org/docs/stable/generated/torch.linalg.matrix_norm.html)
    /// but for singular values. The last two axes for `()`.
    #[track_caller]
    pub fn matrix_norm(self, dims: impl IntoDims, order: impl Into<Option<f64>>) -> Var<'t> {
        let (dims, order) = (dims.into(), order.into());
        named(self, "matrix_norm", || {
            let keep = dims.keeps();
            let dim = match *dims.list() {
                [] => [-2, -1],
                [first, second] => [first, second],
                _ => return Err(format!("takes two axes, found {:?}", dims.list())),
            };
            let (first, second) = (super::axis(self, dim[0])?, super::axis(self, dim[1])?);
            let Some(order) = order else {
                return Ok(self.vector_norm(dim.kept(keep), None));
            };
            let (along, across) = match order {
                1.0 | -1.0 => (first as i64, second as i64),
                o if o.is_infinite() => (second as i64, first as i64),
                _ => return Err(format!("order {order} needs singular values")),
            };
            let sums = self.vector_norm([along].keep(), 1.0);
            let extreme = if order > 0.0 {
                sums.amax([across].keep())
            } else {
                sums.neg().amax([across].keep()).neg()
            };
            Ok(if keep { extreme } else { extreme.squeeze(&dim) })
        })
    }

    /// The sum of the diagonal of a matrix:
    /// [`torch.trace`](https://docs.pytorch.org/docs/stable/generated/torch.trace.html). Autocast
    /// decides about it by its name.
    #[track_caller]
    pub fn trace(self) -> Var<'t> {
        Listed::trace(self)
    }

    /// [`layer_norm`](crate::ops::nn::Norms::layer_norm) with its mean and one over its deviation:
    /// `torch.native_layer_norm`. Autocast decides about it by its name.
    #[track_caller]
    pub fn native_layer_norm(
        self,
        shape: &[i64],
        weight: Option<Var<'t>>,
        bias: Option<Var<'t>>,
        eps: f64,
    ) -> Vec<Var<'t>> {
        let mut args = Args::of(&[self]);
        args.push(weight);
        args.push(bias);
        let attrs = Attrs::new().with("normalized_shape", shape).with("eps", eps);
        self.tracer().apply(&NATIVE_LAYER_NORM, args, attrs).into_vec()
    }
}
