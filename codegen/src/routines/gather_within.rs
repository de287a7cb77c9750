//! A row of which some positions lie outside of an operand: elements for those inside, a fill for
//! the others.

use super::ElementSize;

/// Brings the elements of positions `low..high` of `n` to `dst`, where the other positions get the
/// fill, an element in its low bits. That of position `p` is at `src + p * step`; only these have
/// to be there. Nothing needs to be aligned.
pub(crate) type WithinFn = unsafe extern "C" fn(
    src: *const u8,
    dst: *mut u8,
    n: usize,
    low: usize,
    high: usize,
    step: isize,
    fill: u64,
);

/// The routine for elements of that size.
pub(super) fn of_size(size: ElementSize) -> WithinFn {
    match size {
        ElementSize::One => within::<u8>,
        ElementSize::Two => within::<u16>,
        ElementSize::Four => within::<u32>,
        ElementSize::Eight => within::<u64>,
    }
}

/// An element by its bits.
trait Bits: Copy {
    /// Those that are lowest.
    fn lowest(bits: u64) -> Self;
}

macro_rules! bits {
    ($($ty:ty)*) => {$(
        impl Bits for $ty {
            fn lowest(bits: u64) -> Self {
                bits as $ty
            }
        }
    )*};
}

bits! { u8 u16 u32 u64 }

/// [`WithinFn`].
unsafe extern "C" fn within<T: Bits>(
    src: *const u8,
    dst: *mut u8,
    n: usize,
    low: usize,
    high: usize,
    step: isize,
    fill: u64,
) {
    let dst = dst.cast::<T>();
    let outside = (0..low.min(n)).chain(high.max(low)..n);
    // SAFETY: positions of the row, which the caller has room for.
    outside.for_each(|p| unsafe { dst.wrapping_add(p).write_unaligned(T::lowest(fill)) });
    let size = size_of::<T>() as isize;
    let first = src.wrapping_offset(low as isize * step);
    let (to, count) = (dst.wrapping_add(low), high.saturating_sub(low));
    if step == size {
        // SAFETY: elements that the caller vouches for, in a scratch that is no operand.
        unsafe { std::ptr::copy_nonoverlapping(first, to.cast(), count * size_of::<T>()) };
        return;
    }
    // A step that the compiler knows makes vectors of the loop.
    match step == 2 * size {
        // SAFETY: elements that the caller vouches for.
        true => unsafe { apart::<T>(first, to, count, 2 * size) },
        // SAFETY: as above.
        false => unsafe { apart::<T>(first, to, count, step) },
    }
}

/// # Safety
///
/// As [`WithinFn`], for a number of elements from the first on.
#[inline(always)]
unsafe fn apart<T: Copy>(first: *const u8, to: *mut T, count: usize, step: isize) {
    for p in 0..count {
        let from = first.wrapping_offset(p as isize * step).cast::<T>();
        // SAFETY: an element that the caller vouches for.
        let x = unsafe { from.read_unaligned() };
        // SAFETY: as above.
        unsafe { to.wrapping_add(p).write_unaligned(x) };
    }
}
