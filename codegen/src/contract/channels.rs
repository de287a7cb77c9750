//! How the right operand of a contraction over positions is seen: channel by channel.

use super::edges::Edges;
use super::image::{Distances, Image};
use super::stretch::{Stretch, examples_together};
use super::windows::{Axis, Bound, MOST_BOUNDS, Seen};
use tracecast_ir::DType;

/// So many rows fill at least half of a vector,
const SOME_ROWS: usize = 8;
/// and so many steps are worth copying what they see.
const SOME_STEPS: usize = 32;

/// How the right operand of such a contraction is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    /// How many there are, and from one to the next in elements.
    pub(crate) count: usize,
    pub(super) stride: isize,
    /// What the windows of a channel see.
    pub(super) seen: Seen,
    /// Columns of a channel.
    pub(crate) taps: usize,
    /// Examples, and from one to the next.
    pub(super) examples: usize,
    pub(super) next: isize,
    /// True if windows may be read where they lie but for those at edges.
    pub(super) has_edges: bool,
    /// True if a channel has one column, all of whose elements are there.
    pub(super) is_whole: bool,
    /// From a step of each pair to the other in places of an image, unless there are too many such distances.
    pub(super) distances: Option<Distances>,
    /// Copies of an image whose numbers are pairs. A single distance needs none if every step has another: the image is joined in place.
    pub(super) copies: usize,
}

impl Channels {
    /// Of a right operand that is seen so, for that many rows and steps; `None` if it is not seen as by the gradient of a weight.
    pub(crate) fn of(seen: &Seen, [rows, k]: [usize; 2]) -> Option<Channels> {
        let (first, inner) = seen.columns.split_first()?;
        let is_free = first.bounded == [0; MOST_BOUNDS];
        if !is_free || rows < SOME_ROWS || k < SOME_STEPS {
            return None;
        }
        let mut channel = Seen { columns: inner.iter().copied().collect(), ..seen.clone() };
        let is_unbounded = channel.is_unbounded();
        match (is_unbounded, inner.is_empty()) {
            (true, false) => channel.bound_windows(),
            (true, true) => channel.bound_positions(first.stride),
            (false, _) => {}
        }
        let whole = Image::of(&channel, None)?;
        let (plane, examples, next) = whole.plane_by_plane(&channel);
        let taps: usize = inner.iter().map(|axis| axis.extent).product();
        let steps = k / examples.max(1);
        // Channels that overlap are windows of a convolution, which nothing bounds.
        let reach = |axis: &Axis| axis.stride.unsigned_abs().saturating_mul(axis.extent - 1);
        let span = inner.iter().chain(&plane.rows).map(reach).fold(0, usize::saturating_add);
        let apart = !is_unbounded || first.stride.unsigned_abs() > span;
        if !apart || inner.is_empty() && steps < SOME_STEPS {
            return None;
        }
        let image = Image::of(&plane, None)?;
        // Windows see more places than they have positions, or they are those of a convolution itself.
        if !image.has_one_plane() || steps <= taps || !image.is_mostly_seen(steps) {
            return None;
        }
        let plane = (first.extent > 1).then_some(first.stride);
        let is_single = examples_together(steps, examples) == 1;
        let has_edges = is_single && Edges::of(&image).is_some_and(|edges| edges.are_few(plane));
        let distances = whole.distances_in_turn();
        let copies = match distances.as_deref() {
            None => 0,
            Some([apart]) if *apart > 0 && k.is_multiple_of(2) => 0,
            Some(distances) => distances.len(),
        };
        Some(Channels {
            count: first.extent,
            stride: first.stride,
            seen: channel,
            taps,
            examples,
            next,
            has_edges,
            is_whole: is_unbounded && inner.is_empty(),
            distances,
            copies,
        })
    }

    /// True if elements of this dtype, rounded so, are read where they lie to be accumulated in that one.
    pub(crate) fn are_read_in_place(&self, dtype: DType, round: Option<DType>, acc: DType) -> bool {
        self.is_whole && dtype == acc && round.is_none()
    }

    /// True if elements of this dtype are read so but for those that windows at edges see.
    pub(crate) fn are_read_at_edges(&self, dtype: DType, round: Option<DType>, acc: DType) -> bool {
        self.has_edges && !self.is_whole && dtype == acc && round.is_none()
    }

    /// True if the steps of an example lie side by side, and a channel has one column.
    pub(crate) fn are_side_by_side(&self) -> bool {
        self.is_whole && matches!(self.seen.rows[self.down()..], [Axis { stride: 1, .. }])
    }

    /// The axis that lines of places follow one another along, among those of steps.
    fn down(&self) -> usize {
        usize::from(self.examples > 1)
    }

    /// How many lines the places of an example are in, and how many steps each of them is.
    pub(super) fn lines(&self) -> [usize; 2] {
        let Some((down, within)) = self.seen.rows[self.down()..].split_first() else {
            return [1, 1];
        };
        [down.extent, within.iter().map(|axis| axis.extent).product()]
    }

    /// What a stretch sees.
    pub(super) fn seen_by(&self, stretch: &Stretch) -> Seen {
        let mut seen = self.seen.clone();
        let at = self.down();
        if at > 0 {
            seen.rows[0].extent = stretch.examples.len();
        }
        if let Some(down) = seen.rows.get_mut(at) {
            down.extent = stretch.lines.len();
            for (bound, step) in seen.bounds.iter_mut().zip(down.bounded) {
                bound.offset += stretch.lines.start as isize * step;
            }
        }
        seen
    }

    /// The runs that the steps of a stretch are in, of so many each in every example: how many these are and from one to the next, and from a step to the next, in elements.
    /// `None` if there are none longer than a step.
    pub(super) fn runs(&self, stretch: &Stretch) -> Option<([usize; 2], isize, isize)> {
        let lines = stretch.lines.len();
        match self.seen.rows[self.down()..] {
            [all] => Some(([1, lines], 0, all.stride)),
            [down, along] => Some(([lines, along.extent], down.stride, along.stride)),
            _ => None,
        }
    }

    /// Where a stretch begins in the first channel, in elements from its first.
    pub(super) fn first_of(&self, stretch: &Stretch) -> isize {
        let down = self.seen.rows.get(self.down()).map_or(0, |axis| axis.stride);
        stretch.examples.start as isize * self.next + stretch.lines.start as isize * down
    }
}

impl Seen {
    /// True if all that windows see is there.
    pub(super) fn is_unbounded(&self) -> bool {
        self.bounds.iter().all(|bound| bound.extent < 0)
    }

    /// The same where windows have a single position: for the axes that they move along within a channel.
    fn bound_positions(&mut self, channel: isize) {
        let within = |row: &&mut Axis| row.stride.unsigned_abs() < channel.unsigned_abs();
        let rows = self.rows.iter_mut().rev().take_while(within);
        for ((bound, at), row) in self.bounds.iter_mut().enumerate().zip(rows) {
            row.bounded[bound] = 1;
            *at = Bound { offset: 0, extent: row.extent as isize };
        }
    }

    /// Adds bounds that windows keep within by themselves, one for each axis of positions in a window and the axis that windows move along: an image is told
    /// from them.
    fn bound_windows(&mut self) {
        let pairs = self.columns.iter_mut().rev().zip(self.rows.iter_mut().rev());
        for ((bound, at), (column, row)) in self.bounds.iter_mut().enumerate().zip(pairs) {
            let unit = column.stride;
            if unit <= 0 || row.stride <= 0 || row.stride % unit != 0 {
                return;
            }
            column.bounded[bound] = 1;
            row.bounded[bound] = row.stride / unit;
            let last = |axis: &Axis| (axis.extent as isize - 1) * axis.bounded[bound];
            *at = Bound { offset: 0, extent: last(column) + last(row) + 1 };
        }
    }
}
