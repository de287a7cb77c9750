//! The innermost loop of depthwise convolutions that lie side by side in vectors: a lane is a batch, and windows slide over rows of places that registers hold.
//!
//! Each place of a row is read once for all windows of two lines that see it, rather than once for each of them.

use super::Vector;

/// The most places that a row has for windows of a line that are summed together.
const PLACES: usize = 12;

/// So many windows of a line are summed together, and lines.
pub(in crate::contract) const WINDOWS: usize = 8;
pub(in crate::contract) const LINES: usize = 2;

/// Products of windows of `T` by `T` positions with their steps, `L` lines of `C` of them. The first window is that which begins furthest from where positions go to.
pub(in crate::contract) struct Sliding<T> {
    /// The first step's vector; steps follow.
    pub(in crate::contract) a: *const T,
    /// The first position of the first window, from a line of positions to the next, and from a position to the next. Windows are as far apart.
    pub(in crate::contract) b: *const T,
    pub(in crate::contract) down: isize,
    pub(in crate::contract) across: isize,
    /// The sum of the first window, from that of a line to the next, and from that of a window to the next.
    pub(in crate::contract) sums: *mut T,
    pub(in crate::contract) line: isize,
    pub(in crate::contract) column: isize,
}

/// # Safety
///
/// The CPU must have the vector; what windows see must be readable, and sums writable.
#[inline(always)]
pub(super) unsafe fn product<V: Vector, const T: usize, const L: usize, const C: usize>(
    s: &Sliding<V::Num>,
) {
    let zero = V::splat(<V::Num as super::Number>::ZERO);
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

/// Calls [`product`] for windows of so many positions, one line or two of so many of these.
macro_rules! sliding {
    ($vector:ty, $taps:expr, $lines:expr, $columns:expr, $sliding:expr, [$($t:literal: [$($c:literal)*]),*]) => {
        match ($taps, $lines, $columns) {
            // SAFETY: the caller's contract.
            $($(($t, 1, $c) => unsafe { $crate::contract::micro::sliding::product::<$vector, $t, 1, $c>($sliding) },
            // SAFETY: as above.
            ($t, 2, $c) => unsafe { $crate::contract::micro::sliding::product::<$vector, $t, 2, $c>($sliding) },)*)*
            sizes => unreachable!("no product of {sizes:?}"),
        }
    };
}

pub(super) use sliding;
