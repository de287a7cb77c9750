//! Loads of elements of one dtype as a vector of accumulators' numbers.

use super::vector::Vector;
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
    /// Masks `count` elements from `from` on. `there` is the range in bounds, of eight or more.
    pub(super) fn of(there: &Range<isize>, from: isize, count: usize) -> There {
        let before = |end: isize| ((1u64 << (end - from).clamp(0, count as isize)) - 1) as u32;
        let mask = before(there.end) & !before(there.start);
        There {
            mask,
            #[cfg(target_arch = "x86_64")]
            by: [from, from + 8].map(|from| from.clamp(there.start, there.end - 8) - from),
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
        unsafe { one_by_one::<V, Self>(from, there.mask, 1) }
    }

    /// Loads twice as many, deinterleaved: those at even places, and those at odd ones.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that are there.
    #[inline(always)]
    unsafe fn apart(from: *const u8, there: There) -> [V; 2] {
        [0, 1].map(|odd| {
            let (from, mask) = (from.wrapping_add(odd * Self::BYTES), there.mask >> odd);
            // SAFETY: the caller's contract.
            unsafe { one_by_one::<V, Self>(from, mask, 2) }
        })
    }

    /// Loads those at even places; `next` are those at even places from two elements later on.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that are there.
    #[inline(always)]
    unsafe fn even(from: *const u8, there: There, _next: V) -> V {
        // SAFETY: the caller's contract.
        let [even, _] = unsafe { Self::apart(from, there) };
        even
    }
}

/// Loads elements of stride `step` one by one, where their bit of the mask is set.
///
/// # Safety
///
/// `from` must be readable for the elements whose bit is set.
#[inline(always)]
unsafe fn one_by_one<V: Vector, C: Cell<V> + ?Sized>(from: *const u8, mask: u32, step: usize) -> V {
    // As many as the widest vectors have.
    let mut cells = [0u64; 16];
    let to = cells.as_mut_ptr().cast::<u8>();
    for lane in (0..V::LANES).filter(|lane| mask >> (lane * step) & 1 != 0) {
        let from = from.wrapping_add(lane * step * C::BYTES);
        // SAFETY: an element that is there, and a place for it.
        unsafe { to.wrapping_add(lane * C::BYTES).copy_from_nonoverlapping(from, C::BYTES) };
    }
    // SAFETY: as many elements as there are lanes.
    unsafe { C::load(to, 0) }
}
