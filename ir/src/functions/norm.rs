//! Norms that PyTorch itself composes of others, those whose results have another form, and how
//! running statistics move.

use super::{Made, named, named_all};
use crate::ops::elementwise::Elementwise;
use crate::ops::nn::{BatchNorms, GroupNorms};
use crate::ops::power::Powers;
use crate::ops::reduce::Reductions;
use crate::ops::view::Views;
use crate::{DType, Shape, Size, Var};

impl<'t> Var<'t> {
    /// [`batch_norm`](BatchNorms::batch_norm) with the mean and one over the deviation of each
    /// channel, in the dtype of the other operands; they are empty without `training`:
    /// `torch.native_batch_norm`.
    #[track_caller]
    pub fn native_batch_norm(
        self,
        [weight, bias]: [Option<Var<'t>>; 2],
        [mean, variance]: [Option<Var<'t>>; 2],
        training: bool,
        eps: f64,
    ) -> Vec<Var<'t>> {
        named_all(self, "native_batch_norm", || {
            let results = self.batch_norm(weight, bias, mean, variance, training, eps).results();
            let [y, own_mean, own_variance] = results[..] else { return Ok(results.into_vec()) };
            let dtype = weight.or(bias).or(mean).unwrap_or(self).dtype();
            if training {
                let rstd = own_variance.add(eps).rsqrt();
                return Ok(vec![y, own_mean.to(dtype), rstd.to(dtype)]);
            }
            let nothing = own_mean.slice(0, 0, 0, 1).to(dtype);
            Ok(vec![y, nothing, nothing])
        })
    }

    /// [`group_norm`](GroupNorms::group_norm) with the mean and one over the deviation of each
    /// group: `torch.native_group_norm` on the CPU. Both have the dtype of `weight`, without one
    /// that of `bias`, without either that of the operand.
    #[track_caller]
    pub fn native_group_norm(
        self,
        weight: Option<Var<'t>>,
        bias: Option<Var<'t>>,
        groups: i64,
        eps: f64,
    ) -> Vec<Var<'t>> {
        named_all(self, "native_group_norm", || {
            let results = self.group_norm(weight, bias, groups, eps).results();
            let [y, mean, rstd] = results[..] else { return Ok(results.into_vec()) };
            let dtype = weight.or(bias).unwrap_or(self).dtype();
            Ok(vec![y, mean.to(dtype), rstd.to(dtype)])
        })
    }

    /// Each channel of each example normalised by its own statistics, or with `running` by the mean
    /// and the variance given for its channel; and the mean over examples of the statistics, in f32
    /// for 16-bit floats:
    /// [`torch.nn.functional.instance_norm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.instance_norm.html).
    ///
    /// Channels are axis 1. It is a [`batch_norm`](BatchNorms::batch_norm) over each, and autocast
    /// decides about that.
    #[track_caller]
    pub fn instance_norm(
        self,
        weight: Option<Var<'t>>,
        bias: Option<Var<'t>>,
        running: Option<[Var<'t>; 2]>,
        eps: f64,
    ) -> Vec<Var<'t>> {
        named_all(self, "instance_norm", || {
            let shape = self.shape();
            let [examples, channels, positions @ ..] = &shape[..] else {
                return Err("takes examples of channels".to_owned());
            };
            if let Some([mean, variance]) = running {
                let results = self.batch_norm(weight, bias, mean, variance, false, eps).results();
                return Ok(results.into_vec());
            }
            one_is_not_enough(positions.iter().product())?;
            let both = Shape::new(&[*examples, *channels]);
            let each = |v: Var<'t>| {
                let ty = v.ty();
                if ty.shape.rank() != 1 || ty.shape[0] != *channels {
                    return Err(format!("a scale is {ty}, expected one for {channels} channels"));
                }
                Ok(v.expand_to(&both).reshape_to(&Shape::new(&[*examples * *channels])))
            };
            let (weight, bias) = (weight.map(each).transpose()?, bias.map(each).transpose()?);
            let lead = [Size::from(1), *examples * *channels];
            let one = self.reshape_to(&lead.into_iter().chain(positions.iter().copied()).collect());
            let results = one.batch_norm(weight, bias, None, None, true, eps).results();
            let [y, mean, variance] = results[..] else { return Ok(results.into_vec()) };
            let of_channels = |v: Var<'t>| v.reshape_to(&both).mean(0);
            Ok(vec![y.reshape_to(&shape), of_channels(mean), of_channels(variance)])
        })
    }

    /// Divided by `(k + alpha * mean)` to the power `beta`, with the mean of the squares over
    /// `size` channels around each, zeros beyond the first and the last:
    /// [`torch.nn.functional.local_response_norm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.local_response_norm.html).
    #[track_caller]
    pub fn local_response_norm(self, size: i64, alpha: f64, beta: f64, k: f64) -> Var<'t> {
        named(self, "local_response_norm", || {
            let rank = self.rank();
            if rank < 3 {
                return Err("takes examples of channels with positions".to_owned());
            }
            if !(1..=1 << 16).contains(&size) {
                return Err(format!("`size` {size} is not within 1 to 65536"));
            }
            if self.ty().numel() == 0 {
                return Ok(self);
            }
            let (squares, channels) = (self.mul(self), self.size(1));
            let wide = squares.to(squares.dtype().compute());
            let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
            (low[1], high[1]) = (size / 2, (size - 1) / 2);
            let padded = wide.pad(&low, &high, 0.0);
            let near = |from: i64| padded.slice(1, from, channels + from, 1);
            let sum = (1..size).fold(near(0), |sum, from| sum.add(near(from)));
            // PyTorch's mean of integers is one.
            let mean = if squares.dtype().is_float() {
                sum.div(size as f64).to(squares.dtype())
            } else {
                sum.to(DType::F64).div(size as f64).floor().to(DType::F32)
            };
            let power = mean.mul(alpha).add(k).pow(beta);
            Ok(self.div(power))
        })
    }

    /// The variance of a sample of that many elements, from the variance divided by the count.
    #[track_caller]
    pub fn unbiased(self, count: Size) -> Var<'t> {
        named(self, "unbiased", || Ok(self.mul(count).div(count - 1)))
    }

    /// A share of `now` and the rest of these numbers, as running statistics of norms move; the
    /// share is a number without axes. In f32 for 16-bit floats.
    #[track_caller]
    pub fn moved(self, now: Var<'t>, share: Var<'t>) -> Var<'t> {
        named(self, "moved", || {
            let wide = self.dtype().compute();
            let (own, now, share) = (self.to(wide), now.to(wide), share.to(wide));
            let rest = share.rsub(1.0);
            Ok(now.mul(share).add(own.mul(rest)).to(self.dtype()))
        })
    }
}

/// Statistics of one number say nothing of it.
///
/// # Errors
/// If there is one.
pub(super) fn one_is_not_enough(count: Size) -> Made<()> {
    match count.number() {
        Some(1) => Err("takes more than one number for each channel when training".to_owned()),
        _ => Ok(()),
    }
}
