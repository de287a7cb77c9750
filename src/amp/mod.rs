//! Mixed precision as the user says it: [`autocast`] regions, the [`GradScaler`] of a recorded step, and the [`EagerScaler`] of an
//! eager loop.

mod autocast;
mod eager;
mod nested;
pub mod raw;
mod refusal;
mod scaler;
mod settings;

pub use autocast::{Autocast, autocast};
pub use eager::{EagerScaler, NewScale, Stage, unscale_grads};
pub use nested::{Nested, Scalable};
pub use refusal::ScalerError;
pub use scaler::{GradScaler, ScalerOptions};
pub use settings::ScalerState;
