//! Losses of numbers, of probabilities and of margins, averaged or summed: PyTorch's, by its names.
//!
//! `reduction` is `"mean"` (the default), `"sum"` or `"none"` everywhere.

use super::loss::Reduction;
use crate::op::{
    Domain, ExpandCx, FLOATS, Facts, GradCx, Grads, InferCx, Intrinsic, Rounding, composite, rule,
};
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::ops::power::Powers;
use crate::ops::reduce::Reductions;
use crate::{DType, IntoDims, Number, Results, Shape, Var};
use smallvec::smallvec;

const ROUNDED: Rounding = Rounding::result("the loss; each gradient once");
const LOSS: Facts = Facts::new().intrinsic(Intrinsic::Loss);

crate::ops! { trait Regressions;

/// The distance of `x` and `target`:
/// [`torch.nn.functional.l1_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.l1_loss.html).
L1_LOSS = l1_loss(x, target; reduction: OptStr) -> (loss) {
    infer:    &reduced,
    body:     composite(None, &|cx| finish(cx, cx.args[0].sub(cx.args[1]).abs())),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]", "T[3, 5], T[3, 5] {reduction = \"none\"}"] },
}

/// `d² / (2 beta)` for distances below `beta`, else `d - beta / 2`:
/// [`torch.nn.functional.smooth_l1_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.smooth_l1_loss.html).
SMOOTH_L1_LOSS = smooth_l1_loss(x, target; reduction: OptStr, beta: OptFloat) -> (loss) {
    infer:    &|cx| {
        need(cx.attrs.float("beta").is_none_or(|beta| beta >= 0.0), "`beta` is below 0")?;
        reduced(cx)
    },
    body:     composite(None, &|cx| {
        let (d, beta) = (cx.args[0].sub(cx.args[1]), cx.attrs.float("beta").unwrap_or(1.0));
        if beta == 0.0 {
            return finish(cx, d.abs());
        }
        let is_far = d.abs().ge(beta);
        finish(cx, is_far.choose(d.abs().sub(0.5 * beta), square(d, is_far).mul(0.5).div(beta)))
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] {beta = 0.5}", "T[3, 5], T[3, 5] {reduction = \"sum\"}"] },
}

/// `d² / 2` for distances up to `delta`, else `delta * (d - delta / 2)`:
/// [`torch.nn.functional.huber_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.huber_loss.html).
HUBER_LOSS = huber_loss(x, target; reduction: OptStr, delta: OptFloat) -> (loss) {
    infer:    &|cx| {
        need(cx.attrs.float("delta").is_none_or(|delta| delta > 0.0), "`delta` is not above 0")?;
        reduced(cx)
    },
    body:     composite(None, &|cx| {
        let (d, delta) = (cx.args[0].sub(cx.args[1]), cx.attrs.float("delta").unwrap_or(1.0));
        let far = d.abs().sub(0.5 * delta).mul(delta);
        let is_far = d.abs().gt(delta);
        finish(cx, is_far.choose(far, square(d, is_far).mul(0.5)))
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] {delta = 0.5}"] },
}

/// `-(target * log(x) + (1 - target) * log(1 - x))`, each logarithm at least -100:
/// [`torch.nn.functional.binary_cross_entropy`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.binary_cross_entropy.html).
BINARY_CROSS_ENTROPY = binary_cross_entropy(x, target, weight: optional; reduction: OptStr) -> (loss) {
    infer:    &reduced,
    body:     composite(Some(rule(&entropy_gradient)), &|cx| {
        finish(cx, weighed(entropy(cx.args[0], cx.args[1]), cx.get(2)))
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in 0.1 0.9, T[3, 5] in 0 1", "T[3, 5] in 0.1 0.9, T[3, 5] in 0 1, T[5] > 0"] },
}

/// As [`BINARY_CROSS_ENTROPY`], of what comes before the sigmoid; `pos_weight` multiplies the part
/// of the true class:
/// [`torch.nn.functional.binary_cross_entropy_with_logits`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.binary_cross_entropy_with_logits.html).
BINARY_CROSS_ENTROPY_WITH_LOGITS = binary_cross_entropy_with_logits(x, target, weight: optional, pos_weight: optional; reduction: OptStr) -> (loss) {
    infer:    &reduced,
    body:     composite(None, &|cx| {
        let (x, target) = (cx.args[0], cx.args[1]);
        let log = soft_log(x);
        let log = match cx.get(3) {
            None => log,
            Some(weight) => log.mul(weight.sub(1.0).mul(target).add(1.0)),
        };
        let each = target.rsub(1.0).mul(x).sub(log);
        finish(cx, weighed(each, cx.get(2)))
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] in 0 1", "T[3, 5], T[3, 5] in 0 1, none, T[5] > 0"] },
}

/// `log(1 + exp(-target * x))`:
/// [`torch.nn.functional.soft_margin_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.soft_margin_loss.html).
SOFT_MARGIN_LOSS = soft_margin_loss(x, target; reduction: OptStr) -> (loss) {
    infer:    &reduced,
    body:     composite(None, &|cx| finish(cx, soft_log(cx.args[0].mul(cx.args[1])).neg())),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]"] },
}

/// `target * (log(target) - x)`, zero where `target` is; with `log_target` the logarithm is given:
/// [`torch.nn.functional.kl_div`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.kl_div.html).
KL_DIV = kl_div(x, target; reduction: OptStr, log_target: Bool) -> (loss) {
    infer:    &reduced,
    body:     composite(None, &|cx| {
        let (x, target) = (cx.args[0], cx.args[1]);
        if cx.attrs.bool("log_target") {
            return finish(cx, target.exp().mul(target.sub(x)));
        }
        let is_zero = target.eq(0.0);
        let safe = is_zero.choose(cx.tracer.ones_like(target), target);
        let own = is_zero.choose(cx.tracer.zeros_like(target), safe.xlogy(safe));
        finish(cx, own.sub(target.mul(x)))
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] > 0", "T[3, 5], T[3, 5] {log_target = true, reduction = \"sum\"}"] },
}

/// `max(0, -target * (x - other) + margin)`:
/// [`torch.nn.functional.margin_ranking_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.margin_ranking_loss.html).
MARGIN_RANKING_LOSS = margin_ranking_loss(x, other, target; margin: OptFloat, reduction: OptStr) -> (loss) {
    infer:    &|cx| {
        let ranks: Vec<usize> = cx.types.iter().map(|t| t.shape.rank()).collect();
        need(ranks.windows(2).all(|w| w[0] == w[1]), "the operands have not as many axes")?;
        let mut inferred = infer::arithmetic(cx)?;
        let y = &mut inferred.results[0];
        if !y.dtype.is_float() {
            y.dtype = DType::F32;
        }
        if Reduction::of(cx.attrs)? != Reduction::None {
            y.shape = Shape::scalar();
        }
        Ok(inferred)
    },
    body:     composite(None, &|cx| {
        // Integers wrap before the margin is added.
        let gap = cx.args[0].sub(cx.args[1]).mul(cx.args[2].neg());
        let gap = gap.to(cx.results[0].dtype.compute());
        finish(cx, above_zero(gap.add(cx.attrs.float("margin").unwrap_or(0.0))))
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5], T[3, 5] {margin = 0.5}"] },
}

/// `x` where `target` is 1, `max(0, margin - x)` where it is -1:
/// [`torch.nn.functional.hinge_embedding_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.hinge_embedding_loss.html).
HINGE_EMBEDDING_LOSS = hinge_embedding_loss(x, target; margin: OptFloat, reduction: OptStr) -> (loss) {
    infer:    &reduced,
    body:     composite(None, &|cx| {
        let (x, target, zero) = (cx.args[0], cx.args[1], cx.tracer.zeros_like(cx.args[0]));
        let low = above_zero(x.rsub(cx.attrs.float("margin").unwrap_or(1.0)));
        let low = target.ne(1.0).choose(low, zero);
        finish(cx, low.add(target.ne(-1.0).choose(x, zero)))
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]"] },
}

/// `exp(x) - target * x`, or `x - target * log(x + eps)` unless `log_input`; with `full` Stirling's
/// term of targets above 1 is added:
/// [`torch.nn.functional.poisson_nll_loss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.poisson_nll_loss.html).
POISSON_NLL_LOSS = poisson_nll_loss(x, target; log_input: Bool, full: Bool, eps: OptFloat, reduction: OptStr) -> (loss) {
    infer:    &reduced_numbers,
    body:     composite(None, &|cx| {
        let (x, target) = (cx.args[0], cx.args[1]);
        let each = if cx.attrs.bool("log_input") {
            x.exp().sub(target.mul(x))
        } else {
            let log = x.add(cx.attrs.float("eps").unwrap_or(1e-8)).log();
            x.sub(target.mul(log))
        };
        if !cx.attrs.bool("full") {
            return finish(cx, each);
        }
        let is_small = target.le(1.0);
        let safe = is_small.choose(cx.tracer.ones_like(target), target);
        let half = safe.mul(std::f64::consts::TAU).log().mul(0.5);
        let term = safe.mul(safe.log()).sub(safe).add(half);
        finish(cx, each.add(is_small.choose(cx.tracer.zeros_like(target), term)))
    }),
    rounding: ROUNDED,
    facts:    LOSS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] {log_input = true}", "T[3, 5] > 0, T[3, 5] > 0 {full = true}"] },
}
}

fn need(holds: bool, why: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

/// The type of a loss of each element of floats, or of their mean or sum.
fn reduced(cx: &InferCx<'_>) -> infer::Answer {
    if let Some(t) = cx.types.first().filter(|t| !t.dtype.is_float()) {
        return Err(format!("takes floating point, found {t}"));
    }
    reduced_numbers(cx)
}

/// As [`reduced`], of integers as well.
fn reduced_numbers(cx: &InferCx<'_>) -> infer::Answer {
    let mut inferred = infer::float_arithmetic(cx)?;
    if Reduction::of(cx.attrs)? != Reduction::None {
        inferred.results[0].shape = Shape::scalar();
    }
    Ok(inferred)
}

/// The loss of all elements.
fn finish<'t>(cx: &ExpandCx<'_, 't>, each: Var<'t>) -> Results<'t> {
    let dtype: Option<DType> = Some(each.dtype());
    smallvec![match Reduction::of(cx.attrs) {
        Ok(Reduction::None) => each,
        Ok(Reduction::Sum) => each.sum(().dtype(dtype)),
        _ => each.mean(()),
    }]
}

fn weighed<'t>(each: Var<'t>, weight: Option<Var<'t>>) -> Var<'t> {
    weight.map_or(each, |weight| each.mul(weight))
}

/// A logarithm, at least -100.
fn bounded_log(x: Var<'_>) -> Var<'_> {
    x.log().clamp_to(Some(-100.0), None)
}

/// The square of what is not far: elsewhere an infinite slope would meet a gradient of zero.
fn square<'t>(d: Var<'t>, is_far: Var<'t>) -> Var<'t> {
    let d = is_far.choose(d.tracer().zeros_like(d), d);
    d.mul(d)
}

/// The cross entropy of each element.
fn entropy<'t>(x: Var<'t>, target: Var<'t>) -> Var<'t> {
    target.sub(1.0).mul(bounded_log(x.rsub(1.0))).sub(target.mul(bounded_log(x)))
}

/// That of the closed form, finite where a probability is 0 or 1: the parts of the loss have
/// infinite slopes there.
fn entropy_gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let wide = |x: Var<'t>| x.to(cx.out().dtype().compute());
    let (x, target, weight) = (wide(cx.args[0]), wide(cx.args[1]), cx.get(2).map(wide));
    let dy = wide(cx.dy());
    let dy = match Reduction::of(cx.attrs) {
        Ok(Reduction::None | Reduction::Sum) => dy,
        _ => dy.div(Number::from(x.ty().numel())),
    };
    let dy = dy.expand_to(&x.shape());
    let part = weighed(dy, weight);
    // PyTorch's bound of the variance of a coin.
    let variance = x.rsub(1.0).mul(x);
    let dx = part
        .mul(x.sub(target))
        .div(variance.lt(1e-12).choose(cx.tracer.full(x.ty(), 1e-12), variance));
    let dtarget = part.mul(bounded_log(x.rsub(1.0)).sub(bounded_log(x)));
    let dweight = weight.map(|_| dy.mul(entropy(x, target)));
    let grads = [Some(dx), Some(dtarget)].into_iter().chain(dweight.map(Some));
    grads.zip(cx.args).map(|(g, arg)| g.map(|g| g.to(arg.dtype()))).collect()
}

/// `log(sigmoid(x))`.
fn soft_log(x: Var<'_>) -> Var<'_> {
    let rest = x.abs().neg().exp().add(1.0).log();
    x.minimum(x.tracer().zeros_like(x)).sub(rest)
}

/// `x` where it is above zero. At zero there is no gradient.
fn above_zero(x: Var<'_>) -> Var<'_> {
    x.clamp_to(Some(0.0), None)
}
