//! The innermost loop of a contraction of one row whose right operand lies in an image: a few lines of columns at once, so that enough chains keep the CPU busy.

use super::Vector;

/// Products of the steps with some lines of columns, each of a few vectors. What the last vector of a line has behind its end is written as well, and the next
/// line over it.
pub(in crate::contract) struct Field<'a, T> {
    /// The first step's number, and from a step to the next.
    pub(in crate::contract) a: *const T,
    pub(in crate::contract) step: isize,
    /// The first column of a step at offset zero, and from a line of columns to the next.
    pub(in crate::contract) b: *const T,
    pub(in crate::contract) line: usize,
    /// Where each step begins from there.
    pub(in crate::contract) at: &'a [isize],
    /// Where the sums go, and from a line of sums to the next.
    pub(in crate::contract) sums: *mut T,
    pub(in crate::contract) ld: usize,
}

/// # Safety
///
/// The CPU must have the vector; what steps and columns span must be readable, and sums writable, for `L` lines of `V` vectors.
#[inline(always)]
pub(super) unsafe fn product<T: Vector, const L: usize, const V: usize>(s: &Field<'_, T::Num>) {
    let mut acc = [[T::splat(<T::Num as super::Number>::ZERO); V]; L];
    let mut a = s.a;
    for at in s.at {
        // SAFETY: this step's number, for which the caller vouches.
        let left = T::splat(unsafe { a.read() });
        let b = s.b.wrapping_offset(*at);
        for (l, line) in acc.iter_mut().enumerate() {
            let b = b.wrapping_add(l * s.line);
            for (v, sum) in line.iter_mut().enumerate() {
                // SAFETY: columns of this step.
                let right = unsafe { T::load(b.wrapping_add(v * T::LANES)) };
                *sum = left.fma(right, *sum);
            }
        }
        a = a.wrapping_offset(s.step);
    }
    for (l, line) in acc.iter().enumerate() {
        for (v, sum) in line.iter().enumerate() {
            // SAFETY: the caller vouches for the sums' memory.
            unsafe { sum.store(s.sums.wrapping_add(l * s.ld + v * T::LANES)) };
        }
    }
}

/// The most lines of so many vectors that are summed together: up to twelve sums leave room for the number of a step.
pub(in crate::contract) fn most_lines(vectors: usize) -> usize {
    match vectors {
        1 => 8,
        2 => 6,
        3 => 4,
        4 => 3,
        _ => 1,
    }
}

/// The most vectors of a line that are summed together.
pub(in crate::contract) const MOST_VECTORS: usize = 8;

/// Calls [`product`] for so many lines of so many vectors.
macro_rules! field {
    ($vector:ty, $lines:expr, $vectors:expr, $field:expr) => {
        field!($vector, $lines, $vectors, $field,
            [1 1] [2 1] [3 1] [4 1] [5 1] [6 1] [7 1] [8 1] [1 2] [2 2] [3 2] [4 2] [5 2] [6 2]
            [1 3] [2 3] [3 3] [4 3] [1 4] [2 4] [3 4] [1 5] [1 6] [1 7] [1 8])
    };
    ($vector:ty, $lines:expr, $vectors:expr, $field:expr, $([$l:literal $v:literal])*) => {
        match ($lines, $vectors) {
            // SAFETY: the caller vouches for so many.
            $(($l, $v) => unsafe { $crate::contract::micro::field::product::<$vector, $l, $v>($field) },)*
            (lines, vectors) => unreachable!("no {lines} lines of {vectors} vectors"),
        }
    };
}

pub(super) use field;
