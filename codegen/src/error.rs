//! [`enum@Error`]: why a kernel has no code.

use thiserror::Error;

/// The result of the compiler's functions.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Why a kernel has no code.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The machine the process runs on has no code generator.
    #[error("no code generator for this machine: {0}")]
    Machine(String),
    /// The kernel asks for what no code exists for.
    #[error("kernel @{kernel}: {what} is not supported on the CPU")]
    Unsupported {
        /// The kernel.
        kernel: String,
        /// What it asks for.
        what: String,
    },
    /// The sizes of a kernel are no numbers.
    #[error("kernel @{kernel}: {why}")]
    Sizes {
        /// The kernel.
        kernel: String,
        /// What is wrong with them.
        why: String,
    },
    /// Plans are asked for behind a transformation that there is not.
    #[error("no transformation of plans is named `{name}`: there are {known}")]
    NoTransformation {
        /// Its name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// Cranelift refused.
    #[error("kernel @{kernel}: the code generator failed: {message}")]
    Compile {
        /// The kernel.
        kernel: String,
        /// What it said.
        message: String,
    },
    /// The operands do not fit the kernel.
    #[error("kernel @{kernel}: {message}")]
    Operands {
        /// The kernel.
        kernel: String,
        /// What does not fit.
        message: String,
    },
}

impl From<Error> for tracecast_runtime::Error {
    fn from(e: Error) -> Self {
        tracecast_runtime::Error::Device(e.to_string())
    }
}
