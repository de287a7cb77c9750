//! Packs the weights of sub-pixel phases, sorted by phase.

use super::super::driver::Run;
use super::super::micro::Engine;
use super::super::operand::Scratch;
use super::super::pack::{Elements, MOVED, move_line};
use super::super::prefetch::prefetch_bytes;
use super::super::transposed::Transposed;
use super::{Phase, seen_by};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// Prefetch distance of weights, in planes.
const AHEAD: usize = 4;

impl<E: Engine> Run<'_, Transposed<'_>, E> {
    /// Packs the weights of a strip, phase by phase. Returns what [`Engine::pack`] does.
    ///
    /// Windows of a strip are contiguous in each plane: they are transposed together, then sorted.
    pub(super) fn pack(
        &self,
        weights: Elements,
        phases: &[Phase],
        strip: &Range<usize>,
        scratch: &mut Scratch,
    ) -> u16 {
        let buffer = scratch.filled.room::<E::Num>(self.transposed::<E>());
        let to = scratch.left.room::<E::Num>(self.packed::<E>());
        let (window, together, count) = (self.window(), self.together() / E::DEPTH, strip.len());
        let (of_plane, numbers) = (self.planes[1] * window, self.planes[0] / E::DEPTH);
        let from = weights.moved((strip.start * window) as isize);
        let spread = self.spread(phases);
        let each = (window * count).next_multiple_of(E::LANES);
        // SAFETY: the room of the windows of all steps. What packing leaves between them is zero.
        unsafe { buffer.write_bytes(0, E::DEPTH * each) };
        let mut least = u16::MAX;
        for number in 0..numbers {
            // Numbers of `together` planes alternate.
            let (nth, plane) = (number % together, number / together);
            let from = from.moved((number * E::DEPTH * of_plane) as isize);
            for step in 0..E::DEPTH {
                let next = from.moved(((step + AHEAD) * of_plane) as isize);
                prefetch_bytes(next.base, count * window * self.dtype.bytes());
            }
            for step in 0..E::DEPTH {
                let lines = from.moved((step * of_plane) as isize).lines(window as isize, 1);
                let to = buffer.wrapping_add(step * each);
                // SAFETY: what `Run` promises: the windows of a strip, and their places.
                unsafe { E::Singly::pack(&lines, count, window, to, count) };
            }
            // SAFETY: as above: those of two planes, and what packing left between them.
            least = least.min(unsafe { E::join(buffer, buffer, 2 * each, each as isize) });
            for (position, [before, own, of_phase]) in spread.iter().enumerate() {
                let place = before * numbers + own * together + nth + plane * of_phase * together;
                let from = buffer.wrapping_add(position * count).cast_const();
                let to = to.wrapping_add(place * count);
                if count.is_multiple_of(MOVED) {
                    // SAFETY: numbers of a strip, and their place.
                    unsafe { move_line(from, to, count) };
                } else {
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
                }
            }
        }
        least
    }
}

impl Transposed<'_> {
    /// For each position of a window: counts of positions in earlier phases, before it in its own,
    /// and in all of its own.
    fn spread(&self, phases: &[Phase]) -> SmallVec<[[usize; 3]; 9]> {
        let [down, across] = self.moves;
        let seen = seen_by(phases);
        let unseen = self.window() - seen;
        // Positions that no phase uses come last.
        let mut spread: SmallVec<[Option<[usize; 3]>; 9]> = smallvec![None; self.window()];
        for phase in phases {
            let [(above, _, rows), (left, _, columns)] =
                [down.met(phase.first[0]), across.met(phase.first[1])];
            for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
                let row = (above + i * down.stride) * across.positions;
                spread[row + left + j * across.stride] =
                    Some([phase.before, i * columns + j, phase.positions]);
            }
        }
        let mut rest = 0..unseen;
        let mut place = |of: Option<[usize; 3]>| {
            of.unwrap_or_else(|| [seen, rest.next().expect("is one of them"), unseen])
        };
        spread.into_iter().map(&mut place).collect()
    }
}
