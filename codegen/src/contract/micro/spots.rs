//! Microkernel that broadcasts a column's number, read from an image, to vectors of rows.
//!
//! Registers hold the sums, the vectors of rows, and a broadcast number, or one for each column
//! where the compiler loads all first: [`Engine::SPOTS`](super::Engine::SPOTS).

use super::vector::{Number, Vector};

/// The most columns of any engine.
pub(in crate::contract) const MOST: usize = 16;

/// Arguments: a few columns times vectors of rows over some steps.
pub(in crate::contract) struct Spots<'a, T> {
    /// Address of the image, exposed: steps may lead to other memory.
    pub(in crate::contract) image: usize,
    /// Offset of each column from there.
    pub(in crate::contract) columns: &'a [isize],
    /// Offset of each step from there.
    pub(in crate::contract) at: &'a [isize],
    /// The first step's rows, contiguous; `step` is the stride of steps.
    pub(in crate::contract) rows: *const T,
    pub(in crate::contract) step: usize,
    /// Accumulators to continue; null to start at zero.
    pub(in crate::contract) from: *const T,
    /// Destination of the sums.
    pub(in crate::contract) out: *mut T,
    /// Offset of each column's sums from there.
    pub(in crate::contract) places: &'a [isize],
    /// Adds to the destination instead of replacing it.
    pub(in crate::contract) add: bool,
    /// Sums may be subnormal.
    pub(in crate::contract) tiny: bool,
}

/// Multiplies `C` columns by `V` vectors of rows.
///
/// # Safety
///
/// The CPU must have the vector. What `C` columns and `V` vectors read in each step must be
/// readable, `from` (unless null) for their accumulators, and `out` writable for their sums.
#[inline(always)]
pub(super) unsafe fn product<T: Vector, const C: usize, const V: usize>(s: &Spots<'_, T::Num>) {
    let mut acc = [[T::splat(<T::Num as Number>::ZERO); V]; C];
    if !s.from.is_null() {
        for (c, column) in acc.iter_mut().enumerate() {
            let from = s.from.wrapping_offset(s.places[c]);
            for (v, sum) in column.iter_mut().enumerate() {
                let from = from.wrapping_add(v * T::LANES);
                // SAFETY: an accumulator, for which the caller vouches.
                *sum = unsafe { T::load(from) };
            }
        }
    }
    let size = size_of::<T::Num>() as isize;
    let columns: [usize; C] =
        std::array::from_fn(|c| s.image.wrapping_add_signed(s.columns[c] * size));
    let mut rows = s.rows;
    for at in s.at {
        // SAFETY: this step's rows, for which the caller vouches.
        let right: [T; V] =
            std::array::from_fn(|v| unsafe { T::load(rows.wrapping_add(v * T::LANES)) });
        for (column, sums) in columns.iter().zip(&mut acc) {
            let seen = column.wrapping_add_signed(at * size);
            let seen = std::ptr::with_exposed_provenance::<T::Num>(seen);
            // SAFETY: what the column sees in this step, for which the caller vouches.
            let left = T::splat(unsafe { seen.read() });
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = left.fma(right, *sum);
            }
        }
        rows = rows.wrapping_add(s.step);
    }
    for (c, column) in acc.iter().enumerate() {
        let out = s.out.wrapping_offset(s.places[c]);
        for (v, sum) in column.iter().enumerate() {
            let out = out.wrapping_add(v * T::LANES);
            let mut total = *sum;
            if s.add {
                // SAFETY: a sum's place, for which the caller vouches.
                total = unsafe { T::load(out) }.add(total);
            }
            // SAFETY: as above.
            unsafe { total.store(out) };
        }
    }
}

/// Dispatches to [`product`]: by one vector or two, or by one alone.
macro_rules! spots {
    ($vector:ty, $columns:expr, $vectors:expr, $spots:expr, [$($c:literal)*] $(, alone: [$($one:literal)*])?) => {
        match ($columns, $vectors) {
            // SAFETY: the caller vouches for these columns and vectors.
            $(($c, 1) => unsafe { $crate::contract::micro::spots::product::<$vector, $c, 1>($spots) },
            // SAFETY: as above.
            ($c, 2) => unsafe { $crate::contract::micro::spots::product::<$vector, $c, 2>($spots) },)*
            // SAFETY: as above.
            $($(($one, 1) => unsafe { $crate::contract::micro::spots::product::<$vector, $one, 1>($spots) },)*)?
            (columns, vectors) => unreachable!("no product of {columns} columns by {vectors} vectors"),
        }
    };
}

pub(super) use spots;
