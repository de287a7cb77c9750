//! The sums of contractions over images, as the epilogue gets them, and as they are stored.

use super::super::{Correlation, Cpu, Driver, Scratch, Source, Stored};
use std::ops::Range;
use tracecast_ir::DType;

/// Numbers behind all sums, which must stay unwritten.
const GUARD: usize = 64;

/// Contractions of `rows` by `k` with one left operand, of no batches yet.
pub(super) fn correlation<'a>(
    cpu: &'a Cpu,
    [rows, k]: [usize; 2],
    [a, b]: [Source<'a>; 2],
) -> Correlation<'a> {
    Correlation {
        cpu,
        acc: DType::F32,
        batches: 0..0,
        windows: 0..0,
        rows,
        k,
        a,
        b,
        at: &|_| [0; 2],
        period: 1,
        beside: None,
        across: None,
        pairs: false,
        stored: None,
    }
}

/// The bits of the sums that the epilogue gets, each once.
pub(super) fn handed_on(
    work: &Correlation<'_>,
    parts: impl IntoIterator<Item = (Range<usize>, Range<usize>)>,
    at: &dyn Fn(usize) -> [isize; 2],
    [rows, n]: [usize; 2],
    scratch: &mut Scratch,
) -> Vec<Option<u32>> {
    let mut found = vec![None; rows * n];
    let mut hand = |rows: Range<usize>, columns: Range<usize>, sums: *const u8| {
        let (row, rows) = (rows.start, rows.len());
        for i in 0..rows * columns.len() {
            // SAFETY: the epilogue gets `rows` rows of these columns.
            let sum = unsafe { sums.cast::<f32>().wrapping_add(i).read() };
            let (row, column) = (row + i / columns.len(), i % columns.len());
            let place = &mut found[row * n + columns.start + column];
            assert!(place.replace(sum.to_bits()).is_none(), "comes twice");
        }
    };
    for (batches, windows) in parts {
        let work = Correlation { batches, windows, at, ..*work };
        // SAFETY: the tests' tensors hold what their strides span.
        unsafe { work.run(scratch, &mut hand) };
    }
    found
}

/// The bits of sums that are stored, or passed to the epilogue where they cannot be. Parts come
/// from the last to the first, as if each had a thread of its own, so what one writes into
/// another's is found.
pub(super) fn stored<const N: usize>(
    work: &Correlation<'_>,
    (batches, parts): (Range<usize>, [Range<usize>; N]),
    at: &dyn Fn(usize) -> [isize; 2],
    n: usize,
    scratch: &mut Scratch,
) -> Vec<Option<u32>> {
    let rows = batches.len() * work.rows;
    let mut sums = vec![f32::NAN; rows * n + GUARD];
    let first = sums.as_mut_ptr();
    let to = Some(Stored { first: first.cast(), ld: n, dtype: DType::F32 });
    let mut hand = |rows: Range<usize>, columns: Range<usize>, from: *const u8| {
        let (row, rows) = (rows.start, rows.len());
        for i in 0..rows * columns.len() {
            let (row, column) = (row + i / columns.len(), i % columns.len());
            // SAFETY: the epilogue gets `rows` rows of these columns.
            let sum = unsafe { from.cast::<f32>().wrapping_add(i).read() };
            // SAFETY: each has its place.
            unsafe { first.wrapping_add(row * n + columns.start + column).write(sum) };
        }
    };
    for windows in parts.into_iter().rev() {
        let work = Correlation { batches: batches.clone(), windows, at, stored: to, ..*work };
        // SAFETY: the tests' tensors hold what their strides span, and each sum has a place.
        unsafe { work.run(scratch, &mut hand) };
    }
    assert!(sums[rows * n..].iter().all(|sum| sum.is_nan()), "written behind all sums");
    sums[..rows * n].iter().map(|sum| Some(sum.to_bits())).collect()
}

/// The bits of sums that are rounded to bf16 where they are stored.
pub(super) fn rounded(
    work: &Correlation<'_>,
    (batches, windows): (Range<usize>, Range<usize>),
    at: &dyn Fn(usize) -> [isize; 2],
    n: usize,
    scratch: &mut Scratch,
) -> Vec<u16> {
    let rows = batches.len() * work.rows;
    let mut sums = vec![0x7fff_u16; rows * n + GUARD];
    let stored = Some(Stored { first: sums.as_mut_ptr().cast(), ld: n, dtype: DType::BF16 });
    let work = Correlation { batches, windows, at, stored, ..*work };
    let mut hand = |_: Range<usize>, _: Range<usize>, _: *const u8| panic!("is stored");
    // SAFETY: the tests' tensors hold what their strides span, and each sum has a place.
    unsafe { work.run(scratch, &mut hand) };
    assert!(sums[rows * n..].iter().all(|sum| *sum == 0x7fff), "written behind all sums");
    sums.truncate(rows * n);
    sums
}
