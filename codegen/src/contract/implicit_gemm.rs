//! Convolutions as implicit GEMM: every step of `k` reads its columns from an image (padded copy).
//!
//! Used for few rows or few steps, where packing would take longer than the product. Batches have
//! one shape. Their image is filled anew, its zero border once. Left operands that repeat after a
//! period are packed once.

use super::driver::{OnEngine, Run};
use super::groups;
use super::im2col::Seen;
use super::image::{Beside, Image, Places};
use super::macrokernel::tile;
use super::micro::Engine;
use super::micro::gemm::{Sums, Taps, outer};
use super::operand::{Operand, Scratch, Source};
use super::pack::{Elements, MOVED, Wider, move_line, room, strips};
use super::schedule::Chosen;
use super::sink::{Sink, Stored};
use super::subnormal::may_be_subnormal;
use super::workspace::Workspace;
use crate::machine::Cpu;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Elements that packing may write past its end; see [`Engine::pack`].
pub(super) const BEHIND: usize = 16;
/// Elements of sums per call of the epilogue.
const TOGETHER: usize = 8192;
/// Steps of `k` per pass: what they read of an image stays in L1 for all rows.
pub(super) const PIECE: usize = 192;

/// Some batches and windows of convolutions of one shape.
pub(crate) struct Correlation<'a> {
    pub(crate) cpu: &'a Cpu,
    /// Accumulator: f32 or f64.
    pub(crate) acc: DType,
    /// The batches to compute, and the windows along the first axis.
    pub(crate) batches: Range<usize>,
    pub(crate) windows: Range<usize>,
    /// Rows of each batch, and steps of `k`: at least one.
    pub(crate) rows: usize,
    pub(crate) k: usize,
    /// Left operand of the first batch: a matrix, or a view without bounds.
    pub(crate) a: Source<'a>,
    /// Right operand of the first batch: a view that [`Image::of`] accepts.
    pub(crate) b: Source<'a>,
    /// Offsets of a batch's operands from those of the first one, in elements.
    pub(crate) at: &'a dyn Fn(usize) -> [isize; 2],
    /// Batches after which left operands repeat.
    pub(crate) period: usize,
    /// Strides of batches, if vectors go across batches.
    pub(crate) beside: Option<SideBySide>,
    /// First and end of the rows to compute, if vectors go across rows: whole pairs of vectors.
    /// With bf16 pairs, an element of the image pairs two channels.
    pub(crate) across: Option<[usize; 2]>,
    /// True if bf16 are multiplied in pairs: several rows, a CPU with them, [`Image::interleaved`].
    pub(crate) pairs: bool,
    /// Destination of sums that need no epilogue.
    pub(crate) stored: Option<Stored>,
}

/// Loop nests that compute the sums.
pub(super) enum Loops {
    /// Over channels that are read in place.
    #[cfg(target_arch = "x86_64")]
    InPlace,
    /// Vectors across batches of few columns,
    Few(SideBySide),
    /// or of many.
    Lines(SideBySide),
    /// Vectors across rows, in bands of windows.
    Across,
    /// Vectors along columns, in bands of windows.
    Columns,
}

/// Batches of one row each at an even stride. Rows of the left operand are those of the batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideBySide {
    /// Batches per group with this stride. Groups begin at multiples of it.
    pub(crate) count: usize,
    /// Stride of the right operand between batches, in elements.
    pub(crate) stride: isize,
    /// True if batches have few columns and more steps.
    pub(crate) few: bool,
}

impl SideBySide {
    /// The batches of a vector from one on, up to an end: those of its group that fit the lanes.
    pub(super) fn vector(&self, batch: usize, end: usize, lanes: usize) -> Beside {
        let rest = self.count - batch % self.count;
        Beside { count: rest.min(end - batch).min(lanes), stride: self.stride, width: lanes }
    }
}

/// Operands of a batch that are ready.
#[derive(Clone, Copy)]
pub(super) struct Ready<T> {
    /// The left one. `step` is its stride along `k`, or `None` if packed in strips.
    pub(super) left: *const T,
    pub(super) step: Option<isize>,
    pub(super) image: *const T,
    /// Sums may be subnormal.
    pub(super) tiny: bool,
}

/// A band of windows, and the layout of its sums.
pub(super) struct Band {
    pub(super) image: Image,
    pub(super) columns: Range<usize>,
    /// Vectors of columns.
    vectors: usize,
    /// Row stride of the sums.
    ld: usize,
    /// Batches per call of the epilogue.
    together: usize,
}

impl Band {
    /// Elements that gather `rows` rows of sums per batch. Zero if rows are dense already.
    fn gathered(&self, rows: usize) -> usize {
        if self.together == 1 && self.image.is_dense() {
            return 0;
        }
        self.together.saturating_mul(rows).saturating_mul(self.columns.len()).saturating_add(MOVED)
    }
}

impl OnEngine for Correlation<'_> {
    fn on(&self) -> (Cpu, DType, bool) {
        (*self.cpu, self.acc, self.pairs)
    }

    fn ranges(&self) -> [&Range<usize>; 2] {
        [&self.batches, &self.windows]
    }

    fn workspace_with<E: Engine>(&self) -> Workspace {
        match self.loops() {
            #[cfg(target_arch = "x86_64")]
            Loops::InPlace => self.workspace_depthwise(),
            Loops::Few(_) => self.workspace_beside::<E>(),
            Loops::Lines(side) => self.workspace_lines::<E>(side),
            Loops::Across | Loops::Columns => self.workspace_bands::<E>(),
        }
    }

    fn chosen_with<E: Engine>(&self) -> Chosen {
        self.choose::<E>()
    }

    fn run_with<E: Engine>(run: Run<'_, Self, E>, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        match run.loops() {
            #[cfg(target_arch = "x86_64")]
            Loops::InPlace => run.run_depthwise(scratch, sink),
            Loops::Few(side) => run.run_beside(side, scratch, sink),
            Loops::Lines(side) => run.run_lines(side, scratch, sink),
            Loops::Across | Loops::Columns => run.run_bands(scratch, sink),
        }
    }
}

impl Correlation<'_> {
    /// The loop nest that computes the sums.
    pub(super) fn loops(&self) -> Loops {
        #[cfg(target_arch = "x86_64")]
        if self.is_depthwise() {
            return Loops::InPlace;
        }
        match (self.beside, self.across) {
            (Some(side), _) if side.few => Loops::Few(side),
            (Some(side), _) => Loops::Lines(side),
            (None, Some(_)) => Loops::Across,
            (None, None) => Loops::Columns,
        }
    }

    /// Workspace of [`Run::run_bands`].
    fn workspace_bands<E: Engine>(&self) -> Workspace {
        let (whole, m, k) = (self.image(None), self.own_rows().len(), self.k);
        let band = self.band::<E>(&whole, 0..self.windows.len().min(self.most::<E>(&whole)));
        let columns = band.columns.len();
        let left = match self.in_place::<E>() {
            Some(_) => 0,
            None => room::<E>(m, 1, k).saturating_mul(self.period.min(self.batches.len())),
        };
        let a = Operand { source: self.a, columns: false };
        let block = k.min(CONTRACT_BLOCK);
        let (filled, listed) =
            if m == 1 { (0, [0; 2]) } else { (a.filled(m, block), a.listed(m, block)) };
        let (right, chains, sums, steps) = match self.across {
            Some(_) => {
                let sums = columns.saturating_mul(2 * E::LANES);
                let steps = k.saturating_add(columns);
                (band.image.most_room(), sums.saturating_add(BEHIND), sums, steps)
            }
            None => (band.image.room(), band.gathered(m), self.room_of_sums::<E>(&band), k),
        };
        let filled = filled.max(band.image.line());
        Workspace { left, right, filled, chains, sums, listed, steps }
    }

    /// View and elements of the right operand.
    pub(super) fn seen(&self) -> (&Seen, Elements) {
        let Source::Windows { of, seen } = self.b else { unreachable!("is seen through windows") };
        (seen, of)
    }

    /// The image of all windows, or of a band of them, without pairs.
    pub(super) fn image(&self, band: Option<Range<usize>>) -> Image {
        Image::of(self.seen().0, band).expect("windows of a convolution")
    }

    /// The image as the loops read it: in pairs if bf16 are, and with positions in order where
    /// vectors go across rows.
    pub(super) fn laid_out(&self, image: &Image) -> Image {
        match (self.across, self.pairs) {
            (Some(_), true) => image.place_by_place().in_pairs(),
            (Some(_), false) => image.place_by_place(),
            (None, true) => image.clone().interleaved().expect("planes form pairs"),
            (None, false) => image.clone(),
        }
    }

    /// Rows to compute of each batch.
    pub(super) fn own_rows(&self) -> Range<usize> {
        self.across.map_or(0..self.rows, |[first, end]| first..end)
    }

    /// Most windows along the first axis whose image and sums fit in half of L2.
    pub(super) fn most<E: Engine>(&self, whole: &Image) -> usize {
        let [all, each] = whole.windows();
        let rows = self.across.map_or(self.rows, |_| 2 * E::LANES);
        let numbers = self.laid_out(whole).room() / all + rows * each;
        let cache = self.cpu.caches.l2 / 2;
        (cache / (numbers * size_of::<E::Num>()).max(1)).clamp(1, all)
    }

    /// The band of some windows, given the image of all.
    fn band<E: Engine>(&self, whole: &Image, windows: Range<usize>) -> Band {
        let [all, each] = whole.windows();
        let columns = windows.start * each..windows.end * each;
        let batch = (self.rows * columns.len()).max(1);
        let together = if windows.len() == all { (TOGETHER / batch).max(1) } else { 1 };
        let image = self.laid_out(&self.image(Some(windows)));
        let vectors = image.span().div_ceil(E::LANES);
        Band { image, vectors, ld: vectors * E::LANES, together, columns }
    }

    /// Vectors of columns in a register tile.
    pub(super) fn widest<E: Engine>(&self) -> usize {
        tile::<E>(self.rows)[1] / E::LANES
    }

    /// Elements of a band's sums. Behind them are chains that continue in the next piece of `k`.
    fn room_of_sums<E: Engine>(&self, band: &Band) -> usize {
        self.rows * (band.ld + self.widest::<E>() * E::LANES) + MOVED
    }

    /// Left operand of the first batch and its stride along `k`, if read in place.
    pub(super) fn in_place<E: Engine>(&self) -> Option<(*const E::Num, isize)> {
        let Source::Matrix { of: Elements { base, dtype, round: None }, col, .. } = self.a else {
            return None;
        };
        (self.rows == 1 && dtype == E::Num::DTYPE).then(|| (base.cast(), col))
    }

    /// The destination, if sums are stored unrounded.
    pub(super) fn stored_as_they_are(&self) -> Option<Stored> {
        self.stored.filter(|stored| stored.dtype == self.acc)
    }

    /// Passes the gathered sums to the epilogue.
    fn hand_on<E: Engine>(
        &self,
        band: &Band,
        waiting: &mut Range<usize>,
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        if waiting.start < waiting.end {
            let dense = scratch.chains.room::<E::Num>(0).cast_const().cast();
            let (first, rows) = (waiting.start * self.rows, waiting.len() * self.rows);
            sink(first..first + rows, band.columns.clone(), dense);
        }
        *waiting = waiting.end..waiting.end;
    }
}

impl<E: Engine> Run<'_, Correlation<'_>, E> {
    /// Fills an image from the right operand `right` elements on. Returns what [`Engine::pack`]
    /// does.
    ///
    /// # Safety
    ///
    /// `to` must hold the image of all operands beside each other.
    pub(super) unsafe fn fill(
        &self,
        image: &Image,
        right: isize,
        (to, beside): (*mut E::Num, Beside),
        scratch: &mut Scratch,
    ) -> u16 {
        let room = if beside.width == 1 { image.line() } else { image.lines_beside(beside.width) };
        let places = Places { image: to, line: scratch.filled.room::<E::Num>(room), beside };
        // SAFETY: the operand is readable; there is room for lines.
        unsafe { image.fill::<E>(self.seen().1.moved(right), places) }
    }

    /// Computes the batches in bands of windows. Left operands are packed in the first band.
    fn run_bands(&self, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let (whole, rows, batches) = (self.image(None), self.own_rows(), self.batches.clone());
        let slots = self.period.min(batches.len());
        let size = room::<E>(rows.len(), 1, self.k);
        let strip = self.across.map_or(E::ROWS, |_| 2 * E::LANES);
        let (mut listed, mut least) = (None, u16::MAX);
        for (nth, windows) in groups(&self.windows, self.most::<E>(&whole)).enumerate() {
            let band = self.band::<E>(&whole, windows.clone());
            let image = scratch.right.zeroed::<E::Num>(band.image.room());
            let layout = Some((band.image.layout(), band.columns.len()));
            if std::mem::replace(&mut listed, layout) != layout {
                self.list(windows, &band.image, &mut scratch.steps);
            }
            let mut waiting = batches.start..batches.start;
            for (i, batch) in batches.clone().enumerate() {
                let [left, right] = (self.at)(batch);
                let (left, step) = match self.in_place::<E>() {
                    Some((base, step)) => (base.wrapping_offset(left), Some(step)),
                    None => {
                        let packed = scratch.left.room::<E::Num>(size.saturating_mul(slots));
                        let to = packed.wrapping_add(i % self.period * size);
                        if nth == 0 && i < slots {
                            let rows = rows.clone();
                            // SAFETY: what `Run` promises; `to` has room for one left operand.
                            least = least
                                .min(unsafe { self.pack::<E>(left, rows, strip, to, scratch) });
                        }
                        (to.cast_const(), None)
                    }
                };
                let to = (image, Beside::ALONE);
                // SAFETY: `image` holds the band's image.
                let least_right = unsafe { self.fill(&band.image, right, to, scratch) };
                let tiny = may_be_subnormal(least, least_right);
                let of = Ready { left, step, image: image.cast_const(), tiny };
                if self.across.is_some() {
                    self.sum_across(of, batch, &band, scratch, sink);
                } else {
                    self.sum_columns(of, batch, &band, &mut waiting, scratch, sink);
                }
            }
            self.hand_on::<E>(&band, &mut waiting, scratch, sink);
        }
    }

    /// Lists the offsets of steps in the image of a band, and those of its windows if vectors go
    /// across rows.
    fn list(&self, windows: Range<usize>, image: &Image, to: &mut Vec<isize>) {
        image.offsets(self.k.div_ceil(image.depth()), to);
        if self.across.is_some() {
            image.each_window(&self.image(Some(windows)), |at| to.push(at as isize));
        }
    }

    /// Computes a batch by the columns of a band, with vectors along them. Stores the sums or
    /// passes them on.
    fn sum_columns(
        &self,
        of: Ready<E::Num>,
        batch: usize,
        band: &Band,
        waiting: &mut Range<usize>,
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let sums = scratch.sums.room::<E::Num>(self.room_of_sums::<E>(band));
        if let Some(to) = self.stored.filter(|_| self.is_direct::<E>(&band.image)) {
            return self.store_lines(batch, band, to, of, (&scratch.steps, sums));
        }
        self.sum(of, band, &scratch.steps, sums);
        self.finish(batch, band, waiting, scratch, sink);
    }

    /// Computes all rows of a batch by the columns of a band. Sums have room for its rows and
    /// chains.
    fn sum(&self, of: Ready<E::Num>, band: &Band, offsets: &[isize], sums: *mut E::Num) {
        let widest = self.widest::<E>();
        let chains = sums.wrapping_add(self.rows * band.ld + MOVED);
        let tile = widest * E::LANES;
        let of_block = CONTRACT_BLOCK / E::DEPTH;
        for (i, block) in offsets.chunks(of_block).enumerate() {
            let before = i * of_block;
            for vector in (0..band.vectors).step_by(widest) {
                let column = vector * E::LANES;
                let b = of.image.wrapping_add(column);
                let vectors = widest.min(band.vectors - vector);
                for (j, at) in block.chunks(PIECE).enumerate() {
                    let first = j * PIECE;
                    let [begins, ends] = [first == 0, first + at.len() == block.len()];
                    for part in strips(self.rows, E::ROWS) {
                        let (a, step) = match of.step {
                            Some(step) => {
                                let number = (before + first) as isize * step;
                                (of.left.wrapping_offset(number), step)
                            }
                            None => {
                                let strip = before * self.rows + part.start * block.len();
                                let number = strip + first * part.count;
                                (of.left.wrapping_add(number), part.count as isize)
                            }
                        };
                        let chain = chains.wrapping_add(part.start * tile);
                        let sum = sums.wrapping_add(part.start * band.ld + column);
                        let (out, ld) = if ends { (sum, band.ld) } else { (chain, tile) };
                        let from = if begins { std::ptr::null() } else { chain.cast_const() };
                        let add = ends && before > 0;
                        let (from_ld, rounded, tiny) = (tile, false, of.tiny);
                        let sums = Sums { from, from_ld, out, ld, add, rounded, tiny };
                        let taps = Taps { a, step, b, at, sums };
                        // SAFETY: the operands are ready, and the sums have room.
                        unsafe { outer::<E, _>([part.count, vectors], &taps) };
                    }
                }
            }
        }
    }

    /// Passes a batch's sums to the epilogue, or gathers them with those of the next batches.
    fn finish(
        &self,
        batch: usize,
        band: &Band,
        waiting: &mut Range<usize>,
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let (m, n) = (self.rows, band.columns.len());
        let sums = scratch.sums.room::<E::Num>(0);
        if band.gathered(m) == 0 {
            for row in 0..m {
                let line = sums.wrapping_add(row * band.ld).cast_const().cast();
                let row = batch * m + row;
                sink(row..row + 1, band.columns.clone(), line);
            }
            return;
        }
        // Gathered sums have room behind them; what follows a band may be another thread's.
        let stored = self.stored_as_they_are();
        let (first, ld, slack) = match stored {
            Some(Stored { first, ld, .. }) => {
                let place = batch * m * ld + band.columns.start;
                (first.cast::<E::Num>().wrapping_add(place), ld, 0)
            }
            None => {
                let dense = scratch.chains.room::<E::Num>(band.gathered(m));
                (dense.wrapping_add(waiting.len() * m * n), n, MOVED)
            }
        };
        for row in 0..m {
            let (line, mut to) = (sums.wrapping_add(row * band.ld), first.wrapping_add(row * ld));
            let mut left = n + slack;
            band.image.each_line(|first, count| {
                let from = line.wrapping_add(first);
                if count.next_multiple_of(MOVED) <= left {
                    // SAFETY: sums and place of a row; what is past it is overwritten, or slack.
                    unsafe { move_line(from, to, count) };
                } else {
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
                }
                to = to.wrapping_add(count);
                left -= count;
            });
        }
        waiting.end = batch + 1;
        if stored.is_some() {
            waiting.start = waiting.end;
        } else if waiting.len() == band.together {
            self.hand_on::<E>(band, waiting, scratch, sink);
        }
    }
}
