//! Depthwise convolutions that read channels in place, with AVX-512 or AVX2.
//!
//! A padded copy of the channel would cost more than these few products.

use super::driver::Run;
use super::image::{BEHIND, Image};
use super::implicit_gemm::Correlation;
use super::micro::avx2::Avx2F32;
use super::micro::depthwise::{MOST_PLANES, Planes, avx2, avx512};
use super::micro::{Engine, SHORT};
use super::operand::Scratch;
use super::pack::room;
use super::sink::{Sink, Stored};
use super::workspace::Workspace;
use crate::machine::InstructionSet;
use std::ops::Range;
use tracecast_ir::DType;

/// Elements of sums per call of the epilogue.
const TOGETHER: usize = 2048;

impl Correlation<'_> {
    /// True if channels are read in place.
    pub(super) fn is_depthwise(&self) -> bool {
        let (_, from) = self.seen();
        let is_alone = self.rows == 1 && self.beside.is_none();
        is_alone
            && self.image(None).is_depthwise(self.cpu, self.acc, (from.dtype, from.round), true)
    }

    /// Most channels per call of the kernel.
    pub(super) fn planes_together(&self, image: &Image) -> usize {
        let [_, each] = image.windows();
        if each <= SHORT { MOST_PLANES } else { MOST_PLANES / 2 }
    }

    /// True if stores can round to bf16. With AVX2 both operands must be bf16.
    pub(super) fn rounds(&self) -> bool {
        let all_bf16 = self.a.is_bf16() && self.b.is_bf16();
        self.cpu.instructions == InstructionSet::Avx512 || all_bf16
    }

    /// Workspace of [`Run::run_depthwise`].
    pub(super) fn workspace_depthwise(&self) -> Workspace {
        let image = &self.image(None);
        let [batches, windows] = [&self.batches, &self.windows].map(|range| range.len());
        let [all, each] = image.windows();
        let size = room::<Avx2F32>(1, 1, self.k);
        let sums = together(all, each, windows).saturating_mul(windows * each);
        Workspace {
            left: size.saturating_mul(self.period.min(batches)),
            filled: zeros(image)[0],
            chains: sums.saturating_mul(MOST_PLANES),
            ..Workspace::default()
        }
    }
}

impl<E: Engine> Run<'_, Correlation<'_>, E> {
    /// Computes the part without copies. The CPU has AVX-512 or AVX2.
    pub(super) fn run_depthwise(&self, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let ((_, from), image, at) = (self.seen(), self.image(None), self.at);
        let [batches, lines] = [&self.batches, &self.windows];
        let [down, across] = image.depthwise().expect("windows of a plane");
        let [all, each] = image.windows();
        let columns = lines.start * each..lines.end * each;
        let together = together(all, each, lines.len());
        let there = [down.places(), across.places()];
        let bytes = from.dtype.bytes() as isize;
        let [count, before] = zeros(&image);
        let zeros = scratch.filled.zeroed::<f32>(count).wrapping_add(before);
        let size = room::<Avx2F32>(1, 1, self.k);
        let packed = scratch.left.room::<f32>(size * self.period.min(batches.len()));
        // A negative dilation goes through rows from the last one on.
        let (line, step) = match down.dilation {
            1 => (lines.start, 1),
            _ => (lines.end - 1, -1),
        };
        let first = [down.first + (line * down.step) as isize, across.first];
        let stored = self.stored.filter(|to| match to.dtype {
            DType::F32 => true,
            DType::BF16 => self.rounds(),
            _ => false,
        });
        // Each of the batches `some` with `count - 1` more, a period apart.
        let run = |some: Range<usize>, count: usize, scratch: &mut Scratch, sink: &mut Sink<'_>| {
            let members = |batch: usize| {
                std::array::from_fn::<_, MOST_PLANES, _>(|i| {
                    batch + if i < count { i * self.period } else { 0 }
                })
            };
            let mut waiting = some.start..some.start;
            for batch in some.clone() {
                let i = batch - batches.start;
                let batches_of = members(batch);
                let [left, right] = at(batch);
                let mut begin = [right; MOST_PLANES];
                for (begin, batch) in begin.iter_mut().zip(&batches_of).take(count).skip(1) {
                    *begin = at(*batch)[1];
                }
                let weights = packed.wrapping_add(i % self.period * size);
                if i < self.period {
                    // SAFETY: the left operand is readable; `weights` has room for a window.
                    unsafe { self.pack::<Avx2F32>(left, 0..1, 1, weights, scratch) };
                }
                let (sums, dtype) = match stored {
                    Some(Stored { first, ld, dtype }) => {
                        let place = |batch: usize| {
                            first.wrapping_add((batch * ld + columns.start) * dtype.bytes())
                        };
                        (batches_of.map(place), dtype)
                    }
                    None => {
                        let all = together * columns.len();
                        let dense = scratch.chains.room::<f32>(MOST_PLANES * all);
                        let first = dense.wrapping_add(waiting.len() * columns.len());
                        let place =
                            |i: usize| first.wrapping_add(if i < count { i * all } else { 0 });
                        (std::array::from_fn(|i| place(i).cast()), DType::F32)
                    }
                };
                let to_line = each * dtype.bytes();
                let planes = Planes {
                    count,
                    bases: begin.map(|at| from.moved(at + image.origin).base),
                    row: down.stride * bytes,
                    there: there.clone(),
                    zeros: zeros.cast_const().cast(),
                    first,
                    dilation: [down.dilation, across.dilation],
                    counts: [lines.len(), each],
                    // SAFETY: they are ready.
                    weights: unsafe { std::slice::from_raw_parts(weights, self.k) },
                    sums: sums.map(|to| to.wrapping_add((line - lines.start) * to_line)),
                    line: step * to_line as isize,
                    rounds: dtype == DType::BF16,
                };
                let is_bf16 = from.dtype == DType::BF16;
                match self.cpu.instructions {
                    // SAFETY: what [`Run`] says, and the room for sums.
                    InstructionSet::Avx512 => unsafe {
                        avx512::sum(&planes, [across.taps, across.step], is_bf16)
                    },
                    // SAFETY: as above.
                    _ => unsafe { avx2::sum(&planes, across.step, is_bf16) },
                }
                waiting.end = batch + 1;
                let is_full = waiting.len() == together || waiting.end == some.end;
                if is_full && stored.is_none() {
                    let dense = scratch.chains.room::<f32>(0).cast_const();
                    for (i, first) in members(waiting.start).into_iter().enumerate().take(count) {
                        let dense = dense.wrapping_add(i * together * columns.len()).cast();
                        sink(first..first + waiting.len(), columns.clone(), dense);
                    }
                    waiting.start = waiting.end;
                }
            }
        };
        // Batches a period apart share their weights and are computed together.
        let most = self.planes_together(&image);
        for first in batches.clone().step_by(most * self.period) {
            let end = batches.end.min(first + most * self.period);
            let (whole, rest) = ((end - first) / self.period, (end - first) % self.period);
            run(first..first + rest, whole + 1, scratch, sink);
            if whole > 0 {
                run(first + rest..first + self.period, whole, scratch, sink);
            }
        }
    }
}

/// Zeros that stand for a row of padding, with what vectors read past it; and how many of them are
/// before place zero, where an axis without bounds begins.
fn zeros(image: &Image) -> [usize; 2] {
    let places = image.depthwise().map_or(0..0, |[_, across]| across.places());
    let before = places.start.min(0).unsigned_abs();
    let row = places.end.max(0) as usize;
    [before + image.place_by_place().line().max(row + BEHIND), before]
}

/// Batches per call of the epilogue: only sums of all windows are contiguous across batches.
fn together(all: usize, each: usize, lines: usize) -> usize {
    if lines < all { 1 } else { (TOGETHER / (lines * each)).max(1) }
}
