//! Rows of a table of f32 that indices take, summed in groups of neighbours: `embedding_bag`.
//!
//! A group is summed block by block of its columns, which stay in registers from its first row to
//! its last; every column is added up in order of the rows. Rows that
//! come later are prefetched.

use crate::status;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a call does; all fields have 64 bits, so that generated code can write them.
#[repr(C)]
pub(crate) struct SumRows {
    /// The sums of group 0, behind which the others lie.
    sums: *mut f32,
    /// The first row of the table.
    table: *const f32,
    /// The index of row 0.
    indices: *const i64,
    /// The status word of the run.
    status: *const AtomicU64,
    /// The first row.
    begin: i64,
    /// Behind the last row.
    end: i64,
    /// The first column.
    from: i64,
    /// Behind the last column.
    to: i64,
    /// Rows of a group.
    length: i64,
    /// Columns of the table and of a sum.
    width: i64,
    /// Rows of the table.
    rows: i64,
    /// The status word of an index outside of the table.
    word: i64,
    /// The bits of what a sum begins with.
    identity: i64,
}

/// The type of the routine.
///
/// # Safety
///
/// The indices and sums of the rows and the columns that are named, and the whole table, must be
/// there.
pub(crate) type SumRowsFn = unsafe extern "C" fn(task: *const SumRows);

/// Rows between the one that is added and the one that is prefetched.
const AHEAD: i64 = 12;

/// A whole number of lines that is summed at a time.
const BLOCK: usize = 64;

impl SumRows {
    /// The row of the table for a row; the first one, and a raised status, if it has none.
    #[inline(always)]
    fn taken(&self, row: i64) -> *const f32 {
        // SAFETY: the caller vouches for the indices.
        let mut index = unsafe { self.indices.wrapping_offset(row as isize).read_unaligned() };
        if !(0..self.rows).contains(&index) {
            let found = index.clamp(-status::LARGEST, status::LARGEST) + status::BIAS;
            // SAFETY: the status word of the run outlives the call.
            unsafe { &*self.status }.fetch_min((self.word + found) as u64, Ordering::Relaxed);
            index = 0;
        }
        self.table.wrapping_offset((index * self.width) as isize)
    }

    /// Prefetches the lines of a block that a later row of the call takes.
    #[inline(always)]
    fn prefetch<const N: usize>(&self, row: i64, column: i64) {
        let later = (row + AHEAD).min(self.end - 1);
        // SAFETY: the caller vouches for the indices.
        let index = unsafe { self.indices.wrapping_offset(later as isize).read_unaligned() };
        let at = index.wrapping_mul(self.width).wrapping_add(column) as isize;
        let from = self.table.wrapping_offset(at);
        for line in 0..N.div_ceil(16) {
            fetch(from.wrapping_add(16 * line));
        }
    }

    /// Adds `N` columns, from one on, of the rows from `first` to `last` of a group.
    #[inline(always)]
    fn block<const N: usize>(&self, (first, last): (i64, i64), column: i64) {
        let group = first / self.length;
        let sums = self.sums.wrapping_offset((group * self.width + column) as isize);
        let sums = sums.cast::<[f32; N]>();
        let mut sum = if first % self.length == 0 {
            [f32::from_bits(self.identity as u32); N]
        } else {
            // SAFETY: an earlier call has written them.
            unsafe { sums.read_unaligned() }
        };
        for row in first..last {
            self.prefetch::<N>(row, column);
            let from = self.taken(row).wrapping_offset(column as isize).cast::<[f32; N]>();
            // SAFETY: the row is one of the table, and the columns are below its width.
            let from = unsafe { from.read_unaligned() };
            for (sum, x) in sum.iter_mut().zip(from) {
                *sum += x;
            }
        }
        // SAFETY: the caller vouches for the sums.
        unsafe { sums.write_unaligned(sum) };
    }

    #[inline(always)]
    fn run(&self) {
        let mut first = self.begin;
        while first < self.end {
            let last = (first - first % self.length + self.length).min(self.end);
            let mut column = self.from;
            while column < self.to {
                let left = (self.to - column) as usize;
                let step = if left >= BLOCK {
                    self.block::<BLOCK>((first, last), column);
                    BLOCK
                } else if left >= 16 {
                    self.block::<16>((first, last), column);
                    16
                } else {
                    self.block::<1>((first, last), column);
                    1
                };
                column += step as i64;
            }
            first = last;
        }
    }
}

#[inline(always)]
fn fetch(at: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is no access.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// [`SumRowsFn`].
pub(super) unsafe extern "C" fn portable(task: *const SumRows) {
    // SAFETY: the caller has written the task.
    unsafe { &*task }.run();
}

/// [`SumRowsFn`] with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(super) unsafe extern "C" fn avx2(task: *const SumRows) {
    // SAFETY: the caller has written the task.
    unsafe { &*task }.run();
}

/// [`SumRowsFn`] with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2")]
pub(super) unsafe extern "C" fn avx512(task: *const SumRows) {
    // SAFETY: the caller has written the task.
    unsafe { &*task }.run();
}
