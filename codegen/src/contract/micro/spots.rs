//! Microkernel that broadcasts a column's number, read from an image, to vectors of rows.
//!
//! Registers hold the sums, the vectors of rows, and a broadcast number, or one for each column
//! where the compiler loads all first: [`Engine::SPOTS`](super::Engine::SPOTS). Three adjacent
//! columns share an address, and read five numbers in two steps of distance two.

use super::super::pack::strips;
use super::super::prefetch::Later;
use super::{Engine, Vector};
use std::ops::Range;

/// The most columns of any engine.
pub(in crate::contract) const MOST: usize = 27;

/// Adjacent columns of a run.
const BESIDE: usize = 3;
/// Distance of two steps that are multiplied together, as at stride two.
const APART: usize = 2;
/// Steps of runs from one prefetch to the next.
pub(in crate::contract) const AT_ONCE: usize = 8;

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
    /// Offset of each column's sums from there, evenly spaced in runs.
    pub(in crate::contract) places: &'a [isize],
    /// Adds to the destination instead of replacing it.
    pub(in crate::contract) add: bool,
    /// Sums may be subnormal.
    pub(in crate::contract) tiny: bool,
    /// What is prefetched meanwhile, if columns form runs.
    pub(in crate::contract) later: Option<Later>,
}

/// Strips of columns that are accumulated together, of whole runs if the engine has these.
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

/// Multiplies `R` runs of `W` adjacent columns by `V` vectors of rows.
///
/// # Safety
///
/// The CPU must have the vector; `R` by `W` columns, `V` vectors must be readable, sums writable.
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
        // One vector of rows: steps are contiguous.
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

/// Address of the numbers that a run reads in a step.
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

/// Adds the products of two steps at distance [`APART`]: numbers that both read are loaded once.
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

/// Dispatches to [`product`]: by one vector or two, by one alone, or in runs of three by one.
macro_rules! spots {
    ($vector:ty, $columns:expr, $vectors:expr, $spots:expr, [$($c:literal)*] $(, alone: [$($one:literal)*], threes: [$($three:literal)*])?) => {
        match ($columns, $vectors) {
            // SAFETY: the caller vouches for these columns and vectors.
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
