//! Microkernel of one row times an image: several lines of columns at once hide the latency of FMA.

use super::engine::{Elementwise, Microkernel};
use super::vector::{Number, Vector};

/// Arguments: lines of columns, a few vectors each. The last vector of a line writes past its end;
/// the next line overwrites that.
pub(in crate::contract) struct Field<'a, T> {
    /// The row's first number, and the stride of its steps.
    pub(in crate::contract) a: *const T,
    pub(in crate::contract) step: isize,
    /// The first column of a step at offset zero, and the stride of lines of columns.
    pub(in crate::contract) b: *const T,
    pub(in crate::contract) line: usize,
    /// Offset of each step from there.
    pub(in crate::contract) at: &'a [isize],
    /// Destination of the sums, and its stride of lines.
    pub(in crate::contract) sums: *mut T,
    pub(in crate::contract) ld: usize,
}

/// # Safety
///
/// The CPU must have the vector. Steps and `L` by `V` vectors must be readable, sums writable.
#[inline(always)]
unsafe fn product<T: Vector, const L: usize, const V: usize>(s: &Field<'_, T::Num>) {
    let mut acc = [[T::splat(<T::Num as Number>::ZERO); V]; L];
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

/// The most lines of `vectors` vectors: twelve accumulators leave a register to broadcast into.
pub(in crate::contract) fn most_lines(vectors: usize) -> usize {
    match vectors {
        1 => 8,
        2 => 6,
        3 => 4,
        4 => 3,
        _ => 1,
    }
}

/// The most vectors of a line that are accumulated together.
pub(in crate::contract) const MOST_VECTORS: usize = 8;

/// So many lines and vectors.
struct Sized<'a, E: Elementwise>([usize; 2], &'a Field<'a, E::Num>);

impl<E: Elementwise> Microkernel for Sized<'_, E> {
    type Out = ();

    #[inline(always)]
    unsafe fn run(self) {
        macro_rules! sum {
            ($([$l:literal $v:literal])*) => {
                match self.0 {
                    // SAFETY: the caller vouches for these lines and vectors.
                    $([$l, $v] => unsafe { product::<E::Vector, $l, $v>(self.1) },)*
                    sizes => unreachable!("no product of {sizes:?}"),
                }
            };
        }
        sum!(
            [1 1] [2 1] [3 1] [4 1] [5 1] [6 1] [7 1] [8 1] [1 2] [2 2] [3 2] [4 2] [5 2] [6 2]
            [1 3] [2 3] [3 3] [4 3] [1 4] [2 4] [3 4] [1 5] [1 6] [1 7] [1 8]
        )
    }
}

/// Accumulates up to [`most_lines`] by [`MOST_VECTORS`] vectors of an image.
///
/// # Safety
///
/// The CPU must be the engine's. What windows see must be readable, and sums writable for whole
/// vectors.
pub(in crate::contract) unsafe fn field<E: Elementwise>(sizes: [usize; 2], of: &Field<'_, E::Num>) {
    // SAFETY: the caller's contract.
    unsafe { E::run(Sized::<E>(sizes, of)) }
}
