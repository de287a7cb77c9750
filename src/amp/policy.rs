//! [`ScalePolicy`]: how a recorded scaler chooses the next scale.
//!
//! Back-off, PyTorch's, waits for an overflow and loses that step. The others look at the gradients
//! of good steps too, which cost nothing more: their largest magnitude is known from the check.

use super::own;
use crate::entry::{Entry, Start};
use crate::trace::Trace;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::{DType, TensorType, Var};
use tracecast_runtime::ScaleUpdate;

/// How the next scale is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ScalePolicy {
    /// Smaller after an overflow, larger after enough good steps, as PyTorch's
    /// `_amp_update_scale_`.
    #[default]
    BackOff,
    /// By mean and variance of the logarithm of the largest gradient.
    LogMax(LogMax),
    /// By the share of elements that come near to overflow.
    Histogram(Histogram),
}

/// The scale that puts the mean of `log2(largest unscaled gradient)` plus some standard deviations
/// of it at 2^16, where f16 overflows; rounded down to a power of two. NVIDIA's OpenSeq2Seq has it
/// as `LogMax`.
///
/// Mean and variance are moving averages (decay 0.99; the deviation is taken from a slower mean,
/// 0.999). After an overflow, of which only a lower bound is known, the average is fed that bound
/// plus one: `17 - log2(scale)`, and the scale shrinks at least by the backoff factor. It grows at
/// most to the double in a step, and to `max_scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogMax {
    /// How many standard deviations lie between mean and overflow: 3.09 for one overflow in a
    /// thousand normally distributed steps.
    pub deviations: f64,
    /// The largest scale.
    pub max_scale: f64,
}

impl Default for LogMax {
    fn default() -> Self {
        LogMax { deviations: 3.09, max_scale: 16_777_216.0 }
    }
}

/// The scale halves as soon as more than a share `limit` of all scaled gradient elements are
/// `2^near` or more, and doubles after `growth_interval` steps in which that was not so. An
/// overflow counts as such elements. Graphcore's automatic loss scaling works like this.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Histogram {
    /// The exponent from which an element is near to overflow; f16 overflows at 2^16.
    pub near: i32,
    /// The share of elements that may be near.
    pub limit: f64,
    /// The largest scale.
    pub max_scale: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { near: 13, limit: 1e-6, max_scale: 16_777_216.0 }
    }
}

impl From<LogMax> for ScalePolicy {
    fn from(policy: LogMax) -> Self {
        ScalePolicy::LogMax(policy)
    }
}

impl From<Histogram> for ScalePolicy {
    fn from(policy: Histogram) -> Self {
        ScalePolicy::Histogram(policy)
    }
}

/// Where f16 overflows, as a power of two.
const OVERFLOW: f64 = 16.0;
/// Decay of the mean and of the variance.
const FAST: f64 = 0.99;
/// Decay of the mean that deviations are taken from.
const SLOW: f64 = 0.999;
/// The exponents of positive f32 that are not subnormal.
const EXPONENTS: (f64, f64) = (-126.0, 128.0);

impl ScalePolicy {
    /// The averages: `NAME.log_mean`, `NAME.log_slow_mean`, `NAME.log_variance` and
    /// `NAME.log_steps`.
    pub(crate) fn entries(&self, name: &str) -> Vec<Entry> {
        let entry = |of: &str| {
            let ty = TensorType::scalar(DType::F64);
            Entry::state(format!("{name}.log_{of}"), ty, Start::Constant(0.0))
        };
        match self {
            ScalePolicy::LogMax(_) => ["mean", "slow_mean", "variance", "steps"].map(entry).into(),
            ScalePolicy::BackOff | ScalePolicy::Histogram(_) => Vec::new(),
        }
    }

    /// What cannot be meant.
    pub(crate) fn problem(&self) -> Option<String> {
        let max_scale = match *self {
            ScalePolicy::BackOff => return None,
            ScalePolicy::LogMax(LogMax { deviations, .. }) if !deviations.is_finite() => {
                return Some(format!(
                    "the number of deviations has to be finite, found {deviations}"
                ));
            }
            ScalePolicy::Histogram(Histogram { limit, .. }) if !(0.0..1.0).contains(&limit) => {
                return Some(format!(
                    "the share of near elements is from 0 to below 1, found {limit}"
                ));
            }
            ScalePolicy::LogMax(LogMax { max_scale, .. })
            | ScalePolicy::Histogram(Histogram { max_scale, .. }) => max_scale,
        };
        let good = (max_scale as f32).is_normal() && max_scale > 0.0;
        (!good)
            .then(|| format!("the largest scale has to be finite and above 0, found {max_scale}"))
    }
}

impl LogMax {
    /// The next scale. `amax` is the largest magnitude of an unscaled gradient, f32, of no meaning
    /// if `found` is not zero.
    pub(crate) fn next<'t>(self, t: &'t Trace, entries: Vec<Entry>, now: Now<'t>) -> Var<'t> {
        let [mean, slow, variance, steps] = <[Entry; 4]>::try_from(entries)
            .expect("LogMax has four entries")
            .map(|e| t.state_from(e));
        let scale = now.scale.cast(DType::F64);
        let overflow = now.found.ne(0.0);
        let bound = log2(scale).rsub(OVERFLOW + 1.0);
        let size = overflow.choose(bound, bounded(log2(now.amax.cast(DType::F64)), EXPONENTS));
        let count = steps + 1.0;
        let weight = |decay: f64| (count * decay.ln()).exp().rsub(1.0);
        let next_mean = mean * FAST + size * (1.0 - FAST);
        let next_slow = slow * SLOW + size * (1.0 - SLOW);
        let away = size - next_slow / weight(SLOW);
        let next_variance = variance * FAST + away * away * (1.0 - FAST);
        for (state, next) in
            [(mean, next_mean), (slow, next_slow), (variance, next_variance), (steps, count)]
        {
            t.update(state, next);
        }
        let deviation = (next_variance / weight(FAST)).sqrt();
        let top = next_mean / weight(FAST) + deviation * self.deviations;
        let exponent = floor(bounded(top.rsub(OVERFLOW), EXPONENTS));
        let proposed = power_of_two(exponent).minimum(scale * 2.0);
        let smaller = proposed.minimum(scale * now.backoff_factor);
        let next = overflow.choose(smaller, proposed);
        next.minimum(number(t, DType::F64, self.max_scale)).cast(DType::F32)
    }
}

impl Histogram {
    /// The next scale and growth tracker. `near` is the share of elements that are near to
    /// overflow, f32.
    pub(crate) fn next<'t>(
        self,
        t: &'t Trace,
        now: Now<'t>,
        near: Var<'t>,
        growth: (f64, i64),
    ) -> (Var<'t>, Var<'t>) {
        let (growth_factor, interval) = growth;
        let crowded = near.gt(self.limit).logical_or(now.found.ne(0.0));
        let none = number(t, DType::F32, 0.0);
        let signal = crowded.choose(t.ones_like(none), none);
        let [next, tracker] = own::update_scale(
            t,
            ScaleUpdate {
                scale: now.scale,
                tracker: now.tracker,
                found_inf: signal,
                growth_factor,
                backoff_factor: now.backoff_factor,
                growth_interval: interval,
            },
        );
        (next.minimum(number(t, DType::F32, self.max_scale)), tracker)
    }

    /// How many elements of a scaled gradient are near to overflow, f32.
    pub(crate) fn near<'t>(self, grad: Var<'t>) -> Var<'t> {
        use tracecast_ir::ops::reduce::Reductions;
        let near = grad.abs().ge(f64::from(self.near).exp2());
        near.cast(DType::F32).sum(())
    }
}

/// What a policy sees of this step.
#[derive(Clone, Copy)]
pub(crate) struct Now<'t> {
    pub(crate) scale: Var<'t>,
    pub(crate) tracker: Var<'t>,
    pub(crate) found: Var<'t>,
    /// The largest magnitude of an unscaled gradient, f32.
    pub(crate) amax: Var<'t>,
    pub(crate) backoff_factor: f64,
}

fn number(t: &Trace, dtype: DType, value: f64) -> Var<'_> {
    t.full(TensorType::scalar(dtype), value)
}

fn log2(x: Var<'_>) -> Var<'_> {
    x.log() / std::f64::consts::LN_2
}

/// Within these bounds; the lower one for NaN.
fn bounded<'t>(x: Var<'t>, (low, high): (f64, f64)) -> Var<'t> {
    let t = x.tracer();
    let (low_value, high_value) = (t.full(x.ty(), low), t.full(x.ty(), high));
    let not_above = x.lt(high).choose(x, high_value);
    x.ge(low).choose(not_above, low_value)
}

/// The next whole number below, for numbers within [`EXPONENTS`].
fn floor(x: Var<'_>) -> Var<'_> {
    // A cast to integers drops what is behind the point.
    const ABOVE: f64 = 256.0;
    (x + ABOVE).cast(DType::I32).cast(DType::F64) - ABOVE
}

/// 2^k for whole k; exact once it is rounded to f32.
fn power_of_two(exponent: Var<'_>) -> Var<'_> {
    (exponent * std::f64::consts::LN_2).exp().cast(DType::F32).cast(DType::F64)
}
