//! The meaning of the language: an interpreter of kernels, and of graphs node by node.
//!
//! It is written to be read, not to be fast, and it is the definition: what a device computes is
//! compared with what [`kernel()`] says, bit by bit except in contractions. A NaN is one wherever
//! it is computed; its sign and its payload mean nothing and may differ from device to device
//! ([`Value::first_difference`] takes any two NaN for equal).

mod bytes;
mod data;
mod element;
mod exchange;
mod graph;
mod kernel;
mod mapping;
#[cfg(test)]
mod tests;
mod value;

pub use bytes::Bytes;
pub use data::data;
pub use element::element;
pub use graph::{Outputs, Seen, graph, ranks, watched};
pub use kernel::kernel;
pub use mapping::give_back_free;
pub use value::Value;

use crate::TraceError;
use crate::kernel::Check;
use thiserror::Error;

/// Why there is no result.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum EvalError {
    /// The data has no meaning for an op.
    #[error("{}: {}", .0.check.op, .0.check.says(.0.found))]
    Data(Box<Raised>),
    /// A port has no value, or one of another type.
    #[error("port {0}")]
    Port(String),
    /// An op that a pass has to remove first.
    #[error("{op} is symbolic: run {pass} first")]
    Symbolic {
        /// The op.
        op: String,
        /// The pass that removes it.
        pass: &'static str,
    },
    /// The graph cannot be traced again.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A value that memory does not take.
    #[error("{0}")]
    Memory(String),
    /// A kernel that the kernel builder would not make, or cannot.
    #[error("not well formed: {0}")]
    Malformed(String),
}

/// A check that was raised.
#[derive(Clone, Debug, PartialEq)]
pub struct Raised {
    /// Its number among the kernel's checks.
    pub number: usize,
    /// What it says.
    pub check: Check,
    /// The least number that it was raised for, if it is about one.
    pub found: Option<i64>,
    /// The kernel's name.
    pub kernel: String,
}
