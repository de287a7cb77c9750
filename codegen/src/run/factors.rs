//! Factors of a contraction at the sizes of a binding, as the products take them.

use super::memory::{Operand, Slots};
use crate::contract::{self as products, MOST_BOUNDS, Seen, Source};
use crate::plan::contract;
use smallvec::SmallVec;
use tracecast_ir::DType;

type FactorSource = contract::FactorSource<i64>;
type Windows = contract::Windows<i64>;

/// A factor that lies nowhere, seen through these windows if there are any.
pub(super) fn source<'a>(factor: &FactorSource, seen: Option<&'a Seen>) -> Source<'a> {
    let base = std::ptr::null();
    match (factor, seen) {
        (FactorSource::Computed { dtype, .. }, _) => {
            Source::Fill { fill: &|_, _, _, _, _| {}, dtype: *dtype }
        }
        (
            FactorSource::Plain { dtype, round, .. }
            | FactorSource::Seen(Windows { dtype, round, .. }),
            Some(seen),
        ) => Source::Windows { base, dtype: *dtype, round: *round, seen },
        (FactorSource::Plain { dtype, round, row, col, .. }, None) => {
            let (row, col) = (*row as isize, *col as isize);
            Source::Matrix { base, dtype: *dtype, round: *round, row, col }
        }
        (FactorSource::Seen(_), None) => unreachable!("is seen through windows"),
    }
}

/// The operand that a factor is, in the first batch.
pub(super) fn operand<'a>(
    factor: &FactorSource,
    seen: Option<&'a Seen>,
    operands: &Slots,
) -> Operand<'a> {
    let place = |input: usize, element: i64, dtype: DType| {
        operands.get(input).offset(element as isize * dtype.bytes() as isize)
    };
    match (factor, seen) {
        (FactorSource::Seen(Windows { input, dtype, round, offset, .. }), Some(seen)) => {
            let base = place(*input, *offset, *dtype);
            Operand::Windows { base, dtype: *dtype, round: *round, seen }
        }
        (FactorSource::Plain { input, dtype, round, offset, row, col, .. }, _) => {
            let base = place(*input, *offset, *dtype);
            let (row, col) = (*row as isize, *col as isize);
            Operand::Matrix { base, dtype: *dtype, round: *round, row, col }
        }
        (FactorSource::Seen(_) | FactorSource::Computed { .. }, _) => {
            unreachable!("images are of operands in memory")
        }
    }
}

/// Where a batch of a factor begins, in elements from the first.
pub(super) fn from_first(factor: &FactorSource, extents: &[usize], batch: usize) -> isize {
    let mut rest = batch;
    let mut element = 0;
    for (axis, extent) in extents.iter().enumerate().rev() {
        let stride = match factor {
            FactorSource::Plain { batch, .. } => batch[axis],
            FactorSource::Seen(windows) => windows.batch[axis].stride,
            FactorSource::Computed { .. } => 0,
        };
        element += (rest % extent) as i64 * stride;
        rest /= extent;
    }
    element as isize
}

/// Where the elements of a factor lie in a batch whose numbers that are bounded begin with these.
pub(super) fn seen(windows: &Windows, first: impl Fn(usize) -> i64) -> Seen {
    let axes = |axes: &[contract::Axis<i64>]| -> SmallVec<[products::Axis; 4]> {
        axes.iter().map(axis).collect()
    };
    let mut bounds = [products::Bound::default(); MOST_BOUNDS];
    for (i, (bound, [_, end])) in bounds.iter_mut().zip(&windows.bounds).enumerate() {
        *bound = products::Bound { offset: first(i) as isize, extent: *end as isize };
    }
    Seen::new(&axes(&windows.rows), &axes(&windows.columns), bounds)
}

/// An axis as packing knows it.
pub(super) fn axis(from: &contract::Axis<i64>) -> products::Axis {
    let mut bounded = [0; MOST_BOUNDS];
    for (to, step) in bounded.iter_mut().zip(&from.bounded) {
        *to = *step as isize;
    }
    products::Axis { extent: from.extent as usize, stride: from.stride as isize, bounded }
}
