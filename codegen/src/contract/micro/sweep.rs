//! Microkernel of 3 × 3 depthwise weight gradients, which reads the input in place.
//!
//! A vector holds outputs of a line, with an accumulator for each of nine positions. An input row
//! is loaded once for each position across, for all lines that read it. So an accumulator takes its
//! products in the order of lines, and nine run in parallel.

use super::super::prefetch::{prefetch_bytes, prefetch_l1};
use super::cell::{Sight, There};
use super::engine::Elementwise;
use super::vector::{Microkernel, Number, Vector};
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::ops::Range;
use tracecast_ir::DType;

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

/// Continues the accumulators of a strip by the rows `P..Q` of every `S`.
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
    // Lines before the current one that read the same row.
    let before = (TAPS - 1 - P) / S;
    // In `from..to` all these lines exist and their rows are in bounds.
    let line = |row: isize| (row - s.first).clamp(0, (s.lines * S) as isize) as usize;
    let from = line(s.there.start).div_ceil(S).max(before).min(s.lines);
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
    for y in to..s.lines + before {
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
            prefetch_l1(self.line.wrapping_offset(s.ahead[1]));
            self.line = self.line.wrapping_offset(s.down);
        }
        for phase in P..Q {
            let row = self.row + phase as isize;
            let mut seen = [V::splat(<V::Num as Number>::ZERO); TAPS];
            if is_whole || s.there.contains(&row) {
                let row = s.plane.wrapping_offset(row * s.row + strip.first * C::BYTES as isize);
                let ahead = row.wrapping_offset(C::BYTES as isize + s.ahead[0]);
                prefetch_bytes(ahead, V::LANES * S * C::BYTES);
                let both = [row, row.wrapping_add(V::LANES * C::BYTES)];
                // SAFETY: elements of a row that are there.
                seen = unsafe { C::taps::<TAPS, S, false>(both, &strip.seen) };
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

/// The kernel at a stride, of elements of a dtype.
struct Sized<'a, E: Elementwise, C>(usize, &'a Sweep<'a, E::Num>, PhantomData<C>);

impl<E: Elementwise, C: Sight<E::Vector>> Microkernel for Sized<'_, E, C> {
    type Out = ();

    #[inline(always)]
    unsafe fn run(self) {
        match self.0 {
            1 => self.product::<1>(),
            2 => self.product::<2>(),
            step => unreachable!("no windows {step} apart"),
        }
    }
}

/// Called by [`Microkernel::run`] alone, whose contract holds.
impl<E: Elementwise, C: Sight<E::Vector>> Sized<'_, E, C> {
    /// Continues all accumulators, for outputs of stride `S`, 1 or 2. Stride two needs more
    /// registers than AVX2 has: there even and odd rows take a loop each.
    #[inline(always)]
    fn product<const S: usize>(&self) {
        let s = self.1;
        for (i, strip) in s.strips.iter().enumerate() {
            let (window, strip) = (i * E::LANES, *strip);
            if S == 1 || E::HAS_MANY {
                // SAFETY: the caller's contract.
                unsafe { rows::<E::Vector, C, S, 0, S>(s, window, strip) };
            } else {
                // SAFETY: as above.
                unsafe { rows::<E::Vector, C, S, 0, 1>(s, window, strip) };
                // SAFETY: as above.
                unsafe { rows::<E::Vector, C, S, 1, 2>(s, window, strip) };
            }
        }
    }
}

/// Continues a depthwise weight gradient over lines of a channel, at stride `step`.
///
/// # Safety
///
/// The CPU must be the engine's, and `dtype` one it reads. Elements inside of the channel and the
/// lines must be readable, and chains writable.
pub(in crate::contract) unsafe fn sweep<E: Elementwise>(
    step: usize,
    dtype: DType,
    of: &Sweep<'_, E::Num>,
) {
    if dtype == DType::BF16 {
        // SAFETY: the caller's contract.
        unsafe { E::run(Sized::<E, E::Bf16>(step, of, PhantomData)) }
    } else {
        // SAFETY: the caller's contract.
        unsafe { E::run(Sized::<E, E::Same>(step, of, PhantomData)) }
    }
}
