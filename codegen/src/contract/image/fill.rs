//! Filling an image: lines of an operand are copied to where windows see them, as numbers of the contraction.

use super::super::micro::Engine;
use super::super::pack::{Alternate, Elements, Lines, Rows};
use super::super::prefetch::ask_bytes;
use super::{Along, Image, NEAR_LINES, Step};

/// Lines of fewer numbers are too short to be turned one by one.
const SHORT: usize = 12;

/// Operands that lie side by side in an image: how many, from one to the next in elements, and how many there is room for.
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

/// Where an image and, for a while, the numbers of a line go.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Places<T> {
    pub(in crate::contract) image: *mut T,
    pub(in crate::contract) line: *mut T,
    pub(in crate::contract) beside: Beside,
}

impl<T> Places<T> {
    /// From so many numbers of each operand on.
    fn from(self, numbers: usize) -> Self {
        Places { image: self.image.wrapping_add(numbers * self.beside.width), ..self }
    }
}

impl Image {
    /// Writes what is there of an operand, of which the first window of the first band sees `from` first. Zeros lie everywhere else already. `line` is for the
    /// numbers of a line. Returns what [`Engine::pack`] does, if numbers are pairs.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What windows see must be readable where it is there; the image must be writable for [`Image::room`] of each operand that
    /// there is room for, the line for [`Image::line`].
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
        let is_asked_for = to.beside.width == 1 && self.sees_parts();
        let mut least = u16::MAX;
        for plane in 0..self.planes() {
            if is_asked_for && plane + 1 < self.planes() {
                self.ask(from.moved(self.plane_at(plane + 1)));
            }
            let from = from.moved(self.plane_at(plane));
            self.each_rows(from, |from, rows, at| {
                let to = to.from(plane * self.plane() + at);
                if let Some(second) = self.second {
                    // SAFETY: the caller's contract, for these rows.
                    least = least.min(unsafe { self.join_rows::<E>(from, second, rows, to) });
                } else {
                    // SAFETY: the caller's contract, for these rows.
                    unsafe { self.fill_rows::<E::Singly>(from, rows, to) };
                }
            });
        }
        least
    }

    /// Lines that begin so many elements apart, each joined with that of the other plane. Returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// As [`Image::fill_rows`], for both planes.
    unsafe fn join_rows<E: Engine>(
        &self,
        from: Elements,
        second: isize,
        (rows, along): (usize, isize),
        to: Places<E::Num>,
    ) -> u16 {
        let [.., inner] = &self.along;
        if inner.step as isize * inner.stride == 2 {
            // SAFETY: the caller's contract.
            let least = unsafe { self.alternate::<E>(from, Some(second), (rows, along), to) };
            return least.expect("an engine of pairs tells them apart");
        }
        let there = inner.there(0);
        let (first, count) = (from.moved(inner.place(0, there.start)), there.len());
        let mut least = u16::MAX;
        for row in 0..if count == 0 { 0 } else { rows } {
            let lines = first.moved(row as isize * along).lines(1, second);
            let to = to.from(row * self.pitch + there.start).image;
            // SAFETY: the caller's contract: two lines, and the places of their pairs.
            least = least.min(unsafe { E::pack(&lines, count, 2, to, count) });
        }
        least
    }

    /// Where a plane of the operand begins, in elements from the first.
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

    /// True if planes are much larger than what it sees of them, as where it is of a band of windows.
    fn sees_parts(&self) -> bool {
        let seen = |along: &Along| along.size() as isize * along.step as isize * along.stride.abs();
        let seen = self.along.iter().map(seen).max().unwrap_or(0);
        let mut planes = self.steps.iter().filter_map(|step| match step {
            Step::Planes(_, stride) => Some(stride.abs()),
            Step::Taps(_) => None,
        });
        planes.next_back().is_some_and(|stride| stride > 2 * seen)
    }

    /// Asks for what is there of a plane while the one before it is copied: the CPU foresees lines of one plane, not where the next one begins.
    fn ask(&self, from: Elements) {
        let [.., inner] = &self.along;
        let Some(stride) = inner.near() else { return };
        let line = inner.size() * inner.step * stride * from.dtype.bytes();
        self.each_rows(from, |from, (rows, along), _| {
            for row in 0..rows {
                ask_bytes(from.moved(row as isize * along).base, line);
            }
        });
    }

    /// Calls `each` for the lines of a plane that are there: where the first of them begins at place zero, how many there are and from one to the next in elements,
    /// and where they go in the plane.
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

    /// Lines that begin so many elements apart.
    ///
    /// # Safety
    ///
    /// As [`Image::fill`], for these lines.
    unsafe fn fill_rows<E: Engine>(
        &self,
        from: Elements,
        (rows, along): (usize, isize),
        to: Places<E::Num>,
    ) {
        let Beside { count, stride, width } = to.beside;
        let [.., inner] = &self.along;
        let across = inner.step as isize * inner.stride;
        if width == 1 && across > 1 && inner.near().is_some() {
            // SAFETY: the caller's contract.
            return unsafe { self.split_rows::<E>(from, (rows, along), to) };
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
                unsafe { self.copy_rows::<E>(base, (rows, along as usize), there.len(), to) };
                continue;
            }
            let lines = |row: isize| base.moved(row * along).lines(across, along);
            if width == 1 && across == 1 && along != 1 {
                // SAFETY: the caller's contract. Numbers behind a line are zeros, or those of the next one, which comes later.
                unsafe { E::pack(&lines(0), there.len(), rows, to.image, self.pitch) };
                continue;
            }
            for row in 0..rows {
                let to = to.from(row * self.pitch).image;
                let (lines, length) = (lines(row as isize), there.len());
                if width == 1 {
                    // SAFETY: the caller's contract.
                    unsafe { E::pack(&lines, length, 1, to, length) };
                } else {
                    let steps = Lines { across: stride, along: across, ..lines };
                    // SAFETY: the caller's contract, for each operand.
                    unsafe { E::pack(&steps, count, length, to, width) };
                }
            }
        }
    }

    /// Short lines of several operands that are near: all that lies between them is turned at once.
    ///
    /// # Safety
    ///
    /// As [`Image::fill_rows`].
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
        // SAFETY: elements between the first and the last of a plane, and room for as many numbers of each operand.
        unsafe { E::pack(&lines, count, all, line, width) };
        for row in 0..rows {
            let from = line.wrapping_add(row * along * width).cast_const();
            let to = image.wrapping_add(row * self.pitch * width);
            // SAFETY: numbers of a line, and its places.
            unsafe { std::ptr::copy_nonoverlapping(from, to, length * width) };
        }
    }

    /// Lines of which elements are read side by side before they are told apart, phase by phase.
    ///
    /// # Safety
    ///
    /// As [`Image::fill_rows`].
    unsafe fn split_rows<E: Engine>(
        &self,
        from: Elements,
        (rows, along): (usize, isize),
        to: Places<E::Num>,
    ) {
        let Places { line, .. } = to;
        let [.., inner] = &self.along;
        let Some((places, stride)) = inner.read() else { return };
        // SAFETY: the caller's contract.
        if unsafe { self.alternate::<E>(from, None, (rows, along), to) }.is_some() {
            return;
        }
        let count = (places.len() - 1) * stride + 1;
        for row in 0..rows {
            let base = from.moved(row as isize * along + places.start * inner.stride);
            // SAFETY: these elements lie between those that are there, and there is room for as many numbers.
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
                unsafe { apart(line, inner.step * stride, there.len(), to) };
            }
        }
    }
}

impl Image {
    /// As [`Image::split_rows`], for two phases, or as [`Image::join_rows`]; `None` if the engine has no way to.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn alternate<E: Engine>(
        &self,
        from: Elements,
        second: Option<isize>,
        (rows, along): (usize, isize),
        to: Places<E::Num>,
    ) -> Option<u16> {
        let [.., inner] = &self.along;
        let Some((places, stride)) = inner.read() else { return Some(u16::MAX) };
        if !inner.alternates() {
            return None;
        }
        let mut parts = [Alternate { to: to.image, count: 0 }; 2];
        for (p, phase) in inner.phases.iter().enumerate() {
            let there = inner.there(*phase);
            if there.is_empty() {
                continue;
            }
            let first = (inner.place(*phase, there.start) - places.start) as usize;
            let part = parts.get_mut(first)?;
            let to = to.from(p * self.block() + there.start).image;
            *part = Alternate { to, count: there.len() };
        }
        let elements = (places.len() - 1) * stride + 1;
        let rows = Rows { count: rows, along, second, elements, pitch: self.pitch };
        let from = from.moved(places.start * inner.stride);
        // SAFETY: the caller's contract: these numbers are there, and the image has their places.
        unsafe { E::alternate(&from, rows, parts) }
    }
}

/// Copies numbers that are `step` apart side by side.
///
/// # Safety
///
/// They must be readable and `to` writable for them.
#[inline(always)]
unsafe fn apart<T: Copy>(from: *const T, step: usize, count: usize, to: *mut T) {
    let copy = |i: usize, step: usize| {
        // SAFETY: the caller's contract.
        let number = unsafe { from.wrapping_add(i * step).read() };
        // SAFETY: the caller's contract.
        unsafe { to.wrapping_add(i).write(number) };
    };
    if step == 2 {
        (0..count).for_each(|i| copy(i, 2))
    } else {
        (0..count).for_each(|i| copy(i, step))
    }
}

impl Elements {
    /// From so many elements on.
    pub(in crate::contract) fn moved(self, by: isize) -> Elements {
        Elements { base: self.base.wrapping_offset(by * self.dtype.bytes() as isize), ..self }
    }

    /// Lines that lie so many elements apart, as steps of each do.
    pub(in crate::contract) fn lines(self, across: isize, along: isize) -> Lines {
        let Elements { base, dtype, round } = self;
        Lines { base, dtype, round, across, along }
    }
}
