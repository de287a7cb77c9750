//! A row of which some positions lie outside of an operand: elements for those inside, a fill for
//! the others.

use super::{ElementSize, GatherFn, WithinFn};

/// The routine for elements of that size, which gathers by those of `G`.
pub(super) fn of_size<G: Gather>(size: ElementSize) -> WithinFn {
    match size {
        ElementSize::One => within::<u8, G>,
        ElementSize::Two => within::<u16, G>,
        ElementSize::Four => within::<u32, G>,
        ElementSize::Eight => within::<u64, G>,
    }
}

/// Gathers rows.
pub(super) trait Gather {
    /// The routine for elements of that size.
    fn of_size(size: ElementSize) -> GatherFn;
}

/// An element by its bits.
trait Bits: Copy {
    const SIZE: ElementSize;

    /// Those that are lowest.
    fn lowest(bits: u64) -> Self;
}

macro_rules! bits {
    ($($ty:ty = $size:ident)*) => {$(
        impl Bits for $ty {
            const SIZE: ElementSize = ElementSize::$size;

            fn lowest(bits: u64) -> Self {
                bits as $ty
            }
        }
    )*};
}

bits! { u8 = One u16 = Two u32 = Four u64 = Eight }

/// [`WithinFn`].
unsafe extern "C" fn within<T: Bits, G: Gather>(
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
    // SAFETY: a row of elements that the caller vouches for.
    unsafe { G::of_size(T::SIZE)(first, to.cast(), count, 1, step, 0) }
}
