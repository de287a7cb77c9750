//! Factors of a contraction at the sizes of a binding, as the products take them.

use super::memory::Slots;
use crate::contract::{self as products, Elements, MOST_BOUNDS, Seen, Source};
use crate::plan::contract;
use smallvec::SmallVec;
use tracecast_ir::DType;

type FactorSource = contract::FactorSource<i64>;
type Windows = contract::Windows<i64>;

/// A factor in the first batch, seen through these windows if there are any. Its address is null
/// without operands: choices depend on shapes alone.
pub(super) fn source<'a>(
    factor: &FactorSource,
    seen: Option<&'a Seen>,
    operands: Option<&Slots>,
) -> Source<'a> {
    let elements = |input: usize, first: i64, dtype: DType, round: Option<DType>| {
        let at = |slots: &Slots| slots.get(input).offset(first as isize * dtype.bytes() as isize);
        let base = operands.map_or(std::ptr::null(), |slots| at(slots).pointer().cast_const());
        Elements { base, dtype, round }
    };
    match (factor, seen) {
        (FactorSource::Computed { dtype, .. }, _) => {
            Source::Fill { fill: &|_, _, _, _, _| {}, dtype: *dtype }
        }
        (
            FactorSource::Plain { input, dtype, round, offset, .. }
            | FactorSource::Seen(Windows { input, dtype, round, offset, .. }),
            Some(seen),
        ) => Source::Windows { of: elements(*input, *offset, *dtype, *round), seen },
        (FactorSource::Plain { input, dtype, round, offset, row, col, .. }, None) => {
            let (row, col) = (*row as isize, *col as isize);
            Source::Matrix { of: elements(*input, *offset, *dtype, *round), row, col }
        }
        (FactorSource::Seen(_), None) => unreachable!("is seen through windows"),
    }
}

/// Where a batch begins, in elements, given the strides of the batch axes.
pub(super) fn in_batch(extents: &[usize], batch: usize, stride: impl Fn(usize) -> i64) -> i64 {
    let (mut rest, mut element) = (batch, 0);
    for (axis, extent) in extents.iter().enumerate().rev() {
        element += (rest % extent) as i64 * stride(axis);
        rest /= extent;
    }
    element
}

/// Where a batch of a factor begins, in elements from the first.
pub(super) fn from_first(factor: &FactorSource, extents: &[usize], batch: usize) -> isize {
    let stride = |axis: usize| match factor {
        FactorSource::Plain { batch, .. } => batch[axis],
        FactorSource::Seen(windows) => windows.batch[axis].stride,
        FactorSource::Computed { .. } => 0,
    };
    in_batch(extents, batch, stride) as isize
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
