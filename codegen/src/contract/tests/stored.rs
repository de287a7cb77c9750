//! Sums that are stored unrounded, or rounded to bf16.

use super::super::{Cpu, Driver, Product, Scratch, Source, Stored};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::half;

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
    let to = Stored { first: base, ld, dtype: acc };
    let mut product = Product::new(cpu, acc, [rows, cols], k, [*a, *b]);
    product.stored = Some(to);
    let mut sink = |_: Range<usize>, _: Range<usize>, _: *const u8| unreachable!("all are stored");
    // SAFETY: the tests' tensors hold their ranges and strides, and rows of stride `ld` fit.
    unsafe { product.run(scratch, &mut sink) };
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

/// The bits of f32 sums rounded to bf16, row by row: by the epilogue, or where they are stored.
pub(super) fn rounded(
    cpu: &Cpu,
    (rows, cols, k): (Range<usize>, Range<usize>, usize),
    (a, b): (&Source<'_>, &Source<'_>),
    scratch: &mut Scratch,
) -> Vec<u16> {
    const UNTOUCHED: u16 = 0x1234;
    let (ld, n) = (cols.len() + BETWEEN, cols.len());
    let mut stored = vec![UNTOUCHED; rows.len() * ld];
    let first: *mut u16 = stored.as_mut_ptr();
    let first = first.wrapping_sub(rows.start * ld + cols.start);
    let mut epilogue = |rows: Range<usize>, cols: Range<usize>, sums: *const u8| {
        let (row, rows, col, cols) = (rows.start, rows.len(), cols.start, cols.len());
        for i in 0..rows * cols {
            // SAFETY: the epilogue gets `rows` by `cols` sums.
            let sum = unsafe { sums.cast::<f32>().wrapping_add(i).read() };
            let place = first.wrapping_add((row + i / cols) * ld + col + i % cols);
            // SAFETY: each has its place.
            unsafe { place.write(half::f32_to_bf16(sum)) };
        }
    };
    let to = Stored { first: first.cast(), ld, dtype: DType::BF16 };
    let mut product = Product::new(cpu, DType::F32, [rows, cols], k, [*a, *b]);
    product.stored = Some(to);
    // SAFETY: the tests' tensors hold their ranges and strides, and rows of stride `ld` fit.
    unsafe { product.run(scratch, &mut epilogue) };
    let between = stored.chunks(ld).flat_map(|row| &row[n..]);
    assert!(between.copied().all(|bits| bits == UNTOUCHED), "elements between rows are written");
    stored.chunks(ld).flat_map(|row| row[..n].to_vec()).collect()
}
