//! Views through windows (`im2col`): gathers blocks of them, zeros for padding, to pack from.
//!
//! A row or a column of a view is several axes. Elements along the last one form runs. Bounds are
//! checked once per run, so elements are only copied.

use smallvec::{SmallVec, smallvec};
use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Elements of a short copy's pieces: up to four pieces are copied without a call.
const PIECE: usize = 4;

/// Elements of 16 bits and stride two that are copied together.
const EIGHT: usize = 8;

/// Taps of a window of 3 × 3.
const OF_THREE: usize = 9;

/// Lines at a stride of this many elements, or a multiple, share cache sets.
const SHARED: usize = 128;

/// Lines gathered per pass if they are closer together than runs.
const TOGETHER: usize = 16;

/// The most pieces of a panel, which has as many columns at most.
#[cfg(target_arch = "x86_64")]
pub(super) const MOST_PIECES: usize = 32;

/// Bounds of a view: one per axis that windows of a convolution move over.
pub(crate) const MOST_BOUNDS: usize = 3;

/// An axis of a row or a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Axis {
    /// Its length, in positions.
    pub(crate) extent: usize,
    /// Its stride, in elements.
    pub(crate) stride: isize,
    /// Its stride in each bounded coordinate.
    pub(crate) bounded: [isize; MOST_BOUNDS],
}

impl Axis {
    /// True if this axis and the next inner one act as one.
    fn goes_on(&self, behind: &Axis) -> bool {
        let extent = behind.extent as isize;
        let same = |from: isize, to: isize| to.checked_mul(extent) == Some(from);
        same(self.stride, behind.stride)
            && self.bounded.iter().zip(&behind.bounded).all(|(from, to)| same(*from, *to))
    }
}

/// A coordinate that is in `0..extent` where there is an element, not padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The coordinate at the first row and column.
    pub(crate) offset: isize,
    /// The end; negative if there is no bound.
    pub(crate) extent: isize,
}

impl Default for Bound {
    /// No bound.
    fn default() -> Self {
        Bound { offset: 0, extent: -1 }
    }
}

/// View of an operand through windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Axes of rows.
    pub(super) rows: SmallVec<[Axis; 4]>,
    /// Axes of columns.
    pub(super) columns: SmallVec<[Axis; 4]>,
    pub(super) bounds: [Bound; MOST_BOUNDS],
}

/// What a row or a column adds to the offset and the coordinates.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) offset: isize,
    bounded: [isize; MOST_BOUNDS],
}

impl Place {
    /// The place `by` positions along an axis.
    pub(super) fn moved(&self, axis: &Axis, by: isize) -> Place {
        let mut moved = Place { offset: self.offset + by * axis.stride, ..*self };
        for (sum, step) in moved.bounded.iter_mut().zip(&axis.bounded) {
            *sum += by * step;
        }
        moved
    }
}

/// Consecutive positions along the last axis of lines or steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) place: Place,
    /// Its first position in the block.
    pub(super) first: usize,
    pub(super) count: usize,
}

/// Columns of one run that are lanes of a vector.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Index of the vector in the panel.
    pub(super) vector: usize,
    /// Place of the first lane's column, even if the piece starts later.
    pub(super) place: Place,
    /// Its lanes.
    pub(super) lanes: u16,
}

/// Lists that are reused. [`Runs::reserve`] sizes them for a block.
#[derive(Default)]
pub(super) struct Runs {
    /// Rows or columns, one by one.
    pub(super) outer: Vec<Place>,
    /// Columns or rows, run by run.
    pub(super) inner: Vec<Run>,
    /// The axis of the runs.
    pub(super) along: Axis,
    /// Pieces of a panel, and per step the lanes of each that are within bounds.
    #[cfg(target_arch = "x86_64")]
    pub(super) pieces: Vec<Piece>,
    #[cfg(target_arch = "x86_64")]
    pub(super) masks: Vec<u16>,
}

impl Seen {
    /// View with these axes of rows and columns, and these bounds.
    pub(crate) fn new(rows: &[Axis], columns: &[Axis], bounds: [Bound; MOST_BOUNDS]) -> Seen {
        Seen { rows: merged(rows), columns: merged(columns), bounds }
    }

    /// The transposed view.
    pub(crate) fn turned(&self) -> Seen {
        Seen { rows: self.columns.clone(), columns: self.rows.clone(), bounds: self.bounds }
    }

    /// Upper bounds of the list lengths for a block of `[rows, columns]`: lines and runs.
    pub(super) fn listed(&self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        let listed = |lines: usize, positions: usize, axes: &[Axis]| {
            let extent = axes.last().map_or(1, |axis| axis.extent.max(1));
            // The first and the last run may be parts.
            [lines, positions.min(positions / extent + 2)]
        };
        let by_row = listed(rows, columns, &self.columns);
        if self.is_by_row() {
            return by_row;
        }
        // Columns at stride 2 may still be packed row by row.
        let [lines, runs] = listed(columns, rows, &self.rows);
        [lines.max(by_row[0]), runs.max(by_row[1])]
    }

    /// True if rows are gathered, not columns: their elements are closer together.
    fn is_by_row(&self) -> bool {
        let stride =
            |axes: &[Axis]| axes.last().map_or(isize::MAX, |axis| axis.stride.abs().max(1));
        stride(&self.columns) <= stride(&self.rows)
    }

    /// Stride and columns of two-row matrices (taps of two channels) that these axes transpose.
    fn crossed(&self, axes: &[Axis]) -> Option<(isize, usize)> {
        let (next, row, two) = match axes {
            [matrices, row, two] => (matrices.stride, row, two),
            [row, two] => (0, row, two),
            _ => return None,
        };
        let is_one = row.stride == 1 && two.extent == 2 && two.stride == row.extent as isize;
        (self.is_unbounded() && is_one).then_some((next, row.extent))
    }

    /// Row stride, if no bound applies and rows are closer together than some elements of a row.
    pub(super) fn near_rows(&self) -> Option<isize> {
        let [row] = self.rows[..] else { return None };
        let far = self.columns.iter().any(|axis| axis.stride.abs() > row.stride.abs());
        (self.is_unbounded() && far).then_some(row.stride)
    }

    /// Writes the offsets of some columns in the first row.
    pub(super) fn offsets(&self, columns: Range<usize>, to: &mut [isize]) {
        for (column, to) in columns.zip(to) {
            *to = place(&self.columns, column).offset;
        }
    }

    /// Column stride of a run, if it is 1 or 2 elements and bounded coordinates step by at most 2.
    pub(super) fn column_step(&self) -> Option<usize> {
        let axis = self.columns.last()?;
        let fits = |step: &isize| (0..=2).contains(step);
        let step = usize::try_from(axis.stride).ok()?;
        ((1..=2).contains(&step) && axis.bounded.iter().all(fits)).then_some(step)
    }
}

#[cfg(target_arch = "x86_64")]
impl Seen {
    /// Steps after which bounds repeat: the taps of a window, if channels are outermost.
    pub(super) fn period(&self) -> usize {
        let is_free = |axis: &&Axis| axis.bounded == [0; MOST_BOUNDS];
        let free = self.rows.iter().take_while(is_free).count();
        self.rows[free..].iter().map(|axis| axis.extent).product()
    }

    /// Mask of the lanes within bounds, of sixteen columns from `place` on.
    #[inline]
    pub(super) fn lanes(&self, outer: &Place, place: &Place, along: &Axis) -> u16 {
        let there = self.there(outer, &Run { place: *place, first: 0, count: 16 }, along);
        let bits = |count: usize| ((1u32 << count) - 1) as u16;
        bits(there.end) & !bits(there.start)
    }
}

/// Drops axes of one position, and merges neighbours that act as one.
fn merged(axes: &[Axis]) -> SmallVec<[Axis; 4]> {
    let mut all: SmallVec<[Axis; 4]> = SmallVec::new();
    for axis in axes.iter().filter(|axis| axis.extent != 1) {
        match all.last_mut().filter(|last| last.goes_on(axis)) {
            Some(last) => *last = Axis { extent: last.extent * axis.extent, ..*axis },
            None => all.push(*axis),
        }
    }
    if all.is_empty() {
        all = smallvec![Axis { extent: 1, stride: 0, bounded: [0; MOST_BOUNDS] }];
    }
    all
}

/// The place of a flat position.
pub(super) fn place(axes: &[Axis], position: usize) -> Place {
    let mut rest = position;
    let mut place = Place::default();
    for axis in axes.iter().rev() {
        let at = (rest % axis.extent) as isize;
        rest /= axis.extent;
        place.offset += at * axis.stride;
        for (sum, step) in place.bounded.iter_mut().zip(&axis.bounded) {
            *sum += at * step;
        }
    }
    place
}

/// Most pieces and masks of a panel of `lines` steps.
#[cfg(target_arch = "x86_64")]
fn of_panel(lines: usize) -> [usize; 2] {
    let pieces = if lines == 0 { 0 } else { MOST_PIECES };
    [pieces, pieces * lines.min(CONTRACT_BLOCK)]
}

/// Gives an empty list room for `count` items.
pub(super) fn grow<T>(list: &mut Vec<T>, count: usize) -> Result<(), usize> {
    list.clear();
    list.try_reserve_exact(count).map_err(|_| count.saturating_mul(size_of::<T>()))
}

/// Capacity of a list, in bytes.
fn bytes<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

/// Strides of a gathered block.
pub(super) struct Gathered {
    /// Row stride, in elements.
    pub(super) row: usize,
    /// Column stride.
    pub(super) column: usize,
}

/// Gathers a block of a view at `to`, with zeros for padding.
///
/// # Safety
///
/// `base` must be the first element. The block must be readable in bounds, with what is between
/// elements of stride two, and `to` writable.
#[inline(always)]
pub(super) unsafe fn gather<T: Copy + Default>(
    seen: &Seen,
    base: *const T,
    (rows, columns): (Range<usize>, Range<usize>),
    runs: &mut Runs,
    to: *mut T,
) -> Gathered {
    let by_row = seen.is_by_row();
    let (outer, inner) =
        if by_row { (&seen.rows, &seen.columns) } else { (&seen.columns, &seen.rows) };
    let (lines, positions) = if by_row { (rows, columns) } else { (columns, rows) };
    let length = positions.len();
    runs.place(outer, lines);
    let pitch = pitch(length);
    let (row, column) = if by_row { (pitch, 1) } else { (1, pitch) };
    if let Some(matrices) = seen.crossed(inner) {
        for (line, outer) in runs.outer.iter().enumerate() {
            let from = base.wrapping_offset(outer.offset);
            // SAFETY: these elements are there, and the block has room for the line.
            unsafe { cross(from, matrices, positions.clone(), to.wrapping_add(line * pitch)) };
        }
        return Gathered { row, column };
    }
    runs.cut(inner, positions);
    let along = runs.along;
    let is_free = seen.is_unbounded();
    // Lines closer together than runs are gathered in groups: as of a weight in an input gradient.
    // So reads are close together, and writes go on in few places.
    let lines = runs.outer.len();
    let some = if lines_are_nearer(outer, inner) { TOGETHER } else { 1 };
    for first in (0..lines).step_by(some) {
        for run in &runs.inner {
            // Not a closure, which would not be compiled for the engine's vectors.
            for line in first..lines.min(first + some) {
                let outer = &runs.outer[line];
                let there = if is_free { 0..run.count } else { seen.there(outer, run, &along) };
                let from = base.wrapping_offset(outer.offset + run.place.offset);
                let to = to.wrapping_add(line * pitch + run.first);
                // SAFETY: `there` is within bounds; the block has room for the run.
                unsafe { copy(from, along.stride, there, run.count, to) };
            }
        }
    }
    Gathered { row, column }
}

/// Transposes some positions of a line over matrices of two rows ([`Seen::crossed`]).
///
/// # Safety
///
/// They must be readable from position 0 at `from` on, and `to` writable for them.
unsafe fn cross<T: Copy>(
    from: *const T,
    (next, columns): (isize, usize),
    positions: Range<usize>,
    to: *mut T,
) {
    let (size, first) = (2 * columns, positions.start);
    for matrix in first / size..positions.end.div_ceil(size) {
        let (at, from) = (matrix * size, from.wrapping_offset(matrix as isize * next));
        let some = first.max(at)..positions.end.min(at + size);
        let to = to.wrapping_add(some.start - first);
        if some.len() == size && columns == OF_THREE {
            // SAFETY: a whole matrix.
            let rows = unsafe { from.cast::<[T; 2 * OF_THREE]>().read_unaligned() };
            let crossed = std::array::from_fn(|i| rows[i % 2 * OF_THREE + i / 2]);
            // SAFETY: its places.
            unsafe { to.cast::<[T; 2 * OF_THREE]>().write_unaligned(crossed) };
            continue;
        }
        for (i, at) in some.map(|position| position - at).enumerate() {
            let from = from.wrapping_add(at % 2 * columns + at / 2);
            // SAFETY: an element of the matrix that is among the positions, and its place.
            unsafe { std::ptr::copy_nonoverlapping(from, to.wrapping_add(i), 1) };
        }
    }
}

/// True if lines are closer together than runs, and runs are at least a piece.
fn lines_are_nearer(outer: &[Axis], inner: &[Axis]) -> bool {
    let ([line], [.., run, along]) = (outer, inner) else { return false };
    along.stride == 1 && along.extent >= PIECE && line.stride.abs() < run.stride.abs()
}

/// Stride between gathered lines of `length` elements, padded so that they share no cache sets.
fn pitch(length: usize) -> usize {
    if length.is_multiple_of(SHARED) { length + PIECE } else { length }
}

/// Elements that [`gather`] writes for these counts, at most.
pub(super) fn gathered_elements(lines: usize, positions: usize) -> usize {
    lines.saturating_mul(pitch(positions)).max(positions.saturating_mul(pitch(lines)))
}

impl Runs {
    /// Reserves lists for `[lines, runs]` of [`Seen::listed`], and for a panel.
    ///
    /// # Errors
    /// The bytes that could not be allocated.
    pub(super) fn reserve(&mut self, [lines, runs]: [usize; 2]) -> Result<(), usize> {
        grow(&mut self.outer, lines)?;
        grow(&mut self.inner, runs)?;
        #[cfg(target_arch = "x86_64")]
        {
            let [pieces, masks] = of_panel(lines);
            grow(&mut self.pieces, pieces)?;
            grow(&mut self.masks, masks)?;
        }
        Ok(())
    }

    /// Bytes that [`Runs::reserve`] allocates.
    pub(super) fn bytes_of([lines, runs]: [usize; 2]) -> usize {
        #[cfg(target_arch = "x86_64")]
        let panel = {
            let [pieces, masks] = of_panel(lines);
            pieces * size_of::<Piece>() + masks * size_of::<u16>()
        };
        #[cfg(not(target_arch = "x86_64"))]
        let panel = 0;
        let outer = lines.saturating_mul(size_of::<Place>());
        outer.saturating_add(runs.saturating_mul(size_of::<Run>())).saturating_add(panel)
    }

    /// Memory of the lists, in bytes.
    pub(super) fn bytes(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        let panel = bytes(&self.pieces) + bytes(&self.masks);
        #[cfg(not(target_arch = "x86_64"))]
        let panel = 0;
        bytes(&self.outer) + bytes(&self.inner) + panel
    }

    /// Lists the places of some positions, one by one.
    #[inline(always)]
    pub(super) fn place(&mut self, axes: &[Axis], positions: Range<usize>) {
        self.outer.clear();
        self.outer.extend(positions.map(|position| place(axes, position)));
    }

    /// Lists the runs of some positions.
    pub(super) fn cut(&mut self, axes: &[Axis], positions: Range<usize>) {
        self.inner.clear();
        self.along = axes.last().copied().unwrap_or_default();
        let extent = self.along.extent.max(1);
        let mut at = positions.start;
        while at < positions.end {
            let count = (extent - at % extent).min(positions.end - at);
            self.inner.push(Run { place: place(axes, at), first: at - positions.start, count });
            at += count;
        }
    }
}

impl Seen {
    /// Positions of a run within bounds.
    fn there(&self, outer: &Place, run: &Run, along: &Axis) -> Range<usize> {
        let mut there = 0..run.count;
        for (i, bound) in self.bounds.iter().enumerate().filter(|(_, bound)| bound.extent >= 0) {
            let first = bound.offset + outer.bounded[i] + run.place.bounded[i];
            let step = along.bounded[i];
            if step == 0 {
                if !(0..bound.extent).contains(&first) {
                    return 0..0;
                }
                continue;
            }
            // From 0 to the end, or reversed for a negative step.
            let (near, far) = if step > 0 {
                (-first, bound.extent - first)
            } else {
                (first - bound.extent + 1, first + 1)
            };
            let reached = |distance: isize| {
                let distance = distance.max(0) as usize;
                // A division takes as long as copying a short run.
                let steps =
                    if step == 1 { distance } else { distance.div_ceil(step.unsigned_abs()) };
                steps.min(run.count)
            };
            there = there.start.max(reached(near))..there.end.min(reached(far));
        }
        there.start.min(there.end)..there.end
    }
}

/// Copies contiguous elements; few of them, as a weight's window, without a call.
///
/// # Safety
///
/// They must be readable, and `to` writable for them.
#[inline(always)]
unsafe fn copy_side_by_side<T: Copy>(from: *const T, count: usize, to: *mut T) {
    let piece = |at: usize| {
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        // SAFETY: the caller's contract, for a piece within.
        unsafe { std::ptr::copy_nonoverlapping(from, to, PIECE) };
    };
    if (PIECE..=4 * PIECE).contains(&count) {
        for at in (0..count - PIECE).step_by(PIECE) {
            piece(at);
        }
        // What is left ends with the last element.
        piece(count - PIECE);
    } else {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
    }
}

/// Copies the positions `there` of a run, and zeros for the others.
///
/// # Safety
///
/// Those must be readable from `from` on at `stride`, with what is between them if it is two, and
/// `to` writable for `count`.
#[inline(always)]
unsafe fn copy<T: Copy + Default>(
    from: *const T,
    stride: isize,
    there: Range<usize>,
    count: usize,
    to: *mut T,
) {
    for i in (0..there.start).chain(there.end..count) {
        // SAFETY: a place of the run.
        unsafe { to.wrapping_add(i).write(T::default()) };
    }
    if stride == 1 {
        let (from, to) = (from.wrapping_add(there.start), to.wrapping_add(there.start));
        // SAFETY: the caller's contract.
        unsafe { copy_side_by_side(from, there.len(), to) };
        return;
    }
    let from = from.wrapping_offset(there.start as isize * stride);
    // SAFETY: the caller's contract.
    unsafe { copy_apart(from, stride, there.len(), to.wrapping_add(there.start)) };
}

/// Copies `count` elements of stride `stride` to contiguous ones.
///
/// # Safety
///
/// They must be readable, with those in between if the stride is two, and `to` writable for them.
#[inline(always)]
pub(super) unsafe fn copy_apart<T: Copy>(from: *const T, stride: isize, count: usize, to: *mut T) {
    let one = |i: usize, stride: isize| {
        let from = from.wrapping_offset(i as isize * stride);
        // SAFETY: the caller's contract.
        unsafe { to.wrapping_add(i).copy_from_nonoverlapping(from, 1) };
    };
    // Compilers vectorise stride two, but not of 16 bits: there an integer holds two elements.
    if stride != 2 {
        for i in 0..count {
            one(i, stride);
        }
    } else if count < EIGHT || size_of::<T>() != 2 || cfg!(target_endian = "big") {
        for i in 0..count {
            one(i, 2);
        }
    } else {
        for at in (0..count).step_by(EIGHT) {
            // The last eight overlap those before them.
            let at = at.min(count - EIGHT);
            let pairs = |first: usize| {
                let from = from.wrapping_add(2 * at + first).cast::<[u32; EIGHT / 2]>();
                // SAFETY: the caller's contract: from the first of these eight to the last.
                unsafe { from.read_unaligned() }
            };
            let (first, last) = (pairs(0), pairs(EIGHT - 1));
            let mut eight = [0; EIGHT];
            for i in 0..EIGHT / 2 {
                (eight[i], eight[EIGHT / 2 + i]) = (first[i] as u16, (last[i] >> 16) as u16);
            }
            // SAFETY: places of these elements.
            unsafe { to.wrapping_add(at).cast::<[u16; EIGHT]>().write_unaligned(eight) };
        }
    }
}
