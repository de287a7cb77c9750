//! Weight gradient of a convolution: columns are taps of channels, `k` is examples and positions.
//!
//! Packing columns would check bounds for every tap of every step. Instead each channel is copied
//! to an image, in which a column and a step are one offset each. Vectors go along rows: the left
//! operand is packed. Each sum is the chain of [`super::Product`].
//!
//! For bf16 pairs, each element of an image is paired with that of the next step. If rows are even,
//! all pairs have one distance. Else some cross the end of a row or an example, and each distance
//! has a copy of the image. A channel of one column is packed instead, as pairs or widened.

use super::driver::{OnEngine, Run};
use super::groups;
use super::im2col::gathered_elements;
use super::image::Image;
use super::micro::Engine;
use super::micro::gemm::{MOST as SPOTS, Spots, outer};
use super::operand::{Operand, Scratch, Source};
use super::pack::{Lines, panels, room, strips, transpose_sums};
use super::schedule::{Chosen, Load, Schedule};
use super::sink::Sink;
use super::subnormal::may_be_subnormal;
use super::weight_grad_blocking::Cut;
use super::weight_grad_operand::{Ready, TOGETHER, Way, packed_line};
use super::weight_grad_part::{Part, Positions};
use super::weight_grad_right::{Channels, Stretch};
use super::workspace::Workspace;
use crate::machine::Cpu;
use smallvec::smallvec;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Rows of sums per call of the epilogue.
const MOVED: usize = 64;

impl OnEngine for Positions<'_> {
    fn on(&self) -> (Cpu, DType, bool) {
        (*self.cpu, self.acc, self.in_pairs())
    }

    fn ranges(&self) -> [&Range<usize>; 2] {
        [&self.rows, &self.part]
    }

    fn chosen_with<E: Engine>(&self) -> Chosen {
        let source = match self.way() {
            Way::InPlace => Load::InPlace,
            Way::Packed => Load::Packed,
            Way::Images => Load::Padded,
        };
        let Cut { rows, channels, examples, steps, strip, .. } = Cut::of::<E>(self);
        let split_k = self.split.as_ref().map_or(1, |split| split.threads);
        Chosen {
            swapped: self.is_traded,
            pairs: E::DEPTH == 2,
            tile: Some([rows.min(2 * E::LANES), strip]),
            blocks: smallvec![
                ("mc", rows),
                ("channels", channels),
                ("examples", examples),
                ("kc", steps),
            ],
            ..Chosen::new(Schedule::WeightGrad { source, split_k }, [self.a.load(false), source])
        }
    }

    fn workspace_with<E: Engine>(&self) -> Workspace {
        let (cut, taps, each) = (Cut::of::<E>(self), self.channels.taps, self.each());
        let [lines, line] = self.channels.lines();
        let most = Stretch::of(cut.examples, lines);
        let image = Image::of(&self.channels.seen_by(&most), None).expect("as the whole");
        let (columns, steps) = (cut.channels * taps, most.steps(each, line).len());
        let together = cut.channels.min(TOGETHER);
        let way = self.way();
        let [of_right, of_line] = match way {
            Way::InPlace => [0; 2],
            Way::Packed => {
                let line = gathered_elements(together, steps);
                [packed_line::<E>(steps).saturating_mul(cut.channels), line]
            }
            Way::Images => {
                [self.room_of_channel::<E>(&image).saturating_mul(cut.channels), image.line()]
            }
        };
        let a = Operand { source: self.a, columns: false };
        let b = Operand { source: self.b, columns: true };
        let block = cut.packed.min(steps);
        let (of_left, listed) = match self.lines_of::<E>(0, each) {
            Some(_) => (0, [0; 2]),
            None => (a.filled(E::WIDTH, block), a.listed(E::WIDTH, block)),
        };
        let packed = if way == Way::Packed { b.listed(together, steps) } else { [0; 2] };
        let listed = [0, 1].map(|i| listed[i].max(packed[i]));
        Workspace {
            left: room::<E>(E::WIDTH, E::WIDTH, cut.packed),
            right: of_right,
            filled: of_left.max(of_line).max(moved_room(columns)),
            chains: columns * cut.ld,
            sums: columns * cut.ld,
            listed,
            steps: steps.saturating_add(columns),
        }
    }

    fn run_with<E: Engine>(run: Run<'_, Self, E>, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        if let Some(split) = &run.split {
            return run.share(split, scratch, sink);
        }
        for batch in run.batches.clone() {
            let [left, right] = (run.at)(batch);
            let (a, b) = (run.a.moved(left), run.b.moved(right));
            let mut sink = |rows: Range<usize>, columns: Range<usize>, sums: *const u8| {
                let first = batch * run.m;
                sink(first + rows.start..first + rows.end, columns, sums);
            };
            let work = Positions { a, b, ..Positions::clone(&run) };
            // SAFETY: as for all batches.
            unsafe { Run::<_, E>::new(&work) }.run_batch(scratch, &mut sink);
        }
    }
}

impl Positions<'_> {
    /// True if bf16 are multiplied in pairs.
    pub(super) fn in_pairs(&self) -> bool {
        let all_bf16 = self.a.is_bf16() && self.b.is_bf16();
        let Channels { distances, is_whole, .. } = self.channels;
        self.cpu.pairs && all_bf16 && (distances.is_some() || *is_whole)
    }

    /// Lines of the left operand from a row on in the first example, and the stride between
    /// examples. `None` unless steps have one stride and no pair spans two examples.
    fn lines_of<E: Engine>(&self, row: usize, each: usize) -> Option<(Lines, isize)> {
        let Source::Windows { of, seen } = self.a else { return None };
        let ([rows], [examples, steps]) = (&seen.rows[..], &seen.columns[..]) else { return None };
        let all = of.lines(rows.stride, steps.stride);
        (steps.extent == each && each.is_multiple_of(E::DEPTH))
            .then(|| (all.from(row, 0), examples.stride))
    }
}

impl<E: Engine> Run<'_, Positions<'_>, E> {
    fn run_batch(&self, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let (cut, taps) = (Cut::of::<E>(self), self.channels.taps);
        let mut ready = None;
        for channels in groups(&self.part, cut.channels) {
            let columns = channels.start * taps..channels.end * taps;
            for rows in groups(&self.rows, cut.rows) {
                let part = Part { rows: rows.clone(), channels: channels.clone(), tiny: false };
                self.sum_all(part, 0..self.k, &cut, &mut ready, scratch);
                self.hand_on(rows, columns.clone(), cut.ld, scratch, sink);
            }
        }
    }

    /// Computes a part over some steps, whole blocks of `k`. Reuses `ready` where it fits.
    pub(super) fn sum_all(
        &self,
        mut part: Part,
        steps: Range<usize>,
        cut: &Cut,
        ready: &mut Option<Ready<E::Num>>,
        scratch: &mut Scratch,
    ) {
        let [_, line] = self.channels.lines();
        let mut left = steps;
        while !left.is_empty() {
            let stretch = cut.stretch(self.channels, &left, E::DEPTH, self.each());
            let all = stretch.steps(self.each(), line);
            let is_ready =
                |ready: &Ready<E::Num>| ready.stretch == stretch && ready.channels == part.channels;
            let before = ready.take();
            let is_listed = |ready: &Ready<E::Num>| {
                ready.stretch.examples.len() == stretch.examples.len()
                    && ready.stretch.lines == stretch.lines
                    && ready.channels.len() == part.channels.len()
            };
            if !before.as_ref().is_some_and(is_listed) {
                self.list::<E>(&stretch, part.channels.len(), all.len(), scratch);
            }
            let right = match before.filter(is_ready) {
                Some(right) => right,
                None => self.right(&part, stretch, scratch),
            };
            let now = left.start..left.end.min(all.end);
            left.start = now.end;
            self.sum(&mut part, (now, all), &right, cut, scratch);
            *ready = Some(right);
        }
    }

    /// Continues the sums of a part by `steps`, out of `all` for which the right operand is ready.
    fn sum(
        &self,
        part: &mut Part,
        (steps, all): (Range<usize>, Range<usize>),
        right: &Ready<E::Num>,
        cut: &Cut,
        scratch: &mut Scratch,
    ) {
        let columns = part.channels.len() * self.channels.taps;
        let chains = scratch.chains.room::<E::Num>(columns * cut.ld);
        let (all_sums, first_blocks) = self.sums(columns * cut.ld, scratch);
        let places: [isize; SPOTS] = std::array::from_fn(|i| (i * cut.ld) as isize);
        let mut now = steps.start;
        while now < steps.end {
            let whole = cut.packed.min(CONTRACT_BLOCK);
            let some = now..steps.end.min(now / whole * whole + cut.packed);
            // Within a block, chains continue those of earlier steps.
            part.tiny &= !now.is_multiple_of(CONTRACT_BLOCK);
            for panel in panels(part.rows.len(), E::WIDTH) {
                let width = panel.count.next_multiple_of(E::LANES);
                let first = part.rows.start + panel.start;
                let rows = first..first + panel.count;
                let (packed, least) = self.pack(rows, &some, (width, cut.packed), scratch);
                part.tiny |= may_be_subnormal(least, right.least);
                let (at, spots) = scratch.steps.split_at(all.len().div_ceil(E::DEPTH));
                let most = if width == E::LANES { E::SPOTS_ALONE } else { E::SPOTS };
                let mut from = now;
                while from < some.end {
                    let block = from / CONTRACT_BLOCK;
                    let end = some.end.min((block + 1) * CONTRACT_BLOCK);
                    let to = end.min(from + cut.steps);
                    let begins = from.is_multiple_of(CONTRACT_BLOCK);
                    let ends = to.is_multiple_of(CONTRACT_BLOCK) || to == self.k;
                    let apart = (block + 1).saturating_sub(first_blocks);
                    let sums = all_sums.wrapping_add(apart * columns * cut.ld);
                    let number = |step: usize| (step - all.start).div_ceil(E::DEPTH);
                    let base = packed.wrapping_add((from - now) / E::DEPTH * width);
                    for strip in strips(spots.len(), most) {
                        let place = strip.start * cut.ld + panel.start;
                        for start in (0..panel.count).step_by(2 * E::LANES) {
                            let vectors = (panel.count - start).div_ceil(E::LANES).min(2);
                            let chain = chains.wrapping_add(place + start);
                            let spots = Spots {
                                image: right.base,
                                columns: &spots[strip.start..strip.start + strip.count],
                                at: &at[number(from)..number(to)],
                                rows: base.wrapping_add(start),
                                step: width,
                                from: if begins { std::ptr::null() } else { chain },
                                out: if ends { sums.wrapping_add(place + start) } else { chain },
                                places: &places[..strip.count],
                                add: ends && block > 0 && apart == 0,
                                tiny: part.tiny,
                            };
                            // SAFETY: operands are ready; chains and sums hold whole vectors.
                            unsafe { outer::<E, _>([strip.count, vectors], &spots) };
                        }
                    }
                    from = to;
                }
            }
            now = some.end;
        }
    }

    /// Packs a panel of rows of the left operand for `steps`, `width` elements per step, at most
    /// `most` steps. Returns the panel, and what [`Engine::pack`] does.
    fn pack(
        &self,
        rows: Range<usize>,
        steps: &Range<usize>,
        (width, most): (usize, usize),
        scratch: &mut Scratch,
    ) -> (*const E::Num, u16) {
        let (mut least, count, each) = (u16::MAX, rows.len(), self.each());
        let to = scratch.left.room::<E::Num>(room::<E>(E::WIDTH, E::WIDTH, most));
        let Some((all, next)) = self.lines_of::<E>(rows.start, each) else {
            let operand = Operand { source: self.a, columns: false };
            let (filled, runs) = (&mut scratch.filled, &mut scratch.runs);
            // SAFETY: what `Run` promises.
            let lines = unsafe { operand.lines::<E>(rows, steps.clone(), filled, runs) };
            // SAFETY: the lines are readable or gathered; the room is that of a panel.
            let least = unsafe { E::pack(&lines, count, steps.len(), to, width) };
            return (to.cast_const(), least);
        };
        let mut now = steps.start;
        while now < steps.end {
            let (example, place) = (now / each, now % each);
            let some = (each - place).min(steps.end - now);
            let lines = all.moved(example as isize * next).from(0, place);
            let to = to.wrapping_add((now - steps.start) / E::DEPTH * width);
            // SAFETY: as above.
            least = least.min(unsafe { E::pack(&lines, count, some, to, width) });
            now += some;
        }
        (to.cast_const(), least)
    }

    /// Where `count` sums go, or those of threads are kept, and the blocks that are added up there.
    /// Each later block has its own sums behind.
    pub(super) fn sums(&self, count: usize, scratch: &mut Scratch) -> (*mut E::Num, usize) {
        match &self.split {
            Some(split) => (split.sums.cast(), split.first),
            None => (scratch.sums.room::<E::Num>(count), usize::MAX),
        }
    }

    /// Passes the sums to the epilogue, row by row of the result. Columns have stride `ld`.
    pub(super) fn hand_on(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        ld: usize,
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let (sums, _) = self.sums(columns.len() * ld, scratch);
        let sums = sums.cast_const();
        if self.is_traded {
            for (i, column) in columns.enumerate() {
                sink(column..column + 1, rows.clone(), sums.wrapping_add(i * ld).cast());
            }
            return;
        }
        let dense = scratch.filled.room::<E::Num>(moved_room(columns.len()));
        for some in groups(&rows, MOVED) {
            let own = sums.wrapping_add(some.start - rows.start);
            // SAFETY: the sums of these rows, and room for them.
            unsafe { transpose_sums::<E>((own, ld), [some.len(), columns.len()], dense) };
            sink(some, columns.clone(), dense.cast_const().cast());
        }
    }
}

/// Elements of the buffer that sums are transposed into.
fn moved_room(columns: usize) -> usize {
    columns.saturating_mul(MOVED).saturating_add(MOVED)
}
