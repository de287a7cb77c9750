//! How the code of a row stage is cut into phases: vector loops, scalar loops, and calls of tile
//! routines.
//!
//! ```text
//! t0 = load x; t1 = mul t0, c; t2 = exp t1; t3 = add t2, 1; store t3
//!   vector: t0 t1        ->  t1 goes to scratch
//!   tile:   t2 = exp(t1)     scratch to scratch
//!   vector: t3, store
//! ```
//!
//! Values that are the same along the row belong to no phase: they are computed once per row. Loads
//! that are cheap to repeat are emitted in every phase that needs them. With a single phase there
//! are no tiles and no scratch.

pub(crate) mod capability;
mod classify;
mod cut;
mod scratch;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod text;

pub(crate) use capability::{Capability, Class, Lanes, VectorLoops};
pub(crate) use cut::cut;
pub(crate) use scratch::scratch_bytes;

use tracecast_ir::kernel::Val;

/// The code of one pass over a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Groups of 16 positions, then single ones.
    Vector,
    /// Single positions.
    Scalar,
    /// Calls of tile routines.
    Tile,
}

/// One pass over a tile.
#[derive(Debug)]
pub(crate) struct Phase {
    /// How it runs.
    pub(crate) kind: Kind,
    /// Its instructions in order.
    pub(crate) insts: Vec<Val>,
    /// The stage's sinks it feeds.
    pub(crate) sinks: Vec<usize>,
}

/// A stage, cut.
#[derive(Debug)]
pub(crate) struct Phases {
    /// Of every instruction.
    pub(crate) class: Vec<Class>,
    /// True for the instructions that anything needs.
    pub(crate) needed: Vec<bool>,
    /// True for the loads of a scalar loop whose elements are stored unconverted.
    pub(crate) moved: Vec<bool>,
    /// In order.
    pub(crate) phases: Vec<Phase>,
    /// Where in the scratch a value waits between phases.
    pub(crate) temporaries: Vec<Option<i32>>,
    /// Positions of a tile.
    pub(crate) tile: i64,
    /// The scratch it needs.
    pub(crate) bytes: i32,
    /// The lanes of its vector loops.
    pub(crate) lanes: Lanes,
}
