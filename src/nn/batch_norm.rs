//! Norms of channels: [`BatchNorm1d`] to [`BatchNorm3d`], [`InstanceNorm1d`] to [`InstanceNorm3d`],
//! [`GroupNorm`] and [`LocalResponseNorm`].

use crate::entry::Start;
use crate::nn::{Context, Module};
use crate::setters::setters;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::nn::{BatchNorms, GroupNorms};
use tracecast_ir::ops::power::Powers;
use tracecast_ir::{DType, Size, TensorType, Var};

/// What batch and instance norms have in common.
#[derive(Clone, Debug, PartialEq)]
struct Settings {
    channels: usize,
    dtype: DType,
    eps: f64,
    /// The share of this batch in running statistics; `None` for the mean of all batches.
    momentum: Option<f64>,
    affine: bool,
    bias: bool,
    running: bool,
}

/// Running statistics and how many batches they are of.
#[derive(Clone, Copy)]
struct Running<'t> {
    mean: Var<'t>,
    variance: Var<'t>,
    batches: Var<'t>,
}

impl Settings {
    fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, [self.channels])
    }

    fn scales<'t>(&self, cx: &Context<'t>) -> [Option<Var<'t>>; 2] {
        let one = |name, start| cx.parameter(name, self.ty(), Start::Constant(start));
        let weight = self.affine.then(|| one("weight", 1.0));
        [weight, (self.affine && self.bias).then(|| one("bias", 0.0))]
    }

    fn running<'t>(&self, cx: &Context<'t>) -> Option<Running<'t>> {
        let batches = TensorType::scalar(DType::I64);
        self.running.then(|| Running {
            mean: cx.buffer("running_mean", self.ty(), Start::Constant(0.0)),
            variance: cx.buffer("running_var", self.ty(), Start::Constant(1.0)),
            batches: cx.buffer("num_batches_tracked", batches, Start::Constant(0.0)),
        })
    }
}

impl<'t> Running<'t> {
    /// Records that the statistics move by those of this batch, whose variance is that of a sample.
    fn moves(self, cx: &Context<'t>, mean: Var<'t>, variance: Var<'t>, share: Var<'t>) {
        let t = cx.trace().tracer();
        t.advance(self.mean, |running| running.moved(mean, share));
        t.advance(self.variance, |running| running.moved(variance, share));
    }

    /// Counts a batch; the share of it in the statistics.
    fn counts(self, cx: &Context<'t>, momentum: Option<f64>) -> Var<'t> {
        let t = cx.trace().tracer();
        let mut batches = self.batches;
        t.advance(self.batches, |before| {
            batches = before.add(1.0);
            batches
        });
        match momentum {
            Some(momentum) => t.full(TensorType::scalar(DType::F32), momentum),
            None => batches.cast(DType::F32).reciprocal(),
        }
    }
}

macro_rules! settings {
    () => {
        /// For a number of channels.
        pub fn new(channels: usize) -> Self {
            Self::with(channels)
        }

        setters! {
            /// With another number added to the variance than 1e-5.
            eps(eps: f64) => settings.eps = eps;
            /// With another share of the batch in the running statistics than 0.1.
            momentum(momentum: f64) => settings.momentum = Some(momentum);
            /// With running statistics that are the mean over all batches so far.
            cumulative() => settings.momentum = None;
            /// With parameters and running statistics of another dtype.
            dtype(dtype: DType) => settings.dtype = dtype;
            /// Without a bias.
            without_bias() => settings.bias = false;
        }
    };
}

/// Each channel of `[batch, channels, positions..]` shifted and scaled to mean 0 and variance 1
/// over the batch, then multiplied by `weight` and shifted by `bias`, as PyTorch's `BatchNorm1d` to
/// `BatchNorm3d`.
///
/// While training, `running_mean`, `running_var` and `num_batches_tracked` move with every run,
/// also with one whose step a loss scaler skips, as in PyTorch; evaluation normalises by them.
/// Ranks that train in parallel have statistics of their own rows each.
///
/// ```
/// use tracecast::nn::{BatchNorm2d, Module};
/// use tracecast::prelude::*;
///
/// let norm = BatchNorm2d::new(16).momentum(0.3);
/// let mut store = Store::new();
/// norm.init(&mut store, 0)?;
/// assert_eq!(store.get("running_var")?.to_vec::<f32>()?, [1.0; 16]);
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNorm<const AXES: usize> {
    settings: Settings,
}

/// A batch norm of `[batch, channels]` or `[batch, channels, positions]`.
pub type BatchNorm1d = BatchNorm<1>;
/// A batch norm of images.
pub type BatchNorm2d = BatchNorm<2>;
/// A batch norm of volumes.
pub type BatchNorm3d = BatchNorm<3>;

impl<const AXES: usize> BatchNorm<AXES> {
    fn with(channels: usize) -> Self {
        let settings = Settings {
            channels,
            dtype: DType::F32,
            eps: 1e-5,
            momentum: Some(0.1),
            affine: true,
            bias: true,
            running: true,
        };
        BatchNorm { settings }
    }

    settings!();

    setters! {
        /// Without weight and bias.
        without_affine() => settings.affine = false;
        /// Without running statistics: evaluation normalises by the batch, too.
        without_running_statistics() => settings.running = false;
    }
}

impl<const AXES: usize> Module for BatchNorm<AXES> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let ([weight, bias], running) = (self.settings.scales(cx), self.settings.running(cx));
        cx.here(|| {
            let least = if AXES == 1 { 2 } else { AXES + 2 };
            if let Some(wrong) = wrong_rank(x, least, AXES + 2) {
                return wrong;
            }
            let eps = self.settings.eps;
            if let (Some(running), false) = (running, cx.is_training()) {
                return x.batch_norm(weight, bias, running.mean, running.variance, false, eps);
            }
            let of_channel = || {
                let shape = x.shape();
                shape[0] * shape[2..].iter().product::<Size>()
            };
            let count = if x.is_poison() { Size::UNKNOWN } else { of_channel() };
            if !x.is_poison() && count == 1 {
                let why = "takes more than one number for each channel when training";
                return x.tracer().fail("BatchNorm", format!("{why}, found {}", x.ty()));
            }
            let y = x.batch_norm(weight, bias, None, None, true, eps);
            if let (Some(running), [y, mean, variance]) = (running, &y.results()[..]) {
                let share = running.counts(cx, self.settings.momentum);
                running.moves(cx, *mean, variance.unbiased(count), share);
                return *y;
            }
            y
        })
    }
}

/// Each channel of each example shifted and scaled to mean 0 and variance 1, as PyTorch's
/// `InstanceNorm1d` to `InstanceNorm3d`: of `[batch, channels, positions..]`, or of one example
/// without its axis. There are no parameters unless [`affine`](InstanceNorm::affine) is said.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceNorm<const AXES: usize> {
    settings: Settings,
}

/// An instance norm over one axis.
pub type InstanceNorm1d = InstanceNorm<1>;
/// An instance norm over images.
pub type InstanceNorm2d = InstanceNorm<2>;
/// An instance norm over volumes.
pub type InstanceNorm3d = InstanceNorm<3>;

impl<const AXES: usize> InstanceNorm<AXES> {
    fn with(channels: usize) -> Self {
        let BatchNorm { settings } = BatchNorm::<AXES>::new(channels);
        InstanceNorm { settings: Settings { affine: false, running: false, ..settings } }
    }

    settings!();

    setters! {
        /// With weight and bias.
        affine() => settings.affine = true;
        /// With running statistics, which evaluation normalises by.
        running_statistics() => settings.running = true;
    }
}

impl<const AXES: usize> Module for InstanceNorm<AXES> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let ([weight, bias], running) = (self.settings.scales(cx), self.settings.running(cx));
        cx.here(|| {
            if let Some(wrong) = wrong_rank(x, AXES + 1, AXES + 2) {
                return wrong;
            }
            let is_one = !x.is_poison() && x.rank() == AXES + 1;
            let batch = if is_one { x.unsqueeze(0) } else { x };
            let given = running.filter(|_| !cx.is_training());
            let given = given.map(|running| [running.mean, running.variance]);
            let results = batch.instance_norm(weight, bias, given, self.settings.eps);
            if let (Some(running), [_, mean, variance], None) = (running, &results[..], given) {
                let shape = batch.shape();
                let count = shape[2..].iter().product::<Size>();
                // PyTorch's instance norms have a count of batches, and never count.
                let momentum = self.settings.momentum.unwrap_or(0.0);
                let share = cx.trace().tracer().full(TensorType::scalar(DType::F32), momentum);
                running.moves(cx, *mean, variance.unbiased(count), share);
            }
            if is_one { results[0].squeeze(&[0]) } else { results[0] }
        })
    }
}

/// The failed value if a tensor has not that many axes.
fn wrong_rank<'t>(x: Var<'t>, least: usize, most: usize) -> Option<Var<'t>> {
    if x.is_poison() || (least..=most).contains(&x.rank()) {
        return None;
    }
    let axes = if least == most { most.to_string() } else { format!("{least} or {most}") };
    Some(x.tracer().fail("norm", format!("takes {axes} axes, found {}", x.ty())))
}

/// Channels in groups, each of which is shifted and scaled to mean 0 and variance 1 in each
/// example, then multiplied by `weight` and shifted by `bias`, which have a number for each
/// channel:
/// [`torch.nn.GroupNorm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.GroupNorm.html).
#[derive(Clone, Debug, PartialEq)]
pub struct GroupNorm {
    groups: usize,
    settings: Settings,
}

impl GroupNorm {
    /// `groups` groups of `channels` channels together; `eps` is 1e-5.
    pub fn new(groups: usize, channels: usize) -> Self {
        GroupNorm { groups, settings: BatchNorm1d::new(channels).settings }
    }

    setters! {
        /// With another number added to the variance.
        eps(eps: f64) => settings.eps = eps;
        /// Without weight and bias.
        without_affine() => settings.affine = false;
        /// Without a bias.
        without_bias() => settings.bias = false;
        /// With parameters of another dtype.
        dtype(dtype: DType) => settings.dtype = dtype;
    }
}

impl Module for GroupNorm {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let [weight, bias] = self.settings.scales(cx);
        let groups = i64::try_from(self.groups).unwrap_or(i64::MAX);
        cx.here(|| x.group_norm(weight, bias, groups, self.settings.eps))
    }
}

/// Divided by a power of the mean square of neighbouring channels:
/// [`torch.nn.LocalResponseNorm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.LocalResponseNorm.html).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalResponseNorm {
    size: i64,
    alpha: f64,
    beta: f64,
    k: f64,
}

impl LocalResponseNorm {
    /// Of a number of neighbouring channels; `alpha` is 1e-4, `beta` 0.75 and `k` 1.
    pub fn new(size: i64) -> Self {
        LocalResponseNorm { size, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }

    setters! {
        /// With another factor of the mean square.
        alpha(alpha: f64) => alpha = alpha;
        /// With another power.
        beta(beta: f64) => beta = beta;
        /// With another number added.
        k(k: f64) => k = k;
    }
}

impl Module for LocalResponseNorm {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.here(|| x.local_response_norm(self.size, self.alpha, self.beta, self.k))
    }
}
