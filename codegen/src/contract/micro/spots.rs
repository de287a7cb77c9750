//! The innermost loop of a contraction of which each column's numbers lie in an image: vectors go along the rows of the result, and the number of a column is
//! read where the image has it.
//!
//! Beside the sums, registers hold the vectors of rows and a number of a column, or those of all columns where a compiler loads them before it multiplies any
//! ([`Engine::SPOTS`](super::Engine::SPOTS)). Three columns side by side need one address, and what they see in two steps that are two numbers apart, as windows of every second
//! place do, is five numbers.

use super::super::pack::strips;
use super::super::prefetch::Later;
use super::{Engine, Vector};
use std::ops::Range;

/// The most columns of all engines.
pub(in crate::contract) const MOST: usize = 27;

/// Columns of a run that lie side by side.
const BESIDE: usize = 3;
/// Steps so many numbers apart are summed two at a time: windows of every second place.
const APART: usize = 2;
/// After so many steps of such columns lines are asked for, as many.
pub(in crate::contract) const AT_ONCE: usize = 8;

/// Products of a few columns with vectors of rows over some steps.
pub(in crate::contract) struct Spots<'a, T> {
    /// The address where the image begins, exposed: steps may lead to other memory than that.
    pub(in crate::contract) image: usize,
    /// Where each column is from there.
    pub(in crate::contract) columns: &'a [isize],
    /// Where each step is from there.
    pub(in crate::contract) at: &'a [isize],
    /// The rows of the first step, side by side; steps are `step` numbers apart.
    pub(in crate::contract) rows: *const T,
    pub(in crate::contract) step: usize,
    /// The sums that the chains go on from; null for chains that begin at zero.
    pub(in crate::contract) from: *const T,
    /// Where the sums go.
    pub(in crate::contract) out: *mut T,
    /// Where the sums of each column are from there; those of columns that are summed by runs are at even distances.
    pub(in crate::contract) places: &'a [isize],
    /// Adds the sums to what is there instead of replacing it.
    pub(in crate::contract) add: bool,
    /// Sums may be subnormal.
    pub(in crate::contract) tiny: bool,
    /// What is asked for meanwhile, where columns are summed by runs.
    pub(in crate::contract) later: Option<Later>,
}

/// Strips of columns that are summed together, by one vector of rows or two: of whole threes where three lie side by side, if the engine has a way to.
pub(in crate::contract) fn strips_of<E: Engine>(
    columns: &[isize],
    is_alone: bool,
) -> impl Iterator<Item = Range<usize>> + Clone {
    let (threes, rest) = columns.as_chunks();
    let is_near = |[a, b, c]: &[isize; 3]| [*b, *c] == [a + 1, a + 2];
    let are_threes = is_alone && E::THREES > 0 && rest.is_empty() && threes.iter().all(is_near);
    let (unit, most) = match (are_threes, is_alone) {
        (true, _) => (3, E::THREES),
        (false, true) => (1, E::SPOTS_ALONE),
        (false, false) => (1, E::SPOTS),
    };
    strips(columns.len() / unit, most)
        .map(move |strip| strip.start * unit..(strip.start + strip.count) * unit)
}

/// `R` runs of `W` columns each that lie side by side in the image, by `V` vectors of rows.
///
/// # Safety
///
/// The CPU must have the vector; what columns and steps span must be readable, and sums writable, for all columns, of which there are as many, and vectors.
#[inline(always)]
pub(super) unsafe fn product<T: Vector, const R: usize, const W: usize, const V: usize>(
    s: &Spots<'_, T::Num>,
) {
    let mut acc = [[[T::splat(<T::Num as super::Number>::ZERO); V]; W]; R];
    let beside = if W > 1 { s.places[1] - s.places[0] } else { 0 };
    let behind = |w: usize, v: usize| w as isize * beside + (v * T::LANES) as isize;
    if !s.from.is_null() {
        for (i, run) in acc.iter_mut().enumerate() {
            let from = s.from.wrapping_offset(s.places[i * W]);
            for (w, column) in run.iter_mut().enumerate() {
                for (v, sum) in column.iter_mut().enumerate() {
                    let from = from.wrapping_offset(behind(w, v));
                    // SAFETY: the caller vouches for the chains' memory.
                    *sum = unsafe { T::load(from) };
                }
            }
        }
    }
    let size = size_of::<T::Num>() as isize;
    let runs: [usize; R] =
        std::array::from_fn(|i| s.image.wrapping_add_signed(s.columns[i * W] * size));
    if W == BESIDE {
        // One vector of rows: steps lie side by side.
        let step = V * T::LANES;
        debug_assert_eq!(step, s.step, "rows of steps lie side by side");
        let (mut rows, mut later) = (s.rows, s.later);
        for some in s.at.chunks(AT_ONCE) {
            if let Some(later) = &mut later {
                later.ask();
            }
            let (pairs, last) = some.as_chunks();
            for [at, next] in pairs {
                if next - at == APART as isize {
                    // SAFETY: the caller's contract, for two steps.
                    unsafe { add_two(&runs, *at, rows, &mut acc) };
                } else {
                    // SAFETY: the caller's contract, for a step.
                    unsafe { add_step(&runs, *at, rows, &mut acc) };
                    // SAFETY: as above.
                    unsafe { add_step(&runs, *next, rows.wrapping_add(step), &mut acc) };
                }
                rows = rows.wrapping_add(2 * step);
            }
            for at in last {
                // SAFETY: the caller's contract, for a step.
                unsafe { add_step(&runs, *at, rows, &mut acc) };
                rows = rows.wrapping_add(step);
            }
        }
    } else {
        let mut rows = s.rows;
        for at in s.at {
            // SAFETY: the caller's contract, for a step.
            unsafe { add_step(&runs, *at, rows, &mut acc) };
            rows = rows.wrapping_add(s.step);
        }
    }
    for (i, run) in acc.iter().enumerate() {
        let out = s.out.wrapping_offset(s.places[i * W]);
        for (w, column) in run.iter().enumerate() {
            for (v, sum) in column.iter().enumerate() {
                let out = out.wrapping_offset(behind(w, v));
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
}

/// The numbers that a run sees in a step.
#[inline(always)]
fn seen<N>(run: usize, at: isize) -> *const N {
    std::ptr::with_exposed_provenance(run.wrapping_add_signed(at * size_of::<N>() as isize))
}

/// Adds the products of a step.
///
/// # Safety
///
/// As [`product`].
#[inline(always)]
unsafe fn add_step<T: Vector, const R: usize, const W: usize, const V: usize>(
    runs: &[usize; R],
    at: isize,
    rows: *const T::Num,
    acc: &mut [[[T; V]; W]; R],
) {
    // SAFETY: this step's rows, for which the caller vouches.
    let right: [T; V] =
        std::array::from_fn(|v| unsafe { T::load(rows.wrapping_add(v * T::LANES)) });
    for (run, sums) in runs.iter().zip(acc) {
        let first = seen::<T::Num>(*run, at);
        for (w, sums) in sums.iter_mut().enumerate() {
            // SAFETY: what the column sees in this step.
            let left = T::splat(unsafe { first.wrapping_add(w).read() });
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = left.fma(right, *sum);
            }
        }
    }
}

/// Adds the products of two steps, [`APART`] numbers apart, whose rows lie side by side. Numbers that both see are read once: so there are no more loads than products.
///
/// # Safety
///
/// As [`product`].
#[inline(always)]
unsafe fn add_two<T: Vector, const R: usize, const W: usize, const V: usize>(
    runs: &[usize; R],
    at: isize,
    rows: *const T::Num,
    acc: &mut [[[T; V]; W]; R],
) {
    let further = rows.wrapping_add(V * T::LANES);
    let [rows, further] = [rows, further].map(|rows| -> [T; V] {
        // SAFETY: these steps' rows, for which the caller vouches.
        std::array::from_fn(|v| unsafe { T::load(rows.wrapping_add(v * T::LANES)) })
    });
    for (run, sums) in runs.iter().zip(acc) {
        let first = seen::<T::Num>(*run, at);
        let left: [T; BESIDE + APART] = std::array::from_fn(|w| {
            // SAFETY: what the columns see in these steps.
            T::splat(unsafe { first.wrapping_add(w).read() })
        });
        for (w, sums) in sums.iter_mut().enumerate() {
            for (sum, right) in sums.iter_mut().zip(rows) {
                *sum = left[w].fma(right, *sum);
            }
        }
        for (w, sums) in sums.iter_mut().enumerate() {
            for (sum, right) in sums.iter_mut().zip(further) {
                *sum = left[w + APART].fma(right, *sum);
            }
        }
    }
}

/// Calls [`product`] for one of these numbers of columns, and one vector or two; for columns by one vector; or for so many runs of three columns by one vector.
macro_rules! spots {
    ($vector:ty, $columns:expr, $vectors:expr, $spots:expr, [$($c:literal)*] $(, alone: [$($one:literal)*], threes: [$($three:literal)*])?) => {
        match ($columns, $vectors) {
            // SAFETY: the caller vouches for so many.
            $(($c, 1) => unsafe { $crate::contract::micro::spots::product::<$vector, $c, 1, 1>($spots) },
            // SAFETY: as above.
            ($c, 2) => unsafe { $crate::contract::micro::spots::product::<$vector, $c, 1, 2>($spots) },)*
            // SAFETY: as above.
            $($(($one, 1) => unsafe { $crate::contract::micro::spots::product::<$vector, $one, 1, 1>($spots) },)*
            // SAFETY: as above.
            $((columns, 1) if columns == 3 * $three => unsafe { $crate::contract::micro::spots::product::<$vector, $three, 3, 1>($spots) },)*)?
            (columns, vectors) => unreachable!("no product of {columns} columns by {vectors} vectors"),
        }
    };
}

pub(super) use spots;
