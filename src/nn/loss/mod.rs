//! Losses as layers, under PyTorch's names and with its defaults. Each takes the answers of a model
//! and what they should be.
//!
//! What they give is the mean of the losses, their sum, or each of them: see [`Reduction`].

mod classes;
mod linear;
mod margin;
mod regression;

pub use classes::{BceLoss, BceWithLogitsLoss, CrossEntropyLoss, NllLoss};
pub use linear::LinearCrossEntropyLoss;
pub use margin::{
    CosineEmbeddingLoss, HingeEmbeddingLoss, MarginRankingLoss, MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss, MultiMarginLoss, SoftMarginLoss, TripletMarginLoss,
};
pub use regression::{
    GaussianNllLoss, HuberLoss, KlDivLoss, L1Loss, MseLoss, PoissonNllLoss, SmoothL1Loss,
};

use crate::nn::Context;
use tracecast_ir::Var;
use tracecast_runtime::Tensor;

/// What becomes of the losses of the examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean; where classes have weights, the mean by these.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// They stay as they are.
    None,
}

impl Reduction {
    /// PyTorch's word for it, which ops take.
    fn word(self) -> Option<&'static str> {
        Some(match self {
            Reduction::Mean => "mean",
            Reduction::Sum => "sum",
            Reduction::None => "none",
        })
    }
}

/// The weights that a loss was given.
fn weights<'t>(cx: &Context<'t>, name: &str, given: Option<&Tensor>) -> Option<Var<'t>> {
    given.map(|numbers| cx.numbers(name, numbers))
}

/// A loss: its settings with their defaults, weights that are buffers, what it takes, and the
/// function.
macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$about:meta])* $field:ident: $ty:ty = $absent:expr,)*
    } $(weights { $($(#[$of:meta])* $weight:ident),+ })?
    takes ($($value:ident),+) = |$own:ident| $function:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            reduction: Reduction,
            $($field: $ty,)*
            $($($weight: Option<Tensor>,)+)?
        }

        impl $name {
            /// With PyTorch's settings.
            pub fn new() -> Self {
                $name { reduction: Reduction::Mean, $($field: $absent,)* $($($weight: None,)+)? }
            }

            $crate::setters::setters! {
                /// With another reduction than the mean.
                reduction(reduction: Reduction) => reduction = reduction;
                $($(#[$about])* $field($field: $ty) => $field = $field;)*
                $($($(#[$of])* $weight($weight: Tensor) => $weight = Some($weight);)+)?
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $name::new()
            }
        }

        impl Layer for $name {
            type Input<'t> = losses!(@each $($value)+);
            type Output<'t> = Var<'t>;

            fn forward<'t>(&self, cx: &Context<'t>, ($($value),+): Self::Input<'t>) -> Var<'t> {
                let $own = self;
                $($(let $weight = weights(cx, stringify!($weight), self.$weight.as_ref());)+)?
                cx.here(|| $function)
            }
        }
    )*};
    (@each $one:ident $two:ident) => { (Var<'t>, Var<'t>) };
    (@each $one:ident $two:ident $three:ident) => { (Var<'t>, Var<'t>, Var<'t>) };
}
use losses;
