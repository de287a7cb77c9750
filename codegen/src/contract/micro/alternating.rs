//! The innermost loop of transposed convolutions: sums for columns two apart, and for those between them, of the same numbers. Both are stored in turn.

use super::Vector;
use tracecast_ir::DType;

/// Sums of lines, whose columns see numbers side by side.
pub(in crate::contract) struct Alternating<T> {
    /// What the first column of the first line sees: of the nearest row, at the first place.
    pub(in crate::contract) from: *const T,
    /// From a row to the one behind it; lines see rows backwards, and places.
    pub(in crate::contract) pitch: usize,
    pub(in crate::contract) places: Places,
    /// The weights, and from those of a row to those of the row before it.
    pub(in crate::contract) weights: *const T,
    pub(in crate::contract) weights_row: usize,
    pub(in crate::contract) lines: usize,
    /// What lines are multiplied with, in turn.
    pub(in crate::contract) kinds: [Kind; 2],
    /// Where the sums go, and numbers from a line to the next.
    pub(in crate::contract) sums: *mut u8,
    pub(in crate::contract) width: usize,
    /// Sums of products of bf16 are rounded to bf16.
    pub(in crate::contract) rounds: bool,
}

/// A kind of lines.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Kind {
    /// How many rows a line sees, and the first weight of the nearest, which are in the order of places.
    pub(in crate::contract) rows: usize,
    pub(in crate::contract) weights: usize,
    /// From what it sees to what the next line does.
    pub(in crate::contract) next: usize,
}

/// What the places of a row are multiplied for, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::contract) struct Places {
    /// The first is multiplied for odd columns only.
    pub(in crate::contract) odd_first: bool,
    /// So many are multiplied for even and for odd columns, by a weight each.
    pub(in crate::contract) both: usize,
    /// The last is multiplied for even columns only.
    pub(in crate::contract) even_last: bool,
}

/// Vectors of two that alternate.
pub(super) trait Interleave: Vector {
    /// The first numbers of both in turn, and the last ones.
    fn interleave(self, odd: Self) -> [Self; 2];

    /// Stores numbers of both in turn, rounded to bf16; those that are not numbers have no bits that are rounded away.
    ///
    /// # Safety
    ///
    /// `to` must be writable for them.
    unsafe fn round_in_turn(self, _odd: Self, _to: *mut u8) {
        unreachable!("the engine does not alternate bf16")
    }
}

impl<T> Alternating<T> {
    /// Bytes of so many sums.
    pub(in crate::contract) fn bytes(&self, sums: usize) -> usize {
        sums * if self.rounds { DType::BF16.bytes() } else { size_of::<T>() }
    }
}

/// The most vectors of even columns that are summed together.
pub(in crate::contract) const MOST_VECTORS: usize = 4;

/// # Safety
///
/// The CPU must have the vector; what `V` vectors of even columns and as many of odd ones see must be readable, and their sums writable.
#[inline(always)]
pub(super) unsafe fn product<T: Interleave, const V: usize>(s: &Alternating<T::Num>) {
    let Places { odd_first, both, even_last } = s.places;
    match (odd_first, both, even_last) {
        // Three positions, the middle one of which is on the first column; and five.
        // SAFETY: the caller's contract.
        (true, 1, false) => unsafe {
            of::<T, V>(s, Places { odd_first: true, both: 1, even_last: false })
        },
        // SAFETY: the caller's contract.
        (false, 2, true) => unsafe {
            of::<T, V>(s, Places { odd_first: false, both: 2, even_last: true })
        },
        // SAFETY: the caller's contract.
        _ => unsafe { of::<T, V>(s, s.places) },
    }
}

/// As [`product`], for places that may be known where it is compiled.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn of<T: Interleave, const V: usize>(s: &Alternating<T::Num>, places: Places) {
    let [one, other] = s.kinds;
    let (mut first, mut line) = (s.from, 0);
    // Two short lines of each kind at a time: their weights are read once for both. They are stored in order.
    while V <= SHORT && line + 4 <= s.lines {
        let apart = one.next + other.next;
        // SAFETY: the caller's contract, for two lines of a kind.
        let ones = unsafe { sums::<T, V, 2>(s, &one, places, (first, apart)) };
        let from = first.wrapping_add(one.next);
        // SAFETY: as above.
        let others = unsafe { sums::<T, V, 2>(s, &other, places, (from, apart)) };
        for (i, sums) in [ones[0], others[0], ones[1], others[1]].into_iter().enumerate() {
            // SAFETY: the caller vouches for the sums' memory.
            unsafe { store::<T, V>(s, line + i, sums) };
        }
        first = first.wrapping_add(2 * apart);
        line += 4;
    }
    while line < s.lines {
        let kind = &s.kinds[line % 2];
        // SAFETY: the caller's contract, for a line.
        let [sums] = unsafe { sums::<T, V, 1>(s, kind, places, (first, 0)) };
        // SAFETY: as above.
        unsafe { store::<T, V>(s, line, sums) };
        first = first.wrapping_add(kind.next);
        line += 1;
    }
}

/// Lines of so many vectors are short.
const SHORT: usize = 2;

/// Stores the sums of a line in turn.
///
/// # Safety
///
/// They must be writable.
#[inline(always)]
unsafe fn store<T: Interleave, const V: usize>(
    s: &Alternating<T::Num>,
    line: usize,
    [even, odd]: [[T; V]; 2],
) {
    for (v, (even, odd)) in even.into_iter().zip(odd).enumerate() {
        let to = s.sums.wrapping_add(s.bytes(line * s.width + 2 * v * T::LANES));
        if s.rounds {
            // SAFETY: the caller's contract.
            unsafe { even.round_in_turn(odd, to) };
            continue;
        }
        let [first, last] = even.interleave(odd);
        // SAFETY: the caller's contract.
        unsafe { first.store(to.cast()) };
        // SAFETY: the caller's contract.
        unsafe { last.store(to.cast::<T::Num>().wrapping_add(T::LANES)) };
    }
}

/// The sums of even and of odd columns of `L` lines of a kind, which see numbers so far apart.
///
/// # Safety
///
/// As [`product`].
#[inline(always)]
unsafe fn sums<T: Vector, const V: usize, const L: usize>(
    s: &Alternating<T::Num>,
    kind: &Kind,
    places: Places,
    (first, apart): (*const T::Num, usize),
) -> [[[T; V]; 2]; L] {
    let zeros = [T::splat(<T::Num as super::Number>::ZERO); V];
    let mut sums = [[zeros; 2]; L];
    let (mut row, mut weights) = (first, s.weights.wrapping_add(kind.weights));
    for _ in 0..kind.rows {
        let (mut from, mut weight) = (row, weights);
        let mut next = || {
            // SAFETY: a weight of this row, for which the caller vouches.
            let number = T::splat(unsafe { weight.read() });
            weight = weight.wrapping_add(1);
            number
        };
        let mut place = || {
            let mut seen = [zeros; L];
            for (l, seen) in seen.iter_mut().enumerate() {
                for (v, seen) in seen.iter_mut().enumerate() {
                    // SAFETY: what columns see at this place.
                    *seen = unsafe { T::load(from.wrapping_add(l * apart + v * T::LANES)) };
                }
            }
            from = from.wrapping_sub(1);
            seen
        };
        if places.odd_first {
            add(&mut sums, 1, next(), &place());
        }
        for _ in 0..places.both {
            let seen = place();
            add(&mut sums, 0, next(), &seen);
            add(&mut sums, 1, next(), &seen);
        }
        if places.even_last {
            add(&mut sums, 0, next(), &place());
        }
        row = row.wrapping_sub(s.pitch);
        weights = weights.wrapping_add(s.weights_row);
    }
    sums
}

/// Adds what even columns of some lines see, or odd ones, by their weight.
#[inline(always)]
fn add<T: Vector, const V: usize, const L: usize>(
    sums: &mut [[[T; V]; 2]; L],
    odd: usize,
    weight: T,
    seen: &[[T; V]; L],
) {
    for (sums, seen) in sums.iter_mut().zip(seen) {
        for (sum, seen) in sums[odd].iter_mut().zip(seen) {
            *sum = weight.fma(*seen, *sum);
        }
    }
}

/// [`product`] of so many vectors, one after the other: where what it costs to begin a line is little beside its sums. The last come first, so that those before them
/// take the place of what is written behind a line.
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn singly<T: Interleave>(vectors: usize, s: &Alternating<T::Num>) {
    for first in (0..vectors).rev().map(|v| v * T::LANES) {
        let from = s.from.wrapping_add(first);
        let sums = s.sums.wrapping_add(s.bytes(2 * first));
        // SAFETY: the caller's contract.
        unsafe { product::<T, 1>(&Alternating { from, sums, ..*s }) };
    }
}

/// Calls [`product`] for so many vectors.
macro_rules! alternating {
    ($vector:ty, $vectors:expr, $of:expr, [$($v:literal)*]) => {
        match $vectors {
            // SAFETY: the caller vouches for so many.
            $($v => unsafe { $crate::contract::micro::alternating::product::<$vector, $v>($of) },)*
            // SAFETY: as above.
            vectors => unsafe { $crate::contract::micro::alternating::singly::<$vector>(vectors, $of) },
        }
    };
}

pub(super) use alternating;
