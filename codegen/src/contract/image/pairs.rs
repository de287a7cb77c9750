//! Images of pairs, for engines whose numbers hold two steps: two planes become one
//! ([`Image::in_pairs`]), or blocks pair each number with one at a distance ([`Image::in_blocks`]).
//!
//! There are few distances: for 3 × 3 windows one along a line, one to the next line and one to the
//! next plane. A block is for one distance and one phase of a plane: three planes have 8 blocks, or
//! 11 at stride two. A last step that has no partner is paired with zeros.

use super::super::micro::Engine;
use super::super::pack::{Elements, Grid, Half};
use super::super::prefetch::prefetch_bytes;
use super::fill::Places;
use super::{AXES, Along, Block, Blocks, Image, Step};
use smallvec::SmallVec;
use std::ops::Range;

/// The most blocks of a plane or two: to fill more takes longer than packing.
const MOST: usize = 32;

/// The most copies of an image: more take longer than packing.
const MOST_COPIES: usize = 8;

/// The distances between the steps of pairs, in places.
pub(in crate::contract) type Distances = SmallVec<[isize; MOST_COPIES]>;

/// Lines that all blocks fill together, so that their input stays in the first-level cache.
const TOGETHER: usize = 16;

impl Image {
    /// The image for an engine of pairs: two and two planes become one, if they are even in number
    /// and the last axis of steps. Unchanged if elements of a line have a stride above two.
    pub(crate) fn in_pairs(mut self) -> Image {
        if !self.joins_lines() {
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

    /// As [`Image::in_pairs`], or with blocks for pairs of other steps; `None` if too many.
    pub(crate) fn interleaved(self) -> Option<Image> {
        let mut image = self.in_pairs();
        if image.second.is_none() {
            image.blocks = Some(image.in_blocks()?);
        }
        Some(image)
    }

    /// True if windows read elements of a line of stride one or two.
    pub(super) fn joins_lines(&self) -> bool {
        let [.., inner] = &self.along;
        (1..=2).contains(&(inner.step as isize * inner.stride))
    }

    /// How many steps a number holds.
    pub(in crate::contract) fn depth(&self) -> usize {
        1 + usize::from(self.second.is_some() || self.blocks.is_some())
    }

    /// The blocks of pairs.
    fn in_blocks(&self) -> Option<Blocks> {
        let (steps, planes) = match self.window() {
            Some(window) if window % 2 == 0 => (window, self.planes_of_first()),
            Some(window) => (2 * window, 2 * self.planes_of_first()),
            None => (self.extents().product(), self.planes()),
        };
        let mut blocks = Blocks { planes, all: SmallVec::new() };
        for step in (0..steps).step_by(2) {
            let (block, _) = self.block_of(step);
            match blocks.find(&block) {
                Some(at) => blocks.all[at].widen(&block),
                None if blocks.all.len() == MOST => return None,
                None => blocks.all.push(block),
            }
        }
        Some(blocks)
    }

    /// The block of the pair that begins with a step, for its windows, and where these begin in it.
    fn block_of(&self, step: usize) -> (Block, usize) {
        let [(plane, taps), (second, others)] = [step, step + 1].map(|step| self.taken(step));
        let lines = self.lines();
        let (mut phases, mut apart) = ([0; AXES], [0; AXES]);
        let (mut seen, mut first) = ([0..0, 0..0, 0..0], 0);
        for (axis, along) in self.along.iter().enumerate() {
            let [own, at] = along.tap(taps[axis]);
            phases[axis] = along.phases.iter().position(|phase| *phase == own).unwrap_or(0);
            apart[axis] = (others[axis] as isize - taps[axis] as isize) * along.dilation;
            seen[axis] = at..at + along.count;
            first += at * lines[axis];
        }
        let ahead = second as isize - plane as isize;
        (Block { plane, ahead, phases, apart, seen }, first)
    }

    /// The plane of a step and its positions in a window; planes continue after the last step.
    fn taken(&self, step: usize) -> (usize, [usize; AXES]) {
        let (mut rest, mut plane, mut planes) = (step, 0, 1);
        let mut taps = [0; AXES];
        for (of, extent) in self.steps.iter().zip(self.extents()).rev() {
            let at = rest % extent;
            rest /= extent;
            match of {
                Step::Planes(..) => {
                    plane += at * planes;
                    planes *= extent;
                }
                Step::Taps(axis) => taps[*axis] = at,
            }
        }
        (plane + rest * planes, taps)
    }

    /// The extents of the axes of steps.
    fn extents(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        self.steps.iter().map(|step| match step {
            Step::Planes(extent, _) => *extent,
            Step::Taps(axis) => self.along[*axis].taps,
        })
    }

    /// Size in numbers of all blocks.
    pub(super) fn room_of(&self, blocks: &Blocks) -> usize {
        let planes = self.planes();
        let rest = blocks.all.iter().filter(|block| block.plane < planes % blocks.planes).count();
        let count = planes / blocks.planes * blocks.all.len() + rest;
        count.saturating_mul(self.next_block())
    }

    /// Stride of blocks, which share no padding: its zeros are paired with other numbers.
    pub(super) fn next_block(&self) -> usize {
        let [.., inner] = &self.along;
        self.block() + inner.size().saturating_sub(self.pitch)
    }

    /// Offsets of `count` numbers, a pair of steps each.
    pub(super) fn offsets_of_pairs(&self, blocks: &Blocks, count: usize, to: &mut Vec<isize>) {
        to.clear();
        let mut again = None;
        for number in 0..count {
            let (block, first) = self.block_of(2 * number);
            if block.plane == blocks.planes {
                again = Some(number);
                break;
            }
            let at = blocks.find(&block).expect("is a pair's");
            to.push((at * self.next_block() + first) as isize);
        }
        let Some(period) = again else { return };
        let all = (blocks.all.len() * self.next_block()) as isize;
        (period..count).for_each(|number| to.push(to[number - period] + all));
    }

    /// [`Image::fill`] with blocks: some lines of all blocks, then the next, to read memory once.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What windows read in bounds must be readable, and the image
    /// writable for all blocks.
    pub(super) unsafe fn fill_blocks<E: Engine>(
        &self,
        blocks: &Blocks,
        from: Elements,
        to: Places<E::Num>,
    ) -> u16 {
        let ([outer, middle, inner], [far, near, _]) = (&self.along, self.lines());
        let next = |along: &Along| along.step as isize * along.stride;
        let grid = Grid { along: next(middle), across: next(inner), pitch: near };
        let (mut least, mut image) = (u16::MAX, to.image);
        for first in (0..self.planes()).step_by(blocks.planes) {
            let there = blocks.all.iter().filter(|block| first + block.plane < self.planes());
            for i in 0..outer.size() {
                let all = there.clone().map(|block| self.halves(block, (from, first), i));
                let all: SmallVec<[[Half; 2]; 12]> = all.collect();
                let planes = first..self.planes().min(first + blocks.planes + 1);
                self.prefetch_lines(from, planes.clone(), (i, 0..TOGETHER));
                for row in (0..middle.size()).step_by(TOGETHER) {
                    let next = row + TOGETHER..row + 2 * TOGETHER;
                    self.prefetch_lines(from, planes.clone(), (i, next));
                    let mut to = image.wrapping_add(i * far);
                    for halves in &all {
                        let [one, other] = halves;
                        let halves = [one, other].map(|half| {
                            let rows = within(&half.rows, &(row..row + TOGETHER));
                            Half { rows, ..half.clone() }
                        });
                        // SAFETY: the caller's contract, for these lines of a block.
                        least = least.min(unsafe { E::join_halves(&halves, grid, to) });
                        to = to.wrapping_add(self.next_block());
                    }
                }
            }
            image = image.wrapping_add(there.count() * self.next_block());
        }
        least
    }

    /// Prefetches some lines of planes.
    pub(super) fn prefetch_lines(
        &self,
        from: Elements,
        planes: Range<usize>,
        (i, rows): (usize, Range<usize>),
    ) {
        let [outer, middle, inner] = &self.along;
        let Some(stride) = inner.near() else { return };
        let line = inner.size() * inner.step * stride * from.dtype.bytes();
        for plane in planes {
            let from = from.moved(self.plane_at(plane) + outer.place(0, i) * outer.stride);
            for phase in &middle.phases {
                for row in within(&middle.there(*phase), &rows) {
                    let first = from.moved(middle.place(*phase, row) * middle.stride).base;
                    prefetch_bytes(first, line);
                }
            }
        }
    }

    /// The halves of a block's pairs at position `i` of the first axis, from plane `first` on.
    fn halves(&self, block: &Block, (from, first): (Elements, usize), i: usize) -> [Half; 2] {
        let Block { phases, seen, .. } = block;
        let plane = first + block.plane;
        let second = plane.checked_add_signed(block.ahead).filter(|plane| *plane < self.planes());
        [(Some(plane), [0; AXES]), (second, block.apart)].map(|(plane, shift)| {
            let mut from = from.moved(plane.map_or(0, |plane| self.plane_at(plane)));
            let [outers, rows, columns] = [0, 1, 2].map(|axis| {
                let (along, phase) = (&self.along[axis], self.along[axis].phases[phases[axis]]);
                from = from.moved((along.place(phase, 0) + shift[axis]) * along.stride);
                within(&along.there_from(phase, shift[axis]), &seen[axis])
            });
            let [outer, ..] = &self.along;
            let from = from.moved((i * outer.step) as isize * outer.stride);
            let is_there = plane.is_some() && outers.contains(&i);
            Half { from, rows: if is_there { rows } else { 0..0 }, columns }
        })
    }

    /// The distances between steps of pairs, for copies of an image of stride one. They are along
    /// the last axis, and across its end if its extent is odd, and so on. `None` if too many.
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
        (1..=MOST_COPIES).contains(&distances.len()).then_some(distances)
    }

    /// Replaces offsets of steps by those of pairs, in the copy of each distance behind the image.
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

    /// Steps after which they repeat in other planes, if planes are the first axis of steps.
    pub(super) fn window(&self) -> Option<usize> {
        let mut extents = self.extents();
        extents.next();
        matches!(self.steps.first(), Some(Step::Planes(..))).then(|| extents.product())
    }
}

impl Blocks {
    /// The block of the same places and partners.
    fn find(&self, of: &Block) -> Option<usize> {
        let key = |block: &Block| (block.plane, block.ahead, block.phases, block.apart);
        self.all.iter().position(|block| key(block) == key(of))
    }
}

impl Block {
    /// Extends it by what windows read of another one.
    fn widen(&mut self, by: &Block) {
        for (seen, by) in self.seen.iter_mut().zip(&by.seen) {
            *seen = seen.start.min(by.start)..seen.end.max(by.end);
        }
    }
}

/// The intersection of two ranges.
fn within(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}
