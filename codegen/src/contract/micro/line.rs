//! Microkernel of batched contractions, a batch per lane: a row times a line, over few steps.

use super::vector::{Number, Vector};

/// Arguments: the steps of a block times a line of `C` columns, an accumulator each.
pub(in crate::contract) struct Line<'a, T> {
    /// The row's first vector, a step each; steps are contiguous.
    pub(in crate::contract) a: *const T,
    /// The first column of a step at offset zero, and the stride of columns.
    pub(in crate::contract) b: *const T,
    pub(in crate::contract) across: usize,
    /// Offset of each step from there.
    pub(in crate::contract) at: &'a [isize],
    /// Destination of the sums, column by column.
    pub(in crate::contract) sums: *mut T,
    /// Adds to the destination.
    pub(in crate::contract) add: bool,
}

/// # Safety
///
/// The CPU must have the vector; what steps and columns span must be readable, and sums writable.
#[inline(always)]
pub(super) unsafe fn product<T: Vector, const C: usize>(s: &Line<'_, T::Num>) {
    let mut acc = [T::splat(<T::Num as Number>::ZERO); C];
    let mut a = s.a;
    for at in s.at {
        let b = s.b.wrapping_offset(*at);
        // SAFETY: this step's numbers, for which the caller vouches.
        let left = unsafe { T::load(a) };
        for (c, sum) in acc.iter_mut().enumerate() {
            // SAFETY: a column of this step.
            let right = unsafe { T::load(b.wrapping_add(c * s.across)) };
            *sum = left.fma(right, *sum);
        }
        a = a.wrapping_add(T::LANES);
    }
    for (c, sum) in acc.iter().enumerate() {
        let to = s.sums.wrapping_add(c * T::LANES);
        let mut total = *sum;
        if s.add {
            // SAFETY: the caller vouches for the sums' memory.
            total = unsafe { T::load(to) }.add(total);
        }
        // SAFETY: as above.
        unsafe { total.store(to) };
    }
}

/// Dispatches to [`product`] by the number of columns.
macro_rules! line {
    ($vector:ty, $columns:expr, $line:expr, [$($c:literal)*]) => {
        match $columns {
            // SAFETY: the caller vouches for these columns.
            $($c => unsafe { $crate::contract::micro::line::product::<$vector, $c>($line) },)*
            columns => unreachable!("no line of {columns} columns"),
        }
    };
}

pub(super) use line;
