//! Microkernel of 3 × 3 depthwise weight gradients, which reads the input in place.
//!
//! A vector holds outputs of a line, with an accumulator for each of nine positions. An input row
//! is loaded once for each position across, for all lines that read it. So an accumulator takes its
//! products in the order of lines, and nine run in parallel.

use super::super::prefetch::{LINE, ask};
use super::strip::Cell;
use super::vector::{Number, Vector};
use smallvec::SmallVec;
use std::ops::Range;

/// Kernel size along each axis.
pub(in crate::contract) const TAPS: usize = 3;

/// Arguments: some output lines of a channel.
pub(in crate::contract) struct Sweep<'a, T> {
    /// Element zero of the channel, and the stride of rows in bytes.
    pub(in crate::contract) plane: *const u8,
    pub(in crate::contract) row: isize,
    /// The rows in bounds.
    pub(in crate::contract) there: Range<isize>,
    /// The first row that the first line reads.
    pub(in crate::contract) first: isize,
    /// The other factor (output gradient) of the first line, and its stride of lines in bytes.
    pub(in crate::contract) line: *const u8,
    pub(in crate::contract) down: isize,
    /// Lines, and the strips of outputs of each.
    pub(in crate::contract) lines: usize,
    pub(in crate::contract) strips: &'a [Strip],
    /// Prefetch distances in the channel and in the other factor, in bytes.
    pub(in crate::contract) ahead: [isize; 2],
    /// The accumulators, which are continued, and the stride between positions.
    pub(in crate::contract) chains: *mut T,
    pub(in crate::contract) ld: usize,
}

/// Lane mask of the elements in bounds, of a vector or of two that are deinterleaved.
#[derive(Clone, Copy)]
pub(in crate::contract) struct There {
    pub(super) mask: u32,
    /// Offsets from elements 0 and 8 to eight in bounds: AVX2 has no masked loads of 16 bits.
    #[cfg(target_arch = "x86_64")]
    pub(super) by: [isize; 2],
}

impl There {
    /// Masks `count` elements from `from` on. `there` is the range in bounds, of eight or more.
    pub(super) fn of(there: &Range<isize>, from: isize, count: usize) -> There {
        let before = |end: isize| ((1u64 << (end - from).clamp(0, count as isize)) - 1) as u32;
        let mask = before(there.end) & !before(there.start);
        There {
            mask,
            #[cfg(target_arch = "x86_64")]
            by: [from, from + 8].map(|from| from.clamp(there.start, there.end - 8) - from),
        }
    }
}

/// Masked loads: zeros for elements out of bounds.
pub(super) trait Sight<V: Vector>: Cell<V> {
    /// Loads contiguous elements, one a lane.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that are there.
    #[inline(always)]
    unsafe fn side_by_side(from: *const u8, there: There) -> V {
        if there.mask.count_ones() as usize == V::LANES {
            // SAFETY: the caller's contract.
            return unsafe { Self::load(from, 0) };
        }
        // SAFETY: the caller's contract.
        unsafe { one_by_one::<V, Self>(from, there.mask, 1) }
    }

    /// Loads twice as many, deinterleaved: those at even places, and those at odd ones.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that are there.
    #[inline(always)]
    unsafe fn apart(from: *const u8, there: There) -> [V; 2] {
        [0, 1].map(|odd| {
            let (from, mask) = (from.wrapping_add(odd * Self::BYTES), there.mask >> odd);
            // SAFETY: the caller's contract.
            unsafe { one_by_one::<V, Self>(from, mask, 2) }
        })
    }

    /// Loads those at even places; `next` are those at even places from two elements later on.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the elements that are there.
    #[inline(always)]
    unsafe fn even(from: *const u8, there: There, _next: V) -> V {
        // SAFETY: the caller's contract.
        let [even, _] = unsafe { Self::apart(from, there) };
        even
    }
}

/// Loads elements of stride `step` one by one, where their bit of the mask is set.
///
/// # Safety
///
/// `from` must be readable for the elements whose bit is set.
#[inline(always)]
unsafe fn one_by_one<V: Vector, C: Cell<V> + ?Sized>(from: *const u8, mask: u32, step: usize) -> V {
    // As many as the widest vectors have.
    let mut cells = [0u64; 16];
    let to = cells.as_mut_ptr().cast::<u8>();
    for lane in (0..V::LANES).filter(|lane| mask >> (lane * step) & 1 != 0) {
        let from = from.wrapping_add(lane * step * C::BYTES);
        // SAFETY: an element that is there, and a place for it.
        unsafe { to.wrapping_add(lane * C::BYTES).copy_from_nonoverlapping(from, C::BYTES) };
    }
    // SAFETY: as many elements as there are lanes.
    unsafe { C::load(to, 0) }
}

/// A vector of outputs in each line.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Strip {
    /// The first column that the first output reads, and the mask of each position's input.
    first: isize,
    seen: [There; TAPS],
    /// The outputs that exist.
    windows: There,
}

impl Strip {
    /// Splits outputs of stride `step` into vectors of `lanes`. The first output reads from column
    /// `first`; `columns` are in bounds.
    pub(in crate::contract) fn all(
        first: isize,
        columns: &Range<isize>,
        [windows, step, lanes]: [usize; 3],
    ) -> SmallVec<[Strip; 32]> {
        let one = |window: usize| {
            let first = first + (window * step) as isize;
            let seen = |c: usize| There::of(columns, first + c as isize, lanes * step);
            let windows = There::of(&(0..windows as isize), window as isize, lanes);
            Strip { first, seen: std::array::from_fn(seen), windows }
        };
        (0..windows).step_by(lanes).map(one).collect()
    }
}

/// Continues all accumulators, for outputs of stride `S`, 1 or 2. Stride two needs more registers
/// than AVX2 has: there even and odd rows take a loop each.
///
/// # Safety
///
/// The CPU must have the vector. Data in bounds must be readable, chains writable as whole vectors.
#[inline(always)]
pub(super) unsafe fn product<V: Vector, C: Sight<V>, const S: usize, const HAS_MANY: bool>(
    s: &Sweep<'_, V::Num>,
) {
    for (i, strip) in s.strips.iter().enumerate() {
        let (window, strip) = (i * V::LANES, *strip);
        if S == 1 || HAS_MANY {
            // SAFETY: the caller's contract.
            unsafe { rows::<V, C, S, 0, S>(s, window, strip) };
        } else {
            // SAFETY: the caller's contract.
            unsafe { rows::<V, C, S, 0, 1>(s, window, strip) };
            // SAFETY: the caller's contract.
            unsafe { rows::<V, C, S, 1, 2>(s, window, strip) };
        }
    }
}

/// The same for a strip and the rows `P..Q` of every `S`.
///
/// # Safety
///
/// The CPU must have the vector. Data in bounds must be readable, chains writable as whole vectors.
#[inline(always)]
unsafe fn rows<V: Vector, C: Sight<V>, const S: usize, const P: usize, const Q: usize>(
    s: &Sweep<'_, V::Num>,
    window: usize,
    strip: Strip,
) {
    let lines = s.lines;
    // Lines before the current one that read the same row.
    let before = (TAPS - 1 - P) / S;
    // In `from..to` all these lines exist and their rows are in bounds.
    let line = |row: isize| (row - s.first).clamp(0, (lines * S) as isize) as usize;
    let from = line(s.there.start).div_ceil(S).max(before).min(lines);
    let to = (line(s.there.end) / S).max(from);
    let chain = |t: usize, c: usize| s.chains.wrapping_add((t * TAPS + c) * s.ld + window);
    let zero = V::splat(<V::Num as Number>::ZERO);
    let mut sums = [[zero; TAPS]; TAPS];
    for (t, sums) in sums.iter_mut().enumerate() {
        for (c, sum) in sums.iter_mut().enumerate() {
            if (P..Q).contains(&(t % S)) {
                // SAFETY: the caller vouches for the chains.
                *sum = unsafe { V::load(chain(t, c)) };
            }
        }
    }
    let line = s.line.wrapping_add(window * C::BYTES);
    let mut step = Step { line, row: s.first, given: [zero; TAPS], sums };
    for y in 0..from {
        // SAFETY: the caller's contract.
        unsafe { step.take::<C, S, P, Q>(s, strip, y, false) };
    }
    for y in from..to {
        // SAFETY: the caller's contract; all lines and rows are there.
        unsafe { step.take::<C, S, P, Q>(s, strip, y, true) };
    }
    for y in to..lines + before {
        // SAFETY: the caller's contract.
        unsafe { step.take::<C, S, P, Q>(s, strip, y, false) };
    }
    for (t, sums) in step.sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate() {
            if (P..Q).contains(&(t % S)) {
                // SAFETY: as above.
                unsafe { sum.store(chain(t, c)) };
            }
        }
    }
}

/// State of a sweep.
struct Step<V> {
    line: *const u8,
    row: isize,
    /// The other factor of the last line, and of those before it.
    given: [V; TAPS],
    sums: [[V; TAPS]; TAPS],
}

impl<V: Vector> Step<V> {
    /// Takes the next line and the rows that it reads first. `is_whole`: these rows and all lines
    /// that read them exist.
    ///
    /// # Safety
    ///
    /// The CPU must have the vector. Data in bounds must be readable; with `is_whole` all of these
    /// are in bounds.
    #[inline(always)]
    unsafe fn take<C: Sight<V>, const S: usize, const P: usize, const Q: usize>(
        &mut self,
        s: &Sweep<'_, V::Num>,
        strip: Strip,
        y: usize,
        is_whole: bool,
    ) {
        let lines = s.lines;
        if is_whole || y < lines {
            // SAFETY: the windows of a line.
            self.given[0] = unsafe { C::side_by_side(self.line, strip.windows) };
            ask(self.line.wrapping_offset(s.ahead[1]));
            self.line = self.line.wrapping_offset(s.down);
        }
        for phase in P..Q {
            let row = self.row + phase as isize;
            let mut seen = [V::splat(<V::Num as Number>::ZERO); TAPS];
            if is_whole || s.there.contains(&row) {
                let row = s.plane.wrapping_offset(row * s.row + strip.first * C::BYTES as isize);
                let from = |c: usize| row.wrapping_add(c * C::BYTES);
                for line in (0..V::LANES * S * C::BYTES).step_by(LINE) {
                    ask(from(1).wrapping_offset(s.ahead[0] + line as isize));
                }
                if S == 1 {
                    for (c, seen) in seen.iter_mut().enumerate() {
                        // SAFETY: elements of a row that are there.
                        *seen = unsafe { C::side_by_side(from(c), strip.seen[c]) };
                    }
                } else {
                    // The first position of a window is the last one of the window before it.
                    // SAFETY: as above.
                    let [even, odd] = unsafe { C::apart(from(1), strip.seen[1]) };
                    // SAFETY: as above.
                    seen = [unsafe { C::even(from(0), strip.seen[0], odd) }, even, odd];
                }
            }
            for (t, sums) in self.sums.iter_mut().enumerate() {
                if t % S == phase && (is_whole || y.wrapping_sub(t / S) < lines) {
                    for (sum, seen) in sums.iter_mut().zip(seen) {
                        *sum = self.given[t / S].fma(seen, *sum);
                    }
                }
            }
        }
        self.row += S as isize;
        self.given = [self.given[0], self.given[0], self.given[1]];
    }
}

/// Dispatches to [`product`] by stride. `has_many`: the CPU has 32 vector registers, not 16.
macro_rules! sweep {
    ($vector:ty, $cell:ty, $step:expr, $sweep:expr, has_many: $many:literal) => {
        match $step {
            // SAFETY: the caller's contract.
            1 => unsafe {
                $crate::contract::micro::sweep::product::<$vector, $cell, 1, $many>($sweep)
            },
            // SAFETY: as above.
            2 => unsafe {
                $crate::contract::micro::sweep::product::<$vector, $cell, 2, $many>($sweep)
            },
            step => unreachable!("no windows {step} apart"),
        }
    };
}

pub(super) use sweep;
