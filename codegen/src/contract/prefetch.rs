//! Prefetches the matrices that a contraction's epilogue reads or writes, during the product.
//!
//! The cache lines of a large result are far from the core, and a store reads its line first.

use std::ops::Range;

/// A matrix in memory with one element per sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    /// Element (0, 0).
    pub(crate) base: *const u8,
    /// Row stride, in bytes.
    pub(crate) row: isize,
    /// Bytes of an element; those of a row are contiguous.
    pub(crate) cell: usize,
}

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

impl Prefetch {
    /// Prefetches these rows and columns into L2.
    pub(super) fn issue(&self, rows: Range<usize>, cols: Range<usize>) {
        for row in rows {
            let line = self.base.wrapping_offset(row as isize * self.row);
            let first = line.wrapping_add(cols.start * self.cell);
            let first = first.wrapping_sub(first.addr() % LINE);
            let end = line.wrapping_add(cols.end * self.cell).addr();
            for at in (0..end.saturating_sub(first.addr())).step_by(LINE) {
                prefetch_l2(first.wrapping_add(at));
            }
        }
    }
}

/// Prefetches a cache line into L1. The address need not be valid.
#[inline(always)]
pub(super) fn prefetch_l1(at: *const u8) {
    prefetch::<3>(at);
}

/// Prefetches `bytes` bytes from an address on into L1, as [`prefetch_l1`].
#[inline(always)]
pub(super) fn prefetch_bytes(first: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE) {
        prefetch_l1(first.wrapping_add(at));
    }
}

/// Prefetches a cache line into L2. The address need not be valid.
#[inline(always)]
pub(super) fn prefetch_l2(at: *const u8) {
    prefetch::<2>(at);
}

/// `_MM_HINT_T0` is 3 and `_MM_HINT_T1` is 2, which other CPUs do not define: none prefetches.
#[inline(always)]
fn prefetch<const HINT: i32>(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, and it takes any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<HINT>(at.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
