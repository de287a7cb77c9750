//! Losses of numbers beside numbers.

use super::{Reduction, losses};
use crate::nn::{Context, Layer};
use tracecast_ir::ops::elementwise::DIV;
use tracecast_ir::ops::nn::{Losses, Regressions};
use tracecast_ir::size::Number;
use tracecast_ir::{Args, Attrs, Var};

losses! {
    /// The size of the difference:
    /// [`torch.nn.L1Loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.L1Loss.html).
    L1Loss {} takes (x, target) = |own| x.l1_loss(target, own.reduction.word());

    /// The square of the difference:
    /// [`torch.nn.MSELoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html).
    ///
    /// ```
    /// use tracecast::nn::{Layer, Linear, MseLoss};
    /// use tracecast::prelude::*;
    ///
    /// let step = TrainStep::new(Linear::new(4, 2), |t, model| {
    ///     let y = model.forward(t.input("x"));
    ///     MseLoss::new().forward(model.context(), (y, t.input("y")))
    /// });
    /// let step = step.optimizer(Sgd::new(0.1)).build()?;
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    MseLoss {} takes (x, target) = |own| x.mse_loss(target, own.reduction.word());

    /// Half the square of the difference divided by `beta` where its size is below `beta`, else its
    /// size less half of `beta`:
    /// [`torch.nn.SmoothL1Loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.SmoothL1Loss.html).
    SmoothL1Loss {
        /// With another bound than 1.
        beta: f64 = 1.0,
    } takes (x, target) = |own| x.smooth_l1_loss(target, own.reduction.word(), Some(own.beta));

    /// Half the square of the difference where its size is below `delta`, else `delta` times its
    /// size less half of `delta`:
    /// [`torch.nn.HuberLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.HuberLoss.html).
    HuberLoss {
        /// With another bound than 1.
        delta: f64 = 1.0,
    } takes (x, target) = |own| x.huber_loss(target, own.reduction.word(), Some(own.delta));

    /// The negative logarithm of a Poisson distribution:
    /// [`torch.nn.PoissonNLLLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.PoissonNLLLoss.html).
    PoissonNllLoss {
        /// Whether `x` is the logarithm of the expectation, as by default, or the expectation.
        log_input: bool = true,
        /// Whether Stirling's approximation of the rest is added, which gradients do not see; not
        /// by default.
        full: bool = false,
        /// With another number than 1e-8 added to the expectation before its logarithm is taken.
        eps: f64 = 1e-8,
    } takes (x, target) = |own| x.poisson_nll_loss(target, own.log_input, own.full, Some(own.eps), own.reduction.word());

    /// Half of `log(variance) + (x - target)² / variance`; it takes `x`, the target and the
    /// variance:
    /// [`torch.nn.GaussianNLLLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.GaussianNLLLoss.html).
    GaussianNllLoss {
        /// Whether half of `log(2π)` is added; not by default.
        full: bool = false,
        /// With another least variance than 1e-6.
        eps: f64 = 1e-6,
    } takes (x, target, variance) = |own| {
        x.gaussian_nll_loss(target, variance, own.full, own.eps, own.reduction.word())
    };

    /// The divergence of a distribution from one that is given by logarithms:
    /// [`torch.nn.KLDivLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html).
    KlDivLoss {
        /// Whether the target is given by logarithms as well; not by default.
        log_target: bool = false,
        /// Whether the sum is divided by the number of rows, whatever the reduction is:
        /// `reduction="batchmean"`.
        batch_mean: bool = false,
    } takes (x, target) = |own| {
        if !own.batch_mean || x.is_poison() {
            return x.kl_div(target, own.reduction.word(), own.log_target);
        }
        let total = x.kl_div(target, Reduction::Sum.word(), own.log_target);
        let mut args = Args::of(&[total]);
        args.push(None);
        // The number of rows may be a name.
        let rows = Attrs::new().with("scalar", Number::Size(x.size(0)));
        x.tracer().apply(&DIV, args, rows)[0]
    };
}
