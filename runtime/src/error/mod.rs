//! What can go wrong with tensors, state, devices and runs, and [`DeviceId`], by which a fault names its device.

mod fault;
mod id;

pub use fault::{Fault, FaultKind};
pub use id::DeviceId;

use std::fmt;
use std::path::PathBuf;
use thiserror::Error;
use tracecast_ir::TensorType;
use tracecast_ir::kernel::Kernel;

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Error)]
#[non_exhaustive]
pub enum Error {
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
    /// A rank of a parallel run is late, has left, or does something else. State is as it was before the step.
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
}

/// As [`Display`](fmt::Display): this is what a `main` that returns an error prints, and `unwrap`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// The data error that a kernel's check of that number stands for, and what the check found if the device knows; a device error
    /// if the kernel has no such check. `sizes` are what the kernel was bound with ([`Launch::bind`](crate::Launch::bind)).
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
