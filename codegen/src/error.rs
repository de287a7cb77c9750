//! [`enum@Error`]: why a kernel has no code; [`NoMemory`]: why a run of one cannot go on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
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

/// There was no memory for a number of bytes of scratch. It unwinds from wherever a kernel needs
/// them, on any of its threads, to its launch.
struct NoMemory(usize);

/// Ends the run of a kernel that needs `bytes` bytes more than there are.
#[cold]
pub(crate) fn no_memory(bytes: usize) -> ! {
    // Without the words on standard error that a panic has: it becomes an error.
    resume_unwind(Box::new(NoMemory(bytes)))
}

/// The error of a kernel of that name which needs `bytes` bytes more than there are.
pub(crate) fn no_scratch(kernel: &str, bytes: usize) -> tracecast_runtime::Error {
    let message = format!("kernel @{kernel}: {bytes} bytes of scratch are not there");
    tracecast_runtime::Error::Device(message)
}

/// Runs a kernel of that name.
///
/// # Errors
/// Those of the run; and if memory for its scratch is missing.
pub(crate) fn with_memory(
    kernel: &str,
    run: impl FnOnce() -> tracecast_runtime::Result<()>,
) -> tracecast_runtime::Result<()> {
    let ended = |panic: Box<dyn Any + Send>| match panic.downcast::<NoMemory>() {
        Ok(missing) => Err(no_scratch(kernel, missing.0)),
        Err(panic) => resume_unwind(panic),
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(ended)
}

impl From<Error> for tracecast_runtime::Error {
    fn from(e: Error) -> Self {
        tracecast_runtime::Error::Device(e.to_string())
    }
}
