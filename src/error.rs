//! The one error of the library, which [`tracecast_runtime::error`] defines.

pub use tracecast_runtime::{Error, Result};
