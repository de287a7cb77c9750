//! Microkernel of batched contractions, a batch per lane: one row times a few lines of columns.

use super::vector::{Number, Vector};

/// Arguments: `L` lines of `C` columns.
pub(in crate::contract) struct Lanes<'a, T> {
    /// The row's first vector, a step each; steps are contiguous.
    pub(in crate::contract) a: *const T,
    /// The first column of a step at offset zero, and the stride of lines of columns.
    pub(in crate::contract) b: *const T,
    pub(in crate::contract) line: usize,
    /// Offset of each step from there.
    pub(in crate::contract) at: &'a [isize],
    /// The accumulators, column by column, which the kernel continues.
    pub(in crate::contract) chains: *mut T,
}

/// # Safety
///
/// The CPU must have the vector; what steps and columns span must be readable, and chains writable.
#[inline(always)]
pub(super) unsafe fn product<T: Vector, const L: usize, const C: usize>(s: &Lanes<'_, T::Num>) {
    let mut acc = [[T::splat(<T::Num as Number>::ZERO); C]; L];
    let chain = |l: usize, c: usize| s.chains.wrapping_add((l * C + c) * T::LANES);
    for (l, line) in acc.iter_mut().enumerate() {
        for (c, sum) in line.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the chains.
            *sum = unsafe { T::load(chain(l, c)) };
        }
    }
    let mut a = s.a;
    for at in s.at {
        let b = s.b.wrapping_offset(*at);
        // SAFETY: this step's numbers, for which the caller vouches.
        let left = unsafe { T::load(a) };
        for (l, line) in acc.iter_mut().enumerate() {
            let b = b.wrapping_add(l * s.line);
            for (c, sum) in line.iter_mut().enumerate() {
                // SAFETY: a column of this step.
                let right = unsafe { T::load(b.wrapping_add(c * T::LANES)) };
                *sum = left.fma(right, *sum);
            }
        }
        a = a.wrapping_add(T::LANES);
    }
    for (l, line) in acc.iter().enumerate() {
        for (c, sum) in line.iter().enumerate() {
            // SAFETY: as above.
            unsafe { sum.store(chain(l, c)) };
        }
    }
}

/// Dispatches to [`product`] for the listed lines and columns, else to [`singly`].
macro_rules! lanes {
    ($vector:ty, $lines:expr, $columns:expr, $lanes:expr, [$($l:literal by $c:literal)*]) => {
        match ($lines, $columns) {
            // SAFETY: the caller's contract.
            $(($l, $c) => unsafe { $crate::contract::micro::lanes::product::<$vector, $l, $c>($lanes) },)*
            // SAFETY: the caller's contract.
            (lines, columns) => unsafe {
                $crate::contract::micro::lanes::singly::<$vector>(lines, columns, $lanes)
            },
        }
    };
}

/// Line by line; column by column unless a line has three or five columns, the usual kernel widths.
///
/// # Safety
///
/// The CPU must have the vector. What steps and columns span must be readable, and chains writable.
#[inline(always)]
pub(super) unsafe fn singly<T: Vector>(lines: usize, columns: usize, s: &Lanes<'_, T::Num>) {
    for l in 0..lines {
        let b = s.b.wrapping_add(l * s.line);
        let chains = s.chains.wrapping_add(l * columns * T::LANES);
        match columns {
            // SAFETY: the caller's contract, for a line.
            3 => unsafe { product::<T, 1, 3>(&Lanes { b, chains, ..*s }) },
            // SAFETY: as above.
            5 => unsafe { product::<T, 1, 5>(&Lanes { b, chains, ..*s }) },
            _ => {
                for c in 0..columns {
                    let at = c * T::LANES;
                    let (b, chains) = (b.wrapping_add(at), chains.wrapping_add(at));
                    // SAFETY: as above, for a column.
                    unsafe { product::<T, 1, 1>(&Lanes { b, chains, ..*s }) };
                }
            }
        }
    }
}

pub(super) use lanes;
