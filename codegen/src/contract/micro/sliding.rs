//! Microkernel of batched depthwise convolutions, a batch per lane, whose outputs share input rows.
//!
//! A place of a row is loaded once for all outputs of two lines, not once for each.

use super::engine::{Elementwise, Microkernel};
use super::vector::{Number, Vector};

/// The most places of a row that these outputs read.
const PLACES: usize = 12;

/// The most outputs of a line, and lines, that are accumulated together.
pub(in crate::contract) const WINDOWS: usize = 8;
pub(in crate::contract) const LINES: usize = 2;

/// Arguments: `L` lines of `C` outputs of a `T` by `T` kernel.
pub(in crate::contract) struct Sliding<T> {
    /// The first weight's vector; weights are contiguous.
    pub(in crate::contract) a: *const T,
    /// The first output's first input, and the strides of rows and of columns, for outputs as well.
    pub(in crate::contract) b: *const T,
    pub(in crate::contract) down: isize,
    pub(in crate::contract) across: isize,
    /// Destination of the first sum, and the strides of lines and of columns.
    pub(in crate::contract) sums: *mut T,
    pub(in crate::contract) line: isize,
    pub(in crate::contract) column: isize,
}

/// # Safety
///
/// The CPU must have the vector; what windows read must be readable, and sums writable.
#[inline(always)]
unsafe fn product<V: Vector, const T: usize, const L: usize, const C: usize>(s: &Sliding<V::Num>) {
    let zero = V::splat(<V::Num as Number>::ZERO);
    let mut acc = [[zero; C]; L];
    for r in 0..T + L - 1 {
        let b = s.b.wrapping_offset(r as isize * s.down);
        let mut row = [zero; PLACES];
        for (i, place) in row.iter_mut().enumerate().take(T + C - 1) {
            // SAFETY: a place of a row, for which the caller vouches.
            *place = unsafe { V::load(b.wrapping_offset(i as isize * s.across)) };
        }
        for (l, line) in acc.iter_mut().enumerate() {
            if !(l..l + T).contains(&r) {
                continue;
            }
            let a = s.a.wrapping_add((r - l) * T * V::LANES);
            for t in 0..T {
                // SAFETY: this step's numbers.
                let left = unsafe { V::load(a.wrapping_add(t * V::LANES)) };
                for (c, sum) in line.iter_mut().enumerate() {
                    *sum = left.fma(row[c + t], *sum);
                }
            }
        }
    }
    for (l, line) in acc.iter().enumerate() {
        let to = s.sums.wrapping_offset(l as isize * s.line);
        for (c, sum) in line.iter().enumerate() {
            // SAFETY: the caller vouches for the sums' memory.
            unsafe { sum.store(to.wrapping_offset(c as isize * s.column)) };
        }
    }
}

/// Taps per axis, 3 or 5; lines and outputs of each, [`LINES`] by [`WINDOWS`] at most.
pub(in crate::contract) struct Slide<'a, E: Elementwise>(
    pub(in crate::contract) usize,
    pub(in crate::contract) [usize; 2],
    pub(in crate::contract) &'a Sliding<E::Num>,
);

impl<E: Elementwise> Microkernel for Slide<'_, E> {
    type Out = ();

    #[inline(always)]
    unsafe fn run(self) {
        macro_rules! sum {
            ($($outputs:literal)*) => {
                match (self.0, self.1) {
                    // SAFETY: the caller's contract.
                    $((3, [1, $outputs]) => unsafe { product::<E::Vector, 3, 1, $outputs>(self.2) },
                    // SAFETY: as above.
                    (3, [2, $outputs]) => unsafe { product::<E::Vector, 3, 2, $outputs>(self.2) },
                    // SAFETY: as above.
                    (5, [1, $outputs]) => unsafe { product::<E::Vector, 5, 1, $outputs>(self.2) },
                    // SAFETY: as above.
                    (5, [2, $outputs]) => unsafe { product::<E::Vector, 5, 2, $outputs>(self.2) },)*
                    sizes => unreachable!("no product of {sizes:?}"),
                }
            };
        }
        sum!(1 2 3 4 5 6 7 8)
    }
}
