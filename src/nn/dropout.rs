//! Dropouts: elements or channels left out at random while training.

use crate::entry::{Entry, Start};
use crate::nn::{Context, Module};
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::random::Random;
use tracecast_ir::{DType, Size, TensorType, Var};

/// Each element dropped with probability `p` and the others scaled up; nothing when the model is
/// evaluated.
///
/// All dropouts of a program share the state `rng: i64[2]`, the seed and the number of the step,
/// and each draws from a stream of its own. The number of the step grows by one with each run, so a
/// run with the same state drops the same elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    p: f64,
}

impl Dropout {
    /// With this probability, from 0 to 1.
    pub fn new(p: f64) -> Self {
        Dropout { p }
    }
}

impl Module for Dropout {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        match draw(cx, self.p) {
            Some((rng, stream)) => cx.here(|| x.dropout(rng, self.p, stream)),
            None => x,
        }
    }
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

/// The dropouts of whole channels: the name, what it takes, its numbers of axes, and how many of
/// them stand in front of a channel's elements.
macro_rules! dropouts_of_channels {
    ($($(#[$doc:meta])* $name:ident($($rank:literal has $front:literal),+);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            p: f64,
        }

        impl $name {
            /// With this probability, from 0 to 1.
            pub fn new(p: f64) -> Self {
                $name { p }
            }
        }

        impl Module for $name {
            fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
                let front = match if x.is_poison() { [$($rank),+][0] } else { x.rank() } {
                    $($rank => $front,)+
                    _ => {
                        let expected = [$(stringify!($rank)),+].join(" or ");
                        let why = format!("takes {expected} axes, found {}", x.ty());
                        return cx.here(|| cx.trace().tracer().fail(stringify!($name), why));
                    }
                };
                match draw(cx, self.p) {
                    Some((rng, stream)) => cx.here(|| {
                        let ones = x.tracer().full(ty_of_channels(x, front), 1.0);
                        x.mul(ones.dropout(rng, self.p, stream))
                    }),
                    None => x,
                }
            }
        }
    )*};
}

dropouts_of_channels! {
    /// Each channel of `[N, C, L]` or `[C, L]` dropped as a whole with probability `p` and the
    /// others scaled up; nothing when the model is evaluated:
    /// [`torch.nn.Dropout1d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout1d.html).
    /// See [`Dropout`] for the generator.
    Dropout1d(2 has 1, 3 has 2);
    /// Each channel of `[N, C, H, W]` or `[N, C, L]` dropped as a whole with probability `p` and
    /// the others scaled up; nothing when the model is evaluated:
    /// [`torch.nn.Dropout2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout2d.html),
    /// which takes three axes like this as well.
    Dropout2d(3 has 2, 4 has 2);
    /// Each channel of `[N, C, D, H, W]` or `[C, D, H, W]` dropped as a whole with probability `p`
    /// and the others scaled up; nothing when the model is evaluated:
    /// [`torch.nn.Dropout3d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout3d.html).
    Dropout3d(4 has 1, 5 has 2);
}

/// One number for each channel, which are the positions of the axes in front.
fn ty_of_channels(x: Var<'_>, front: usize) -> TensorType {
    let one = Size::from(1);
    let size = |(axis, size): (usize, &Size)| if axis < front { *size } else { one };
    TensorType { dtype: x.dtype(), shape: x.shape().iter().enumerate().map(size).collect() }
}

/// Elements dropped with probability `p` to the limit of [`Selu`](crate::nn::Selu), and all scaled
/// and shifted so that mean and variance stay; nothing when the model is evaluated:
/// [`torch.nn.AlphaDropout`](https://docs.pytorch.org/docs/stable/generated/torch.nn.AlphaDropout.html).
/// See [`Dropout`] for the generator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlphaDropout {
    p: f64,
}

impl AlphaDropout {
    /// With this probability, from 0 to 1.
    pub fn new(p: f64) -> Self {
        AlphaDropout { p }
    }
}

impl Module for AlphaDropout {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        match draw(cx, self.p) {
            Some((rng, stream)) => cx.here(|| x.alpha_dropout(rng, self.p, stream)),
            None => x,
        }
    }
}

/// As [`AlphaDropout`], of whole channels, which are the positions of the first two axes:
/// [`torch.nn.FeatureAlphaDropout`](https://docs.pytorch.org/docs/stable/generated/torch.nn.FeatureAlphaDropout.html).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeatureAlphaDropout {
    p: f64,
}

impl FeatureAlphaDropout {
    /// With this probability, from 0 to 1.
    pub fn new(p: f64) -> Self {
        FeatureAlphaDropout { p }
    }
}

impl Module for FeatureAlphaDropout {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        match draw(cx, self.p) {
            Some((rng, stream)) => cx.here(|| x.feature_alpha_dropout(rng, self.p, stream)),
            None => x,
        }
    }
}
