//! Archives of `torch.export` with what PyTorch computes: results in both modes, losses, gradients,
//! the dtype of every node under autocast, regions of the file, training steps, and sizes by name.
//!
//! `tests/data/pt2` has small ones; `TRACECAST_PT2=DIR` takes those of another folder with the same
//! files beside them.

#![allow(clippy::unwrap_used, reason = "recorded data that cannot be read is a failed test")]
#![allow(clippy::print_stdout, reason = "the figures are for who runs the test")]

mod answers;
mod dtypes;
mod dynamic;
mod errors;
mod models;
mod regions;
mod steps;
