//! Calls of the products: contractions of matrices, over images and over positions.

use super::{Address, Fill, with_packed};
use crate::contract;
use crate::machine::Cpu;
use std::ops::Range;
use tracecast_ir::DType;

/// An operand of a contraction.
#[derive(Clone, Copy)]
pub(in crate::run) enum Operand<'a> {
    /// Floats in memory: element (0, 0), and how to go on, in elements.
    Matrix {
        /// Element (0, 0).
        base: Address,
        /// The dtype of the elements.
        dtype: DType,
        /// The 16-bit float to whose values they are rounded first.
        round: Option<DType>,
        /// From a row to the next.
        row: isize,
        /// From a column to the next.
        col: isize,
    },
    /// Floats in memory of which rows or columns are several axes.
    Windows {
        /// Element (0, 0).
        base: Address,
        /// The dtype of the elements.
        dtype: DType,
        /// The 16-bit float to whose values they are rounded first.
        round: Option<DType>,
        /// Their addresses.
        seen: &'a contract::Seen,
    },
    /// Computed block by block, in that dtype.
    Computed(&'a Fill<'a>, DType),
    /// All of a right operand, packed by [`keep`].
    Packed {
        /// Where it is.
        base: Address,
        /// How it lies.
        panels: contract::Panels,
        /// The least that [`keep`] has returned.
        least: u16,
    },
}

impl Operand<'_> {
    pub(in crate::run) fn source(&self) -> contract::Source<'_> {
        match self {
            Operand::Matrix { base, dtype, round, row, col } => contract::Source::Matrix {
                base: base.0.cast_const(),
                dtype: *dtype,
                round: *round,
                row: *row,
                col: *col,
            },
            Operand::Windows { base, dtype, round, seen } => contract::Source::Windows {
                base: base.0.cast_const(),
                dtype: *dtype,
                round: *round,
                seen,
            },
            Operand::Computed(fill, dtype) => contract::Source::Fill { fill, dtype: *dtype },
            Operand::Packed { base, panels, least } => contract::Source::Packed {
                base: base.0.cast_const(),
                panels: *panels,
                least: *least,
            },
        }
    }
}

/// Packs some columns of a right operand, from a multiple of [`contract::PIECE`] to another one or
/// the end, to their place in memory for all of them, which no thread uses. Returns the least of
/// the numbers, for [`Operand::Packed`].
pub(in crate::run) fn keep(
    cpu: &Cpu,
    panels: &contract::Panels,
    piece: Range<usize>,
    b: &Operand<'_>,
    to: Address,
) -> u16 {
    with_packed(|packed| {
        // SAFETY: the instructions are those of this CPU, as `InstructionSet::of` chose them, and
        // the panels were made for it; matrices are operands of the kernel, whose accesses stay
        // inside for these columns and all of `k`; the place is the caller's.
        unsafe { contract::keep(cpu, panels, piece, &b.source(), packed, to.0) }
    })
}

/// Takes a block of sums, as `Sink` of `contract` does.
pub(in crate::run) type Sink<'a> = dyn FnMut(Range<usize>, Range<usize>, Address) + 'a;

/// A `Sink` of `contract` that passes blocks on.
fn by_pointer(sink: &mut Sink<'_>) -> impl FnMut(Range<usize>, Range<usize>, *const u8) {
    move |rows, columns, sums| sink(rows, columns, Address(sums.cast_mut()))
}

/// The ranges of one contraction.
#[derive(Clone, Debug)]
pub(in crate::run) struct Block {
    /// Of the result.
    pub(in crate::run) rows: Range<usize>,
    /// Of the result.
    pub(in crate::run) cols: Range<usize>,
    /// The summed axis, all of it.
    pub(in crate::run) k: usize,
}

/// A matrix that the epilogue of a contraction writes or reads: element (0, 0), bytes from a row to
/// the next, bytes of an element.
pub(in crate::run) fn prefetched(base: Address, row: isize, cell: usize) -> contract::Prefetch {
    contract::Prefetch { base: base.0.cast_const(), row, cell }
}

/// Sums of contractions over images, for some batches and windows; see
/// [`contract::Correlation::run`]. They are stored from that address on, rows a stride apart, where
/// that is all that becomes of them, or go to the epilogue.
pub(in crate::run) fn correlate(
    work: &contract::Correlation<'_>,
    stored: Option<(Address, usize, DType)>,
    batches_and_windows: (Range<usize>, Range<usize>),
    at: &dyn Fn(usize) -> [isize; 2],
    sink: &mut Sink<'_>,
) {
    let stored = stored.map(|(first, ld, dtype)| contract::Stored { first: first.0, ld, dtype });
    let work = contract::Correlation { stored, ..*work };
    // SAFETY: as for `contract`, for these batches and windows; sums are stored to the result.
    with_packed(|packed| unsafe {
        work.run(batches_and_windows, at, packed, &mut by_pointer(sink))
    });
}

/// Sums of transposed convolutions, for some planes of the operand, the weight and the result that
/// begin there; see [`contract::Transposed::run`]. Those of a plane go to `sink` where they are not
/// stored as they are.
pub(in crate::run) fn transposed(
    work: &contract::Transposed<'_>,
    [x, weight, sums]: [Address; 3],
    planes: Range<usize>,
    sink: &mut Sink<'_>,
) {
    let placed =
        contract::Placed { x: x.0.cast_const(), weight: weight.0.cast_const(), sums: sums.0 };
    // SAFETY: as for `contract`, for these planes.
    with_packed(|packed| unsafe { work.run(placed, planes, packed, &mut by_pointer(sink)) });
}

/// Sums of transposed convolutions of several planes, for some groups and planes of the result in
/// each; see [`contract::Phases::run`].
pub(in crate::run) fn phases(
    work: &contract::Phases<'_>,
    [x, weight]: [Address; 2],
    groups_and_planes: (Range<usize>, Range<usize>),
    sink: &mut Sink<'_>,
) {
    let operands = [x.0.cast_const(), weight.0.cast_const()];
    // SAFETY: as for `contract`, for these groups.
    with_packed(|packed| unsafe {
        work.run(operands, groups_and_planes, packed, &mut by_pointer(sink))
    });
}

/// Sums of a contraction over positions, for some rows and channels; see
/// [`contract::Positions::run`].
pub(in crate::run) fn over_positions(
    work: &contract::Positions<'_>,
    rows_and_channels: (Range<usize>, Range<usize>),
    k: usize,
    sink: &mut Sink<'_>,
) {
    // SAFETY: as for `contract`, for these rows and channels.
    with_packed(|packed| unsafe { work.run(rows_and_channels, k, packed, &mut by_pointer(sink)) });
}

/// Sums of a contraction over lines of windows, for some lines of batches; see
/// [`contract::OverLines::run`].
pub(in crate::run) fn over_lines(
    work: &contract::OverLines<'_>,
    lines: Range<usize>,
    at: &dyn Fn(usize) -> [isize; 2],
    sink: &mut Sink<'_>,
) {
    // SAFETY: as for `contract`, for these lines.
    with_packed(|packed| unsafe { work.run(lines, at, packed, &mut by_pointer(sink)) });
}

/// Sums over some steps of a contraction over positions, of all its `rows` rows, and columns; see
/// [`contract::Positions::share`]. Those of a number of blocks are added up at that address.
pub(in crate::run) fn share_positions(
    work: &contract::Positions<'_>,
    rows_and_k: [usize; 2],
    steps: Range<usize>,
    (sums, first): (Address, usize),
) {
    let kept = contract::Kept { sums: sums.0, first };
    // SAFETY: as for `contract`; there is room for the sums.
    with_packed(|packed| unsafe { work.share(rows_and_k, steps, kept, packed) });
}

/// Hands on what all of [`share_positions`] have summed.
pub(in crate::run) fn merge_positions(
    work: &contract::Positions<'_>,
    rows_and_k: [usize; 2],
    (sums, first): (Address, usize),
    sink: &mut Sink<'_>,
) {
    let kept = contract::Kept { sums: sums.0, first };
    // SAFETY: the sums of all steps are there.
    with_packed(|packed| unsafe { work.merge(rows_and_k, kept, packed, &mut by_pointer(sink)) });
}

/// What becomes of the sums of a block: an epilogue gets them, or they are stored from that address
/// on, rows a stride apart.
pub(in crate::run) enum Finish<'a> {
    Epilogue(&'a mut Sink<'a>),
    /// They are rounded to bf16 and stored by the epilogue, or from that address on.
    Rounded(&'a mut Sink<'a>, Address, usize),
    Store(Address, usize),
}

/// Contracts a block.
pub(in crate::run) fn contract(
    cpu: &Cpu,
    acc: DType,
    block: Block,
    [a, b]: [Operand<'_>; 2],
    prefetched: &[contract::Prefetch],
    finish: Finish<'_>,
) {
    let Block { rows, cols, k } = block;
    let (a, b) = (a.source(), b.source());
    let run = |finish: contract::Finish<'_>| {
        // SAFETY: the instructions are those of this CPU, as `InstructionSet::of` chose them;
        // matrices are operands of the kernel, whose accesses stay inside for the rows, the columns
        // and `k` of its extents.
        with_packed(|packed| unsafe {
            contract::contract(cpu, acc, rows, cols, k, &a, &b, packed, prefetched, finish)
        });
    };
    match finish {
        Finish::Store(to, row) => run(contract::Finish::Store(to.0, row)),
        Finish::Rounded(sink, to, row) => {
            run(contract::Finish::Rounded(&mut by_pointer(sink), to.0, row));
        }
        Finish::Epilogue(sink) => run(contract::Finish::Epilogue(&mut by_pointer(sink))),
    }
}
