//! Dropouts: elements or channels left out at random while training.

use crate::entry::{Entry, Start};
use crate::nn::Context;
use crate::nn::modules::modules;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::random::Random;
use tracecast_ir::{DType, Size, TensorType, Var};

modules! {
    /// Each element dropped with probability `p`, from 0 to 1, and the others scaled up; nothing
    /// when the model is evaluated.
    ///
    /// All dropouts of a program share the state `rng: i64[2]`, the seed and the number of the
    /// step, and each draws from a stream of its own. The number of the step grows by one with each
    /// run, so a run with the same state drops the same elements.
    Dropout { p: f64 } = |x, own, cx| dropped(cx, x, own.p, |rng, stream| x.dropout(rng, own.p, stream));
    /// Each channel of `[N, C, L]` or `[C, L]` dropped as a whole with probability `p` and the
    /// others scaled up; nothing when the model is evaluated:
    /// [`torch.nn.Dropout1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout1d.html).
    /// See [`Dropout`] for the generator.
    Dropout1d { p: f64 } = |x, own, cx| channels_dropped("Dropout1d", cx, x, own.p, &[(2, 1), (3, 2)]);
    /// Each channel of `[N, C, H, W]` or `[N, C, L]` dropped as a whole with probability `p` and
    /// the others scaled up; nothing when the model is evaluated:
    /// [`torch.nn.Dropout2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout2d.html),
    /// which takes three axes like this as well.
    Dropout2d { p: f64 } = |x, own, cx| channels_dropped("Dropout2d", cx, x, own.p, &[(3, 2), (4, 2)]);
    /// Each channel of `[N, C, D, H, W]` or `[C, D, H, W]` dropped as a whole with probability `p`
    /// and the others scaled up; nothing when the model is evaluated:
    /// [`torch.nn.Dropout3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout3d.html).
    Dropout3d { p: f64 } = |x, own, cx| channels_dropped("Dropout3d", cx, x, own.p, &[(4, 1), (5, 2)]);
    /// Elements dropped with probability `p` to the limit of [`Selu`](crate::nn::Selu), and all
    /// scaled and shifted so that mean and variance stay; nothing when the model is evaluated:
    /// [`torch.nn.AlphaDropout`](https://docs.pytorch.org/docs/stable/generated/torch.nn.AlphaDropout.html).
    /// See [`Dropout`] for the generator.
    AlphaDropout { p: f64 } = |x, own, cx| dropped(cx, x, own.p, |rng, stream| x.alpha_dropout(rng, own.p, stream));
    /// As [`AlphaDropout`], of whole channels, which are the positions of the first two axes:
    /// [`torch.nn.FeatureAlphaDropout`](https://docs.pytorch.org/docs/stable/generated/torch.nn.FeatureAlphaDropout.html).
    FeatureAlphaDropout { p: f64 } = |x, own, cx| dropped(cx, x, own.p, |rng, stream| x.feature_alpha_dropout(rng, own.p, stream));
}

/// What `drop` makes of the operand with the generator and a stream of its own; the operand if
/// nothing is dropped.
fn dropped<'t>(
    cx: &Context<'t>,
    x: Var<'t>,
    p: f64,
    drop: impl FnOnce(Var<'t>, i64) -> Var<'t>,
) -> Var<'t> {
    draw(cx, p).map_or(x, |(rng, stream)| drop(rng, stream))
}

/// The operand with channels dropped, which are the positions of the axes in front: of each number
/// of axes that the module takes, how many these are.
fn channels_dropped<'t>(
    name: &str,
    cx: &Context<'t>,
    x: Var<'t>,
    p: f64,
    ranks: &[(usize, usize)],
) -> Var<'t> {
    let rank = if x.is_poison() { ranks[0].0 } else { x.rank() };
    let Some((_, front)) = ranks.iter().find(|(of, _)| *of == rank) else {
        let expected: Vec<String> = ranks.iter().map(|(rank, _)| rank.to_string()).collect();
        let why = format!("takes {} axes, found {}", expected.join(" or "), x.ty());
        return x.tracer().fail(name, why);
    };
    dropped(cx, x, p, |rng, stream| {
        let ones = x.tracer().full(ty_of_channels(x, *front), 1.0);
        x.mul(ones.dropout(rng, p, stream))
    })
}

/// The generator and a stream of its own, if a dropout with this probability drops anything.
pub(super) fn draw<'t>(cx: &Context<'t>, p: f64) -> Option<(Var<'t>, i64)> {
    (cx.is_training() && p != 0.0).then(|| cx.draw())
}

impl<'t> Context<'t> {
    /// The generator of random numbers and a stream of its own.
    pub(crate) fn draw(&self) -> (Var<'t>, i64) {
        self.here(|| (next_step(self), i64::from(self.trace().tracer().next_stream())))
    }
}

/// The generator of this step; the first to ask for it records that it advances.
fn next_step<'t>(cx: &Context<'t>) -> Var<'t> {
    let generator = Entry::state("rng", TensorType::new(DType::I64, [2]), Start::Seed).shared();
    let rng = cx.state_from(generator);
    if rng.is_poison() {
        return rng;
    }
    let t = cx.trace().tracer();
    let advances = t.with_graph(|graph| {
        graph.updates().iter().any(|(port, _)| graph.ports()[*port].node == rng.id().node)
    });
    if !advances {
        let one_step = t.constant(DType::I64, &[2], &[0.0, 1.0]);
        t.update(rng, rng + one_step);
    }
    rng
}

/// One number for each channel, which are the positions of the axes in front.
fn ty_of_channels(x: Var<'_>, front: usize) -> TensorType {
    let one = Size::from(1);
    let size = |(axis, size): (usize, &Size)| if axis < front { *size } else { one };
    TensorType { dtype: x.dtype(), shape: x.shape().iter().enumerate().map(size).collect() }
}
