//! How the code of a row stage is cut into phases: vector loops, scalar loops, and calls of tile routines.
//!
//! ```text
//! t0 = load x; t1 = mul t0, c; t2 = exp t1; t3 = add t2, 1; store t3
//!   vector: t0 t1        ->  t1 goes to scratch
//!   tile:   t2 = exp(t1)     scratch to scratch
//!   vector: t3, store
//! ```
//!
//! Values that are the same along the row belong to no phase: they are computed once per row. Loads that are cheap to repeat are
//! emitted in every phase that needs them. With a single phase there are no tiles and no scratch.

mod classify;
mod cut;
mod scratch;

pub(crate) use scratch::scratch_bytes;

use super::{Plan, Stage};
use tracecast_ir::kernel::{Scalar, Val};

/// How a value is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Once per row.
    Uniform,
    /// Wherever it is needed, by a vector or scalar loop, or read in place by a tile routine.
    Free,
    /// In a vector loop.
    Vector,
    /// In a scalar loop.
    Scalar,
    /// By a tile routine.
    Tile,
}

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
    /// In order.
    pub(crate) phases: Vec<Phase>,
    /// Where in the scratch a value waits between phases.
    pub(crate) waits: Vec<Option<i32>>,
    /// Positions of a tile.
    pub(crate) tile: i64,
    /// The scratch it needs.
    pub(crate) bytes: i32,
    /// Vectors have lanes of 64 bits.
    pub(crate) doubles: bool,
}

/// True for the types that vector loops compute in.
pub(crate) fn is_vector(ty: Scalar) -> bool {
    matches!(ty, Scalar::F32 | Scalar::I32 | Scalar::Bool)
}

/// What vector loops have instructions for, besides what they always have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Has {
    /// Rounding to integral floats.
    pub(crate) floor: bool,
    /// Everything the wide loops can do: 16-bit floats and most functions.
    pub(crate) wide: bool,
    /// Lanes of 64 bits.
    pub(crate) doubles: bool,
}

/// Cuts a row stage.
pub(crate) fn cut(plan: &Plan, stage: &Stage, has: Has) -> Phases {
    let mut cut = cut::Cut::new(plan, stage, has);
    cut.prefer_scalar();
    cut.assign();
    cut.finish()
}
