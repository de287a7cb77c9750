//! Reads the archives that `torch.export.save` writes, and records their programs on a tracer.
//!
//! [`Exported::open`] reads the program, checks every op against the table of `tracecast-aten`, and
//! knows where the weights are; [`Exported::record`] records it for a [`Host`], which gives
//! parameters, state and regions.

mod archive;
mod model;
mod program;
mod strides;
mod zip;

pub use model::{Constant, Exported, Host, Input, Plain, State};
