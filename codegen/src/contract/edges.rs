//! Windows of a contraction over positions that are read where the operand lies, but for those at the edges of its planes: what these see is copied, with zeros where
//! nothing lies.
//!
//! The copies lie as far from one another as the operand's own elements do, line by line and plane by plane, so that a column is as far from where a window begins in
//! either. Windows at the left and right edges are few to a line, and their copies stand side by side as high as the plane; those of whole lines, at the top
//! and the bottom, are cut into pieces that fit beside them, one below the other.

use super::image::{Along, Image};
use super::windows::copy;
use smallvec::SmallVec;
use std::ops::Range;

/// Windows at edges are no more than one of so many.
const FEW: usize = 4;
/// The next plane lies no more than so many times as far as a plane is large.
const NEAR: usize = 2;

/// Lines of no more elements are copied one by one.
const SHORT: usize = 8;

/// Where windows at the edges of a plane go.
#[derive(Clone, Debug)]
pub(super) struct Edges {
    axes: [Axis; 2],
    /// From a line of the operand to the next, in elements.
    pitch: usize,
    pieces: SmallVec<[Piece; 8]>,
    /// Lines of all pieces.
    lines: usize,
}

/// An axis that windows move along.
#[derive(Clone, Debug)]
struct Axis {
    /// Windows, and places from one to the next.
    count: usize,
    step: usize,
    /// Places that a window spans.
    span: usize,
    /// The place where the first window begins.
    first: isize,
    /// The places that are elements.
    there: Range<isize>,
}

/// Windows side by side, down and across.
#[derive(Clone, Debug)]
struct Piece {
    windows: [Range<usize>; 2],
    /// Where the first of them begins among the copies, in elements.
    place: usize,
}

impl Axis {
    /// An image sees the axis the other way round: its windows are the positions in ours.
    fn of(along: &Along) -> Option<Axis> {
        let step = usize::try_from(along.dilation).ok().filter(|step| *step > 0)?;
        let span = (along.count - 1) * along.step + 1;
        Some(Axis { count: along.taps, step, span, first: along.first, there: along.places() })
    }

    /// Windows of which all is there.
    fn whole(&self) -> Range<usize> {
        let windows_to =
            |places: isize| (places.max(0) as usize).div_ceil(self.step).min(self.count);
        let start = windows_to(self.there.start - self.first);
        start..windows_to(self.there.end - self.first - self.span as isize + 1).max(start)
    }

    /// Places that so many windows span.
    fn places(&self, windows: usize) -> usize {
        if windows == 0 { 0 } else { (windows - 1) * self.step + self.span }
    }

    /// The place where a window begins.
    fn begin(&self, window: usize) -> isize {
        self.first + (window * self.step) as isize
    }
}

impl Edges {
    /// Of what the windows of a plane see, if they move along two axes whose last one lies side by side, and pieces fit between the operand's lines.
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

    /// True if windows at edges are few, and planes so far apart leave room for their copies without lying far from one another.
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

    /// Elements of the copies of a plane, and of what lies between them.
    pub(super) fn room(&self) -> usize {
        self.lines * self.pitch
    }

    /// Sets where the windows at edges begin, step by step, if the copies begin so many elements from where the first window does.
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

    /// Copies what the windows at edges of a plane see, of which place zero of both axes is at `from`.
    ///
    /// # Safety
    ///
    /// The plane must be readable, and `to` writable for [`Edges::room`].
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
                // SAFETY: the elements of a line that are there, and their places.
                unsafe { copy_line(from, there, width, to) };
            }
        }
    }
}

/// Copies the elements of a line that are there, with zeros for the others of so many.
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
