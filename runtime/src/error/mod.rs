//! [`enum@Error`], the one error of the library, and [`DeviceId`], by which a fault names its
//! device.
//!
//! Crates above this one return the same type, so that `?` takes a call of any of them. Errors of
//! `ir` are variants.

mod call;
mod fault;
mod id;
mod scaler;

pub use call::UnrecordedCall;
pub use fault::{Fault, FaultKind};
pub use id::DeviceId;
pub use scaler::ScalerError;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use tracecast_ir::TensorType;
use tracecast_ir::kernel::Kernel;

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Error)]
#[non_exhaustive]
pub enum Error {
    /// An op that could not be recorded, with the line that asked for it.
    #[error(transparent)]
    Trace(#[from] tracecast_ir::TraceError),
    /// A text that is not a program.
    #[error(transparent)]
    Parse(#[from] tracecast_ir::ParseError),
    /// A program that the verifier refuses.
    #[error(transparent)]
    Verify(#[from] tracecast_ir::VerifyErrors),
    /// A pass that could not finish.
    #[error(transparent)]
    Passes(#[from] tracecast_ir::PassError),
    /// A region, a device type or a policy table.
    #[error(transparent)]
    Policy(#[from] tracecast_ir::policy::PolicyError),
    /// A size guard that fails, or a name of a size without a value.
    #[error(transparent)]
    Size(#[from] tracecast_ir::SizeError),
    /// A call of the eager scaler that has no meaning.
    #[error(transparent)]
    Scaler(#[from] ScalerError),
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
    /// The closure of a `Jit` panicked while another thread waited for its program, or it runs
    /// itself.
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
    /// The data a program met has no meaning for one of its ops. State is as it was before the run.
    #[error("{op}: {message}{}\n  in kernel @{kernel}", at(.source_line))]
    Data {
        /// The op.
        op: String,
        /// What it found.
        message: String,
        /// The line of the user's program.
        source_line: String,
        /// The kernel it became a part of.
        kernel: String,
    },
    /// An input of a run is missing, unknown, given twice, or of another type.
    #[error("input `{name}`: {message}")]
    Input {
        /// The name of the input.
        name: String,
        /// What was expected and what was found.
        message: String,
    },
    /// An entry of the store is missing or of another type.
    #[error("state `{name}`: {message}")]
    State {
        /// The name of the entry.
        name: String,
        /// What was expected and what was found.
        message: String,
    },
    /// A tensor is not what was asked for.
    #[error("tensor: {0}")]
    Tensor(String),
    /// A program cannot be planned.
    #[error("plan: {0}")]
    Plan(String),
    /// A rank of a parallel run is late, has left, or does something else. State is as it was
    /// before the step.
    #[error("rank {rank} {message}; in step {step}, bucket {bucket}")]
    Rank {
        /// The rank.
        rank: usize,
        /// The number of the step, from 0.
        step: u64,
        /// The number of the bucket within the step.
        bucket: u64,
        /// What is wrong with the rank.
        message: String,
    },
    /// The ranks of a parallel run do not fit together, or there are none.
    #[error("ranks: {0}")]
    Parallel(String),
    /// A run that ended early, as [`Cancel`](crate::Cancel) asked. State is as it was before.
    #[error("run: {0}")]
    Cancelled(String),
    /// A device failed. State is as it was after the last step that was complete.
    #[error(transparent)]
    Fault(Box<Fault>),
    /// A device failed, is unknown, or was given what it cannot take.
    #[error("device: {0}")]
    Device(String),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is no archive of numpy arrays, or not what was expected of it.
    #[error("{}: {message}", path.display())]
    Npz {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A file is not of the format safetensors, or not what was expected of it.
    #[error("{}: {message}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A file is no archive of `torch.export`, or a damaged one.
    #[error("{}: {message}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        message: String,
    },
    /// Calls of an exported program that cannot be recorded.
    #[error("{}: {}", path.display(), call::listed(calls))]
    Exported {
        /// The file.
        path: PathBuf,
        /// All of them.
        calls: Vec<UnrecordedCall>,
    },
}

/// As [`Display`](fmt::Display): this is what a `main` that returns an error prints, and `unwrap`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// The data error that a kernel's check of that number stands for, and what the check found if
    /// the device knows; a device error if the kernel has no such check. `sizes` are what the
    /// kernel was bound with ([`Launch::bind`](crate::Launch::bind)).
    pub fn data(kernel: &Kernel, sizes: &[i64], check: usize, found: Option<i64>) -> Self {
        match kernel.checks.get(check) {
            Some(c) => Error::Data {
                op: c.op.clone(),
                message: c.at(&kernel.values(sizes)).says(found),
                source_line: c.source.clone(),
                kernel: kernel.name.clone(),
            },
            None => Error::Device(format!(
                "kernel @{} raised check {check}, which it does not have",
                kernel.name
            )),
        }
    }

    pub(crate) fn input(name: &str, message: impl Into<String>) -> Self {
        Error::Input { name: name.to_owned(), message: message.into() }
    }

    pub(crate) fn state(name: &str, message: impl Into<String>) -> Self {
        Error::State { name: name.to_owned(), message: message.into() }
    }

    pub(crate) fn expected(expected: &TensorType, found: &TensorType) -> String {
        format!("expected {expected}, found {found}")
    }
}

fn at(source: &str) -> String {
    if source.is_empty() { String::new() } else { format!("\n  at {source}") }
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
