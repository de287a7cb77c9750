//! Random numbers of other kinds than those of the table, made of even ones. The seed `rng` and the
//! number of a stream are as in [`uniform`](Random::uniform).

use super::named;
use crate::ops::cast::Cast;
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::ops::random::Random;
use crate::ops::reduce::Reductions;
use crate::{DType, Shape, Size, TensorType, Var};

/// Half of what lies between two numbers that are evenly distributed.
const HALF_STEP: f64 = 1.0 / 33_554_432.0;

/// What stands for a dropped element where mean and variance are kept: the limit of `selu` towards
/// minus infinity.
const DROPPED: f64 = -1.758_099_340_847_376_6;

impl<'t> Var<'t> {
    /// Even numbers of f32 from 0 to 1 in a shape.
    fn even(self, rng: Var<'t>, shape: &Shape, stream: i64) -> Var<'t> {
        let ty = TensorType { dtype: DType::F32, shape: shape.clone() };
        self.tracer().full(ty, 0.0).uniform(rng, 0.0, 1.0, stream)
    }

    /// New numbers in the type of `x`, normally distributed around `mean`:
    /// [`torch.normal`](https://docs.pytorch.org/docs/stable/generated/torch.normal.html),
    /// `randn_like`.
    #[track_caller]
    pub fn normal(self, rng: Var<'t>, mean: f64, std: f64, stream: i64) -> Var<'t> {
        named(self, "normal", || {
            if std.is_nan() || std < 0.0 {
                return Err(format!("the deviation is {std}, expected at least 0"));
            }
            if !self.dtype().is_float() {
                return Err("takes floating point".to_owned());
            }
            let shape = self.shape();
            let pair: Shape = [Size::from(2)].iter().chain(shape.iter()).copied().collect();
            let both = self.even(rng, &pair, stream);
            // The logarithm is of numbers above zero, up to and with 1.
            let (first, second) = (both.select(0, 0).rsub(1.0), both.select(0, 1));
            let radius = first.log().mul(-2.0).sqrt();
            let angle = second.mul(std::f64::consts::TAU).cos();
            let y = radius.mul(angle).mul(std).add(mean);
            Ok(y.to(self.dtype()))
        })
    }

    /// New numbers in the type of `x`, exponentially distributed with that rate:
    /// [`Tensor.exponential_`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.exponential_.html).
    #[track_caller]
    pub fn exponential(self, rng: Var<'t>, rate: f64, stream: i64) -> Var<'t> {
        named(self, "exponential", || {
            if rate.is_nan() || rate <= 0.0 {
                return Err(format!("the rate is {rate}, expected above 0"));
            }
            let even = self.even(rng, &self.shape(), stream).rsub(1.0);
            Ok(even.log().div(-rate).to(self.dtype()))
        })
    }

    /// New integral numbers in the type of `x`, from `low` up to `high`, at most 2^24 different
    /// ones:
    /// [`torch.randint_like`](https://docs.pytorch.org/docs/stable/generated/torch.randint_like.html).
    #[track_caller]
    pub fn randint(self, rng: Var<'t>, low: i64, high: i64, stream: i64) -> Var<'t> {
        named(self, "randint", || {
            let count = high.saturating_sub(low);
            if !(1..=1 << 24).contains(&count) {
                return Err(format!("from {low} up to {high} are not 1 to 2^24 numbers"));
            }
            if low.unsigned_abs().max(high.unsigned_abs()) > 1 << 53 {
                return Err(format!("{low} or {high} is beyond 2^53"));
            }
            for end in [low, high - 1] {
                infer::need_held(self.dtype(), "an end", end as f64)?;
            }
            let even = self.even(rng, &self.shape(), stream).to(DType::F64);
            let y = even.mul(count as f64).floor().add(low as f64);
            Ok(y.to(self.dtype()))
        })
    }

    /// 1 with the probability that each element of `x` is, else 0:
    /// [`torch.bernoulli`](https://docs.pytorch.org/docs/stable/generated/torch.bernoulli.html).
    #[track_caller]
    pub fn bernoulli_each(self, rng: Var<'t>, stream: i64) -> Var<'t> {
        named(self, "bernoulli_each", || {
            if !self.dtype().is_float() {
                return Err("takes floating point".to_owned());
            }
            let even = self.even(rng, &self.shape(), stream).to(self.dtype());
            Ok(even.lt(self.detach()).to(self.dtype()))
        })
    }

    /// As [`dropout`](Random::dropout), of whole channels: positions of the first two axes:
    /// [`torch.nn.functional.dropout2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout2d.html).
    #[track_caller]
    pub fn feature_dropout(self, rng: Var<'t>, p: f64, stream: i64) -> Var<'t> {
        named(self, "feature_dropout", || {
            let ones = self.tracer().full(self.channels()?, 1.0);
            Ok(self.mul(ones.dropout(rng, p, stream)))
        })
    }

    /// Elements dropped with probability `p` to the limit of `selu`, and all scaled and shifted so
    /// that mean and variance stay:
    /// [`torch.nn.functional.alpha_dropout`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.alpha_dropout.html).
    #[track_caller]
    pub fn alpha_dropout(self, rng: Var<'t>, p: f64, stream: i64) -> Var<'t> {
        named(self, "alpha_dropout", || Ok(self.to_the_limit(self.ty(), rng, p, stream)))
    }

    /// As [`alpha_dropout`](Var::alpha_dropout), of whole channels: positions of the first two
    /// axes:
    /// [`torch.nn.functional.feature_alpha_dropout`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.feature_alpha_dropout.html).
    #[track_caller]
    pub fn feature_alpha_dropout(self, rng: Var<'t>, p: f64, stream: i64) -> Var<'t> {
        named(self, "feature_alpha_dropout", || {
            Ok(self.to_the_limit(self.channels()?, rng, p, stream))
        })
    }

    /// One number for each channel, which are the positions of the first two axes.
    fn channels(self) -> Result<TensorType, String> {
        if self.rank() < 2 {
            return Err(format!("takes at least two axes, found {}", self.ty()));
        }
        let one = Size::from(1);
        let size = |(i, n): (usize, &Size)| if i < 2 { *n } else { one };
        let shape: Shape = self.shape().iter().enumerate().map(size).collect();
        Ok(TensorType { dtype: self.dtype(), shape })
    }

    /// `x` where it is kept, else the limit, scaled and shifted. One fate for each element of
    /// `fates`.
    fn to_the_limit(self, fates: TensorType, rng: Var<'t>, p: f64, stream: i64) -> Var<'t> {
        let variance = (1.0 - p) * (1.0 + p * DROPPED * DROPPED);
        let scale = if variance > 0.0 { variance.sqrt().recip() } else { 0.0 };
        let kept = self.tracer().full(fates, 1.0).dropout(rng, p, stream).gt(0.0);
        let kept = kept.to(self.dtype());
        // scale * (x * kept + DROPPED * (1 - kept)) - scale * DROPPED * p
        let shift = kept.mul(-scale * DROPPED).add(scale * DROPPED * (1.0 - p));
        self.mul(kept.mul(scale)).add(shift)
    }

    /// Positions along the last axis, `count` for each row, drawn with probabilities in the ratio
    /// of the elements, which are not below zero; no position twice in a row unless with
    /// `replacement`:
    /// [`torch.multinomial`](https://docs.pytorch.org/docs/stable/generated/torch.multinomial.html).
    #[track_caller]
    pub fn multinomial(self, rng: Var<'t>, count: i64, replacement: bool, stream: i64) -> Var<'t> {
        named(self, "multinomial", || {
            if !self.dtype().is_float() {
                return Err(format!("takes floating point, found {}", self.ty()));
            }
            let shape = self.shape();
            let [rows @ .., classes] = &shape[..] else {
                return Err(format!("takes one or two axes, found {}", self.ty()));
            };
            if rows.len() > 1 {
                return Err(format!("takes one or two axes, found {}", self.ty()));
            }
            let enough = |n: i64| classes.number().is_none_or(|classes| classes >= n);
            if count < 1 || !enough(1) {
                return Err(format!("`count` is {count} of {classes}, expected at least 1"));
            }
            if !replacement && !enough(count) {
                let why = "without replacement at most all can be drawn";
                return Err(format!("`count` is {count} of {classes}: {why}"));
            }
            // Each position arrives after a time that is exponentially distributed with its element
            // as rate; the first to arrive are drawn. A time is never below half a step of the even
            // number it is made of, or one that is zero would win against any rates. Logarithms are
            // compared: large rates stay apart.
            let race = |rates: Var<'t>, shape: &Shape| {
                let times = self.even(rng, shape, stream).rsub(1.0).log().mul(-1.0);
                rates.sub(times.clamp_to(Some(HALF_STEP), None).log())
            };
            let x = self.detach().to(self.dtype().compute()).clamp_to(Some(0.0), None).log();
            if !replacement {
                return Ok(race(x, &shape).topk(count, -1, false).1);
            }
            let each: Shape = rows.iter().copied().chain([Size::from(count), *classes]).collect();
            Ok(race(x.unsqueeze(-2), &each).argmax(-1))
        })
    }
}
