//! [`Positions`]: a weight gradient, the part of it that is computed, and where its sums go.

use super::operand::Source;
use super::weight_grad_right::Channels;
use crate::machine::Cpu;
use std::ops::Range;
use tracecast_ir::DType;

/// A weight gradient.
#[derive(Clone, Copy)]
pub(crate) struct Positions<'a> {
    pub(crate) cpu: &'a Cpu,
    /// f32 or f64.
    pub(crate) acc: DType,
    /// Left operand: a matrix, or a view without bounds.
    pub(crate) a: Source<'a>,
    /// Right operand: a view through windows.
    pub(crate) b: Source<'a>,
    pub(crate) channels: &'a Channels,
    /// Rows and columns of the result are swapped.
    pub(crate) is_traded: bool,
}

/// Sums by block of `k`: the first blocks are added up, each later one has its own buffer.
#[derive(Clone, Copy)]
pub(crate) struct Kept<T> {
    pub(crate) sums: *mut T,
    /// Blocks that are added up.
    pub(crate) first: usize,
}

/// Rows and channels that are computed together.
pub(super) struct Part {
    pub(super) rows: Range<usize>,
    pub(super) channels: Range<usize>,
    /// Steps of an example, and of all.
    pub(super) each: usize,
    pub(super) k: usize,
    /// Sums of the block so far may be subnormal.
    pub(super) tiny: bool,
}

impl Part {
    /// The part of some rows and channels.
    pub(super) fn of(work: &Positions<'_>, part: (Range<usize>, Range<usize>), k: usize) -> Part {
        let (rows, channels) = part;
        Part { rows, channels, each: k / work.channels.examples, k, tiny: false }
    }
}
