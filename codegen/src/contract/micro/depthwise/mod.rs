//! Microkernel of depthwise convolutions, 3 × 3 or 5 × 5, which reads the input in place.
//!
//! An input row is loaded once for each position across, and multiplied for every line that reads
//! it. So a sum takes its products in the order of steps, and a few chains run in parallel.

pub(in crate::contract) mod avx2;
pub(in crate::contract) mod avx512;

use super::super::prefetch::prefetch_bytes;
use super::cell::There;
use super::engine::Engine;
use super::vector::{Microkernel, Vector, unrolled};
use std::marker::PhantomData;
use std::ops::Range;
use tracecast_ir::DType;

/// The most channels summed together: two share a vector if lines are short, else half as many.
pub(in crate::contract) const MOST_PLANES: usize = 4;

/// Prefetch distance in bytes, into the rows and channels that follow.
const AHEAD: isize = 8192;

/// Arguments: lines of outputs of some channels of the same layout and weights.
pub(in crate::contract) struct Planes<'a> {
    /// How many there are, and where each begins; missing ones repeat the first.
    pub(in crate::contract) count: usize,
    pub(in crate::contract) bases: [*const u8; MOST_PLANES],
    /// Stride of rows in bytes.
    pub(in crate::contract) row: isize,
    /// Rows and columns in bounds.
    pub(in crate::contract) there: [Range<isize>; 2],
    /// As many zeros as a row has elements.
    pub(in crate::contract) zeros: *const u8,
    /// Row and column of the first input of the first output, and the dilation.
    pub(in crate::contract) first: [isize; 2],
    pub(in crate::contract) dilation: [isize; 2],
    /// Lines, and outputs of each.
    pub(in crate::contract) counts: [usize; 2],
    /// The weights, row by row.
    pub(in crate::contract) weights: &'a [f32],
    /// Destination of each channel's sums, and its stride of lines in bytes.
    pub(in crate::contract) sums: [*mut u8; MOST_PLANES],
    pub(in crate::contract) line: isize,
    /// Sums are rounded to bf16. With AVX2 the input is bf16 then.
    pub(in crate::contract) rounds: bool,
}

/// Addresses in each channel.
type Rows = [*const u8; MOST_PLANES];
type Sums = [*mut u8; MOST_PLANES];

/// How an engine loads the input of `N` vectors of outputs, and stores their sums. A window has `K`
/// taps across, and windows have stride `S`.
trait Row<E: Engine<Num = f32>, const K: usize, const S: usize, const N: usize> {
    /// Bytes of an element.
    const BYTES: usize;
    /// Channels of the vectors, and outputs of each.
    const PLANES: usize = 1;
    const OUTPUTS: usize = N * E::LANES / Self::PLANES;
    /// True if masked loads and stores cost as much as others. Otherwise no line has fewer outputs.
    const IS_MASKED: bool = false;

    /// Loads the input of each tap from a row of each channel.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What is in bounds must be readable.
    unsafe fn load(rows: &Rows, there: &[There; K]) -> [[E::Vector; N]; K];

    /// Stores the sums of the first `count` outputs in each channel, rounded to bf16 or as f32.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, and `to` be writable for the sums.
    unsafe fn store(to: &Sums, count: usize, sums: [E::Vector; N], rounds: bool);
}

/// Computes all lines.
///
/// # Safety
///
/// The CPU must be the engine's. What is in bounds must be readable, and sums writable.
unsafe fn sum<E: Engine<Num = f32>, R, const K: usize, const S: usize, const N: usize>(
    planes: &Planes<'_>,
) where
    R: Row<E, K, S, N>,
{
    assert!(planes.weights.len() >= K * K, "a number for each position");
    for plane in (0..planes.count).step_by(R::PLANES) {
        // SAFETY: the caller's contract.
        unsafe { E::run(Lines::<E, R, K, S, N>(planes, plane, PhantomData)) }
    }
}

/// Lines of the channels that vectors hold together, from a first one on.
struct Lines<'a, E, R, const K: usize, const S: usize, const N: usize>(
    &'a Planes<'a>,
    usize,
    PhantomData<(E, R)>,
);

impl<E: Engine<Num = f32>, R, const K: usize, const S: usize, const N: usize> Microkernel
    for Lines<'_, E, R, K, S, N>
where
    R: Row<E, K, S, N>,
{
    type Out = ();

    #[inline(always)]
    unsafe fn run(self) {
        let s = self.0;
        let mut weights = [[E::Vector::splat(0.0); K]; K];
        for (splats, weights) in weights.iter_mut().zip(s.weights.chunks_exact(K)) {
            for (splat, weight) in splats.iter_mut().zip(weights) {
                *splat = E::Vector::splat(*weight);
            }
        }
        let is_back = S == 1 && s.dilation[1] < 0;
        for column in (0..s.counts[1]).step_by(R::OUTPUTS) {
            // The last outputs may overlap those before them.
            let column = if R::IS_MASKED { column } else { column.min(s.counts[1] - R::OUTPUTS) };
            let left =
                s.first[1] + (column * S) as isize - if is_back { K as isize - 1 } else { 0 };
            let there =
                std::array::from_fn(|c| There::of(&s.there[1], left + c as isize, R::OUTPUTS * S));
            let is_there = |there: &There| there.mask.count_ones() as usize == R::OUTPUTS * S;
            let is_whole = !R::IS_MASKED && there.iter().all(is_there);
            let strip = Strip { column, left, there, weights: &weights };
            match (is_back, is_whole) {
                // SAFETY: the caller's contract.
                (false, false) => unsafe { self.strip(&strip, false, false) },
                // SAFETY: as above; all of each row is in bounds.
                (false, true) => unsafe { self.strip(&strip, false, true) },
                // SAFETY: as above.
                (true, false) => unsafe { self.strip(&strip, true, false) },
                // SAFETY: as above; all of each row is in bounds.
                (true, true) => unsafe { self.strip(&strip, true, true) },
            }
        }
    }
}

/// Outputs that are computed together in all lines.
struct Strip<'a, V, const K: usize> {
    /// Column of the first output, and of the leftmost input that it reads.
    column: usize,
    left: isize,
    /// The input of each tap from left to right that is in bounds.
    there: [There; K],
    weights: &'a [[V; K]; K],
}

impl<E: Engine<Num = f32>, R, const K: usize, const S: usize, const N: usize>
    Lines<'_, E, R, K, S, N>
where
    R: Row<E, K, S, N>,
{
    /// Sums a strip of all lines, by taps in order or backwards.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What is in bounds must be readable, all of it if `is_whole`,
    /// and sums writable.
    #[inline(always)]
    unsafe fn strip(&self, strip: &Strip<'_, E::Vector, K>, is_back: bool, is_whole: bool) {
        let (Lines(s, plane, _), Strip { column, left, there, weights }) = (self, strip);
        let there = if is_whole { &[There::WHOLE; K] } else { there };
        let (lines, zero) = (s.counts[0], E::Vector::splat(0.0));
        let bytes = if s.rounds { DType::BF16.bytes() } else { size_of::<f32>() };
        let plane = |i: usize| (plane + i).min(MOST_PLANES - 1);
        let zeros = [s.zeros.wrapping_offset(left * R::BYTES as isize); MOST_PLANES];
        let bases: Rows =
            std::array::from_fn(|i| s.bases[plane(i)].wrapping_offset(left * R::BYTES as isize));
        let mut to: Sums = std::array::from_fn(|i| s.sums[plane(i)].wrapping_add(column * bytes));
        // Lines before the current one that read the same row.
        let before = (K - 1) / S;
        // Of the line that begins with a row, and of those before it.
        let mut sums = [[zero; N]; K];
        let mut at = s.first[0];
        for y in 0..lines + before {
            unrolled!(phase of 0 1 => {
                if phase < S {
                    let is_there = s.there[0].contains(&at);
                    let row = |base: *const u8| base.wrapping_offset(at * s.row);
                    let rows = if is_there { bases.map(row) } else { zeros };
                    at += s.dilation[0];
                    for row in &rows[..R::PLANES] {
                        prefetch_bytes(row.wrapping_offset(AHEAD), R::OUTPUTS * S * R::BYTES);
                    }
                    // SAFETY: elements of a row that are there, or zeros.
                    let seen = unsafe { R::load(&rows, there) };
                    unrolled!(t of 0 1 2 3 4 => {
                        if t < K && t % S == phase && y.wrapping_sub(t / S) < lines {
                            let mut line = sums[t / S];
                            for (c, weight) in weights[t].iter().enumerate() {
                                let seen = seen[if is_back { K - 1 - c } else { c }];
                                for (sum, seen) in line.iter_mut().zip(seen) {
                                    *sum = weight.fma(seen, *sum);
                                }
                            }
                            sums[t / S] = line;
                        }
                    });
                }
            });
            if y >= before {
                let count = R::OUTPUTS.min(s.counts[1] - column);
                // SAFETY: the caller vouches for the sums of a line.
                unsafe { R::store(&to, count, sums[before], s.rounds) };
                to = to.map(|to| to.wrapping_offset(s.line));
            }
            unrolled!(t of 4 3 2 1 => {
                if t <= before {
                    sums[t] = sums[t - 1];
                }
            });
            sums[0] = [zero; N];
        }
    }
}
