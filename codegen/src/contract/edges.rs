//! Weight gradient that reads the input in place: copies only windows that overlap the padding.
//!
//! The zero-filled side buffer has the input's own strides, so one offset table serves both. Copies
//! of windows at the left and right edges stand side by side, as high as the channel. Those at the
//! top and bottom are cut into pieces that fit beside them, one below the other.

use super::image::{Along, Image};
use super::windows::copy;
use smallvec::SmallVec;
use std::ops::Range;

/// At most one window in this number overlaps the padding.
const FEW: usize = 4;
/// Longest stride between channels, in channel sizes.
const NEAR: usize = 2;

/// Rows of at most this many elements are copied one by one.
const SHORT: usize = 8;

/// Layout of the side buffer of windows that overlap the padding.
#[derive(Clone, Debug)]
pub(super) struct Edges {
    axes: [Axis; 2],
    /// Row stride of the input, in elements.
    pitch: usize,
    pieces: SmallVec<[Piece; 8]>,
    /// Rows of all pieces.
    lines: usize,
}

/// An axis that windows move along.
#[derive(Clone, Debug)]
struct Axis {
    /// Windows, and positions from one to the next.
    count: usize,
    step: usize,
    /// Positions that a window spans.
    span: usize,
    /// Position where the first window begins.
    first: isize,
    /// Positions that are elements, not padding.
    there: Range<isize>,
}

/// A rectangle of windows: ranges down and across.
#[derive(Clone, Debug)]
struct Piece {
    windows: [Range<usize>; 2],
    /// Offset of the first window in the side buffer, in elements.
    place: usize,
}

impl Axis {
    /// An [`Image`] swaps the roles: its taps are the windows here.
    fn of(along: &Along) -> Option<Axis> {
        let step = usize::try_from(along.dilation).ok().filter(|step| *step > 0)?;
        let span = (along.count - 1) * along.step + 1;
        Some(Axis { count: along.taps, step, span, first: along.first, there: along.places() })
    }

    /// Windows that see no padding.
    fn whole(&self) -> Range<usize> {
        let windows_to =
            |places: isize| (places.max(0) as usize).div_ceil(self.step).min(self.count);
        let start = windows_to(self.there.start - self.first);
        start..windows_to(self.there.end - self.first - self.span as isize + 1).max(start)
    }

    /// Positions that consecutive windows span.
    fn places(&self, windows: usize) -> usize {
        if windows == 0 { 0 } else { (windows - 1) * self.step + self.span }
    }

    /// Position where a window begins.
    fn begin(&self, window: usize) -> isize {
        self.first + (window * self.step) as isize
    }
}

impl Edges {
    /// Layout of edge windows, if they move along two axes and pieces fit between the input's rows.
    pub(super) fn of(image: &Image) -> Option<Edges> {
        let [down, across] = image.plane_axes()?;
        let pitch = usize::try_from(down.stride).ok().filter(|_| across.stride == 1)?;
        let axes @ [down, across] = &[Axis::of(down)?, Axis::of(across)?];
        let (lines, windows) = (down.whole(), across.whole());
        let sides = [0..windows.start, windows.end..across.count];
        let (mut pieces, mut beside) = (SmallVec::new(), 0);
        for side in sides.into_iter().filter(|side| !side.is_empty()) {
            let width = across.places(side.len());
            pieces.push(Piece { windows: [lines.clone(), side], place: beside });
            beside += width;
        }
        let mut below = 0;
        for side in
            [0..lines.start, lines.end..down.count].into_iter().filter(|side| !side.is_empty())
        {
            let room = pitch.checked_sub(beside)?.checked_sub(across.span)?;
            let most = room / across.step + 1;
            for start in (0..across.count).step_by(most) {
                let some = start..across.count.min(start + most);
                pieces.push(Piece { windows: [side.clone(), some], place: below * pitch + beside });
                below += down.places(side.len());
            }
        }
        let lines = below.max(if beside > 0 { down.places(lines.len()) } else { 0 });
        (beside <= pitch).then(|| Edges { axes: axes.clone(), pitch, pieces, lines })
    }

    /// True if few windows overlap the padding, and the stride between channels fits their copies.
    pub(super) fn are_few(&self, plane: Option<isize>) -> bool {
        let [down, across] = &self.axes;
        let windows = |piece: &Piece| piece.windows.iter().map(Range::len).product::<usize>();
        let all = self.pieces.iter().map(windows).sum::<usize>();
        let size = down.there.len().saturating_mul(self.pitch);
        let fits = self.room()..=NEAR.saturating_mul(size);
        let is_near =
            |plane: isize| usize::try_from(plane).is_ok_and(|plane| fits.contains(&plane));
        all <= down.count * across.count / FEW && plane.is_none_or(is_near)
    }

    /// Elements of a channel's side buffer, gaps included.
    pub(super) fn room(&self) -> usize {
        self.lines * self.pitch
    }

    /// Writes the offsets of edge windows, whose copies begin `apart` elements from window 0.
    pub(super) fn place(&self, apart: isize, at: &mut [isize]) {
        let [down, across] = &self.axes;
        for Piece { windows: [lines, some], place } in &self.pieces {
            for (i, line) in lines.clone().enumerate() {
                let first = apart + (place + i * down.step * self.pitch) as isize;
                let at = &mut at[line * across.count..][some.clone()];
                for (j, at) in at.iter_mut().enumerate() {
                    *at = first + (j * across.step) as isize;
                }
            }
        }
    }

    /// Copies what the edge windows of a channel see. `from` is position zero of both axes.
    ///
    /// # Safety
    ///
    /// The channel must be readable, and `to` writable for [`Edges::room`].
    pub(super) unsafe fn copy<T: Copy + Default>(&self, from: *const T, to: *mut T) {
        let [down, across] = &self.axes;
        for Piece { windows: [lines, some], place } in &self.pieces {
            let (top, left) = (down.begin(lines.start), across.begin(some.start));
            let width = across.places(some.len());
            let within = |place: isize| (place - left).clamp(0, width as isize) as usize;
            let there = within(across.there.start)..within(across.there.end);
            for i in 0..down.places(lines.len()) {
                let line = top + i as isize;
                let from = from.wrapping_offset(line * self.pitch as isize + left);
                let to = to.wrapping_add(place + i * self.pitch);
                let there = if down.there.contains(&line) { there.clone() } else { 0..0 };
                // SAFETY: the elements of a row, and their places.
                unsafe { copy_line(from, there, width, to) };
            }
        }
    }
}

/// Copies the elements `there` of a row, and zeros for the rest of `count`.
///
/// # Safety
///
/// Those must be readable, and `to` writable for all.
#[inline(always)]
unsafe fn copy_line<T: Copy + Default>(
    from: *const T,
    there: Range<usize>,
    count: usize,
    to: *mut T,
) {
    if count > SHORT {
        // SAFETY: the caller's contract.
        return unsafe { copy(from, 1, there, count, to) };
    }
    for i in 0..count {
        let mut element = T::default();
        if there.contains(&i) {
            // SAFETY: an element that is there.
            element = unsafe { from.wrapping_add(i).read() };
        }
        // SAFETY: its place.
        unsafe { to.wrapping_add(i).write(element) };
    }
}
