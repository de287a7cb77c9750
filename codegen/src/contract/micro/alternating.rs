//! Microkernel of transposed convolutions of stride two: even and odd columns are interleaved.

use super::engine::Elementwise;
use super::vector::{Interleave, Microkernel, Number, Vector};
use tracecast_ir::DType;

/// Arguments of the kernel: lines of the result, whose columns read contiguous numbers.
pub(in crate::contract) struct Alternating<T> {
    /// The number that the first column of the first line reads first: nearest row, first place.
    pub(in crate::contract) from: *const T,
    /// Stride of rows in numbers. Kernels walk rows and places backwards.
    pub(in crate::contract) pitch: usize,
    pub(in crate::contract) places: Places,
    /// The weights, and the stride from a row's weights to those of the row before it.
    pub(in crate::contract) weights: *const T,
    pub(in crate::contract) weights_row: usize,
    pub(in crate::contract) lines: usize,
    /// Lines alternate between these kinds.
    pub(in crate::contract) kinds: [Kind; 2],
    /// Destination of the sums, and the stride of lines in sums.
    pub(in crate::contract) sums: *mut u8,
    pub(in crate::contract) width: usize,
    /// Sums of products of bf16 are rounded to bf16.
    pub(in crate::contract) rounds: bool,
}

/// The weights of every second line.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Kind {
    /// Rows that a line reads, and the offset of the nearest row's first weight.
    pub(in crate::contract) rows: usize,
    pub(in crate::contract) weights: usize,
    /// Offset in numbers from the input of a line to that of the next.
    pub(in crate::contract) next: usize,
}

/// Which columns each place of a row contributes to, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::contract) struct Places {
    /// The first contributes to odd columns only.
    pub(in crate::contract) odd_first: bool,
    /// How many contribute to even and to odd columns, with a weight each.
    pub(in crate::contract) both: usize,
    /// The last contributes to even columns only.
    pub(in crate::contract) even_last: bool,
}

impl<T> Alternating<T> {
    /// The size of `sums` sums in bytes.
    pub(in crate::contract) fn bytes(&self, sums: usize) -> usize {
        sums * if self.rounds { DType::BF16.bytes() } else { size_of::<T>() }
    }
}

/// The most vectors of even columns that are accumulated together.
pub(in crate::contract) const MOST_VECTORS: usize = 4;

/// Computes `vectors` vectors of even columns, up to [`Elementwise::ALTERNATING`], and as many of
/// odd ones.
///
/// # Safety
///
/// The CPU must be the engine's. What the columns read must be readable, and their sums writable.
pub(in crate::contract) unsafe fn sum<E: Elementwise>(vectors: usize, lines: &Alternating<E::Num>) {
    // SAFETY: the caller's contract.
    unsafe { E::run(Vectors::<E>(vectors, lines)) }
}

/// The arguments of [`sum`], which alone makes them.
struct Vectors<'a, E: Elementwise>(usize, &'a Alternating<E::Num>);

impl<E: Elementwise> Microkernel for Vectors<'_, E> {
    type Out = ();

    #[inline(always)]
    unsafe fn run(self) {
        macro_rules! sum {
            ($($vectors:literal)*) => {
                match self.0 {
                    $($vectors if const { $vectors <= E::ALTERNATING } => {
                        self.product::<$vectors>()
                    })*
                    vectors => unreachable!("{vectors} vectors are too many"),
                }
            };
        }
        sum!(1 2 3 4)
    }
}

/// Lines of at most this many vectors are short.
const SHORT: usize = 2;

impl<E: Elementwise> Vectors<'_, E> {
    #[inline(always)]
    fn product<const V: usize>(&self) {
        let Places { odd_first, both, even_last } = self.1.places;
        match (odd_first, both, even_last) {
            // Kernels of three positions, centred on the first column; and of five.
            (true, 1, false) => {
                self.lines::<V>(Places { odd_first: true, both: 1, even_last: false })
            }
            (false, 2, true) => {
                self.lines::<V>(Places { odd_first: false, both: 2, even_last: true })
            }
            _ => self.lines::<V>(self.1.places),
        }
    }

    /// All lines; constant `places` let the compiler unroll.
    #[inline(always)]
    fn lines<const V: usize>(&self, places: Places) {
        let s = self.1;
        let [one, other] = s.kinds;
        let (mut first, mut line) = (s.from, 0);
        // Two short lines of each kind share each load of a weight. They are stored in order.
        while V <= SHORT && line + 4 <= s.lines {
            let apart = one.next + other.next;
            let ones = self.sums::<V, 2>(&one, places, (first, apart));
            let from = first.wrapping_add(one.next);
            let others = self.sums::<V, 2>(&other, places, (from, apart));
            for (i, sums) in [ones[0], others[0], ones[1], others[1]].into_iter().enumerate() {
                self.store(line + i, sums);
            }
            first = first.wrapping_add(2 * apart);
            line += 4;
        }
        while line < s.lines {
            let kind = &s.kinds[line % 2];
            let [sums] = self.sums::<V, 1>(kind, places, (first, 0));
            self.store(line, sums);
            first = first.wrapping_add(kind.next);
            line += 1;
        }
    }

    /// Interleaves even and odd sums of a line and stores them.
    #[inline(always)]
    fn store<const V: usize>(&self, line: usize, [even, odd]: [[E::Vector; V]; 2]) {
        let s = self.1;
        for (v, (even, odd)) in even.into_iter().zip(odd).enumerate() {
            let to = s.sums.wrapping_add(s.bytes(line * s.width + 2 * v * E::LANES));
            if s.rounds {
                // SAFETY: `sum`'s contract.
                unsafe { even.round_in_turn(odd, to) };
                continue;
            }
            let [first, last] = even.interleave(odd);
            // SAFETY: as above.
            unsafe { first.store(to.cast()) };
            // SAFETY: as above.
            unsafe { last.store(to.cast::<E::Num>().wrapping_add(E::LANES)) };
        }
    }

    /// The sums of even and odd columns of `L` lines of a kind; their input has stride `apart`.
    #[inline(always)]
    fn sums<const V: usize, const L: usize>(
        &self,
        kind: &Kind,
        places: Places,
        (first, apart): (*const E::Num, usize),
    ) -> [[[E::Vector; V]; 2]; L] {
        let s = self.1;
        let zeros = [E::Vector::splat(E::Num::ZERO); V];
        let mut sums = [[zeros; 2]; L];
        let (mut row, mut weights) = (first, s.weights.wrapping_add(kind.weights));
        for _ in 0..kind.rows {
            let (mut from, mut weight) = (row, weights);
            let mut next = || {
                // SAFETY: a weight of this row, by `sum`'s contract.
                let number = E::Vector::splat(unsafe { weight.read() });
                weight = weight.wrapping_add(1);
                number
            };
            let mut place = || {
                let mut seen = [zeros; L];
                for (l, seen) in seen.iter_mut().enumerate() {
                    for (v, seen) in seen.iter_mut().enumerate() {
                        // SAFETY: input that columns read at this place.
                        *seen =
                            unsafe { E::Vector::load(from.wrapping_add(l * apart + v * E::LANES)) };
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
}

/// Multiplies the input of even or odd columns by a weight and accumulates.
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
