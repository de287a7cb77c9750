//! Transposed convolutions of several channels on one thread, by sub-pixel phases; see [`Phases`].
//! A *phase* is the elements at one offset modulo the stride: they use the same window positions.
//!
//! Vectors go across planes of the result. A column's number is broadcast from a padded image of
//! the operand, which all phases share. Sums are transposed before they are passed on.

mod pack;

use super::driver::{OnEngine, Run};
use super::engines::with_engine;
use super::framed::Framed;
use super::micro::Engine;
use super::micro::gemm::{Spots, outer};
use super::operand::Scratch;
use super::pack::{Elements, strips, turn_sums};
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

/// Some groups and planes of transposed convolutions.
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
    /// The operand of the first group, and the weight.
    pub(crate) operands: [*const u8; 2],
    /// The groups to compute, and the planes of the result in each.
    pub(crate) groups: Range<usize>,
    pub(crate) part: Range<usize>,
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

    /// Size in numbers of the packed weights of a strip.
    fn packed<E: Engine>(&self) -> usize {
        self.numbers::<E>().saturating_mul(2 * E::LANES).saturating_add(BEHIND)
    }

    /// Size in numbers of the windows of a strip.
    fn transposed<E: Engine>(&self) -> usize {
        self.window().saturating_mul(2 * E::LANES * E::DEPTH).saturating_add(BEHIND)
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
}

impl OnEngine for Phases<'_> {
    fn on(&self) -> (Cpu, DType, bool) {
        (*self.cpu, self.acc(), self.in_pairs())
    }

    fn ranges(&self) -> [&Range<usize>; 2] {
        [&self.groups, &self.part]
    }

    fn chosen_with<E: Engine>(&self) -> Chosen {
        let rows = self.most::<E>().min(self.to[0]);
        Chosen {
            pairs: E::DEPTH == 2,
            tile: Some([2 * E::LANES, E::SPOTS]),
            blocks: smallvec![("output rows", rows), ("channels", self.planes[0])],
            ..Chosen::new(Schedule::SubPixel, [Load::Packed, Load::Padded])
        }
    }

    fn workspace_with<E: Engine>(&self) -> Workspace {
        let [height, width] = self.to;
        let rows = self.most::<E>().min(height);
        let sums = rows.saturating_mul(width).saturating_mul(2 * E::LANES);
        Workspace {
            left: self.packed::<E>(),
            right: self.image::<E>(),
            filled: self.transposed::<E>(),
            sums: sums.saturating_add(BEHIND),
            chains: sums.saturating_add(BEHIND),
            steps: rows.saturating_mul(width).saturating_mul(2).saturating_add(self.numbers::<E>()),
            ..Workspace::default()
        }
    }

    fn run_with<E: Engine>(run: Run<'_, Self, E>, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        if run.to.contains(&0) {
            return;
        }
        let ([x, weight], all_groups, planes) = (run.operands, &run.groups, &run.part);
        let (phases, width) = (run.phases::<E>(), 2 * E::LANES);
        let framed = run.framed();
        let image = scratch.right.zeroed::<E::Num>(run.image::<E>());
        run.list::<E>(&phases, &framed, &mut scratch.steps);
        let of_group = run.planes[0] * run.planes[1] * run.window();
        let (mut filled, mut least_right) = (None, u16::MAX);
        for first in all_groups.clone().take(run.period) {
            let weights = run.elements(weight, first % run.period * of_group);
            let groups = (first..all_groups.end).step_by(run.period);
            for strip in strips(planes.len(), width) {
                let plane = planes.start + strip.start;
                let strip = plane..plane + strip.count;
                let least = run.pack(weights, &phases, &strip, scratch);
                for group in groups.clone() {
                    if filled != Some(group) {
                        let of_group = run.planes[0] * run.from[0] * run.from[1];
                        let from = run.elements(x, group * of_group);
                        let sizes = [run.planes[0], run.from[0], run.from[1]];
                        // SAFETY: the operand is readable, and the room of the image.
                        least_right = unsafe { framed.fill::<E>(from, sizes, image) };
                        filled = Some(group);
                    }
                    let tiny = may_be_subnormal(least, least_right);
                    run.sum_all((group, &strip, tiny), &phases, scratch, sink);
                }
            }
        }
    }
}

impl Phases<'_> {
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
}

impl<E: Engine> Run<'_, Phases<'_>, E> {
    /// Computes all phases of a strip of planes, and passes on the sums. The image and the strip's
    /// packed weights are ready.
    fn sum_all(
        &self,
        (group, strip, tiny): (usize, &Range<usize>, bool),
        phases: &[Phase],
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let packed = scratch.left.room::<E::Num>(self.packed::<E>()).cast_const();
        let image = scratch.right.room::<E::Num>(self.image::<E>()).cast_const();
        let (width, block) = (2 * E::LANES, CONTRACT_BLOCK / E::DEPTH);
        let (count, numbers) = (strip.len(), self.planes[0] / E::DEPTH);
        let all = self.most::<E>().min(self.to[0]) * self.to[1];
        let all_steps = seen_by(phases) * numbers;
        let inside = self.framed().inside(image);
        for row in (0..self.to[0]).step_by(self.most::<E>()) {
            let rows = row..self.to[0].min(row + self.most::<E>());
            let n = rows.len() * self.to[1];
            let sums = scratch.sums.room::<E::Num>(n * width + BEHIND);
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
                let [seen, places] = [0, 1].map(listed);
                // The last band may have no row of the phase.
                if seen.is_empty() {
                    continue;
                }
                let steps = &scratch.steps[numbers * phase.before..][..numbers * phase.positions];
                // A sum without steps is zero.
                for from in (0..steps.len().max(1)).step_by(block) {
                    let at = &steps[from..steps.len().min(from + block)];
                    for some in strips(seen.len(), E::SPOTS) {
                        let some_of = some.start..some.start + some.count;
                        let spots = Spots {
                            image,
                            columns: &seen[some_of.clone()],
                            at,
                            rows: weights.wrapping_add(from * count),
                            step: count,
                            from: std::ptr::null(),
                            out: sums,
                            places: &places[some_of],
                            add: from > 0,
                            tiny,
                        };
                        // SAFETY: operands are ready, and sums have room for two vectors each.
                        unsafe { outer::<E, _>([some.count, count.div_ceil(E::LANES)], &spots) };
                    }
                }
            }
            let dense = scratch.chains.room::<E::Num>(n * width + BEHIND);
            // SAFETY: the sums of these planes, and room for them.
            unsafe { turn_sums::<E>((sums, width), [count, n], dense) };
            let first = group * self.planes[1];
            sink(first + strip.start..first + strip.end, rows, dense.cast_const().cast());
        }
    }
}

/// Positions of a window that any phase uses: not all, where the result is smaller than a stride.
fn seen_by(phases: &[Phase]) -> usize {
    phases.last().map_or(0, |last| last.before + last.positions)
}
