//! Gathers rows of strided elements into contiguous rows. Rows that are adjacent in memory are
//! gathered in blocks of eight, so that every cache line is read once. Fewer than eight
//! rows of stride 2, as windows of two by two have, are deinterleaved in pairs.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;

use super::{ElementSize, GatherFn};
use std::ops::Range;

/// The routine for elements of that size on any CPU.
pub(super) fn portable(size: ElementSize) -> GatherFn {
    match size {
        ElementSize::One => plain::<u8>,
        ElementSize::Two => plain::<u16>,
        ElementSize::Four => plain::<u32>,
        ElementSize::Eight => plain::<u64>,
    }
}

/// Where eight positions of eight rows are, and where they go.
#[derive(Clone, Copy)]
struct Block {
    src: *const u8,
    dst: *mut u8,
    step: isize,
    ld: usize,
}

/// Portable [`GatherFn`].
unsafe extern "C" fn plain<T: Copy>(
    src: *const u8,
    dst: *mut u8,
    n: usize,
    rows: usize,
    step: isize,
    ld: usize,
) {
    let all = Block { src, dst, step, ld };
    // SAFETY: the caller's contract is that of `gather`, whose blocks have that number of elements.
    let block = |block| unsafe { elements::<T>(block, 0..8, 0..8) };
    // SAFETY: as above.
    unsafe { gather::<T>(all, n, rows, block) }
}

/// Gathers `n` positions of each row, in blocks of eight by eight where these are full.
///
/// # Safety
///
/// As [`GatherFn`]; `block` may be called for what is inside these positions and rows.
#[inline(always)]
unsafe fn gather<T: Copy>(all: Block, n: usize, rows: usize, block: impl Fn(Block)) {
    let whole = rows / 8 * 8;
    for p in (0..n).step_by(8) {
        let positions = p..(p + 8).min(n);
        let blocks = if positions.len() == 8 { whole } else { 0 };
        for r in (0..blocks).step_by(8) {
            let src = all.src.wrapping_offset(p as isize * all.step);
            block(Block {
                src: src.wrapping_add(r * size_of::<T>()),
                dst: all.dst.wrapping_add((r * all.ld + p) * size_of::<T>()),
                ..all
            });
        }
        // SAFETY: positions and rows that the caller vouches for.
        unsafe { elements::<T>(all, positions, blocks..rows) };
    }
}

/// Deinterleaves `n` positions of rows of stride 2. A block is eight positions of a row, and of the
/// next row if that has another destination.
///
/// # Safety
///
/// As [`GatherFn`]; `block` may be called for what is inside these positions and rows, and the
/// elements between.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn deinterleave<T: Copy>(all: Block, n: usize, rows: usize, block: impl Fn(Block, bool)) {
    for r in (0..rows).step_by(2) {
        let both = r + 1 < rows;
        // Memory after the last element of a single row may belong to no one.
        let whole = if both { n } else { n - 1 } / 8 * 8;
        let own = |p: usize| Block {
            src: all.src.wrapping_add((2 * p + r) * size_of::<T>()),
            dst: all.dst.wrapping_add((r * all.ld + p) * size_of::<T>()),
            ..all
        };
        (0..whole).step_by(8).for_each(|p| block(own(p), both));
        if both && n > 8 {
            block(own(n - 8), true);
            continue;
        }
        // SAFETY: positions and rows that the caller vouches for.
        unsafe { elements::<T>(all, whole..n, r..rows.min(r + 2)) };
    }
}

/// Brings elements one by one.
///
/// # Safety
///
/// As [`GatherFn`], for these positions and rows.
#[inline(always)]
unsafe fn elements<T: Copy>(block: Block, positions: Range<usize>, rows: Range<usize>) {
    for r in rows {
        for p in positions.clone() {
            let from = block.src.wrapping_offset(p as isize * block.step).cast::<T>();
            // SAFETY: an element that the caller vouches for.
            let x = unsafe { from.wrapping_add(r).read_unaligned() };
            let to = block.dst.cast::<T>().wrapping_add(r * block.ld + p);
            // SAFETY: as above.
            unsafe { to.write_unaligned(x) };
        }
    }
}
