//! Prefetches the matrices that a contraction's epilogue reads or writes, while the sums are computed.
//!
//! The lines of a large result are far from the core, and a store reads its line first.

use std::ops::Range;

/// A matrix in memory, an element for each sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    /// Element (0, 0).
    pub(crate) base: *const u8,
    /// From a row to the next, in bytes.
    pub(crate) row: isize,
    /// The bytes of an element; those of a row lie side by side.
    pub(crate) cell: usize,
}

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

impl Prefetch {
    /// Asks for the second-level cache to hold these rows and columns.
    pub(super) fn ask(&self, rows: Range<usize>, cols: Range<usize>) {
        for row in rows {
            let line = self.base.wrapping_offset(row as isize * self.row);
            let first = line.wrapping_add(cols.start * self.cell);
            let first = first.wrapping_sub(first.addr() % LINE);
            let end = line.wrapping_add(cols.end * self.cell).addr();
            for at in (0..end.saturating_sub(first.addr())).step_by(LINE) {
                prefetch(first.wrapping_add(at));
            }
        }
    }
}

/// Memory that is asked for in small parts: rows of so many bytes, so many apart.
#[derive(Clone, Copy)]
pub(super) struct Later {
    pub(super) first: *const u8,
    pub(super) apart: usize,
    pub(super) length: usize,
    /// How far it is asked for in the first row.
    pub(super) at: usize,
    /// Lines that are asked for at a time.
    pub(super) each: usize,
}

impl Later {
    /// Asks for some of it.
    #[inline(always)]
    pub(super) fn ask(&mut self) {
        for _ in 0..self.each {
            ask(self.first.wrapping_add(self.at));
            self.at += LINE;
            if self.at >= self.length {
                (self.first, self.at) = (self.first.wrapping_add(self.apart), 0);
            }
        }
    }
}

/// Asks for the first-level cache to hold a line. The address need not be one.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn ask(at: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 has the instruction, and it takes any address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn ask(_: *const u8) {}

/// Asks for the first-level cache to hold so many bytes from an address on, as [`ask`].
#[inline(always)]
pub(super) fn ask_bytes(first: *const u8, bytes: usize) {
    (0..bytes).step_by(LINE).for_each(|at| ask(first.wrapping_add(at)));
}

/// Asks for a line. The address need not be one.
#[cfg(target_arch = "x86_64")]
fn prefetch(at: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: every x86-64 has the instruction, and it takes any address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch(_: *const u8) {}
