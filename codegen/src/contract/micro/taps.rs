//! Implicit-GEMM microkernel: reads columns of B in place from an image, at one offset per step.

use super::strip::{Cell, Same, place, step};
use super::vector::{Number, Vector};

/// Arguments: a packed strip of rows times columns over a block of `k`.
pub(in crate::contract) struct Taps<'a, T> {
    /// The first step's rows, contiguous; `step` is the stride of steps, in elements.
    pub(in crate::contract) a: *const T,
    pub(in crate::contract) step: isize,
    /// The first column of a step at offset zero.
    pub(in crate::contract) b: *const T,
    /// Offset of each step from there.
    pub(in crate::contract) at: &'a [isize],
    /// Accumulators to continue, of row stride `from_ld`; null to start at zero.
    pub(in crate::contract) from: *const T,
    pub(in crate::contract) from_ld: usize,
    /// Destination of the sums, with row stride `ld` in sums.
    pub(in crate::contract) out: *mut T,
    pub(in crate::contract) ld: usize,
    /// Adds to the destination instead of replacing it.
    pub(in crate::contract) add: bool,
    /// Stores the sums as bf16, if the engine rounds; `out` then points to bf16. Never with `add`.
    pub(in crate::contract) rounded: bool,
    /// Sums may be subnormal.
    pub(in crate::contract) tiny: bool,
}

impl<T> Taps<'_, T> {
    /// Address of the sum at index `sums`.
    pub(super) fn place(&self, sums: usize) -> *mut T {
        place(self.out, sums, self.rounded)
    }
}

/// # Safety
///
/// The CPU must have the vector. `R` rows and `V` vectors must be readable, their sums writable.
#[inline(always)]
pub(super) unsafe fn product<T: Vector, const R: usize, const V: usize, const ROUNDED: bool>(
    s: &Taps<'_, T::Num>,
) {
    let mut acc = [[T::splat(<T::Num as Number>::ZERO); V]; R];
    if !s.from.is_null() {
        for (i, row) in acc.iter_mut().enumerate() {
            for (v, sum) in row.iter_mut().enumerate() {
                // SAFETY: the caller vouches for the chains' memory.
                *sum = unsafe { T::load(s.from.wrapping_add(i * s.from_ld + v * T::LANES)) };
            }
        }
    }
    let mut a = s.a;
    for at in s.at {
        let b = s.b.wrapping_offset(*at).cast();
        // SAFETY: this step's columns and its row of the strip, for which the caller vouches.
        unsafe {
            step::<T, Same, R, V>(
                (b, 0),
                |i| a.wrapping_add(i),
                &mut acc,
                &mut T::splat(<T::Num as Number>::ZERO),
            )
        };
        a = a.wrapping_offset(s.step);
    }
    if ROUNDED {
        for (i, row) in acc.iter().enumerate() {
            let out = s.place(i * s.ld).cast::<u16>();
            let (twos, last) = row.as_chunks();
            for (v, two) in twos.iter().enumerate() {
                // SAFETY: the caller vouches for the sums' memory.
                unsafe { Same::round_two(*two, out.wrapping_add(2 * v * T::LANES)) };
            }
            for sum in last {
                // SAFETY: as above.
                unsafe { sum.round(out.wrapping_add((V - 1) * T::LANES)) };
            }
        }
        return;
    }
    for (i, row) in acc.iter().enumerate() {
        for (v, sum) in row.iter().enumerate() {
            let out = s.out.wrapping_add(i * s.ld + v * T::LANES);
            let mut total = *sum;
            if s.add {
                // SAFETY: the caller vouches for the sums' memory.
                total = unsafe { T::load(out) }.add(total);
            }
            // SAFETY: as above.
            unsafe { total.store(out) };
        }
    }
}

/// Dispatches to [`product`] by the strip's rows and vectors.
macro_rules! taps {
    ($vector:ty, $rounded:expr, $rows:expr, $vectors:expr, $taps:expr, few: [$($few:literal)*], all: [$($r:literal)*], more: [$($v:literal)*]) => {
        match ($rows, $vectors) {
            // SAFETY: the caller vouches for a strip of this size.
            $(($r, 1) => unsafe { $crate::contract::micro::taps::product::<$vector, $r, 1, { $rounded }>($taps) },
            // SAFETY: as above.
            ($r, 2) => unsafe { $crate::contract::micro::taps::product::<$vector, $r, 2, { $rounded }>($taps) },)*
            // SAFETY: as above.
            $(($few, 3) => unsafe { $crate::contract::micro::taps::product::<$vector, $few, 3, { $rounded }>($taps) },
            // SAFETY: as above.
            ($few, 4) => unsafe { $crate::contract::micro::taps::product::<$vector, $few, 4, { $rounded }>($taps) },)*
            // SAFETY: as above.
            $(($v, 3) => unsafe { $crate::contract::micro::taps::product::<$vector, $v, 3, { $rounded }>($taps) },)*
            (rows, vectors) => unreachable!("no strip of {rows} rows by {vectors} vectors"),
        }
    };
}

pub(super) use taps;
