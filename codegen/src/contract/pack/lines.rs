//! Packs lines with a CPU's vectors: neighbouring lines are loaded together, and lines that are
//! contiguous along `k` are transposed in squares.

use super::super::micro::{Engine, Microkernel};
use super::super::prefetch::{LINE, prefetch_l1, prefetch_l2};
use super::vectors::{Lanes, Numbers, first};
use super::{CHUNK, Lines};
use std::marker::PhantomData;

/// Prefetch distance along a line, in bytes.
const AHEAD: usize = 512;

/// The most lanes of a vector.
const MOST_LANES: usize = 16;

/// [`Engine::pack`] with the engine's vectors: the lines, their count, `k`, and the stride of
/// numbers along `k`. The second steps of pairs are `second` elements from the first ones, or those
/// that follow.
///
/// # Safety
///
/// The CPU must be the engine's. Lines must be readable, of these numbers' dtype, with the elements
/// between them if their stride is two. `ld` is at least `count`, and `dst` writable for all steps
/// and eight numbers.
pub(super) unsafe fn pack<E: Engine, N: Numbers>(
    lines: &Lines,
    second: Option<isize>,
    [count, k, ld]: [usize; 3],
    dst: *mut u32,
) -> u16 {
    if count == 0 || k == 0 {
        return u16::MAX;
    }
    // SAFETY: the caller's contract.
    unsafe { E::run(Pack { lines, second, count, k, dst, ld, kind: PhantomData::<N> }) }
}

/// The arguments of [`pack`], which alone makes them: lines are readable, places writable, and the
/// CPU has the vector.
struct Pack<'a, N> {
    /// By reference: a copy would wait for the stores of its fields.
    lines: &'a Lines,
    second: Option<isize>,
    count: usize,
    k: usize,
    dst: *mut u32,
    ld: usize,
    kind: PhantomData<N>,
}

impl<N: Numbers> Microkernel for Pack<'_, N> {
    type Out = u16;

    #[inline(always)]
    unsafe fn run(self) -> u16 {
        let is_along = self.lines.along == 1 && self.second.is_none();
        // Squares of eight lanes are stored whole: a few steps would spill past their lines.
        let are_enough = N::Vector::LANES == MOST_LANES || self.k >= N::Vector::LANES;
        N::least(match self.lines.across {
            _ if is_along && [self.count, self.ld] == [1, 1] => self.line(),
            1 => self.neighbours::<1>(),
            _ if is_along && are_enough => self.squares(),
            2 => self.neighbours::<2>(),
            _ => self.one_by_one(),
        })
    }
}

/// Starts of vectors that cover `count` lanes; the last one may overlap the one before.
#[inline(always)]
fn vectors<N: Numbers>(count: usize) -> impl Iterator<Item = usize> {
    let last = count.saturating_sub(N::Vector::LANES);
    (0..count).step_by(N::Vector::LANES).map(move |j| j.min(last))
}

/// Prefetches the next chunk: the other lines of this one come in between. AVX2 does without.
#[inline(always)]
fn prefetch_next<N: Numbers>(step: *const u8, [after, next]: [isize; 2]) {
    if N::Vector::LANES == MOST_LANES {
        for from in [step, step.wrapping_offset(after)].into_iter().take(N::STEPS) {
            prefetch_l2(from.wrapping_offset((CHUNK / N::STEPS) as isize * next));
        }
    }
}

/// Prefetches for vectors of many lanes into L2: they take more lines than L1 has ways.
#[inline(always)]
fn prefetch<N: Numbers>(at: *const u8) {
    if N::Vector::LANES == MOST_LANES { prefetch_l2(at) } else { prefetch_l1(at) }
}

/// Methods return least magnitudes by value: a reference would keep them in memory.
impl<N: Numbers> Pack<'_, N> {
    /// The mask of numbers that are stored at `to`: a whole vector if it ends by `end`. Behind them
    /// others are written later.
    #[inline(always)]
    fn stored(&self, to: *mut u32, end: *mut u32) -> u16 {
        let (count, lanes) = (self.count, N::Vector::LANES);
        first(if to.wrapping_add(lanes) <= end { lanes } else { count.min(lanes) }) as u16
    }

    /// Offsets in bytes from a step to the second one of a number, and to the next number's.
    #[inline(always)]
    fn strides(&self) -> [isize; 2] {
        let bytes = N::BYTES as isize;
        let along = self.lines.along * bytes;
        match self.second {
            Some(second) => [second * bytes, along],
            None => [along, along * N::STEPS as isize],
        }
    }

    /// A line whose steps are contiguous, as are its numbers.
    #[inline(always)]
    fn line(&self) -> N::Vector {
        let (mut least, some) = (N::Vector::zero(), N::Vector::LANES * N::STEPS);
        for p in (0..self.k).step_by(some) {
            let count = some.min(self.k - p);
            // SAFETY: these steps of the line.
            let numbers = unsafe { N::along(self.lines.base.wrapping_add(p * N::BYTES), count) };
            least = N::smaller(least, numbers);
            let (to, mask) = (self.dst.wrapping_add(p / N::STEPS), first(count.div_ceil(N::STEPS)));
            // SAFETY: the numbers of these steps.
            unsafe { numbers.store(to, mask as u16) };
        }
        least
    }

    /// Lines of stride `S`, one or two.
    #[inline(always)]
    fn neighbours<const S: usize>(&self) -> N::Vector {
        let Pack { lines, count, k, dst, ld, .. } = *self;
        let (lanes, [after, next]) = (N::Vector::LANES, self.strides());
        let (mut least, mut from, mut to) = (N::Vector::zero(), lines.base, dst);
        let (whole, last) =
            (self.whole(S), dst.wrapping_add((k.div_ceil(N::STEPS) - 1) * ld + count));
        let mask = first(count.min(lanes)) as u16;
        for p in (0..k).step_by(N::STEPS) {
            let has_second = p + 1 < k;
            if count >= lanes {
                let full = first(lanes) as u16;
                let masks = [full, if N::STEPS == 2 && has_second { full } else { 0 }];
                for j in vectors::<N>(count) {
                    let step = from.wrapping_add(j * S * N::BYTES);
                    prefetch_next::<N>(step, [after, next]);
                    // SAFETY: lines at one step and at the next, if there is one.
                    let numbers =
                        unsafe { N::across::<S>([step, step.wrapping_offset(after)], masks) };
                    least = N::smaller(least, numbers);
                    // SAFETY: their places.
                    unsafe { numbers.store(to.wrapping_add(j), full) };
                }
            } else {
                let masks = [mask, if has_second { mask } else { 0 }];
                prefetch_next::<N>(from, [after, next]);
                let both = [from, from.wrapping_offset(after)];
                let numbers = if p < whole {
                    // SAFETY: as above, and elements up to the last line of the last step.
                    unsafe { N::within::<S>(both, masks) }
                } else {
                    // SAFETY: as above.
                    unsafe { N::across::<S>(both, masks) }
                };
                least = N::smaller(least, numbers);
                // SAFETY: their places, or those of later numbers.
                unsafe { numbers.store(to, self.stored(to, last)) };
            }
            from = from.wrapping_offset(next);
            to = to.wrapping_add(ld);
        }
        least
    }

    /// Lines of any strides.
    #[inline(always)]
    fn one_by_one(&self) -> N::Vector {
        let (mut least, [after, next]) = (N::Vector::zero(), self.strides());
        let (mut from, mut to) = (self.lines.base, self.dst);
        for p in (0..self.k).step_by(N::STEPS) {
            for j in 0..self.count {
                let step = from.wrapping_offset(j as isize * self.lines.across * N::BYTES as isize);
                let both = [step, step.wrapping_offset(after)];
                // SAFETY: an element, and that of the next step, if there is one.
                let number = unsafe { N::across::<1>(both, [1, u16::from(p + 1 < self.k)]) };
                least = N::smaller(least, number);
                // SAFETY: its place.
                unsafe { number.store(to.wrapping_add(j), 1) };
            }
            from = from.wrapping_offset(next);
            to = to.wrapping_add(self.ld);
        }
        least
    }

    /// Steps whose vectors may be read whole: they end by the last line of the last step. Only
    /// AVX2 profits, which has no masks.
    #[inline(always)]
    fn whole(&self, stride: usize) -> usize {
        let lanes = N::Vector::LANES;
        if lanes == MOST_LANES || self.count >= lanes || self.k == 1 || self.lines.along < 1 {
            return 0;
        }
        let behind = (lanes - self.count) * stride;
        self.k.saturating_sub(behind.div_ceil(self.lines.along as usize))
    }

    /// Lines whose `k` stride is one.
    #[inline(always)]
    fn squares(&self) -> N::Vector {
        let mut least = N::Vector::zero();
        let (lanes, side) = (N::Vector::LANES, N::Vector::LANES * N::STEPS);
        for j in vectors::<N>(self.count) {
            // The last line stands in for missing ones.
            let last = lanes.min(self.count) - 1;
            let line = |l: usize| self.lines.from(j + l.min(last), 0).base;
            let starts: [_; MOST_LANES] = std::array::from_fn(line);
            for p in (0..self.k).step_by(side) {
                // The last steps overlap those before them.
                let overlaps = N::STEPS == 1 && self.k >= side;
                let p = if overlaps { p.min(self.k - side) } else { p };
                let steps = side.min(self.k - p);
                // What is known to be whole takes no masks.
                least = match [steps == side, self.count >= lanes] {
                    [true, true] => self.square(&starts, [j, p, side], true, least),
                    [true, false] => self.square(&starts, [j, p, side], false, least),
                    _ => self.square(&starts, [j, p, steps], false, least),
                };
            }
        }
        least
    }

    /// The lines from `j` on, for some steps from `p` on.
    #[inline(always)]
    fn square(
        &self,
        starts: &[*const u8; MOST_LANES],
        [j, p, steps]: [usize; 3],
        is_whole: bool,
        mut least: N::Vector,
    ) -> N::Vector {
        let bytes = N::Vector::LANES * N::STEPS * N::BYTES;
        let mut rows = N::Vector::square();
        for (row, start) in rows.as_mut().iter_mut().zip(starts) {
            let from = start.wrapping_add(p * N::BYTES);
            if (p * N::BYTES).is_multiple_of(LINE) {
                let lines = (0..bytes).step_by(LINE);
                lines.for_each(|line| prefetch::<N>(from.wrapping_add(AHEAD + line)));
            }
            // SAFETY: these steps of a line.
            *row = unsafe { N::along(from, steps) };
            least = N::smaller(least, *row);
        }
        let to = self.dst.wrapping_add(p / N::STEPS * self.ld + j);
        // Eight numbers behind the last step may be written.
        let lanes = N::Vector::LANES;
        let end = self.k.div_ceil(N::STEPS) * self.ld + MOST_LANES - lanes;
        let (end, all) = (self.dst.wrapping_add(end), first(lanes) as u16);
        let rows = N::Vector::transposed(rows).into_iter();
        for (q, row) in rows.enumerate().take(steps.div_ceil(N::STEPS)) {
            let to = to.wrapping_add(q * self.ld);
            let mask = if is_whole || lanes < MOST_LANES { all } else { self.stored(to, end) };
            // SAFETY: their places, or those of later numbers.
            unsafe { row.store(to, mask) };
        }
        least
    }
}
