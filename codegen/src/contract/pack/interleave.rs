//! Interleaves rows of bf16 into pairs with AVX-512, for a block of an image.

use super::super::micro::Bf16;
use super::avx512::Two;
use super::vectors::{Lanes, Numbers, RoundedToBf16, first, gathered};
use super::{Grid, Half};
use core::arch::x86_64 as x86;
use smallvec::SmallVec;
use std::ops::Range;
use tracecast_ir::DType;

/// Numbers of a vector.
const LANES: usize = 16;

/// A routine that interleaves two halves into pairs; returns what
/// [`Engine::pack`](super::super::micro::Engine::pack) does. It needs AVX-512F, BW and VL, elements
/// of both halves that are readable, and places of their pairs that are writable.
type JoinFn = unsafe fn(&[Half; 2], Grid, *mut u32) -> u16;

/// The routine that interleaves these halves: bf16, or f32 that is rounded to it.
pub(in crate::contract) fn join_halves([half, _]: &[Half; 2], grid: Grid) -> JoinFn {
    match (half.from.dtype, grid.across) {
        (DType::BF16, 1) => join::<Two<Bf16>, 1>,
        (DType::BF16, 2) => join::<Two<Bf16>, 2>,
        (DType::BF16, _) => join::<Two<Bf16>, 0>,
        (_, 1) => join::<Two<RoundedToBf16>, 1>,
        (_, 2) => join::<Two<RoundedToBf16>, 2>,
        (_, _) => join::<Two<RoundedToBf16>, 0>,
    }
}

/// Mask of the sixteen columns from `from` on that are in the range.
#[inline(always)]
fn lanes(columns: &Range<usize>, from: usize) -> u16 {
    let before = |column: usize| first(column.saturating_sub(from).min(LANES)) as u16;
    before(columns.end) & !before(columns.start)
}

/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Elements of both halves must be readable, of `N`'s dtype
/// and with columns of stride `S`, or any if zero, and the places of their pairs writable.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn join<N, const S: usize>(halves: &[Half; 2], grid: Grid, to: *mut u32) -> u16
where
    N: Numbers<Vector = x86::__m512i>,
{
    let [one, other] = halves;
    let mut least = x86::__m512i::zero();
    let mut ends = [one.rows.start, one.rows.end, other.rows.start, other.rows.end];
    ends.sort_unstable();
    // Rows with the same columns in bounds.
    for rows in ends.windows(2).map(|ends| ends[0]..ends[1]) {
        let columns = halves.each_ref().map(|half| match half.rows.contains(&rows.start) {
            true => half.columns.clone(),
            false => 0..0,
        });
        let present = columns.iter().filter(|columns| !columns.is_empty());
        let start = present.clone().map(|columns| columns.start).min().unwrap_or(0);
        let end = present.map(|columns| columns.end).max().unwrap_or(0);
        let masks = |i: usize| (i, columns.each_ref().map(|of| lanes(of, i)), lanes(&(0..end), i));
        let vectors: SmallVec<[_; 16]> = (start..end).step_by(LANES).map(masks).collect();
        for row in rows.clone() {
            let to = to.wrapping_add(row * grid.pitch);
            for (i, masks, some) in &vectors {
                let at = row as isize * grid.along + *i as isize * grid.across;
                let from = [one, other].map(|half| half.from.moved(at).base);
                let numbers = if S == 0 {
                    // SAFETY: the elements that masks name.
                    unsafe { gathered::<N>(from, *masks, grid.across * N::BYTES as isize) }
                } else {
                    // SAFETY: the elements that masks name, `S` apart.
                    unsafe { N::across::<S>(from, *masks) }
                };
                least = N::smaller(least, numbers);
                // The next row overwrites what follows, where it has numbers.
                let is_inside = row + 1 < rows.end && i + LANES <= 2 * grid.pitch;
                let stored = if is_inside { u16::MAX } else { *some };
                // SAFETY: the numbers' places, and some of the next row's.
                unsafe { numbers.store(to.wrapping_add(*i), stored) };
            }
        }
    }
    N::least(least)
}
