//! Interpolation: [`Upsample`], [`UpsamplingNearest2d`] and [`UpsamplingBilinear2d`].

use crate::nn::{Context, Module};
use crate::setters::setters;
use tracecast_ir::Var;

/// Resized along the axes behind the channels:
/// [`torch.nn.Upsample`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Upsample.html).
///
/// ```
/// use tracecast::nn::{Conv2d, Sequential, Upsample};
/// let twice = Upsample::by([2.0]).mode("bilinear").align_corners(false);
/// let block = Sequential::new().then(twice).then(Conv2d::new(64, 32, [3, 3]));
/// # let _ = block;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Upsample {
    size: Vec<i64>,
    scale_factor: Vec<f64>,
    mode: String,
    align_corners: Option<bool>,
    is_recomputed: bool,
}

impl Upsample {
    /// To these sizes, a number for each axis or one for all, by the mode `nearest`.
    pub fn to(size: impl Into<Vec<i64>>) -> Self {
        Upsample {
            size: size.into(),
            scale_factor: Vec::new(),
            mode: "nearest".to_owned(),
            align_corners: None,
            is_recomputed: false,
        }
    }

    /// By a factor, a number for each axis or one for all, by the mode `nearest`.
    pub fn by(scale_factor: impl Into<Vec<f64>>) -> Self {
        Upsample { scale_factor: scale_factor.into(), ..Upsample::to([]) }
    }

    /// By a mode of [`Var::interpolate`].
    #[must_use]
    pub fn mode(mut self, mode: &str) -> Self {
        mode.clone_into(&mut self.mode);
        self
    }

    setters! {
        /// Whether the first and the last elements fall on each other, or the ends of the axes.
        align_corners(align_corners: bool) => align_corners = Some(align_corners);
        /// With places that are those of the new sizes, and not of the factors.
        recompute_scale_factor() => is_recomputed = true;
    }
}

impl Module for Upsample {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let Upsample { size, scale_factor, mode, align_corners, is_recomputed } = self;
        cx.here(|| x.interpolate(size, scale_factor, mode, *align_corners, *is_recomputed, false))
    }
}

/// Layers over two axes with a mode of their own.
macro_rules! upsamplings {
    ($($(#[$doc:meta])* $name:ident = $mode:literal, $align_corners:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name(Upsample);

        impl $name {
            /// To these sizes.
            pub fn to(size: [i64; 2]) -> Self {
                $name(Upsample { align_corners: $align_corners, ..Upsample::to(size).mode($mode) })
            }

            /// By a factor along each axis.
            pub fn by(scale_factor: [f64; 2]) -> Self {
                let by = Upsample::by(scale_factor).mode($mode);
                $name(Upsample { align_corners: $align_corners, ..by })
            }
        }

        impl Module for $name {
            fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
                self.0.forward(cx, x)
            }
        }
    )*};
}

upsamplings! {
    /// Images resized by the nearest elements:
    /// [`torch.nn.UpsamplingNearest2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.UpsamplingNearest2d.html).
    UpsamplingNearest2d = "nearest", None;
    /// Images resized by lines between elements, the corners on each other:
    /// [`torch.nn.UpsamplingBilinear2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.UpsamplingBilinear2d.html).
    UpsamplingBilinear2d = "bilinear", Some(true);
}
