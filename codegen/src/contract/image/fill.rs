//! Fills an image: copies lines of the input to their padded places, as packed numbers.

use super::super::im2col::copy_apart;
use super::super::micro::Engine;
use super::super::pack::{Elements, Lines, pack_rows};
use super::{Along, Image, NEAR_LINES, Step};

/// Lines of fewer numbers are too short to be transposed one by one.
const SHORT: usize = 12;

/// Operands interleaved in an image: their count, their stride in elements, and the lanes reserved.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Beside {
    pub(in crate::contract) count: usize,
    pub(in crate::contract) stride: isize,
    pub(in crate::contract) width: usize,
}

impl Beside {
    /// A single operand.
    pub(in crate::contract) const ALONE: Beside = Beside { count: 1, stride: 0, width: 1 };
}

/// Destination of an image, and scratch for a line.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Places<T> {
    pub(in crate::contract) image: *mut T,
    pub(in crate::contract) line: *mut T,
    pub(in crate::contract) beside: Beside,
}

impl<T> Places<T> {
    /// The same, `numbers` of each operand on.
    fn from(self, numbers: usize) -> Self {
        Places { image: self.image.wrapping_add(numbers * self.beside.width), ..self }
    }
}

impl Image {
    /// Copies the elements in bounds to an image of zeros. `from` is what the first window of the
    /// first band reads first. Returns what [`Engine::pack`] does, if numbers are pairs.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What windows read in bounds must be readable, the image
    /// writable for [`Image::room`] of each reserved operand, the line for [`Image::line`].
    pub(in crate::contract) unsafe fn fill<E: Engine>(
        &self,
        from: Elements,
        to: Places<E::Num>,
    ) -> u16 {
        let from = from.moved(self.origin);
        if let Some(blocks) = &self.blocks {
            // SAFETY: the caller's contract.
            return unsafe { self.fill_blocks::<E>(blocks, from, to) };
        }
        let is_foreseen = to.beside.width > 1 || !self.sees_parts();
        let mut least = u16::MAX;
        for plane in 0..self.planes() {
            // Hardware foresees the lines of a plane, not where the next one begins.
            if !is_foreseen && plane + 1 < self.planes() {
                let (next, lines) = (plane + 1..plane + 2, 0..usize::MAX);
                (0..self.along[0].size())
                    .for_each(|i| self.prefetch_lines(from, next.clone(), (i, lines.clone())));
            }
            let from = from.moved(self.plane_at(plane));
            self.each_rows(from, |from, rows, at| {
                let to = to.from(plane * self.plane() + at);
                // SAFETY: the caller's contract, for these rows.
                least = least.min(unsafe { self.fill_rows::<E>(from, rows, to) });
            });
        }
        least
    }

    /// Offset of a plane of the operand, in elements.
    pub(super) fn plane_at(&self, plane: usize) -> isize {
        let (mut rest, mut offset) = (plane, 0);
        for step in self.steps.iter().rev() {
            if let Step::Planes(extent, stride) = step {
                offset += (rest % extent) as isize * stride;
                rest /= extent;
            }
        }
        offset
    }

    /// True if planes are much larger than what the image holds of them, as for a band of windows.
    fn sees_parts(&self) -> bool {
        let seen = |along: &Along| along.size() as isize * along.step as isize * along.stride.abs();
        let seen = self.along.iter().map(seen).max().unwrap_or(0);
        let mut planes = self.steps.iter().filter_map(|step| match step {
            Step::Planes(_, stride) => Some(stride.abs()),
            Step::Taps(_) => None,
        });
        planes.next_back().is_some_and(|stride| stride > 2 * seen)
    }

    /// Calls `each` for lines in bounds: place zero of the first one, their count and stride in
    /// elements, and their offset in the plane.
    fn each_rows(&self, from: Elements, mut each: impl FnMut(Elements, (usize, isize), usize)) {
        let [outer, middle, _] = &self.along;
        let [far, near, _] = self.lines();
        for (p, phase) in outer.phases.iter().enumerate() {
            for i in outer.there(*phase) {
                let from = from.moved(outer.place(*phase, i) * outer.stride);
                for (q, phase) in middle.phases.iter().enumerate() {
                    let rows = middle.there(*phase);
                    if rows.is_empty() {
                        continue;
                    }
                    let from = from.moved(middle.place(*phase, rows.start) * middle.stride);
                    let at = self.phase([p, q, 0]) * self.block() + i * far + rows.start * near;
                    let along = middle.step as isize * middle.stride;
                    each(from, (rows.len(), along), at);
                }
            }
        }
    }

    /// Copies `rows` lines of stride `along`, or interleaves those of two planes into pairs.
    /// Returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Lines must be readable in bounds and between the elements of a
    /// phase, their places in the image writable, and the line for one of them.
    unsafe fn fill_rows<E: Engine>(
        &self,
        from: Elements,
        (rows, along): (usize, isize),
        to: Places<E::Num>,
    ) -> u16 {
        let Beside { count, stride, width } = to.beside;
        let [.., inner] = &self.along;
        let across = inner.step as isize * inner.stride;
        let mut least = u16::MAX;
        if width == 1 && across > 2 && inner.near().is_some() {
            // SAFETY: the caller's contract.
            unsafe { self.split_rows::<E::Singly>(from, (rows, along), to) };
            return least;
        }
        for (p, phase) in inner.phases.iter().enumerate() {
            let there = inner.there(*phase);
            if there.is_empty() {
                continue;
            }
            let base = from.moved(inner.place(*phase, there.start) * inner.stride);
            let to = to.from(p * self.block() + there.start);
            let near =
                (there.len() as isize..=(NEAR_LINES * there.len()) as isize).contains(&along);
            if width > 1 && across == 1 && near && there.len() < SHORT {
                // SAFETY: the caller's contract.
                unsafe {
                    self.copy_rows::<E::Singly>(base, (rows, along as usize), there.len(), to)
                };
                continue;
            }
            let lines = |row: isize| base.moved(row * along).lines(across, along);
            // Behind a line are zeros, or the next line's, which comes later.
            if let Some(second) = self.second {
                let sizes = [there.len(), rows, self.pitch];
                // SAFETY: the caller's contract, for both planes.
                least = least.min(unsafe { pack_rows::<E>(&lines(0), second, sizes, to.image) });
                continue;
            }
            let is_matrix = width == 1 && (1..=2).contains(&across) && along != 1;
            let together = if is_matrix { rows } else { 1 };
            for row in (0..rows).step_by(together.max(1)) {
                let (lines, length) = (lines(row as isize), there.len());
                let (lines, [count, steps, ld]) = match width {
                    1 => (lines, [length, together, self.pitch]),
                    _ => (Lines { across: stride, along: across, ..lines }, [count, length, width]),
                };
                let to = to.from(row * self.pitch).image;
                // SAFETY: the caller's contract, for each operand.
                unsafe { E::Singly::pack(&lines, count, steps, to, ld) };
            }
        }
        least
    }

    /// Copies short, close lines of several operands: transposes them and their gaps at once.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Lines and the elements between them must be readable for each
    /// operand, their places in the image writable, and the line for all of them.
    unsafe fn copy_rows<E: Engine>(
        &self,
        from: Elements,
        (rows, along): (usize, usize),
        length: usize,
        to: Places<E::Num>,
    ) {
        let Places { image, line, beside: Beside { count, stride, width } } = to;
        let lines = from.lines(stride, 1);
        let all = (rows - 1) * along + length;
        // SAFETY: elements from the first to the last of a plane, and space for their numbers.
        unsafe { E::pack(&lines, count, all, line, width) };
        for row in 0..rows {
            let from = line.wrapping_add(row * along * width).cast_const();
            let to = image.wrapping_add(row * self.pitch * width);
            // SAFETY: numbers of a line, and its places.
            unsafe { std::ptr::copy_nonoverlapping(from, to, length * width) };
        }
    }

    /// Copies lines of several phases: reads contiguous elements, then splits them by phase.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Lines must be readable with the elements between those of a
    /// phase, their places in the image writable, and the line for one of them.
    unsafe fn split_rows<E: Engine>(
        &self,
        from: Elements,
        (rows, along): (usize, isize),
        to: Places<E::Num>,
    ) {
        let Places { line, .. } = to;
        let [.., inner] = &self.along;
        let Some((places, stride)) = inner.read() else { return };
        let count = (places.len() - 1) * stride + 1;
        for row in 0..rows {
            let base = from.moved(row as isize * along + places.start * inner.stride);
            // SAFETY: elements in bounds and those in between, and space for their numbers.
            unsafe { E::pack(&base.lines(1, 0), count, 1, line, count) };
            for (p, phase) in inner.phases.iter().enumerate() {
                let there = inner.there(*phase);
                if there.is_empty() {
                    continue;
                }
                let first = (inner.place(*phase, there.start) - places.start) as usize;
                let to = to.from(row * self.pitch + p * self.block() + there.start).image;
                let line = line.wrapping_add(first * stride);
                // SAFETY: the numbers of this phase are among those of the line.
                unsafe { copy_apart(line, (inner.step * stride) as isize, there.len(), to) };
            }
        }
    }
}
