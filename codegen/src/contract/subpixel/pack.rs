//! Packs for sub-pixel phases: the padded image of a group, and weights, sorted by phase.

use super::super::depthwise_transposed::Framed;
use super::super::micro::{Engine, Number};
use super::super::pack::{Elements, Lines, MOVED, move_line};
use super::super::prefetch::prefetch_bytes;
use super::{Part, Phase, Phases, seen_by};
use smallvec::{SmallVec, smallvec};

/// Shorter rows are packed with all of their plane, then moved to their places.
const SHORT: usize = 16;

/// Prefetch distance of weights, in planes.
const AHEAD: usize = 4;

impl Phases<'_> {
    /// Packs the weights of a part, phase by phase. Returns what [`Engine::pack`] does.
    ///
    /// Windows of a strip are contiguous in each plane: they are transposed together, then sorted.
    ///
    /// # Safety
    ///
    /// They must be readable. The buffers are [`Phases::transposed`] and [`Phases::packed`].
    pub(super) unsafe fn pack<E: Engine>(
        &self,
        weights: Elements,
        phases: &[Phase],
        part: &Part,
        [buffer, to]: [*mut E::Num; 2],
    ) -> u16 {
        let Part { strip, planes, .. } = part;
        let (window, together, count) = (self.window(), self.together() / E::DEPTH, strip.len());
        let (of_plane, numbers) = (self.planes[1] * window, planes.len() / E::DEPTH);
        let ahead = (planes.len() == self.planes[0]).then_some((AHEAD * of_plane) as isize);
        let from = weights.moved((planes.start * of_plane + strip.start * window) as isize);
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
                let Some(ahead) = ahead else { break };
                let next = from.moved((step * of_plane) as isize + ahead);
                prefetch_bytes(next.base, count * window * self.dtype.bytes());
            }
            for step in 0..E::DEPTH {
                let lines = from.moved((step * of_plane) as isize).lines(window as isize, 1);
                let to = buffer.wrapping_add(step * each);
                // SAFETY: the caller's contract: the windows of a strip, and their places.
                unsafe { E::Singly::pack(&lines, count, window, to, count) };
            }
            // SAFETY: as above: those of two planes, and what packing left between them.
            least = least.min(unsafe { E::join(buffer, buffer, 2 * each, each as isize) });
            for (position, [before, own, of_phase]) in spread.iter().enumerate() {
                let place = before * numbers + own * together + nth + plane * of_phase * together;
                let from = buffer.wrapping_add(position * count).cast_const();
                // SAFETY: numbers of a strip, and their place.
                unsafe { move_row(from, to.wrapping_add(place * count), count) };
            }
        }
        least
    }

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

    /// Copies a group's planes into an image; for pairs returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// They must be readable, and the image be writable, as must be [`Phases::transposed`].
    pub(super) unsafe fn fill<E: Engine>(
        &self,
        from: Elements,
        framed: &Framed,
        [line, image]: [*mut E::Num; 2],
    ) -> u16 {
        let ([rows, columns], mut least) = (self.from, u16::MAX);
        let plane = rows * columns;
        let Elements { dtype, round, .. } = from;
        for first in (0..self.planes[0]).step_by(E::DEPTH) {
            let to =
                framed.inside(image).cast_mut().wrapping_add(first / E::DEPTH * framed.plane());
            if E::DEPTH == 1 && columns > 1 {
                let base = from.moved((first * plane) as isize).base;
                let lines = Lines { base, dtype, round, across: 1, along: columns as isize };
                // SAFETY: the caller's contract. Behind a row go zeros, or what comes later.
                unsafe { E::pack(&lines, columns, rows, to, framed.pitch) };
                continue;
            }
            if columns < SHORT {
                let base = from.moved((first * plane) as isize).base;
                let lines = Lines { base, dtype, round, across: 1, along: plane as isize };
                // SAFETY: the caller's contract, and the room of a plane.
                least = least.min(unsafe { E::pack(&lines, plane, E::DEPTH, line, plane) });
                // SAFETY: the numbers of a plane, and their places.
                unsafe { place_rows(line, to, self.from, framed.pitch) };
                continue;
            }
            for row in 0..rows {
                let base = from.moved((first * plane + row * columns) as isize).base;
                let to = to.wrapping_add(row * framed.pitch);
                let (across, along) = (1, plane as isize);
                let lines = Lines { base, dtype, round, across, along };
                // SAFETY: the caller's contract. Behind a row go zeros, or what comes later.
                least = least.min(unsafe { E::pack(&lines, columns, E::DEPTH, to, columns) });
            }
        }
        least
    }
}

/// Copies the rows of a plane to rows of stride `pitch`, with zeros between them.
///
/// # Safety
///
/// All must be readable, with [`MOVED`] behind them, and `to` writable.
#[inline(always)]
unsafe fn place_rows<T: Number>(
    from: *const T,
    to: *mut T,
    [rows, columns]: [usize; 2],
    pitch: usize,
) {
    for row in 0..rows {
        let (from, to) = (from.wrapping_add(row * columns), to.wrapping_add(row * pitch));
        // What is copied beyond a row is overwritten by the next row, if there is one.
        if (rows - 1 - row) * pitch + columns < columns.next_multiple_of(MOVED) {
            // SAFETY: the caller's contract.
            unsafe { std::ptr::copy_nonoverlapping(from, to, columns) };
        } else {
            // SAFETY: as above.
            unsafe { move_line(from, to, columns) };
        }
        for i in columns..if row + 1 < rows { pitch } else { columns } {
            // SAFETY: between this row and the next one.
            unsafe { to.wrapping_add(i).write(T::ZERO) };
        }
    }
}

/// Copies `count` numbers.
///
/// # Safety
///
/// They must be readable, and `to` writable for them.
#[inline(always)]
unsafe fn move_row<T: Number>(from: *const T, to: *mut T, count: usize) {
    if count.is_multiple_of(MOVED) {
        // SAFETY: the caller's contract: no number beyond these is moved.
        unsafe { move_line(from, to, count) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
    }
}
