//! The innermost loop of contractions of one row that lie side by side in vectors and have few steps: a lane is a batch, and each column of a line is a chain of its own.

use super::Vector;

/// Products of the steps of a block with a line of `C` columns.
pub(in crate::contract) struct Line<'a, T> {
    /// The first step's vector; steps follow.
    pub(in crate::contract) a: *const T,
    /// The first column of a step at offset zero, and from a column to the next.
    pub(in crate::contract) b: *const T,
    pub(in crate::contract) across: usize,
    /// Where each step begins from there.
    pub(in crate::contract) at: &'a [isize],
    /// Where the sums go, column by column.
    pub(in crate::contract) sums: *mut T,
    /// Adds the sums to what is there.
    pub(in crate::contract) add: bool,
}

/// # Safety
///
/// The CPU must have the vector; what steps and columns span must be readable, and sums writable.
#[inline(always)]
pub(super) unsafe fn product<T: Vector, const C: usize>(s: &Line<'_, T::Num>) {
    let mut acc = [T::splat(<T::Num as super::Number>::ZERO); C];
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

/// Calls [`product`] for one of these numbers of columns.
macro_rules! line {
    ($vector:ty, $columns:expr, $line:expr, [$($c:literal)*]) => {
        match $columns {
            // SAFETY: the caller vouches for so many.
            $($c => unsafe { $crate::contract::micro::line::product::<$vector, $c>($line) },)*
            columns => unreachable!("no line of {columns} columns"),
        }
    };
}

pub(super) use line;
