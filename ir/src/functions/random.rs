//! Random numbers of other kinds than those of the table, made of even ones. The seed `rng` and the number of a stream are as in
//! [`uniform`](Random::uniform).

use super::named;
use crate::ops::cast::Cast;
use crate::ops::elementwise::Elementwise;
use crate::ops::random::Random;
use crate::{DType, Shape, Size, TensorType, Var};

impl<'t> Var<'t> {
    /// Even numbers of f32 from 0 to 1 in a shape.
    fn even(self, rng: Var<'t>, shape: &Shape, stream: i64) -> Var<'t> {
        let ty = TensorType { dtype: DType::F32, shape: shape.clone() };
        self.tracer().full(ty, 0.0).uniform(rng, 0.0, 1.0, stream)
    }

    /// New numbers in the type of `x`, normally distributed around `mean`: [`torch.normal`](https://docs.pytorch.org/docs/stable/generated/torch.normal.html), `randn_like`.
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

    /// New numbers in the type of `x`, exponentially distributed with that rate: [`Tensor.exponential_`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.exponential_.html).
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

    /// New integral numbers in the type of `x`, from `low` up to `high`, at most 2^24 different ones: [`torch.randint_like`](https://docs.pytorch.org/docs/stable/generated/torch.randint_like.html).
    #[track_caller]
    pub fn randint(self, rng: Var<'t>, low: i64, high: i64, stream: i64) -> Var<'t> {
        named(self, "randint", || {
            let count = high.saturating_sub(low);
            if !(1..=1 << 24).contains(&count) {
                return Err(format!("from {low} up to {high} are not 1 to 2^24 numbers"));
            }
            let even = self.even(rng, &self.shape(), stream).to(DType::F64);
            let y = even.mul(count as f64).floor().add(low as f64);
            Ok(y.to(self.dtype()))
        })
    }

    /// 1 with the probability that each element of `x` is, else 0: [`torch.bernoulli`](https://docs.pytorch.org/docs/stable/generated/torch.bernoulli.html).
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

    /// As [`dropout`](Random::dropout), of whole channels: positions of the first two axes: [`torch.nn.functional.dropout2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout2d.html).
    #[track_caller]
    pub fn feature_dropout(self, rng: Var<'t>, p: f64, stream: i64) -> Var<'t> {
        named(self, "feature_dropout", || {
            if self.rank() < 2 {
                return Err("takes at least two axes".to_owned());
            }
            let one = Size::from(1);
            let size = |(i, n): (usize, &Size)| if i < 2 { *n } else { one };
            let shape: Shape = self.shape().iter().enumerate().map(size).collect();
            let ones = self.tracer().full(TensorType { dtype: self.dtype(), shape }, 1.0);
            Ok(self.mul(ones.dropout(rng, p, stream)))
        })
    }
}
