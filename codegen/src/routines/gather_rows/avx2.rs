//! Blocks of elements of 2 and 4 bytes, transposed in registers.

use super::{Block, ElementSize, GatherFn, deinterleave, gather};
use core::arch::x86_64 as x86;

/// The routine for elements of that size with AVX2.
pub(in super::super) fn of_size(size: ElementSize) -> GatherFn {
    match size {
        ElementSize::Two => blocks::<u16>,
        ElementSize::Four => blocks::<u32>,
        ElementSize::One | ElementSize::Eight => super::portable(size),
    }
}

/// An element that is gathered in blocks.
trait InBlocks: Copy {
    /// Eight positions of eight rows.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2, and the block's elements be readable and writable.
    unsafe fn block(block: Block);

    /// Eight positions of a row, two elements apart, and of the next row if `both`.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2. Sixteen elements must be readable, and the rows writable.
    unsafe fn deinterleaved(block: Block, both: bool);
}

#[target_feature(enable = "avx2")]
unsafe extern "C" fn blocks<T: InBlocks>(
    src: *const u8,
    dst: *mut u8,
    n: usize,
    rows: usize,
    step: isize,
    ld: usize,
) {
    let all = Block { src, dst, step, ld };
    if step == 2 * size_of::<T>() as isize && (1..8).contains(&rows) && n > 0 {
        // SAFETY: the caller's contract is that of `deinterleave`, which passes such blocks.
        let block = |block, both| unsafe { T::deinterleaved(block, both) };
        // SAFETY: as above.
        return unsafe { deinterleave::<T>(all, n, rows, block) };
    }
    // SAFETY: the caller's contract is that of `gather`, whose blocks have that number of elements.
    let block = |block| unsafe { T::block(block) };
    // SAFETY: as above.
    unsafe { gather::<T>(all, n, rows, block) }
}

impl InBlocks for u16 {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn block(block: Block) {
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

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn deinterleaved(block: Block, both: bool) {
        let [a, b] = [0, 16].map(|at| {
            // SAFETY: eight elements of the block.
            unsafe { x86::_mm_loadu_si128(block.src.wrapping_add(at).cast()) }
        });
        let low = x86::_mm_set1_epi32(0xffff);
        let row = x86::_mm_packus_epi32(x86::_mm_and_si128(a, low), x86::_mm_and_si128(b, low));
        // SAFETY: eight elements of the row.
        unsafe { x86::_mm_storeu_si128(block.dst.cast(), row) };
        if both {
            let [a, b] = [a, b].map(|x| x86::_mm_srli_epi32::<16>(x));
            let to = block.dst.wrapping_add(2 * block.ld);
            let row = x86::_mm_packus_epi32(a, b);
            // SAFETY: eight elements of the next row.
            unsafe { x86::_mm_storeu_si128(to.cast(), row) };
        }
    }
}

impl InBlocks for u32 {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn block(block: Block) {
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

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn deinterleaved(block: Block, both: bool) {
        let [a, b] = [0, 32].map(|at| {
            // SAFETY: eight elements of the block.
            unsafe { x86::_mm256_loadu_ps(block.src.wrapping_add(at).cast()) }
        });
        // The halves of both vectors alternate.
        let in_order = |x| x86::_mm256_permute4x64_pd::<0xd8>(x86::_mm256_castps_pd(x));
        let row = in_order(x86::_mm256_shuffle_ps::<0x88>(a, b));
        // SAFETY: eight elements of the row.
        unsafe { x86::_mm256_storeu_pd(block.dst.cast(), row) };
        if both {
            let row = in_order(x86::_mm256_shuffle_ps::<0xdd>(a, b));
            // SAFETY: eight elements of the next row.
            unsafe { x86::_mm256_storeu_pd(block.dst.wrapping_add(4 * block.ld).cast(), row) };
        }
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
