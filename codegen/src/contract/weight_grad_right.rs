//! The right operand of a weight gradient, channel by channel.

use super::im2col::{Axis, Bound, MOST_BOUNDS, Seen};
use super::image::{Distances, Image};
use std::ops::Range;
use tracecast_ir::DType;

/// Rows that fill half of a vector: fewer do not pay.
const SOME_ROWS: usize = 8;
/// Steps of `k` from which copying the input pays.
const SOME_STEPS: usize = 32;
/// Positions per `k`-range of several examples, at most.
const POSITIONS: usize = 1024;

/// The right operand of a weight gradient: its view, channel by channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    /// Channels, and the stride between them in elements.
    pub(crate) count: usize,
    pub(super) stride: isize,
    /// View of one channel through its windows.
    pub(super) seen: Seen,
    /// Columns of a channel: the taps of a window.
    pub(crate) taps: usize,
    /// Examples, and the stride between them in elements.
    pub(super) examples: usize,
    pub(super) next: isize,
    /// True if a channel has one column and no padding.
    pub(super) is_whole: bool,
    /// Distances between the two steps of each bf16 pair in an image. `None` if they are too many.
    pub(super) distances: Option<Distances>,
    /// Paired copies of an image, one per distance; none if the image itself can be paired.
    pub(super) copies: usize,
}

impl Channels {
    /// Describes a view of `[rows, k]`. `None` unless a weight gradient's input that pays.
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
        // Channels that overlap without bounds are windows of a convolution.
        let reach = |axis: &Axis| axis.stride.unsigned_abs().saturating_mul(axis.extent - 1);
        let span = inner.iter().chain(&plane.rows).map(reach).fold(0, usize::saturating_add);
        let apart = !is_unbounded || first.stride.unsigned_abs() > span;
        if !apart || inner.is_empty() && steps < SOME_STEPS {
            return None;
        }
        let image = Image::of(&plane, None)?;
        // In a weight gradient, windows have more positions than taps. Else it is a convolution.
        if image.planes() != 1 || steps <= taps || !image.is_mostly_seen(steps) {
            return None;
        }
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
            is_whole: is_unbounded && inner.is_empty(),
            distances,
            copies,
        })
    }

    /// True if `dtype`, rounded to `round`, is read in place and accumulated in `acc`.
    pub(crate) fn are_read_in_place(&self, dtype: DType, round: Option<DType>, acc: DType) -> bool {
        self.is_whole && dtype == acc && round.is_none()
    }

    /// True if a channel has one column and the steps of an example are contiguous.
    pub(crate) fn are_side_by_side(&self) -> bool {
        self.is_whole && matches!(self.seen.rows[self.down()..], [Axis { stride: 1, .. }])
    }

    /// Index of the axis of rows among those of `k`: behind that of examples, if any.
    fn down(&self) -> usize {
        usize::from(self.examples > 1)
    }

    /// Rows of an example's channel, and steps of `k` in each.
    pub(super) fn lines(&self) -> [usize; 2] {
        let Some((down, within)) = self.seen.rows[self.down()..].split_first() else {
            return [1, 1];
        };
        [down.extent, within.iter().map(|axis| axis.extent).product()]
    }

    /// View of a `k`-range.
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

    /// Offset of a `k`-range in the first channel, in elements.
    pub(super) fn first_of(&self, stretch: &Stretch) -> isize {
        let down = self.seen.rows.get(self.down()).map_or(0, |axis| axis.stride);
        stretch.examples.start as isize * self.next + stretch.lines.start as isize * down
    }
}

impl Seen {
    /// True if no bound applies: windows see no padding.
    pub(super) fn is_unbounded(&self) -> bool {
        self.bounds.iter().all(|bound| bound.extent < 0)
    }

    /// Adds bounds for windows of one position: one per axis of `k` within a channel.
    fn bound_positions(&mut self, channel: isize) {
        let within = |row: &&mut Axis| row.stride.unsigned_abs() < channel.unsigned_abs();
        let rows = self.rows.iter_mut().rev().take_while(within);
        for ((bound, at), row) in self.bounds.iter_mut().enumerate().zip(rows) {
            row.bounded[bound] = 1;
            *at = Bound { offset: 0, extent: row.extent as isize };
        }
    }

    /// Adds bounds that windows never exceed: one per pair of a tap axis and the axis that windows
    /// move along. [`Image::of`] reads the window geometry from bounds.
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

/// Examples per `k`-range, out of `all` with `each` steps.
pub(super) fn examples_together(each: usize, all: usize) -> usize {
    (POSITIONS / each).max(1).min(all)
}

/// A `k`-range whose images are in cache: some examples, or some rows of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) examples: Range<usize>,
    pub(super) lines: Range<usize>,
}

impl Stretch {
    /// The first examples and rows.
    pub(super) fn of(examples: usize, lines: usize) -> Stretch {
        Stretch { examples: 0..examples, lines: 0..lines }
    }

    /// Its steps, given those of an example and of a row.
    pub(super) fn steps(&self, each: usize, line: usize) -> Range<usize> {
        let last = self.examples.end.saturating_sub(1);
        self.examples.start * each + self.lines.start * line..last * each + self.lines.end * line
    }
}
