//! [`Task`]: a phase to compile, and what the caller puts into the cells of its function.

use super::asm::Reg;
use crate::machine::Width;
use crate::plan::phases::{Phase, Phases, VectorLoops};
use crate::plan::{Plan, Stage};
use std::collections::HashMap;
use tracecast_ir::kernel::Val;

impl Width {
    /// The bytes of a vector.
    pub(super) fn bytes(self) -> i32 {
        match self {
            Width::Bits256 => 32,
            Width::Bits512 => 64,
        }
    }

    /// The loops made of such vectors.
    pub(super) fn loops(self) -> VectorLoops {
        match self {
            Width::Bits256 => VectorLoops::Avx2,
            Width::Bits512 => VectorLoops::Avx512,
        }
    }

    /// How many vector registers there are.
    pub(super) fn registers(self) -> usize {
        match self {
            Width::Bits256 => 16,
            Width::Bits512 => 32,
        }
    }

    /// How many registers reductions may have.
    pub(super) fn accumulators(self) -> usize {
        match self {
            Width::Bits256 => 8,
            Width::Bits512 => 12,
        }
    }

    /// The register of an accumulator.
    pub(super) fn accumulator(self, number: u8) -> Reg {
        self.registers() as Reg - 1 - number
    }
}

/// Where a row has its buffers and accumulators in the scratch.
pub(crate) struct RowScratch {
    /// The offset of each row buffer.
    pub(crate) buffers: Vec<i32>,
    /// The offset of the lanes of each reduction, by sink.
    pub(crate) lanes: HashMap<usize, i32>,
}

/// A phase to compile.
pub(crate) struct Task<'a> {
    /// The vectors to use.
    pub(crate) width: Width,
    /// The plan that it belongs to.
    pub(crate) plan: &'a Plan,
    /// Its stage.
    pub(crate) stage: &'a Stage,
    /// How the stage is cut.
    pub(crate) cut: &'a Phases,
    /// The phase.
    pub(crate) phase: &'a Phase,
    /// The rows that the loop computes together: one, or a pair.
    pub(crate) rows: Vec<RowScratch>,
    /// The offset in the scratch of values that one phase leaves for another.
    pub(crate) temporaries: i32,
    /// The rows to prefetch.
    pub(crate) prefetched: Vec<Prefetched>,
    /// The loop initialises its accumulators itself, since a call is the whole of a reduction. Were
    /// they stored by the caller, in vectors of 128 bits, reading them in vectors of 512 bits would
    /// defeat store forwarding and wait for all earlier stores.
    pub(crate) initialises: bool,
    /// The offset from which the scratch is free; a multiple of 64.
    pub(crate) area: i32,
    /// Aligned results use non-temporal stores. They are too large to stay in a cache, and come at
    /// the pace of the loads. Rows of several stages store in bursts, which would wait for memory.
    pub(crate) streams: bool,
}

impl Task<'_> {
    /// The registers of a reduction. The lanes that the next sixteen positions go to come first;
    /// those of the other sixteen lanes, if the row fills them, change places with them after every
    /// sixteen positions.
    pub(super) fn vectors(&self) -> usize {
        self.plan.lanes() / self.lanes() as usize
    }

    /// The bytes of a lane.
    pub(super) fn lane(&self) -> i32 {
        self.cut.lanes.bytes()
    }

    /// The lanes of a vector.
    pub(super) fn lanes(&self) -> i32 {
        self.width.bytes() / self.lane()
    }

    /// True if positions go to two groups of sixteen lanes by turns.
    pub(super) fn alternates(&self) -> bool {
        self.plan.lanes() > 16
    }
}

/// A row to prefetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetched {
    /// Of an element.
    pub(crate) bytes: u8,
    /// It will be written, not only read.
    pub(crate) written: bool,
}

/// What the caller puts into a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// The address of a load at position 0, valid along the row even if a guard fails.
    Load(Val),
    /// The address of a sink at position 0.
    Sink(usize),
    /// A value that is the same along the row, as 32 bits; truth as all of them.
    Uniform(Val),
    /// The address of a row to prefetch, by number.
    Prefetch(usize),
    /// The number of position 0 of an index, as 32 bits.
    Start(Val),
    /// Whether the guard of a load holds: all of 32 bits or none.
    Guard(Val),
    /// Whether the row is the first of its chunk of a column: all of 32 bits or none.
    First(usize),
    /// Sixteen bytes of a stored value that is the same along the row.
    Pattern(usize),
    /// Nothing: the loop keeps there which lanes of a half are left in the tail.
    Mask(u8),
}
