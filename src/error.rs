//! [`Error`]: one variant for each part of the way from a closure to a result.

use thiserror::Error;

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An op that could not be recorded, with the line that asked for it.
    #[error(transparent)]
    Trace(#[from] tracecast_ir::TraceError),
    /// A pass that could not finish.
    #[error(transparent)]
    Passes(#[from] tracecast_passes::Error),
    /// A device, a tensor, the store, or a run.
    #[error(transparent)]
    Runtime(#[from] tracecast_runtime::Error),
    /// A region, a device type or a policy table.
    #[error(transparent)]
    Policy(#[from] tracecast_ir::policy::PolicyError),
    /// A call of the eager scaler that has no meaning.
    #[error(transparent)]
    Scaler(#[from] crate::amp::ScalerError),
    /// A sparse gradient given to an optimizer that has no use for it.
    #[error(
        "parameter {0} has a sparse gradient: SGD and Adagrad take those if not fused, this optimizer needs `Gradient::to_dense`"
    )]
    SparseGradient(usize),
    /// An option that has no meaning here.
    #[error("option `{option}`: {message}")]
    Option {
        /// Which one.
        option: &'static str,
        /// What was expected and what was found.
        message: String,
    },
}
