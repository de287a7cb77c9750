//! Sums that are stored as they are.

use super::super::{Cpu, Finish, Scratch, Source, contract};
use std::ops::Range;
use tracecast_ir::DType;

/// Elements between rows of the matrix that sums are stored to, which stay as they are.
const BETWEEN: usize = 3;

/// The bits of the sums of a range, row by row.
pub(super) fn bits(
    cpu: &Cpu,
    acc: DType,
    (rows, cols, k): (Range<usize>, Range<usize>, usize),
    (a, b): (&Source<'_>, &Source<'_>),
    scratch: &mut Scratch,
) -> Vec<u64> {
    let (ld, n, bytes) = (cols.len() + BETWEEN, cols.len(), acc.bytes());
    let mut stored = vec![u8::MAX; rows.len() * ld * bytes];
    let base = stored.as_mut_ptr().wrapping_sub((rows.start * ld + cols.start) * bytes);
    let finish = Finish::Store(base, ld);
    // SAFETY: the tests' tensors hold what their ranges and strides span, and there is room for rows that are so far apart.
    unsafe { contract(cpu, acc, rows, cols, k, a, b, scratch, &[], finish) };
    let cell = |cell: &[u8]| {
        let mut bits = [0; 8];
        bits[..bytes].copy_from_slice(cell);
        u64::from_le_bytes(bits)
    };
    let all: Vec<u64> = stored.chunks(bytes).map(cell).collect();
    let untouched = u64::MAX >> (64 - 8 * bytes);
    let between = all.chunks(ld).flat_map(|row| &row[n..]);
    assert!(between.copied().all(|bits| bits == untouched), "elements between rows are written");
    all.chunks(ld).flat_map(|row| row[..n].to_vec()).collect()
}
