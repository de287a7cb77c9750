//! [`Framed`]: padded copies of planes for transposed convolutions.

use super::micro::Engine;
use super::pack::{Elements, Lines};
use tracecast_ir::kernel::Moves;

/// Elements that vectors may read or write past a plane.
const BEHIND: usize = 64;

/// Padded copy of a plane.
#[derive(Clone, Copy)]
pub(super) struct Framed {
    /// Rows and columns of zeros before the plane.
    before: [usize; 2],
    /// All rows, and their stride. Zeros after a row are those before the next one.
    rows: usize,
    pub(super) pitch: usize,
}

impl Framed {
    /// Padded copy for an input and a result of these rows and columns.
    pub(super) fn of(from: [usize; 2], to: [usize; 2], moves: [Moves; 2]) -> Framed {
        // Padding before the first and after the last element of an axis.
        let around = |axis: usize| {
            let Moves { positions, stride, low } = moves[axis];
            // Windows that see the first and the last element.
            let (first, last) = (low / stride, (to[axis].max(1) - 1).saturating_add(low) / stride);
            let back = (positions - 1) / stride;
            [back.saturating_sub(first), (last + 1).saturating_sub(from[axis])]
        };
        let ([above, below], [left, right]) = (around(0), around(1));
        Framed {
            before: [above, left.max(right)],
            rows: from[0].saturating_add(above).saturating_add(below),
            pitch: from[1].saturating_add(left.max(right)),
        }
    }

    /// Elements of a plane, with those read or written past it.
    pub(super) fn room(&self) -> usize {
        self.plane().saturating_add(self.before[1] + BEHIND)
    }

    /// Stride between planes that follow each other.
    pub(super) fn plane(&self) -> usize {
        self.rows.saturating_mul(self.pitch)
    }

    /// Address of the plane's first element.
    pub(super) fn inside<T>(&self, image: *const T) -> *const T {
        image.wrapping_add(self.before[0] * self.pitch + self.before[1])
    }

    /// Copies planes of `[rows, columns]` into an image of zeros; in pairs of planes if the
    /// engine's numbers are pairs. Returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Planes must be readable, and the image writable for them.
    pub(super) unsafe fn fill<E: Engine>(
        &self,
        from: Elements,
        [planes, rows, columns]: [usize; 3],
        image: *mut E::Num,
    ) -> u16 {
        let (plane, mut least) = (rows * columns, u16::MAX);
        let Elements { dtype, round, .. } = from;
        // A single engine packs all rows of a plane; rows of one element are lines of one step.
        let some = if E::DEPTH == 1 && columns > 1 { rows } else { 1 };
        for first in (0..planes).step_by(E::DEPTH) {
            let to = self.inside(image).cast_mut().wrapping_add(first / E::DEPTH * self.plane());
            for row in (0..rows).step_by(some.max(1)) {
                let base = from.moved((first * plane + row * columns) as isize).base;
                let to = to.wrapping_add(row * self.pitch);
                let (along, steps, ld) = match E::DEPTH {
                    1 => (columns, some, self.pitch),
                    depth => (plane, depth, columns),
                };
                let lines = Lines { base, dtype, round, across: 1, along: along as isize };
                // SAFETY: the caller's contract. Behind a row go zeros, or what comes later.
                least = least.min(unsafe { E::pack(&lines, columns, steps, to, ld) });
            }
        }
        least
    }
}
