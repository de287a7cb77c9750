//! Sums that are stored as they are.

use super::super::{Correlation, Cpu, Finish, Scratch, Source, contract};
use std::ops::Range;
use tracecast_ir::DType;

/// Elements between rows of the matrix that sums are stored to, which stay as they are.
const BETWEEN: usize = 3;
/// Numbers behind all sums that nobody may write.
const GUARD: usize = 64;

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

/// The bits of sums that are stored as they are, or handed on where they cannot be: parts come from the last to the first, each on a thread of its own as it were, so
/// what one writes of another's is found.
pub(super) fn sums_of_images<const N: usize>(
    work: &Correlation<'_>,
    (batches, parts): (Range<usize>, [Range<usize>; N]),
    at: &dyn Fn(usize) -> [isize; 2],
    n: usize,
    scratch: &mut Scratch,
) -> Vec<Option<u32>> {
    let rows = batches.len() * work.rows;
    let mut sums = vec![f32::NAN; rows * n + GUARD];
    let first = sums.as_mut_ptr();
    let work = Correlation { stored: Some((first.cast(), n)), ..*work };
    let mut hand = |row: usize, rows: usize, columns: Range<usize>, from: *const u8| {
        for i in 0..rows * columns.len() {
            let (row, column) = (row + i / columns.len(), i % columns.len());
            // SAFETY: so many sums are handed on.
            let sum = unsafe { from.cast::<f32>().wrapping_add(i).read() };
            // SAFETY: each has its place.
            unsafe { first.wrapping_add(row * n + columns.start + column).write(sum) };
        }
    };
    for part in parts.into_iter().rev() {
        // SAFETY: the tests' tensors hold what their strides span, and there is a place for each sum.
        unsafe { work.run((batches.clone(), part), at, scratch, &mut hand) };
    }
    assert!(sums[rows * n..].iter().all(|sum| sum.is_nan()), "written behind all sums");
    sums[..rows * n].iter().map(|sum| Some(sum.to_bits())).collect()
}
