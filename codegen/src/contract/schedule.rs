//! [`Chosen`]: a product's schedule as a value. Drivers state it by the functions that runs call.

use smallvec::SmallVec;
use std::fmt::{self, Display, Formatter};

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// Five loops around panels of both operands, as BLIS has them.
    Gemm,
    /// A few rows by columns that lie along `k`, transposed in registers.
    Gemv,
    /// A convolution that reads columns from a padded copy of the input by a table of offsets.
    ImplicitGemm {
        /// What vectors run along.
        vectors: Axis,
        /// Where sums go from registers.
        store: Store,
    },
    /// The gradient of a convolution's weight: `k` runs over examples and positions.
    WeightGrad {
        /// How the input is read.
        source: Load,
        /// Threads that share `k`.
        split_k: usize,
    },
    /// A depthwise convolution.
    Depthwise(Pass, Layout),
    /// A transposed convolution: a convolution for each phase of the stride.
    SubPixel,
    /// Attention in tiles of queries and blocks of keys.
    Attention,
}

/// What the vectors of an [`Schedule::ImplicitGemm`] run along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Columns of the product: positions of the output.
    Columns,
    /// Rows of the product: channels of the output.
    Channels,
}

/// Where sums go from registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// To the result.
    InPlace,
    /// To a buffer, and from there to the result or an epilogue.
    Staged,
}

/// A pass of a depthwise convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// The convolution, or the gradient of its input at stride 1.
    Forward,
    /// The transposed one.
    Transposed,
    /// The gradient of the weight.
    WeightGrad,
}

/// How the input of a [`Schedule::Depthwise`] is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// In the operand itself.
    InPlace,
    /// From a copy of each channel in the dtype of the sums.
    Packed,
    /// From a padded copy of each channel.
    Padded,
    /// From a padded copy with a channel in each lane of a vector, as `nChw16c`.
    Blocked,
}

/// How an operand is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// In the operand itself.
    InPlace,
    /// Packed.
    Packed,
    /// Packed by an earlier run.
    Prepacked,
    /// Packed through a view of several axes: overlapping windows (`im2col`), or a permuted weight.
    Gathered,
    /// Computed by compiled code, then packed.
    Computed,
    /// From a padded copy.
    Padded,
    /// From a padded copy with positions a stride apart side by side.
    PaddedByPhase,
}

/// The schedule that is chosen for a product. Printing gives a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) schedule: Schedule,
    /// How the left and the right operand are read.
    pub(crate) loads: [Load; 2],
    /// Rows and columns of the product change places.
    pub(crate) swapped: bool,
    /// bf16 are multiplied in pairs.
    pub(crate) pairs: bool,
    /// Rows and columns of sums in registers (register tile). `None` where it is not fixed.
    pub(crate) tile: Option<[usize; 2]>,
    /// Blocks of the loops around it: the name of the axis, and its size.
    pub(crate) blocks: SmallVec<[(&'static str, usize); 4]>,
}

/// The schedule of one thread's part, and the thread grid: the number of parts of each axis.
pub(crate) type Shared = (Chosen, [(&'static str, usize); 3]);

impl Chosen {
    /// A schedule with these loads, and no swap, pairs, tile or blocks.
    pub(super) fn new(schedule: Schedule, loads: [Load; 2]) -> Chosen {
        let blocks = SmallVec::new();
        Chosen { schedule, loads, swapped: false, pairs: false, tile: None, blocks }
    }
}

impl Display for Chosen {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Chosen { schedule, loads: [left, right], swapped, pairs, tile, blocks } = self;
        write!(f, "{schedule:?}")?;
        f.write_str(if *swapped { ", swapped" } else { "" })?;
        f.write_str(if *pairs { ", pairs" } else { "" })?;
        tile.iter().try_for_each(|[rows, columns]| write!(f, ", tile {rows}x{columns}"))?;
        blocks.iter().try_for_each(|(what, count)| write!(f, ", {what} {count}"))?;
        write!(f, ", left {left:?}, right {right:?}")
    }
}
