//! Transposed convolutions of several channels on one thread, by sub-pixel phases; see [`Phases`].
//! A *phase* is the elements at one offset modulo the stride: they use the same window positions.
//!
//! Vectors go across planes of the result. A column's number is broadcast from a padded image of
//! the operand, which all phases share. Sums are transposed before they are passed on.

mod pack;

use super::depthwise_transposed::Framed;
use super::engines::with_engine;
use super::micro::Engine;
use super::micro::gemm::{Spots, outer};
use super::operand::Scratch;
use super::pack::{Elements, strips, turn_sums};
use super::prefetch::{LINE, Later};
use super::schedule::{Chosen, Load, Schedule};
use super::sink::Sink;
use super::subnormal::may_be_subnormal;
use super::workspace::Workspace;
use crate::machine::{Cpu, InstructionSet};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::Moves;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// The most numbers that packing writes behind its own; see [`Engine::pack`].
const BEHIND: usize = 64;

/// Transposed convolutions of groups of planes.
#[derive(Clone, Copy)]
pub(crate) struct Phases<'a> {
    pub(crate) cpu: &'a Cpu,
    /// The dtype of elements.
    pub(crate) dtype: DType,
    /// Groups after which weights repeat.
    pub(crate) period: usize,
    /// Planes of a group of the operand, and of the result.
    pub(crate) planes: [usize; 2],
    /// Rows and columns of a plane of the operand, and of the result.
    pub(crate) from: [usize; 2],
    pub(crate) to: [usize; 2],
    /// How windows move.
    pub(crate) moves: [Moves; 2],
}

/// Elements of the result that use the same positions of a window.
struct Phase {
    /// The first of their rows and columns.
    first: [usize; 2],
    /// Positions that they use, and those that earlier phases use.
    positions: usize,
    before: usize,
    /// Elements of a row, and those of earlier phases in as many rows as are summed at once.
    columns: usize,
    spots: usize,
}

impl Phases<'_> {
    fn acc(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// True if bf16 are multiplied in pairs: of two planes.
    fn in_pairs(&self) -> bool {
        self.cpu.pairs && self.dtype == DType::BF16 && self.planes[0].is_multiple_of(2)
    }

    /// Planes that steps alternate between.
    fn together(&self) -> usize {
        if self.dtype == DType::BF16 && self.planes[0].is_multiple_of(2) { 2 } else { 1 }
    }

    fn framed(&self) -> Framed {
        Framed::of(self.from, self.to, self.moves)
    }

    fn window(&self) -> usize {
        self.moves[0].positions.saturating_mul(self.moves[1].positions)
    }

    /// Packed numbers of the weights of a plane of the result.
    fn numbers<E: Engine>(&self) -> usize {
        self.planes[0].saturating_mul(self.window()) / E::DEPTH
    }

    /// Size in numbers of an image.
    fn image<E: Engine>(&self) -> usize {
        let framed = self.framed();
        (self.planes[0] / E::DEPTH)
            .saturating_sub(1)
            .saturating_mul(framed.plane())
            .saturating_add(framed.room())
    }

    /// True if packing weights costs more than filling images: threads then share result planes.
    pub(crate) fn by_planes(&self, all_groups: usize) -> bool {
        let image = self.planes[0] * self.from[0] * self.from[1];
        self.planes[0] * self.planes[1] * self.window() * self.period > all_groups * image
    }

    /// Planes of the result that are accumulated together.
    pub(crate) fn unit(&self) -> usize {
        with_engine!(self.cpu, self.acc(), self.in_pairs(), E => 2 * <E as Engine>::LANES)
    }

    /// The most rows of the result, in whole strides, whose sums and image stay in the L2 cache.
    fn most<E: Engine>(&self) -> usize {
        let [down, _] = self.moves;
        let each = self.image::<E>() / self.to[0].max(1) + 2 * E::LANES * self.to[1];
        let rows = self.cpu.caches.l2 / 2 / (each * size_of::<E::Num>()).max(1);
        (rows / down.stride * down.stride).max(down.stride)
    }

    /// What it takes.
    pub(crate) fn workspace(&self) -> Workspace {
        with_engine!(self.cpu, self.acc(), self.in_pairs(), E => self.workspace_with::<E>())
    }

    /// Schedule, tile and blocking for this number of groups.
    pub(crate) fn chosen(&self, groups: usize) -> Chosen {
        with_engine!(self.cpu, self.acc(), self.in_pairs(), E => {
            let rows = self.most::<E>().min(self.to[0]);
            Chosen {
                pairs: E::DEPTH == 2,
                tile: Some([2 * E::LANES, E::SPOTS]),
                blocks: smallvec![("output rows", rows), ("channels", self.block::<E>(groups))],
                ..Chosen::new(Schedule::SubPixel, [Load::Packed, Load::Padded])
            }
        })
    }

    fn workspace_with<E: Engine>(&self) -> Workspace {
        let bytes = |numbers: usize| numbers.saturating_mul(size_of::<E::Num>());
        let [height, width] = self.to;
        let rows = self.most::<E>().min(height);
        let sums = rows.saturating_mul(width).saturating_mul(2 * E::LANES);
        Workspace {
            left: bytes(self.packed::<E>()),
            right: bytes(self.image::<E>()),
            filled: bytes(self.transposed::<E>()),
            sums: bytes(sums.saturating_add(BEHIND)),
            chains: bytes(sums.saturating_add(BEHIND)),
            steps: rows.saturating_mul(width).saturating_mul(2).saturating_add(self.numbers::<E>()),
            ..Workspace::default()
        }
    }

    /// Size in numbers of the packed weights of a strip.
    fn packed<E: Engine>(&self) -> usize {
        self.numbers::<E>().saturating_mul(2 * E::LANES).saturating_add(BEHIND)
    }

    /// Size in numbers of the windows of a strip, or of an input plane.
    fn transposed<E: Engine>(&self) -> usize {
        let windows = self.window().saturating_mul(2 * E::LANES * E::DEPTH);
        windows.max(self.from[0].saturating_mul(self.from[1])).saturating_add(BEHIND)
    }

    /// All phases.
    fn phases<E: Engine>(&self) -> SmallVec<[Phase; 4]> {
        let [down, across] = self.moves;
        let rows = self.most::<E>().min(self.to[0]);
        let mut all: SmallVec<[Phase; 4]> = smallvec![];
        let (mut before, mut spots) = (0, 0);
        for row in 0..down.stride.min(self.to[0]) {
            for column in 0..across.stride.min(self.to[1]) {
                let ((.., above), (.., beside)) = (down.met(row), across.met(column));
                let positions = above * beside;
                let columns = (self.to[1] - column).div_ceil(across.stride);
                all.push(Phase { first: [row, column], positions, before, columns, spots });
                before += positions;
                spots += (rows - row).div_ceil(down.stride) * columns;
            }
        }
        all
    }

    /// Sums for some groups and planes of the result in each.
    ///
    /// # Safety
    ///
    /// `cpu` must be this CPU. The operands at these addresses must be readable for these groups.
    pub(crate) unsafe fn run(
        &self,
        [x, weight]: [*const u8; 2],
        (groups, planes): (Range<usize>, Range<usize>),
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let counts = [groups.len(), planes.len()];
        if counts.contains(&0) || self.to.contains(&0) {
            return;
        }
        scratch.held_to(
            || self.workspace(),
            |scratch| {
                with_engine!(self.cpu, self.acc(), self.in_pairs(), E => {
                    // SAFETY: the caller's contract.
                    unsafe { self.run_with::<E>([x, weight], (groups, planes), scratch, sink) }
                });
            },
        );
    }

    /// # Safety
    ///
    /// The CPU must be the engine's. Operands must be readable for these groups and planes, and the
    /// destination of sums writable.
    unsafe fn run_with<E: Engine>(
        &self,
        [x, weight]: [*const u8; 2],
        (all_groups, planes): (Range<usize>, Range<usize>),
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let (phases, width) = (self.phases::<E>(), 2 * E::LANES);
        let framed = self.framed();
        let packed = scratch.left.room::<E::Num>(self.packed::<E>());
        let image = scratch.right.zeroed::<E::Num>(self.image::<E>());
        let buffer = scratch.filled.room::<E::Num>(self.transposed::<E>());
        self.list::<E>(&phases, &framed, &mut scratch.steps);
        let of_group = self.planes[0] * self.planes[1] * self.window();
        let (mut filled, mut least_right) = (None, u16::MAX);
        for first in all_groups.clone().take(self.period) {
            let weights = self.elements(weight, first % self.period * of_group);
            let groups = (first..all_groups.end).step_by(self.period);
            let block = self.block::<E>(groups.len());
            for strip in strips(planes.len(), width) {
                let plane = planes.start + strip.start;
                let strip = plane..plane + strip.count;
                let mut part = Part { strip, planes: 0..0, tiny: false, later: None };
                let mut least = u16::MAX;
                // Without planes all sums are zero.
                loop {
                    part.planes = part.planes.end..self.planes[0].min(part.planes.end + block);
                    let is_part = block < self.planes[0];
                    part.later = is_part.then(|| self.after::<E>(weights, &part));
                    // SAFETY: the caller's contract; there is room for the weights of a strip.
                    let packed_least =
                        unsafe { self.pack::<E>(weights, &phases, &part, [buffer, packed]) };
                    least = least.min(packed_least);
                    for group in groups.clone() {
                        if filled != Some(group) {
                            let of_group = self.planes[0] * self.from[0] * self.from[1];
                            let from = self.elements(x, group * of_group);
                            // SAFETY: the caller's contract, and the room of the image.
                            least_right = unsafe { self.fill::<E>(from, &framed, [buffer, image]) };
                            filled = Some(group);
                        }
                        part.tiny = may_be_subnormal(least, least_right);
                        let places = [image.cast_const(), packed.cast_const()];
                        // SAFETY: operands are ready.
                        unsafe {
                            self.sum_all::<E>((group, &mut part), &phases, places, scratch, sink)
                        };
                    }
                    if part.planes.end == self.planes[0] {
                        break;
                    }
                }
            }
        }
    }

    /// The block of input planes whose weights are packed together: all of them, or as many as stay
    /// in the first-level cache, if they are used once and would fill the second-level cache.
    fn block<E: Engine>(&self, groups: usize) -> usize {
        let all = self.planes[0];
        let bytes = self.packed::<E>() * size_of::<E::Num>();
        if groups > 1 || self.most::<E>() < self.to[0] || bytes <= self.cpu.caches.l2 / 2 {
            return all;
        }
        (self.cpu.caches.l1 / 2 / bytes.div_ceil(all).max(1) / 2 * 2).max(2)
    }

    /// The weights that are packed after those of a part.
    fn after<E: Engine>(&self, weights: Elements, part: &Part) -> Later {
        let Part { strip, planes, .. } = part;
        let is_last = planes.end == self.planes[0];
        let (plane, from) = if is_last { (0, strip.end) } else { (planes.end, strip.start) };
        let (window, bytes) = (self.window(), self.dtype.bytes());
        let of_plane = self.planes[1] * window;
        let first = weights.moved((plane * of_plane + from * window) as isize).base;
        let length = strip.len() * window * bytes;
        let calls = (self.to[0] * self.to[1]).div_ceil(E::SPOTS);
        let each = (planes.len() * length.div_ceil(LINE)).div_ceil(calls);
        Later { first, apart: of_plane * bytes, length, at: 0, each }
    }

    /// Elements of an operand from `at` on.
    fn elements(&self, base: *const u8, at: usize) -> Elements {
        Elements { base, dtype: self.dtype, round: None }.moved(at as isize)
    }

    /// Lists offsets in the image: of each phase's steps from a window's first position, and of the
    /// windows of the first rows. Then lists the offsets of their sums.
    fn list<E: Engine>(&self, phases: &[Phase], framed: &Framed, to: &mut Vec<isize>) {
        let [down, across] = self.moves;
        to.clear();
        for phase in phases {
            let [(.., rows), (.., columns)] =
                [down.met(phase.first[0]), across.met(phase.first[1])];
            let together = self.together() / E::DEPTH;
            for first in (0..self.planes[0] / E::DEPTH).step_by(together) {
                let positions = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
                to.extend(positions.flat_map(|(i, j)| {
                    let back = i * framed.pitch + j;
                    let planes = first..first + together;
                    planes.map(move |plane| (plane * framed.plane()) as isize - back as isize)
                }));
            }
        }
        let most = self.most::<E>().min(self.to[0]);
        let spots = |phase: &Phase| {
            let [row, column] = phase.first;
            let columns = (column..self.to[1]).step_by(across.stride);
            (row..most)
                .step_by(down.stride)
                .flat_map(move |row| columns.clone().map(move |column| [row, column]))
        };
        let seen =
            |[row, column]: [usize; 2]| down.met(row).1 * framed.pitch + across.met(column).1;
        to.extend(phases.iter().flat_map(spots).map(|at| seen(at) as isize));
        let width = 2 * E::LANES;
        let place = |[row, column]: [usize; 2]| (row * self.to[1] + column) * width;
        to.extend(phases.iter().flat_map(spots).map(|at| place(at) as isize));
    }

    /// Accumulates all phases over the planes of a part, and passes on sums that are complete.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. The image and the part's packed weights must be ready.
    unsafe fn sum_all<E: Engine>(
        &self,
        (group, part): (usize, &mut Part),
        phases: &[Phase],
        [image, packed]: [*const E::Num; 2],
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let width = 2 * E::LANES;
        let (count, numbers) = (part.strip.len(), part.planes.len() / E::DEPTH);
        let (all, of_planes) =
            (self.most::<E>().min(self.to[0]) * self.to[1], self.planes[0] / E::DEPTH);
        let all_steps = seen_by(phases) * of_planes;
        let inside = self.framed().inside(image);
        for row in (0..self.to[0]).step_by(self.most::<E>()) {
            let rows = row..self.to[0].min(row + self.most::<E>());
            let n = rows.len() * self.to[1];
            let sums = scratch.sums.room::<E::Num>(n * width + BEHIND);
            let chains = scratch.chains.room::<E::Num>(n * width + BEHIND);
            let down = self.moves[0];
            // Listed offsets are those of the first rows; these rows are further down.
            let image = inside.wrapping_add(row / down.stride * self.framed().pitch);
            for phase in phases {
                let weights = packed.wrapping_add(phase.before * numbers * count);
                let lines = (rows.len().saturating_sub(phase.first[0])).div_ceil(down.stride);
                let listed = |list: usize| {
                    let at = all_steps + list * all + phase.spots;
                    &scratch.steps[at..at + lines * phase.columns]
                };
                let of = [image, weights];
                let steps =
                    &scratch.steps[of_planes * phase.before..][..of_planes * phase.positions];
                // SAFETY: operands are ready, and sums have room.
                unsafe {
                    self.sum::<E>((phase, part), of, steps, [0, 1].map(listed), [sums, chains])
                };
            }
            if part.planes.end == self.planes[0] {
                // SAFETY: the sums of these planes, and room for them: no chain goes on.
                unsafe { turn_sums::<E>((sums, width), [count, n], chains) };
                let first = group * self.planes[1];
                let planes = first + part.strip.start..first + part.strip.end;
                sink(planes, rows, chains.cast_const().cast());
            }
        }
    }

    /// Accumulates a phase over the planes of a part, from the image and the part's packed weights.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. The image and the part's packed weights must be ready, and
    /// sums and chains hold two vectors an element of these rows.
    unsafe fn sum<E: Engine>(
        &self,
        (phase, part): (&Phase, &mut Part),
        [image, weights]: [*const E::Num; 2],
        steps: &[isize],
        [seen, places]: [&[isize]; 2],
        [sums, chains]: [*mut E::Num; 2],
    ) {
        let (count, most) = (part.strip.len(), CONTRACT_BLOCK / E::DEPTH);
        let [start, end] =
            [part.planes.start, part.planes.end].map(|plane| plane / E::DEPTH * phase.positions);
        // The last band may have no row of the phase.
        if seen.is_empty() {
            return;
        }
        let mut from = start;
        // A sum without steps is zero.
        loop {
            let to = end.min((from / most + 1) * most);
            let (begins, ends) =
                (from.is_multiple_of(most), to.is_multiple_of(most) || to == steps.len());
            for some in strips(seen.len(), E::SPOTS) {
                let some_of = some.start..some.start + some.count;
                let spots = Spots {
                    image,
                    columns: &seen[some_of.clone()],
                    at: &steps[from..to],
                    rows: weights.wrapping_add((from - start) * count),
                    step: count,
                    from: if begins { std::ptr::null() } else { chains.cast_const() },
                    out: if ends { sums } else { chains },
                    places: &places[some_of],
                    add: ends && from >= most,
                    tiny: part.tiny,
                };
                part.later.iter_mut().for_each(Later::ask);
                // SAFETY: the caller's contract.
                unsafe { outer::<E, _>([some.count, count.div_ceil(E::LANES)], &spots) };
            }
            from = to;
            if from == end {
                return;
            }
        }
    }
}

/// Positions of a window that any phase uses: not all, where the result is smaller than a stride.
fn seen_by(phases: &[Phase]) -> usize {
    phases.last().map_or(0, |last| last.before + last.positions)
}

/// The block of weights that is packed together.
struct Part {
    /// Planes of the result.
    strip: Range<usize>,
    /// Planes of the operand.
    planes: Range<usize>,
    /// Sums may be subnormal.
    tiny: bool,
    /// What is prefetched while these are multiplied, if more parts follow.
    later: Option<Later>,
}
