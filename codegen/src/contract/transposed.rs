//! [`Transposed`]: some groups and planes of transposed convolutions. Groups of one plane are
//! computed line by line, others by sub-pixel phases.

use super::driver::{OnEngine, Run};
use super::image::Image;
use super::micro::Engine;
use super::operand::Scratch;
use super::pack::{Elements, pack_rows};
use super::schedule::Chosen;
use super::sink::Sink;
use super::workspace::Workspace;
use crate::machine::Cpu;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::Moves;

/// Some groups and planes of transposed convolutions.
pub(crate) struct Transposed<'a> {
    pub(crate) cpu: &'a Cpu,
    /// Dtype of the elements.
    pub(crate) dtype: DType,
    /// Groups after which weights repeat.
    pub(crate) period: usize,
    /// Planes of a group of the input, and of the result.
    pub(crate) planes: [usize; 2],
    /// Rows and columns of a plane of the input, and of the result.
    pub(crate) from: [usize; 2],
    pub(crate) to: [usize; 2],
    /// How windows move: at stride 2 along columns, if groups have one plane.
    pub(crate) moves: [Moves; 2],
    /// The input of the first group, and the weight.
    pub(crate) operands: [*const u8; 2],
    /// The result of groups of one plane: an engine may store their sums.
    pub(crate) sums: *mut u8,
    /// The groups to compute, and the planes of the result in each.
    pub(crate) groups: Range<usize>,
    pub(crate) part: Range<usize>,
}

impl Transposed<'_> {
    /// True if groups have one plane.
    fn is_depthwise(&self) -> bool {
        self.planes == [1, 1]
    }

    pub(super) fn acc(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// True if bf16 are multiplied in pairs: of two planes.
    pub(super) fn in_pairs(&self) -> bool {
        self.cpu.pairs && self.dtype == DType::BF16 && self.planes[0].is_multiple_of(2)
    }

    /// Taps of a window.
    pub(super) fn window(&self) -> usize {
        self.moves[0].positions.saturating_mul(self.moves[1].positions)
    }

    /// The image of a group, in pairs of planes if the engine's numbers are pairs.
    pub(super) fn image<E: Engine>(&self) -> Image {
        let image = Image::of_transposed(self.planes[0], self.from, self.to, self.moves);
        if E::DEPTH == 2 { image.in_pairs() } else { image }
    }

    /// Elements of an operand from `at` on.
    pub(super) fn elements(&self, base: *const u8, at: usize) -> Elements {
        Elements { base, dtype: self.dtype, round: None }.moved(at as isize)
    }
}

impl<E: Engine> Run<'_, Transposed<'_>, E> {
    /// Copies a group to its image at `to`. Returns what [`Engine::pack`] does.
    ///
    /// # Safety
    ///
    /// `to` must be writable for [`Image::room`].
    pub(super) unsafe fn fill(&self, image: &Image, group: usize, to: *mut E::Num) -> u16 {
        let ([planes, _], [rows, columns]) = (self.planes, self.from);
        let from = self.elements(self.operands[0], group * planes * rows * columns);
        let (inside, mut least) = (image.inside(to).cast_mut(), u16::MAX);
        for plane in (0..planes).step_by(E::DEPTH) {
            let lines = from.moved((plane * rows * columns) as isize).lines(1, columns as isize);
            let to = inside.wrapping_add(plane / E::DEPTH * image.plane());
            least = least.min(match E::DEPTH {
                // SAFETY: the caller's contract; the operand is readable.
                1 => unsafe { E::pack(&lines, columns, rows, to, image.pitch) },
                _ => {
                    let (second, sizes) = (rows * columns, [columns, rows, image.pitch]);
                    // SAFETY: as above.
                    unsafe { pack_rows::<E>(&lines, second as isize, sizes, to) }
                }
            });
        }
        least
    }
}

impl OnEngine for Transposed<'_> {
    fn on(&self) -> (Cpu, DType, bool) {
        let cpu = if self.is_depthwise() { self.cpu_for_lines() } else { *self.cpu };
        (cpu, self.acc(), self.in_pairs())
    }

    fn ranges(&self) -> [&Range<usize>; 2] {
        [&self.groups, &self.part]
    }

    fn workspace_with<E: Engine>(&self) -> Workspace {
        if self.is_depthwise() { self.workspace_lines::<E>() } else { self.workspace_phases::<E>() }
    }

    fn chosen_with<E: Engine>(&self) -> Chosen {
        if self.is_depthwise() { self.chosen_lines::<E>() } else { self.chosen_phases::<E>() }
    }

    fn run_with<E: Engine>(run: Run<'_, Self, E>, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        if run.to.contains(&0) {
            return;
        }
        if run.is_depthwise() {
            run.run_lines(scratch, sink)
        } else {
            run.run_phases(scratch, sink)
        }
    }
}
