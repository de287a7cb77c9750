//! Mixed precision as the user says it: [`autocast()`] regions, functions with a gradient of their
//! own ([`custom_grad`]), the [`GradScaler`] of a recorded step, and the [`EagerScaler`] of an
//! eager loop.

mod autocast;
mod custom;
mod eager;
mod nested;
mod options;
mod own;
mod policy;
pub mod raw;
mod scaler;
mod settings;

pub use autocast::{Autocast, autocast};
pub use custom::{CustomGrad, custom_grad};
pub use eager::{EagerScaler, NewScale, Stage, unscale_grads};
pub use nested::{Nested, Scalable};
pub use options::{ScalerOptions, ScalerSettings};
pub use policy::{Histogram, LogMax, ScalePolicy};
pub(crate) use scaler::amax;
pub use scaler::{Check, GradScaler};
pub use settings::ScalerState;
pub use tracecast_runtime::error::ScalerError;
