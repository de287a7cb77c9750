//! Pairs of steps in an image, for engines whose numbers hold two. Where the two steps are those of two planes, an image has a plane of pairs for both
//! ([`Image::in_pairs`]); elsewhere there are copies of it in which each number is joined with another one.
//!
//! How far apart the places of a pair's steps are depends on where in a window they are, and there are few such distances: for windows of 3 by 3 one along a
//! line, one to the next line and one to the next plane. There is a copy for each of them. A last step that has no other is read from the image itself, whose
//! numbers are f32 of which half of the bits are zeros: those of a step that adds nothing.

use super::{Image, Step};
use smallvec::SmallVec;

/// The most distances: more copies take longer than packing.
const MOST: usize = 8;

/// From a step of a pair to the other, in places: each that there is.
pub(crate) type Distances = SmallVec<[isize; MOST]>;

impl Image {
    /// The image for an engine whose numbers hold two steps: if the last axis of steps is that of an even number of planes, whose windows see them alike, two and two
    /// are one plane of pairs. Not where what windows see of a line is more than two elements apart.
    pub(crate) fn in_pairs(mut self) -> Image {
        let [.., inner] = &self.along;
        if !(1..=2).contains(&(inner.step as isize * inner.stride)) {
            return self;
        }
        // Windows of one position along an axis have no step there.
        let is_single =
            |step: &Step| matches!(step, Step::Taps(axis) if self.along[*axis].taps == 1);
        let count = self.steps.iter().rposition(|step| !is_single(step)).map_or(0, |at| at + 1);
        self.steps.truncate(count);
        match self.steps.last_mut() {
            Some(Step::Planes(2, second)) => {
                self.second = Some(*second);
                self.steps.pop();
            }
            Some(Step::Planes(planes, stride)) if planes.is_multiple_of(2) => {
                self.second = Some(*stride);
                (*planes, *stride) = (*planes / 2, *stride * 2);
            }
            _ => {}
        }
        self
    }

    /// How many steps a number holds.
    pub(in crate::contract) fn depth(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }

    /// The distances of the pairs among so many steps, none if its numbers are pairs; `None` if they are too many.
    pub(crate) fn distances(&self, count: usize) -> Option<Distances> {
        if self.second.is_some() {
            return Some(Distances::new());
        }
        let window = self.window().unwrap_or(count);
        let mut steps = Vec::with_capacity(2 * window);
        self.offsets(count.min(2 * window), &mut steps);
        let mut distances = Distances::new();
        for pair in steps.chunks_exact(2) {
            let apart = pair[1] - pair[0];
            if !distances.contains(&apart) {
                distances.push(apart);
            }
        }
        (1..=MOST).contains(&distances.len()).then_some(distances)
    }

    /// As [`Image::distances`], of all steps of windows whose neighbours are: two in turn are one on along the last axis of steps, or, where lines of it are odd, across the
    /// end of one and on along the axis before it, and so on.
    pub(in crate::contract) fn distances_in_turn(&self) -> Option<Distances> {
        let is_near = self.along.iter().all(|along| along.step == 1);
        let (lines, mut plane) = (self.lines(), self.plane() as isize);
        let (mut distances, mut back) = (Distances::new(), 0);
        for step in self.steps.iter().rev().filter(|_| is_near) {
            let (extent, next) = match step {
                Step::Planes(extent, _) => (*extent, plane),
                Step::Taps(axis) => {
                    let along = &self.along[*axis];
                    (along.taps, lines[*axis] as isize * along.dilation)
                }
            };
            if let Step::Planes(..) = step {
                plane *= extent as isize;
            }
            if extent > 1 && !distances.contains(&(next - back)) {
                distances.push(next - back);
            }
            if extent.is_multiple_of(2) {
                break;
            }
            back += (extent as isize - 1) * next;
        }
        (1..=MOST).contains(&distances.len()).then_some(distances)
    }

    /// After how many steps the same come again in other planes, if planes are the first axis of steps.
    pub(super) fn window(&self) -> Option<usize> {
        let extent = |step: &Step| match step {
            Step::Planes(extent, _) => *extent,
            Step::Taps(axis) => self.along[*axis].taps,
        };
        let (first, others) = self.steps.split_first()?;
        matches!(first, Step::Planes(..)).then(|| others.iter().map(extent).product())
    }

    /// Has the steps of [`Image::offsets`] be those of pairs: each in the copy for its distance. The image comes first and then the copies, so many numbers apart.
    pub(in crate::contract) fn pair_up(steps: &mut Vec<isize>, distances: &[isize], room: usize) {
        let pairs = steps.len().div_ceil(2);
        for i in 0..pairs {
            let first = steps[2 * i];
            let apart = steps.get(2 * i + 1).map(|second| second - first);
            let copy = apart.map_or(0, |apart| {
                let known = distances.iter().position(|distance| *distance == apart);
                1 + known.expect("distances come again from plane to plane")
            });
            steps[i] = first + (copy * room) as isize;
        }
        steps.truncate(pairs);
    }
}
