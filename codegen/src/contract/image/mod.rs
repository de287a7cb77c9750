//! Images: padded copies of a convolution's input, of which every step reads its columns in place.
//!
//! An image has a plane for each channel. Above stride one positions are split by *phase*, their
//! remainder modulo the stride, so that adjacent windows read contiguous numbers. Columns are
//! counted through lines of the image: those between lines are computed in vain.

mod cost;
mod fill;
mod found;
mod pairs;

pub(crate) use cost::ProductSizes;
pub(super) use fill::{Beside, Places};
pub(super) use pairs::Distances;

use super::im2col::Seen;
use super::micro::SHORT;
#[cfg(target_arch = "x86_64")]
use super::micro::depthwise::avx2;
use crate::machine::{Cpu, InstructionSet};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use tracecast_ir::DType;

/// Axes that windows move over, missing ones in front.
const AXES: usize = 3;

/// The most numbers of an image for each step of `k`, which count as `SMALL` at least.
const MOST_PHASES: usize = 32;
const SMALL: usize = 1024;

/// Windows of a larger stride and size are packed: the list of phases is searched linearly.
const PHASES: usize = 64;

/// Up to this stride elements in between are read as well.
const NEAR: usize = 8;

/// Lines are read with their gaps if they become at most this many times as long.
const NEAR_LINES: usize = 2;

/// The most memory for places in order, relative to phases: 1 × 1 windows of stride two take four.
const SPREAD: usize = 5;
/// An image has fewer numbers than this.
const LARGE: f64 = (1u64 << 36) as f64;

/// Vectors that begin in an image or a line may overrun it by this many numbers.
pub(super) const BEHIND: usize = 64;

/// An axis that windows move over. Places along it count from the operand's first element.
#[derive(Clone, Debug)]
pub(super) struct Along {
    /// Windows, and their stride in places.
    pub(super) count: usize,
    pub(super) step: usize,
    /// Positions in a window, and their dilation in places.
    pub(super) taps: usize,
    pub(super) dilation: isize,
    /// The place of the first position in the first window.
    pub(super) first: isize,
    /// Places in bounds, if windows read others as well.
    extent: Option<usize>,
    /// Stride of places in elements.
    pub(super) stride: isize,
    /// The phases that windows read.
    phases: SmallVec<[usize; 4]>,
}

/// An axis of steps.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Planes: their count, and their stride in elements.
    Planes(usize, isize),
    /// Positions in a window along this axis.
    Taps(usize),
}

/// Layout of an image.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    along: [Along; AXES],
    /// The axes of steps, from the outermost.
    steps: SmallVec<[Step; 4]>,
    /// Stride of lines in numbers.
    pub(super) pitch: usize,
    /// Offset from the first window's first position to place zero along each axis, in elements.
    pub(super) origin: isize,
    /// Offset in elements to the plane of the second steps, if two planes form pairs.
    second: Option<isize>,
    /// Blocks in place of planes, if other steps form pairs.
    blocks: Option<Blocks>,
}

/// Blocks of pairs of steps that are not those of two planes.
#[derive(Clone, Debug)]
struct Blocks {
    /// The period of blocks in planes.
    planes: usize,
    all: SmallVec<[Block; 12]>,
}

/// Places of a phase in a plane, each paired with another place.
#[derive(Clone, Debug)]
struct Block {
    /// The plane in a period, and the distance to that of the second steps.
    plane: usize,
    ahead: isize,
    /// Which phase of each axis.
    phases: [usize; AXES],
    /// Distance to the second step along each axis.
    apart: [isize; AXES],
    /// The positions of the phase that windows read.
    seen: [Range<usize>; AXES],
}

impl Along {
    /// The first and the last place that windows read.
    fn reach(&self) -> [isize; 2] {
        let back = (self.taps as isize - 1) * self.dilation;
        let windows = (self.count as isize - 1) * self.step as isize;
        [self.first + back.min(0), self.first + windows + back.max(0)]
    }

    /// The places in bounds; of an axis without bounds all that windows read.
    pub(super) fn places(&self) -> Range<isize> {
        let [low, high] = self.reach();
        self.extent.map_or(low..high + 1, |extent| 0..extent as isize)
    }

    /// `places / step`: constant divisors, as a division takes as long as copying a row.
    fn steps(&self, places: usize) -> usize {
        match self.step {
            1 => places,
            2 => places / 2,
            step => places / step,
        }
    }

    /// Positions of each phase.
    fn size(&self) -> usize {
        let [low, high] = self.reach();
        self.steps((high - low) as usize) + 1
    }

    /// The phase of a position in a window, and its index there for the first window.
    fn tap(&self, tap: usize) -> [usize; 2] {
        let place = (self.first + tap as isize * self.dilation - self.reach()[0]) as usize;
        [place % self.step, place / self.step]
    }

    /// The place of a position of a phase.
    fn place(&self, phase: usize, at: usize) -> isize {
        self.reach()[0] + (phase + at * self.step) as isize
    }

    /// The positions of a phase in bounds.
    fn there(&self, phase: usize) -> Range<usize> {
        self.there_from(phase, 0)
    }

    /// The positions of a phase that are in bounds `apart` places on.
    fn there_from(&self, phase: usize, apart: isize) -> Range<usize> {
        let [low, high] = self.reach();
        let before = |place: isize| (place - apart - low - phase as isize).max(0) as usize;
        let steps = |places: usize| self.steps(places + self.step - 1);
        let end = steps(before(high + 1));
        let Some(extent) = self.extent else { return 0..end };
        let start = steps(before(0)).min(end);
        start..steps(before(extent as isize)).clamp(start, end)
    }

    /// Stride of places in elements, if elements in between are read as well.
    fn near(&self) -> Option<usize> {
        let stride = usize::try_from(self.stride).ok()?;
        (1..=NEAR / self.step).contains(&stride).then_some(stride)
    }

    /// True if elements alternate between two phases, even if windows read only one.
    fn alternates(&self) -> bool {
        self.near().is_some_and(|stride| self.step * stride == 2)
    }

    /// The places read of a whole line, and their stride in elements; `None` if none or too large.
    fn read(&self) -> Option<(Range<isize>, usize)> {
        let ([low, high], places) = (self.reach(), self.places());
        let places = places.start.max(low)..places.end.min(high + 1);
        self.near().filter(|_| places.start < places.end).map(|stride| (places, stride))
    }

    /// The same, with its phases listed.
    fn found(mut self) -> Along {
        for tap in 0..self.taps {
            let [phase, _] = self.tap(tap);
            if !self.phases.contains(&phase) {
                self.phases.push(phase);
            }
            if self.phases.len() == self.step {
                break;
            }
        }
        self
    }

    /// One window of one position.
    fn single() -> Along {
        Along {
            count: 1,
            step: 1,
            taps: 1,
            dilation: 1,
            first: 0,
            extent: None,
            stride: 0,
            phases: smallvec![0],
        }
    }
}

impl Image {
    /// True unless large strides make it larger than any operand.
    fn is_small(&self) -> bool {
        let size = |along: &Along| (along.size() * along.phases.len()) as f64;
        self.along.iter().map(size).product::<f64>() * (self.planes() as f64) < LARGE
    }

    /// Windows along the first axis that has several, and the columns of each.
    pub(crate) fn windows(&self) -> [usize; 2] {
        let all: usize = self.along.iter().map(|along| along.count).product();
        let first = self.along.iter().map(|along| along.count).find(|count| *count > 1);
        let first = first.unwrap_or(1);
        [first, all / first]
    }

    /// Strides of the axes in numbers.
    fn lines(&self) -> [usize; AXES] {
        let [_, middle, _] = &self.along;
        [self.pitch.saturating_mul(middle.size()), self.pitch, 1]
    }

    /// Size of a phase of a plane in numbers.
    fn block(&self) -> usize {
        self.lines()[0].saturating_mul(self.along[0].size())
    }

    /// Stride of planes in numbers.
    pub(super) fn plane(&self) -> usize {
        let phases: usize = self.along.iter().map(|along| along.phases.len()).product();
        phases.saturating_mul(self.block())
    }

    /// Address of place zero along each axis, in an image without phases.
    pub(super) fn inside<T>(&self, image: *const T) -> *const T {
        let [_, middle, inner] = &self.along;
        let before = middle.reach()[0] * self.pitch as isize + inner.reach()[0];
        image.wrapping_offset(-before)
    }

    pub(super) fn planes(&self) -> usize {
        let extent = |step: &Step| match step {
            Step::Planes(extent, _) => *extent,
            Step::Taps(_) => 1,
        };
        self.steps.iter().map(extent).product()
    }

    /// True if a stride above one splits positions by phase.
    pub(super) fn has_phases(&self) -> bool {
        self.along.iter().any(|along| along.step > 1)
    }

    /// Columns along each axis.
    pub(super) fn counts(&self) -> [usize; AXES] {
        [0, 1, 2].map(|axis| self.along[axis].count)
    }

    /// The same windows with all places in order, without phases: as if the stride were one.
    pub(super) fn place_by_place(&self) -> Image {
        let along = self.along.clone().map(|along| Along {
            count: (along.count - 1).saturating_mul(along.step).saturating_add(1),
            step: 1,
            phases: smallvec![0],
            ..along
        });
        let pitch = pitch(&along[AXES - 1]);
        Image { along, pitch, blocks: None, ..self.clone() }
    }

    /// True if places in order take little more memory: strides are not much larger than windows.
    pub(crate) fn is_near(&self) -> bool {
        let places = self.place_by_place();
        places.is_small() && places.room() <= self.room().saturating_mul(SPREAD)
    }

    /// Strides of another image's windows in this one, which has places in order.
    pub(super) fn window_steps(&self, of: &Image) -> [usize; AXES] {
        let lines = self.lines();
        [0, 1, 2].map(|axis| lines[axis] * of.along[axis].step)
    }

    /// The most numbers that it takes with any band of as many windows.
    pub(super) fn most_room(&self) -> usize {
        let [_, _, inner] = &self.along;
        let widest = Image { pitch: inner.size(), ..self.clone() };
        widest.room()
    }

    /// Size in numbers of a plane's lines for `width` operands, with gaps between near lines.
    pub(super) fn lines_beside(&self, width: usize) -> usize {
        let [_, middle, inner] = &self.along;
        let places = middle.size().saturating_mul(inner.size()).saturating_mul(NEAR_LINES);
        places.saturating_mul(width).saturating_add(BEHIND)
    }

    /// True if vectors of `lanes` fill lines of columns, or all columns and these are contiguous.
    pub(super) fn has_whole_vectors(&self, lanes: usize) -> bool {
        let whole = |columns: usize| columns.is_multiple_of(lanes);
        whole(self.along[2].count) || self.is_dense() && whole(self.span())
    }

    /// True if all windows are at one place of the first axis, which is in bounds.
    fn is_flat(&self) -> bool {
        let [outer, ..] = &self.along;
        outer.count == 1 && outer.taps == 1 && outer.places().contains(&outer.first)
    }

    /// The axes down and across, if windows are those of a depthwise convolution and contiguous.
    pub(super) fn depthwise(&self) -> Option<[&Along; 2]> {
        self.of_plane().filter(|[_, across]| across.stride == 1)
    }

    /// The axes down and across, if windows of one plane are 3 × 3 or 5 × 5, of stride one or two.
    pub(super) fn of_plane(&self) -> Option<[&Along; 2]> {
        let [_, down, across] = &self.along;
        let is_flat = self.is_flat() && down.count > 1;
        let in_order = matches!(self.steps[..], [Step::Taps(1), Step::Taps(2)]);
        let is_square = down.taps == across.taps && down.step == across.step;
        let is_near = match across.step {
            1 => down.dilation.abs() == 1 && across.dilation.abs() == 1,
            2 => down.dilation == 1 && across.dilation == 1,
            _ => false,
        };
        let fits = is_flat && in_order && is_square && is_near && [3, 5].contains(&across.taps);
        fits.then_some([down, across])
    }

    /// True if a depthwise convolution reads these elements in place. With AVX-512 that includes
    /// short lines of stride two that share vectors with other planes.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(unused_variables, reason = "other CPUs read none so")
    )]
    pub(crate) fn is_depthwise(
        &self,
        cpu: &Cpu,
        acc: DType,
        (dtype, round): (DType, Option<DType>),
        is_one_of_several: bool,
    ) -> bool {
        let is_read = [DType::F32, DType::BF16].contains(&dtype) && round.is_none();
        let is_long = |across: &Along| match cpu.instructions {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => across.count > SHORT || across.step > 1 && is_one_of_several,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => {
                let least = avx2::windows(dtype == DType::BF16, across.step);
                across.taps == 3 && across.count >= least && across.places().len() >= SHORT
            }
            _ => false,
        };
        let is_read = is_read && acc == DType::F32;
        is_read && self.depthwise().is_some_and(|[_, across]| is_long(across))
    }

    /// Size in numbers, with what vectors overrun.
    pub(super) fn room(&self) -> usize {
        let numbers = match &self.blocks {
            Some(blocks) => self.room_of(blocks),
            None => self.planes().saturating_mul(self.plane()),
        };
        numbers.saturating_add(self.pitch + BEHIND)
    }

    /// Numbers from the first column to behind the last one.
    pub(crate) fn span(&self) -> usize {
        let from_first = |(along, line): (&Along, usize)| (along.count - 1) * line;
        self.along.iter().zip(self.lines()).map(from_first).sum::<usize>() + 1
    }

    /// True if most of its numbers are read in some of `k` steps.
    pub(crate) fn is_mostly_seen(&self, k: usize) -> bool {
        self.room() / MOST_PHASES < k.max(SMALL)
    }

    /// Stride of lines of columns, starts along the first axis, and counts of lines and columns.
    pub(super) fn lines_of_columns(&self) -> (usize, impl Iterator<Item = usize>, [usize; 2]) {
        let [outer, middle, inner] = &self.along;
        let [far, near, _] = self.lines();
        (near, (0..outer.count).map(move |i| i * far), [middle.count, inner.count])
    }

    /// The view of one plane of the first row axis, their number, and their stride in elements.
    pub(super) fn plane_by_plane(&self, seen: &Seen) -> (Seen, usize, isize) {
        match self.steps.first() {
            Some(Step::Planes(extent, stride)) if self.steps.len() > 1 => {
                let rows = seen.rows[1..].iter().copied().collect();
                (Seen { rows, ..seen.clone() }, *extent, *stride)
            }
            _ => (seen.clone(), 1, 0),
        }
    }

    /// Calls `each` for contiguous columns: where the first is in the image, and how many.
    pub(super) fn each_line(&self, mut each: impl FnMut(usize, usize)) {
        let [outer, middle, inner] = &self.along;
        let [far, near, _] = self.lines();
        for i in 0..outer.count {
            for j in 0..middle.count {
                each(i * far + j * near, inner.count);
            }
        }
    }

    /// As [`Image::each_line`]; if all columns are contiguous, for pieces of up to `most`.
    pub(super) fn each_piece(&self, most: usize, mut each: impl FnMut(usize, usize)) {
        if self.is_dense() {
            let all = self.span();
            return (0..all).step_by(most).for_each(|first| each(first, most.min(all - first)));
        }
        self.each_line(each)
    }

    /// Calls `each` with the offset of each window of another image; this one has places in order.
    pub(super) fn each_window(&self, of: &Image, mut each: impl FnMut(usize)) {
        let [far, near, next] = self.window_steps(of);
        let [outer, middle, inner] = of.counts();
        for i in 0..outer {
            for j in 0..middle {
                (0..inner).for_each(|l| each(i * far + j * near + l * next));
            }
        }
    }

    /// True if all columns are contiguous: none is computed in vain.
    pub(super) fn is_dense(&self) -> bool {
        let ([far, near, _], [outer, middle, inner]) = (self.lines(), self.counts());
        (middle == 1 || near == inner) && (outer == 1 || far == middle * inner)
    }

    /// Size of scratch for a line, in numbers.
    pub(super) fn line(&self) -> usize {
        let [_, _, inner] = &self.along;
        inner.size().saturating_mul(inner.step * inner.near().unwrap_or(0)) + BEHIND
    }

    /// What offsets of steps depend on: the strides of the axes, and that of planes or blocks.
    pub(super) fn layout(&self) -> ([usize; AXES], usize) {
        let next = if self.blocks.is_some() { self.next_block() } else { self.plane() };
        (self.lines(), next)
    }

    /// Offsets of `count` numbers, a step each or a pair of steps.
    pub(super) fn offsets(&self, count: usize, to: &mut Vec<isize>) {
        if let Some(blocks) = &self.blocks {
            return self.offsets_of_pairs(blocks, count, to);
        }
        let window = self.window().unwrap_or(count);
        self.first_offsets(count.min(window), to);
        // The same in each plane.
        let plane = (self.planes_of_first() * self.plane()) as isize;
        for step in window..count {
            to.push(to[step - window] + plane);
        }
    }

    /// Stride of the first axis of steps, in planes.
    fn planes_of_first(&self) -> usize {
        match self.steps.first() {
            Some(Step::Planes(extent, _)) => self.planes() / (*extent).max(1),
            _ => 0,
        }
    }

    /// As [`Image::offsets`], which are sums over axes: each axis repeats the list of inner ones.
    fn first_offsets(&self, count: usize, to: &mut Vec<isize>) {
        let lines = self.lines();
        let (mut plane, mut first) = (self.plane(), 0);
        to.clear();
        to.push(0);
        for step in self.steps.iter().rev() {
            let from_plane = plane;
            let extent = match step {
                Step::Planes(extent, _) => *extent,
                Step::Taps(axis) => self.along[*axis].taps,
            };
            if let Step::Planes(extent, _) = step {
                plane *= extent;
            }
            let adds = |at: usize| match step {
                Step::Planes(..) => (at * from_plane) as isize,
                Step::Taps(axis) => {
                    let along = &self.along[*axis];
                    let [own, first] = along.tap(at);
                    let mut phase = [0; AXES];
                    phase[*axis] = along.phases.iter().position(|p| *p == own).unwrap_or(0);
                    (self.phase(phase) * self.block() + first * lines[*axis]) as isize
                }
            };
            let (within, of_first) = (to.len(), adds(0));
            first += of_first;
            for at in (1..extent).take_while(|at| at * within < count) {
                let more = adds(at) - of_first;
                to.extend_from_within(..within.min(count - at * within));
                to[at * within..].iter_mut().for_each(|place| *place += more);
            }
        }
        to.truncate(count);
        to.iter_mut().for_each(|place| *place += first);
    }

    /// Index of a phase's block in a plane.
    fn phase(&self, [outer, middle, inner]: [usize; AXES]) -> usize {
        let [_, m, i] = &self.along;
        (outer * m.phases.len() + middle) * i.phases.len() + inner
    }
}

/// Stride of lines: the left padding of a line is the right padding of the one before.
fn pitch(inner: &Along) -> usize {
    let there = inner.phases.iter().map(|phase| inner.there(*phase));
    let zeros = there.clone().map(|there| there.start).min().unwrap_or(0);
    let end = there.map(|there| there.end).max().unwrap_or(0);
    end.max(inner.size().saturating_sub(zeros)).max(1)
}
