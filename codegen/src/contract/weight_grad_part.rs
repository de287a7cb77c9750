//! [`Positions`]: a part of a weight gradient, and where its sums go.

use super::operand::Source;
use super::weight_grad_right::Channels;
use crate::machine::Cpu;
use std::ops::Range;
use tracecast_ir::DType;

/// A part of a weight gradient.
#[derive(Clone)]
pub(crate) struct Positions<'a> {
    pub(crate) cpu: &'a Cpu,
    /// f32 or f64.
    pub(crate) acc: DType,
    /// Left operand of the first batch: a matrix, or a view without bounds.
    pub(crate) a: Source<'a>,
    /// Right operand: a view through windows.
    pub(crate) b: Source<'a>,
    /// Offsets of a batch's operands from those of the first one, in elements.
    pub(crate) at: &'a dyn Fn(usize) -> [isize; 2],
    pub(crate) channels: &'a Channels,
    /// Rows and columns of the result are swapped.
    pub(crate) is_traded: bool,
    /// The batches, rows and channels to compute.
    pub(crate) batches: Range<usize>,
    pub(crate) rows: Range<usize>,
    pub(crate) part: Range<usize>,
    /// Rows of a batch of the result, and steps.
    pub(crate) m: usize,
    pub(crate) k: usize,
    /// What is computed of a single batch whose `k` threads share.
    pub(crate) split: Option<Split>,
}

impl Positions<'_> {
    /// Steps of an example.
    pub(super) fn each(&self) -> usize {
        self.k / self.channels.examples
    }
}

/// A part of `k`: whole blocks, whose sums are kept.
#[derive(Clone)]
pub(crate) struct Split {
    /// The steps to sum. Without any, the sums of all blocks are added in order and passed on.
    pub(crate) steps: Range<usize>,
    /// Room for the kept sums, of [`shared_bytes`](super::shared_bytes).
    pub(crate) sums: *mut u8,
    /// Blocks that are added up at once.
    pub(crate) first: usize,
    pub(crate) threads: usize,
}

/// Rows and channels that are computed together.
pub(super) struct Part {
    pub(super) rows: Range<usize>,
    pub(super) channels: Range<usize>,
    /// Sums of the block so far may be subnormal.
    pub(super) tiny: bool,
}
