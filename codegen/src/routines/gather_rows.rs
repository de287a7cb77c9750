//! Elements that lie apart, brought next to each other: rows that step through memory, several at a time where they are neighbours
//! there, so that every cache line is read once.

use super::{BringFn, ElementSize};
use std::ops::Range;

/// The routine for elements of that size on any CPU.
pub(super) fn portable(size: ElementSize) -> BringFn {
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

/// Portable [`BringFn`].
unsafe extern "C" fn plain<T: Copy>(
    src: *const u8,
    dst: *mut u8,
    n: usize,
    rows: usize,
    step: isize,
    ld: usize,
) {
    let all = Block { src, dst, step, ld };
    // SAFETY: the caller's contract is that of `bring`, whose blocks have so many elements.
    let block = |block| unsafe { elements::<T>(block, 0..8, 0..8) };
    // SAFETY: as above.
    unsafe { bring::<T>(all, n, rows, block) }
}

/// Brings `n` positions of some rows, in blocks where there are as many.
///
/// # Safety
///
/// As [`BringFn`]; `block` may be called for what is inside these positions and rows.
#[inline(always)]
unsafe fn bring<T: Copy>(all: Block, n: usize, rows: usize, block: impl Fn(Block)) {
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

/// Brings elements one by one.
///
/// # Safety
///
/// As [`BringFn`], for these positions and rows.
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

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2 {
    //! Blocks of elements of 2 and 4 bytes, transposed in registers.

    use super::{Block, BringFn, ElementSize, bring};
    use core::arch::x86_64 as x86;

    /// The routine for elements of that size with AVX2.
    pub(in super::super) fn of_size(size: ElementSize) -> BringFn {
        match size {
            ElementSize::Two => two_bytes,
            ElementSize::Four => four_bytes,
            ElementSize::One | ElementSize::Eight => super::portable(size),
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe extern "C" fn two_bytes(
        src: *const u8,
        dst: *mut u8,
        n: usize,
        rows: usize,
        step: isize,
        ld: usize,
    ) {
        let all = Block { src, dst, step, ld };
        // SAFETY: the caller's contract is that of `bring`, whose blocks have so many elements.
        let block = |block| unsafe { words(block) };
        // SAFETY: as above.
        unsafe { bring::<u16>(all, n, rows, block) }
    }

    #[target_feature(enable = "avx2")]
    unsafe extern "C" fn four_bytes(
        src: *const u8,
        dst: *mut u8,
        n: usize,
        rows: usize,
        step: isize,
        ld: usize,
    ) {
        let all = Block { src, dst, step, ld };
        // SAFETY: the caller's contract is that of `bring`, whose blocks have so many elements.
        let block = |block| unsafe { numbers(block) };
        // SAFETY: as above.
        unsafe { bring::<u32>(all, n, rows, block) }
    }

    /// Eight positions of eight rows of 2 bytes each.
    ///
    /// # Safety
    ///
    /// As [`BringFn`], for so many.
    #[target_feature(enable = "avx2")]
    unsafe fn words(block: Block) {
        let mut v = [x86::_mm_setzero_si128(); 8];
        for (p, line) in v.iter_mut().enumerate() {
            let from = block.src.wrapping_offset(p as isize * block.step);
            // SAFETY: eight elements of the block.
            *line = unsafe { x86::_mm_loadu_si128(from.cast()) };
        }
        // Each round turns the number of an element, its line and its place in it, by one bit.
        let mut t = v;
        for i in 0..4 {
            t[2 * i] = x86::_mm_unpacklo_epi16(v[i], v[i + 4]);
            t[2 * i + 1] = x86::_mm_unpackhi_epi16(v[i], v[i + 4]);
        }
        for i in 0..4 {
            v[2 * i] = x86::_mm_unpacklo_epi16(t[i], t[i + 4]);
            v[2 * i + 1] = x86::_mm_unpackhi_epi16(t[i], t[i + 4]);
        }
        for i in 0..4 {
            t[2 * i] = x86::_mm_unpacklo_epi16(v[i], v[i + 4]);
            t[2 * i + 1] = x86::_mm_unpackhi_epi16(v[i], v[i + 4]);
        }
        for (r, row) in t.into_iter().enumerate() {
            let to = block.dst.wrapping_add(2 * r * block.ld);
            // SAFETY: eight elements of the block.
            unsafe { x86::_mm_storeu_si128(to.cast(), row) };
        }
    }

    /// Eight positions of eight rows of 4 bytes each.
    ///
    /// # Safety
    ///
    /// As [`BringFn`], for so many.
    #[target_feature(enable = "avx2")]
    unsafe fn numbers(block: Block) {
        let mut v = [x86::_mm256_setzero_ps(); 8];
        for (p, line) in v.iter_mut().enumerate() {
            let from = block.src.wrapping_offset(p as isize * block.step);
            // SAFETY: eight elements of the block.
            *line = unsafe { x86::_mm256_loadu_ps(from.cast()) };
        }
        for (r, row) in transpose(v).into_iter().enumerate() {
            let to = block.dst.wrapping_add(4 * r * block.ld);
            // SAFETY: eight elements of the block.
            unsafe { x86::_mm256_storeu_ps(to.cast(), row) };
        }
    }

    /// Column `i` of eight rows of eight as row `i`.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn transpose(r: [x86::__m256; 8]) -> [x86::__m256; 8] {
        let mut t = r;
        for i in 0..4 {
            t[2 * i] = x86::_mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = x86::_mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let mut u = t;
        for i in [0, 4] {
            u[i] = x86::_mm256_shuffle_ps::<0x44>(t[i], t[i + 2]);
            u[i + 1] = x86::_mm256_shuffle_ps::<0xee>(t[i], t[i + 2]);
            u[i + 2] = x86::_mm256_shuffle_ps::<0x44>(t[i + 1], t[i + 3]);
            u[i + 3] = x86::_mm256_shuffle_ps::<0xee>(t[i + 1], t[i + 3]);
        }
        let mut out = u;
        for i in 0..4 {
            out[i] = x86::_mm256_permute2f128_ps::<0x20>(u[i], u[i + 4]);
            out[i + 4] = x86::_mm256_permute2f128_ps::<0x31>(u[i], u[i + 4]);
        }
        out
    }
}
