//! Microkernel of elementwise products, a batch per lane: one row times lines of columns, whose
//! steps are found through a table, as in oneDNN's brgdmm.

use super::engine::Elementwise;
use super::vector::{Microkernel, Number, Vector};

/// Taps of a kernel row that [`Line`] multiplies together.
pub(in crate::contract) const TAPS: usize = 5;

/// The most columns then: their sums, the inputs of all taps and a weight fit 32 registers.
const MOST: usize = 12;

/// Arguments: some lines of columns, an accumulator each.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Lanes<'a, T> {
    /// The row's first vector, a step each; steps are contiguous.
    pub(in crate::contract) a: *const T,
    /// The first column of a step at offset zero, and the strides of lines and of columns.
    pub(in crate::contract) b: *const T,
    pub(in crate::contract) line: usize,
    pub(in crate::contract) across: usize,
    /// Offset of each step from there.
    pub(in crate::contract) at: &'a [isize],
    /// Stride between the [`TAPS`] of a kernel row, if it is that of columns, up or down. Then all
    /// steps are whole rows and replace the sums. Zero else.
    pub(in crate::contract) tap: isize,
    /// The sums, column by column, and what happens to them.
    pub(in crate::contract) sums: *mut T,
    pub(in crate::contract) how: How,
}

/// How a kernel begins and ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::contract) enum How {
    /// From the sums on.
    Continues,
    /// From zero, and is added to the sums.
    Adds,
    /// From zero.
    Replaces,
}

/// `L` lines of `C` columns; columns are contiguous if `DENSE`.
///
/// # Safety
///
/// The CPU must have the vector; what steps and columns span must be readable, and sums writable.
#[inline(always)]
unsafe fn product<T: Vector, const L: usize, const C: usize, const DENSE: bool>(
    s: &Lanes<'_, T::Num>,
) {
    let across = if DENSE { T::LANES } else { s.across };
    let mut acc = [[T::splat(<T::Num as Number>::ZERO); C]; L];
    let sums = |l: usize, c: usize| s.sums.wrapping_add((l * C + c) * T::LANES);
    if s.how == How::Continues {
        for (l, line) in acc.iter_mut().enumerate() {
            for (c, sum) in line.iter_mut().enumerate() {
                // SAFETY: the caller vouches for the sums.
                *sum = unsafe { T::load(sums(l, c)) };
            }
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
                let right = unsafe { T::load(b.wrapping_add(c * across)) };
                *sum = left.fma(right, *sum);
            }
        }
        a = a.wrapping_add(T::LANES);
    }
    let adds = s.how == How::Adds;
    for (l, line) in acc.iter().enumerate() {
        for (c, sum) in line.iter().enumerate() {
            // SAFETY: the caller vouches for the sums.
            let total = if adds { unsafe { T::load(sums(l, c)) }.add(*sum) } else { *sum };
            // SAFETY: as above.
            unsafe { total.store(sums(l, c)) };
        }
    }
}

/// `[lines, columns]`, a vector each, of contiguous columns: together for the usual kernel widths,
/// else line by line.
pub(in crate::contract) struct Tile<'a, E: Elementwise>(
    pub(in crate::contract) [usize; 2],
    pub(in crate::contract) &'a Lanes<'a, E::Num>,
);

impl<E: Elementwise> Microkernel for Tile<'_, E> {
    type Out = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Tile([lines, columns], s) = self;
        match [lines, columns] {
            // SAFETY: the caller's contract.
            [3, 3] => return unsafe { product::<E::Vector, 3, 3, true>(s) },
            // SAFETY: the caller's contract.
            [5, 5] if E::HAS_MANY => return unsafe { product::<E::Vector, 5, 5, true>(s) },
            _ => {}
        }
        for l in 0..lines {
            let b = s.b.wrapping_add(l * s.line);
            let sums = s.sums.wrapping_add(l * columns * E::LANES);
            match columns {
                // SAFETY: the caller's contract, for a line.
                3 => unsafe { product::<E::Vector, 1, 3, true>(&Lanes { b, sums, ..*s }) },
                // SAFETY: as above.
                5 => unsafe { product::<E::Vector, 1, 5, true>(&Lanes { b, sums, ..*s }) },
                _ => {
                    for at in (0..columns).map(|c| c * E::LANES) {
                        let (b, sums) = (b.wrapping_add(at), sums.wrapping_add(at));
                        // SAFETY: as above, for a column.
                        unsafe { product::<E::Vector, 1, 1, true>(&Lanes { b, sums, ..*s }) };
                    }
                }
            }
        }
    }
}

/// Up to [`Elementwise::LINE`] columns of a line, a vector each.
pub(in crate::contract) struct Line<'a, E: Elementwise>(
    pub(in crate::contract) usize,
    pub(in crate::contract) &'a Lanes<'a, E::Num>,
);

impl<E: Elementwise> Microkernel for Line<'_, E> {
    type Out = ();

    #[inline(always)]
    unsafe fn run(self) {
        macro_rules! sum {
            ($($columns:literal)*) => {
                match self.0 {
                    $($columns => {
                        if const { E::HAS_MANY && $columns <= MOST } && self.1.tap != 0 {
                            self.by_kernel_rows::<$columns>()
                        } else if const { $columns <= E::LINE } {
                            // SAFETY: the caller's contract.
                            unsafe { product::<E::Vector, 1, $columns, false>(self.1) }
                        } else {
                            unreachable!("no such line")
                        }
                    })*
                    columns => unreachable!("no line of {columns} columns"),
                }
            };
        }
        sum!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    }
}

/// Called by [`Microkernel::run`] alone, whose contract holds.
impl<E: Elementwise> Line<'_, E> {
    /// Computes `C` columns, a kernel row in each pass: an input is loaded once for all its taps.
    #[inline(always)]
    fn by_kernel_rows<const C: usize>(&self) {
        let (s, zero) = (self.1, E::Vector::splat(<E::Num as Number>::ZERO));
        debug_assert!(s.how == How::Replaces, "kernel rows are one block of `k`");
        // With a negative stride the last column comes first.
        let first = if s.tap < 0 { C - 1 } else { 0 };
        let (mut acc, mut a) = ([zero; C], s.a);
        for at in s.at.chunks_exact(TAPS) {
            let b = s.b.wrapping_add(first * s.across).wrapping_offset(at[0]);
            let mut rights = [zero; MOST + TAPS - 1];
            for (c, right) in rights.iter_mut().enumerate().take(C + TAPS - 1) {
                // SAFETY: an input of this kernel row.
                *right = unsafe { E::Vector::load(b.wrapping_offset(c as isize * s.tap)) };
            }
            for t in 0..TAPS {
                // SAFETY: a step's numbers, for which the caller vouches.
                let left = unsafe { E::Vector::load(a) };
                for (sum, right) in acc.iter_mut().zip(&rights[t..]) {
                    *sum = left.fma(*right, *sum);
                }
                a = a.wrapping_add(E::LANES);
            }
        }
        for (c, sum) in acc.iter().enumerate() {
            // SAFETY: the caller vouches for the sums.
            unsafe { sum.store(s.sums.wrapping_add(first.abs_diff(c) * E::LANES)) };
        }
    }
}
