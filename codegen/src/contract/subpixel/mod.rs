//! Transposed convolutions of several channels on one thread, by sub-pixel phases. A *phase* is the
//! elements at one offset modulo the stride: they use the same window positions.
//!
//! Vectors go across planes of the result. A column's number is broadcast from a padded image of
//! the operand, which all phases share. Sums are transposed before they are passed on.

mod pack;

use super::driver::Run;
use super::engines::with_engine;
use super::image::Image;
use super::micro::Engine;
use super::micro::gemm::{Spots, outer};
use super::operand::Scratch;
use super::pack::{strips, transpose_sums};
use super::schedule::{Chosen, Load, Schedule};
use super::sink::Sink;
use super::subnormal::may_be_subnormal;
use super::transposed::Transposed;
use super::workspace::Workspace;
use crate::machine::InstructionSet;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// The most numbers that packing writes behind its own; see [`Engine::pack`].
const BEHIND: usize = 64;

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

impl Transposed<'_> {
    /// Planes that steps alternate between.
    fn together(&self) -> usize {
        if self.dtype == DType::BF16 && self.planes[0].is_multiple_of(2) { 2 } else { 1 }
    }

    /// Packed numbers of the weights of a plane of the result.
    fn numbers<E: Engine>(&self) -> usize {
        self.planes[0].saturating_mul(self.window()) / E::DEPTH
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
    fn most<E: Engine>(&self, image: &Image) -> usize {
        let [down, _] = self.moves;
        let each = image.room() / self.to[0].max(1) + 2 * E::LANES * self.to[1];
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

    /// All phases, given the rows that are summed at once.
    fn phases(&self, rows: usize) -> SmallVec<[Phase; 4]> {
        let [down, across] = self.moves;
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

    /// Schedule of [`Run::run_phases`].
    pub(super) fn chosen_phases<E: Engine>(&self) -> Chosen {
        let rows = self.most::<E>(&self.image::<E>()).min(self.to[0]);
        Chosen {
            pairs: E::DEPTH == 2,
            tile: Some([2 * E::LANES, E::SPOTS]),
            blocks: smallvec![("output rows", rows), ("channels", self.planes[0])],
            ..Chosen::new(Schedule::SubPixel, [Load::Packed, Load::Padded])
        }
    }

    /// Workspace of [`Run::run_phases`].
    pub(super) fn workspace_phases<E: Engine>(&self) -> Workspace {
        let ([height, width], image) = (self.to, self.image::<E>());
        let rows = self.most::<E>(&image).min(height);
        let sums = rows.saturating_mul(width).saturating_mul(2 * E::LANES);
        Workspace {
            left: self.packed::<E>(),
            right: image.room(),
            filled: self.transposed::<E>(),
            sums: sums.saturating_add(BEHIND),
            chains: sums.saturating_add(BEHIND),
            steps: rows.saturating_mul(width).saturating_mul(2).saturating_add(self.numbers::<E>()),
            ..Workspace::default()
        }
    }

    /// Lists offsets in the image: of each phase's steps from a window's first position, and of the
    /// windows of the first rows. Then lists the offsets of their sums.
    fn list<E: Engine>(&self, phases: &[Phase], image: &Image, band: usize, to: &mut Vec<isize>) {
        let [down, across] = self.moves;
        to.clear();
        for phase in phases {
            let [(.., rows), (.., columns)] =
                [down.met(phase.first[0]), across.met(phase.first[1])];
            let together = self.together() / E::DEPTH;
            for first in (0..self.planes[0] / E::DEPTH).step_by(together) {
                let positions = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
                to.extend(positions.flat_map(|(i, j)| {
                    let back = i * image.pitch + j;
                    let planes = first..first + together;
                    planes.map(move |plane| (plane * image.plane()) as isize - back as isize)
                }));
            }
        }
        let spots = |phase: &Phase| {
            let [row, column] = phase.first;
            let columns = (column..self.to[1]).step_by(across.stride);
            (row..band)
                .step_by(down.stride)
                .flat_map(move |row| columns.clone().map(move |column| [row, column]))
        };
        let seen = |[row, column]: [usize; 2]| down.met(row).1 * image.pitch + across.met(column).1;
        to.extend(phases.iter().flat_map(spots).map(|at| seen(at) as isize));
        let width = 2 * E::LANES;
        let place = |[row, column]: [usize; 2]| (row * self.to[1] + column) * width;
        to.extend(phases.iter().flat_map(spots).map(|at| place(at) as isize));
    }
}

impl<E: Engine> Run<'_, Transposed<'_>, E> {
    /// Computes groups of several planes, phase by phase.
    pub(super) fn run_phases(&self, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let (planes, width, image) = (&self.part, 2 * E::LANES, self.image::<E>());
        let band = self.most::<E>(&image).min(self.to[0]);
        let phases = self.phases(band);
        let to = scratch.right.zeroed::<E::Num>(image.room());
        self.list::<E>(&phases, &image, band, &mut scratch.steps);
        let of_group = self.planes[0] * self.planes[1] * self.window();
        let (mut filled, mut least_right) = (None, u16::MAX);
        for first in self.groups.clone().take(self.period) {
            let weights = self.elements(self.operands[1], first % self.period * of_group);
            for strip in strips(planes.len(), width) {
                let plane = planes.start + strip.start;
                let strip = plane..plane + strip.count;
                let least = self.pack(weights, &phases, &strip, scratch);
                for group in (first..self.groups.end).step_by(self.period) {
                    if filled.replace(group) != Some(group) {
                        // SAFETY: the room of the image.
                        least_right = unsafe { self.fill(&image, group, to) };
                    }
                    let tiny = may_be_subnormal(least, least_right);
                    let of = (group, &strip, tiny);
                    self.sum_all(of, &phases, (&image, band), scratch, sink);
                }
            }
        }
    }

    /// Computes all phases of a strip of planes, and passes on the sums. The image and the strip's
    /// packed weights are ready.
    fn sum_all(
        &self,
        (group, strip, tiny): (usize, &Range<usize>, bool),
        phases: &[Phase],
        (of, band): (&Image, usize),
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let packed = scratch.left.room::<E::Num>(self.packed::<E>()).cast_const();
        let image = scratch.right.room::<E::Num>(of.room()).cast_const();
        let (width, block) = (2 * E::LANES, CONTRACT_BLOCK / E::DEPTH);
        let (count, numbers) = (strip.len(), self.planes[0] / E::DEPTH);
        let all = band * self.to[1];
        let all_steps = seen_by(phases) * numbers;
        let inside = of.inside(image);
        for row in (0..self.to[0]).step_by(band) {
            let rows = row..self.to[0].min(row + band);
            let n = rows.len() * self.to[1];
            let sums = scratch.sums.room::<E::Num>(n * width + BEHIND);
            let down = self.moves[0];
            // Listed offsets are those of the first rows; these rows are further down.
            let image = inside.wrapping_add(row / down.stride * of.pitch);
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
            unsafe { transpose_sums::<E>((sums, width), [count, n], dense) };
            let first = group * self.planes[1];
            sink(first + strip.start..first + strip.end, rows, dense.cast_const().cast());
        }
    }
}

/// Positions of a window that any phase uses: not all, where the result is smaller than a stride.
fn seen_by(phases: &[Phase]) -> usize {
    phases.last().map_or(0, |last| last.before + last.positions)
}
