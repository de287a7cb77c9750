//! Loads of elements of one dtype as a vector of accumulators' numbers.

use super::vector::{Number, Vector, unrolled};
use std::ops::Range;

/// Loads elements of one dtype as a vector.
pub(in crate::contract) trait Cell<T: Vector> {
    const BYTES: usize;
    /// Loads a vector of columns; `step` is the stride of numbers along `k`, in bytes.
    ///
    /// # Safety
    ///
    /// `p` must be readable for as many elements as the vector has lanes, in each step of a number.
    unsafe fn load(p: *const u8, step: isize) -> T;
    /// Two adjacent vectors of columns, in a lane order of the cell's own.
    ///
    /// # Safety
    ///
    /// `p` must be readable for both vectors' elements, in each step of a number.
    #[inline(always)]
    unsafe fn load_two(p: *const u8, step: isize) -> [T; 2] {
        // SAFETY: the caller's contract.
        let first = unsafe { Self::load(p, step) };
        // SAFETY: as above.
        [first, unsafe { Self::load(p.wrapping_add(T::LANES * Self::BYTES), step) }]
    }
    /// Restores column order after [`Cell::load_two`].
    #[inline(always)]
    fn in_order(two: [T; 2]) -> [T; 2] {
        two
    }
    /// [`Vector::round`] of two vectors in the order of [`Cell::load_two`].
    ///
    /// # Safety
    ///
    /// `p` must be writable for both vectors' sums.
    #[inline(always)]
    unsafe fn round_two(two: [T; 2], p: *mut u16) {
        for (v, x) in two.into_iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { x.round(p.wrapping_add(v * T::LANES)) };
        }
    }
    /// Updates the least magnitude so far, zeros at first. Only pairs of bf16 keep it.
    #[inline(always)]
    fn smaller(least: T, _: T) -> T {
        least
    }
    /// That magnitude, as [`Engine::pack`](super::Engine::pack) returns it.
    #[inline(always)]
    fn least(_: T) -> u16 {
        u16::MAX
    }
}

/// Elements of the accumulator's dtype.
pub(in crate::contract) struct Same;

impl<T: Vector> Cell<T> for Same {
    const BYTES: usize = size_of::<T::Num>();
    #[inline(always)]
    unsafe fn load(p: *const u8, _: isize) -> T {
        // SAFETY: the caller's contract.
        unsafe { T::load(p.cast()) }
    }
}

/// bf16 in memory.
pub(in crate::contract) struct Bf16;

/// f16 in memory.
pub(in crate::contract) struct F16;

/// Lane mask of the elements in bounds, of a vector or of two that are deinterleaved.
#[derive(Clone, Copy)]
pub(in crate::contract) struct There {
    pub(super) mask: u32,
    /// Offsets from elements 0 and 8 to eight in bounds: AVX2 has no masked loads of 16 bits.
    #[cfg(target_arch = "x86_64")]
    pub(super) by: [isize; 2],
}

impl There {
    /// All of a vector, or of two.
    #[cfg(target_arch = "x86_64")]
    pub(super) const WHOLE: There = There { mask: u32::MAX, by: [0; 2] };

    /// Masks `count` elements from `from` on. `there` is the range in bounds, for AVX2 of eight or
    /// more.
    pub(super) fn of(there: &Range<isize>, from: isize, count: usize) -> There {
        let before = |end: isize| ((1u64 << (end - from).clamp(0, count as isize)) - 1) as u32;
        let mask = before(there.end) & !before(there.start);
        There {
            mask,
            #[cfg(target_arch = "x86_64")]
            by: [from, from + 8].map(|from| from.min(there.end - 8).max(there.start) - from),
        }
    }
}

/// Masked loads: zeros for elements out of bounds.
pub(in crate::contract) trait Sight<V: Vector>: Cell<V> {
    /// Loads contiguous elements, one a lane.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that are there.
    #[inline(always)]
    unsafe fn side_by_side(from: *const u8, there: There) -> V {
        if there.mask.count_ones() as usize == V::LANES {
            // SAFETY: the caller's contract.
            return unsafe { Self::load(from, 0) };
        }
        // SAFETY: the caller's contract.
        unsafe { one_by_one::<V, Self>([from; 2], there.mask, 1) }
    }

    /// Loads a vector of elements from each address, deinterleaved: those at even places, and those
    /// at odd ones. The addresses are of `TWO` rows, or of adjacent halves of one.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that are there.
    #[inline(always)]
    unsafe fn apart<const TWO: bool>(from: [*const u8; 2], there: There) -> [V; 2] {
        [0, 1].map(|odd| {
            let from = from.map(|from| from.wrapping_add(odd * Self::BYTES));
            // SAFETY: the caller's contract.
            unsafe { one_by_one::<V, Self>(from, there.mask >> odd, 2) }
        })
    }

    /// Loads those at even places; `next` are those at even places from two elements later on.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that are there.
    #[inline(always)]
    unsafe fn even<const TWO: bool>(from: [*const u8; 2], there: There, _next: V) -> V {
        // SAFETY: the caller's contract.
        let [even, _] = unsafe { Self::apart::<TWO>(from, there) };
        even
    }

    /// Loads the input of each of `K` taps, 3 or 5, for outputs of stride `S`, 1 or 2. At stride 2
    /// addresses are as in [`Sight::apart`], at stride 1 the second is not read.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements of each tap that are there.
    #[inline(always)]
    unsafe fn taps<const K: usize, const S: usize, const TWO: bool>(
        from: [*const u8; 2],
        there: &[There; K],
    ) -> [V; K] {
        let from = |c: usize| from.map(|from| from.wrapping_add(c * Self::BYTES));
        let mut seen = [V::splat(<V::Num as Number>::ZERO); K];
        unrolled!(c of 0 1 2 3 4 => {
            if c < K && S == 1 {
                // SAFETY: the caller's contract.
                seen[c] = unsafe { Self::side_by_side(from(c)[0], there[c]) };
            } else if c < K && c % 2 == 1 {
                // SAFETY: the caller's contract.
                [seen[c], seen[c + 1]] = unsafe { Self::apart::<TWO>(from(c), there[c]) };
            }
        });
        if S == 2 {
            // The first tap of a window is the third of the window before it.
            // SAFETY: the caller's contract.
            seen[0] = unsafe { Self::even::<TWO>(from(0), there[0], seen[2]) };
        }
        seen
    }
}

/// Loads elements of stride `step` one by one, where their bit of the mask is set.
///
/// # Safety
///
/// `from` must be readable for the elements whose bit is set.
#[inline(always)]
unsafe fn one_by_one<V: Vector, C: Cell<V> + ?Sized>(
    from: [*const u8; 2],
    mask: u32,
    step: usize,
) -> V {
    // As many as the widest vectors have.
    let mut cells = [0u64; 16];
    let to = cells.as_mut_ptr().cast::<u8>();
    for lane in (0..V::LANES).filter(|lane| mask >> (lane * step) & 1 != 0) {
        let at = lane * step;
        let from = from[at / V::LANES].wrapping_add(at % V::LANES * C::BYTES);
        // SAFETY: an element that is there, and a place for it.
        unsafe { to.wrapping_add(lane * C::BYTES).copy_from_nonoverlapping(from, C::BYTES) };
    }
    // SAFETY: as many elements as there are lanes.
    unsafe { C::load(to, 0) }
}
