//! AVX2 microkernel of 3 × 3 depthwise convolutions; registers hold sums and some weights.

use super::super::super::prefetch::{LINE, prefetch_l1};
use super::super::avx2::{in_quarters, nearest_without_nan, parities};
use super::super::cell::{Bf16, Cell, Same, Sight, There};
use super::super::sweep::TAPS;
use super::super::vector::{Interleave, Vector};
use super::{Planes, unrolled};
use core::arch::x86_64::{self as x86, __m256 as V};

/// Numbers of a vector.
const LANES: usize = 8;

/// Vectors of outputs in a line that are accumulated together, or the only one twice.
type Both = [V; 2];

/// How rows are loaded and sums stored, at stride `S`. `BACK` reverses positions along a row.
trait Cells<const S: usize, const BACK: bool>: Sight<V> {
    /// Vectors of outputs in a line that are accumulated together.
    const VECTORS: usize;

    /// Loads the input of each position of a row; `is_whole`: all of it is in bounds.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2. What is in bounds must be readable from the first window's left on.
    unsafe fn seen(row: *const u8, there: &[There; TAPS], is_whole: bool) -> [Both; TAPS];

    /// Stores the sums as f32, in the order of columns.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2, and `to` must be writable for them.
    unsafe fn store(to: *mut u8, sums: Both);

    /// Stores them as bf16. NaNs have low halves of zero.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2, and `to` must be writable for them.
    unsafe fn round(_to: *mut u8, _sums: Both) {
        unreachable!("products of f32 are not rounded here")
    }
}

/// Eight contiguous f32.
///
/// # Safety
///
/// They must be readable where they are there.
#[inline(always)]
unsafe fn near(from: *const u8, there: There, is_whole: bool) -> V {
    match is_whole {
        // SAFETY: the caller's contract.
        true => unsafe { V::load(from.cast()) },
        // SAFETY: the caller's contract.
        false => unsafe { Same::side_by_side(from, there) },
    }
}

/// Which of the places from the left on a position is.
const fn place<const BACK: bool>(c: usize) -> usize {
    if BACK { TAPS - 1 - c } else { c }
}

impl<const BACK: bool> Cells<1, BACK> for Same {
    const VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn seen(row: *const u8, there: &[There; TAPS], is_whole: bool) -> [Both; TAPS] {
        let mut seen = [[V::splat(0.0); 2]; TAPS];
        for (c, seen) in seen.iter_mut().enumerate() {
            let at = place::<BACK>(c);
            // SAFETY: the caller's contract.
            *seen = [unsafe { near(row.wrapping_add(at * 4), there[at], is_whole) }; 2];
        }
        seen
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, [sums, _]: Both) {
        // SAFETY: the caller's contract.
        unsafe { sums.store(to.cast()) }
    }
}

/// Even and odd elements of two vectors, interleaved by halves; sums are reordered at the end.
impl Cells<2, false> for Same {
    const VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn seen(row: *const u8, there: &[There; TAPS], is_whole: bool) -> [Both; TAPS] {
        let mut seen = [[V::splat(0.0); 2]; TAPS];
        // The first position is loaded alone, so that most outputs load the others at even places.
        for c in 0..2 {
            let from = row.wrapping_add(c * 4);
            let high = There { mask: there[c].mask >> LANES, ..there[c] };
            // SAFETY: the caller's contract.
            let low = unsafe { near(from, there[c], is_whole) };
            // SAFETY: the caller's contract.
            let high = unsafe { near(from.wrapping_add(LANES * 4), high, is_whole) };
            // SAFETY: the CPU has AVX2.
            let [even, odd] = unsafe { parities(low, high) };
            seen[c] = [even; 2];
            if c == 1 {
                seen[2] = [odd; 2];
            }
        }
        seen
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store(to: *mut u8, [sums, _]: Both) {
        let sums = in_quarters(sums);
        // SAFETY: the caller vouches for the places of eight sums.
        unsafe { sums.store(to.cast()) }
    }
}

/// Loads sixteen bf16, deinterleaved: those at even places, and those at odd ones.
///
/// # Safety
///
/// They must be readable where they are there.
#[inline(always)]
unsafe fn apart(from: *const u8, there: There, is_whole: bool) -> Both {
    if !is_whole && there.mask != 0xffff {
        // SAFETY: the caller vouches for the elements that are there.
        return unsafe { <Bf16 as Sight<V>>::apart(from, there) };
    }
    // SAFETY: all of them are there.
    unsafe { <Bf16 as Cell<V>>::load_two(from, 0) }
}

/// Two vectors hold even and odd outputs: both read even and odd elements of a row.
impl<const BACK: bool> Cells<1, BACK> for Bf16 {
    const VECTORS: usize = 2;

    #[inline(always)]
    unsafe fn seen(row: *const u8, there: &[There; TAPS], is_whole: bool) -> [Both; TAPS] {
        let mut all = [V::splat(0.0); TAPS + 1];
        for at in (0..TAPS).step_by(2) {
            // SAFETY: the caller's contract.
            let both = unsafe { apart(row.wrapping_add(at * 2), there[at], is_whole) };
            [all[at], all[at + 1]] = both;
        }
        let mut seen = [[V::splat(0.0); 2]; TAPS];
        for (c, seen) in seen.iter_mut().enumerate() {
            let at = place::<BACK>(c);
            *seen = [all[at], all[at + 1]];
        }
        seen
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, [even, odd]: Both) {
        let [first, last] = even.interleave(odd);
        // SAFETY: the caller's contract.
        unsafe { first.store(to.cast()) };
        // SAFETY: the caller's contract.
        unsafe { last.store(to.wrapping_add(LANES * 4).cast()) };
    }

    #[inline(always)]
    unsafe fn round(to: *mut u8, [even, odd]: Both) {
        // SAFETY: the caller's contract.
        unsafe { even.round_in_turn(odd, to) }
    }
}

impl Cells<2, false> for Bf16 {
    const VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn seen(row: *const u8, there: &[There; TAPS], is_whole: bool) -> [Both; TAPS] {
        // SAFETY: the caller's contract.
        let [first, _] = unsafe { apart(row, there[0], is_whole) };
        // SAFETY: the caller's contract.
        let [second, third] = unsafe { apart(row.wrapping_add(2), there[1], is_whole) };
        [first, second, third].map(|seen| [seen; 2])
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, [sums, _]: Both) {
        // SAFETY: the caller's contract.
        unsafe { sums.store(to.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn round(to: *mut u8, [sums, _]: Both) {
        let bits = x86::_mm256_srli_epi32::<16>(nearest_without_nan(sums));
        let (low, high) =
            (x86::_mm256_castsi256_si128(bits), x86::_mm256_extracti128_si256::<1>(bits));
        let bits = x86::_mm_packus_epi32(low, high);
        // SAFETY: the caller vouches for the places of eight sums.
        unsafe { x86::_mm_storeu_si128(to.cast(), bits) }
    }
}

/// Outputs of a line that are accumulated together, the fewest that a line has.
pub(in crate::contract) const fn windows(is_bf16: bool, step: usize) -> usize {
    if is_bf16 && step == 1 { 2 * LANES } else { LANES }
}

/// Computes all lines at stride `step`, 1 or 2. Flags: the input is bf16; then, the result as well.
///
/// # Safety
///
/// The CPU must have AVX2 and FMA. What is in bounds must be readable, and sums writable. Lines
/// have at least [`windows`] outputs, and rows at least eight elements.
pub(in crate::contract) unsafe fn sum(planes: &Planes<'_>, step: usize, is_bf16: [bool; 2]) {
    let of = match (step, planes.dilation[1] < 0) {
        (1, false) => of::<1, false>,
        (1, true) => of::<1, true>,
        (2, false) => of::<2, false>,
        _ => unreachable!("no windows {step} apart"),
    };
    // SAFETY: the caller vouches for the CPU, and for what the channels read and write.
    unsafe { of(planes, is_bf16) }
}

/// # Safety
///
/// The CPU must have AVX2 and FMA. What is in bounds must be readable, and sums writable. Lines
/// have at least [`windows`] outputs, and rows at least eight elements.
unsafe fn of<const S: usize, const BACK: bool>(planes: &Planes<'_>, is_bf16: [bool; 2])
where
    Same: Cells<S, BACK>,
    Bf16: Cells<S, BACK>,
{
    let lines = match is_bf16 {
        [false, _] => lines::<Same, S, BACK, false>,
        [true, false] => lines::<Bf16, S, BACK, false>,
        [true, true] => lines::<Bf16, S, BACK, true>,
    };
    for plane in 0..planes.count {
        // SAFETY: the caller vouches for the CPU, and for what the channels read and write.
        unsafe { lines(planes, plane) }
    }
}

/// As [`sum`], of a plane.
///
/// # Safety
///
/// The CPU must have AVX2 and FMA. What is in bounds of the plane must be readable, and its sums
/// writable. Lines have at least [`windows`] outputs, and rows at least eight elements.
#[target_feature(enable = "avx2,fma")]
unsafe fn lines<C: Cells<S, BACK>, const S: usize, const BACK: bool, const ROUNDS: bool>(
    s: &Planes<'_>,
    plane: usize,
) {
    let mut weights = [[V::splat(0.0); TAPS]; TAPS];
    for (of_row, splats) in s.weights.chunks_exact(TAPS).zip(&mut weights) {
        for (weight, splat) in of_row.iter().zip(splats) {
            *splat = V::splat(*weight);
        }
    }
    let windows = C::VECTORS * LANES;
    let last = s.counts[1] - windows;
    let bytes = if ROUNDS { <Bf16 as Cell<V>>::BYTES } else { size_of::<f32>() };
    for column in (0..s.counts[1]).step_by(windows) {
        // The last windows may begin among those before them, and have some of their sums.
        let column = column.min(last);
        let left = s.first[1] + (column * S) as isize - if BACK { TAPS as isize - 1 } else { 0 };
        let there = |at: usize| There::of(&s.there[1], left + at as isize, windows * S);
        let strip = Strip {
            of: s,
            weights: &weights,
            base: s.bases[plane].wrapping_offset(left * C::BYTES as isize),
            zeros: s.zeros.wrapping_offset(left * C::BYTES as isize),
            there: std::array::from_fn(there),
            ahead: s.row * s.there[0].end,
            to: s.sums[plane].wrapping_add(column * bytes),
        };
        if strip.there.iter().all(|there| there.mask.count_ones() as usize == windows * S) {
            // SAFETY: the caller's contract; all that is seen of rows is there.
            unsafe { strip.sum::<C, S, BACK, ROUNDS, true>() };
        } else {
            // SAFETY: the caller's contract.
            unsafe { strip.sum::<C, S, BACK, ROUNDS, false>() };
        }
    }
}

/// Some outputs in each line.
struct Strip<'a> {
    of: &'a Planes<'a>,
    weights: &'a [[V; TAPS]; TAPS],
    /// What the first of them read on the left in row zero, and in a row out of bounds.
    base: *const u8,
    zeros: *const u8,
    /// What is in bounds from each of the first places on.
    there: [There; TAPS],
    /// Prefetch distance in bytes, to the next channel.
    ahead: isize,
    /// Destination of the first line's sums.
    to: *mut u8,
}

impl Strip<'_> {
    /// Sums all lines.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2 and FMA. What is in bounds must be readable, all of it if `WHOLE`,
    /// and sums writable.
    #[inline(always)]
    unsafe fn sum<
        C: Cells<S, BACK>,
        const S: usize,
        const BACK: bool,
        const ROUNDS: bool,
        const WHOLE: bool,
    >(
        &self,
    ) {
        let lines = self.of.counts[0];
        let before = (TAPS - 1) / S;
        let mut sums = [[V::splat(0.0); 2]; TAPS];
        for y in 0..before {
            // SAFETY: the caller's contract.
            unsafe { self.step::<C, S, BACK, WHOLE>(y, &mut sums, false) };
            shift(&mut sums, before);
        }
        let mut to = self.to;
        for y in before..lines {
            // SAFETY: the caller's contract; all lines that see these rows are there.
            unsafe { self.step::<C, S, BACK, WHOLE>(y, &mut sums, true) };
            // SAFETY: the caller vouches for the sums of a line.
            unsafe { put::<C, S, BACK, ROUNDS>(to, sums[before]) };
            to = to.wrapping_offset(self.of.line);
            shift(&mut sums, before);
        }
        for y in before.max(lines)..lines + before {
            // SAFETY: the caller's contract.
            unsafe { self.step::<C, S, BACK, WHOLE>(y, &mut sums, false) };
            // SAFETY: as above.
            unsafe { put::<C, S, BACK, ROUNDS>(to, sums[before]) };
            to = to.wrapping_offset(self.of.line);
            shift(&mut sums, before);
        }
    }

    /// Adds the rows that line `y` reads first to its sums and earlier ones; all exist if
    /// `is_known`.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2 and FMA. What is in bounds must be readable, all of it if `WHOLE`.
    #[inline(always)]
    unsafe fn step<C: Cells<S, BACK>, const S: usize, const BACK: bool, const WHOLE: bool>(
        &self,
        y: usize,
        sums: &mut [Both; TAPS],
        is_known: bool,
    ) {
        let s = self.of;
        unrolled!(phase of 0 1 => {
            if phase < S {
                let at = s.first[0] + (y * S + phase) as isize * s.dilation[0];
                let is_there = s.there[0].contains(&at);
                let row = if is_there { self.base.wrapping_offset(at * s.row) } else { self.zeros };
                for line in (0..C::VECTORS * LANES * S * C::BYTES).step_by(LINE) {
                    prefetch_l1(row.wrapping_offset(self.ahead + line as isize));
                }
                // SAFETY: elements of a row that are there, or zeros.
                let seen = unsafe { C::seen(row, &self.there, WHOLE) };
                unrolled!(t of 0 1 2 => {
                    if t % S == phase && (is_known || y.wrapping_sub(t / S) < s.counts[0]) {
                        let mut line = sums[t / S];
                        for (weight, seen) in self.weights[t].iter().zip(seen) {
                            for (sum, seen) in line.iter_mut().zip(seen).take(C::VECTORS) {
                                *sum = weight.fma(seen, *sum);
                            }
                        }
                        sums[t / S] = line;
                    }
                });
            }
        });
    }
}

/// Stores sums, rounded or not.
///
/// # Safety
///
/// The CPU must have AVX2, and `to` must be writable for them.
#[inline(always)]
unsafe fn put<C: Cells<S, BACK>, const S: usize, const BACK: bool, const ROUNDS: bool>(
    to: *mut u8,
    sums: Both,
) {
    match ROUNDS {
        // SAFETY: the caller's contract.
        true => unsafe { C::round(to, sums) },
        // SAFETY: the caller's contract.
        false => unsafe { C::store(to, sums) },
    }
}

/// What was the sum of a line is that of the one before the next.
#[inline(always)]
fn shift(sums: &mut [Both; TAPS], before: usize) {
    unrolled!(t of 2 1 => {
        if t <= before {
            sums[t] = sums[t - 1];
        }
    });
    sums[0] = [V::splat(0.0); 2];
}
