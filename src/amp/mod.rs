//! Mixed precision as the user says it: [`autocast`] regions, and the [`GradScaler`] of a recorded step.

mod autocast;
mod scaler;

pub use autocast::{Autocast, autocast};
pub use scaler::{GradScaler, ScalerOptions};
