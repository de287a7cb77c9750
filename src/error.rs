//! [`Error`]: one variant for each part of the way from a closure to a result.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Error)]
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
    /// A checkpoint that does not have what is asked for. Names are those in the file.
    #[error("{}: {}", path.display(), misfit(missing, unexpected, differing))]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        missing: Vec<String>,
        /// What it has besides.
        unexpected: Vec<String>,
        /// What is of another type, in words.
        differing: Vec<String>,
    },
    /// A size guard that fails, or a name of a size without a value.
    #[error(transparent)]
    Size(#[from] tracecast_ir::SizeError),
    /// The closure of a [`Jit`](crate::Jit) panicked while another thread waited for its program, or it runs itself.
    #[error("`{name}` {message}")]
    Closure {
        /// The name of the program.
        name: String,
        /// What it did.
        message: String,
    },
    /// The error of a compilation that several threads waited for.
    #[error(transparent)]
    Shared(Arc<Error>),
    /// An option that has no meaning here.
    #[error("option `{option}`: {message}")]
    Option {
        /// Which one.
        option: &'static str,
        /// What was expected and what was found.
        message: String,
    },
}

/// As [`Display`](fmt::Display): this is what a `main` that returns an error prints, and `unwrap`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What does not fit, the first few of each kind.
fn misfit(missing: &[String], unexpected: &[String], differing: &[String]) -> String {
    const SHOWN: usize = 12;
    let lists = [("missing: ", missing), ("unexpected: ", unexpected), ("", differing)];
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    let told = lists.map(|(what, names)| {
        let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
        match names.len().saturating_sub(SHOWN) {
            0 => format!("{what}{shown}"),
            more => format!("{what}{shown} and {more} more"),
        }
    });
    told.collect::<Vec<_>>().join("; ")
}
