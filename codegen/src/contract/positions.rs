//! Contractions over positions, as those that the gradients of weights are: `k` goes over examples and over the places of windows, columns are channels and
//! positions in a window.
//!
//! Packing columns would look up whether each of their few neighbours is there in every step. Instead, what the windows of a channel see is copied to an
//! image, in which a column and a step are an offset each; the left operand is packed across its rows, so vectors go along rows. Each sum is the
//! chain that [`super::contract`] sums.
//!
//! Where bf16 are multiplied in pairs, each number of an image is joined with that of the next step, which is as many places on in all pairs; a channel
//! with a single column is packed instead, step after step.

use super::blocking::Cpu;
use super::channels::Channels;
use super::image::{Beside, Image, Places};
use super::micro::Engine;
use super::micro::spots::Spots;
use super::operand::{Operand, Scratch, Source};
use super::pack::{Elements, Lines, Wider, panels, room, strips};
use super::rooms::Rooms;
use super::span::may_be_subnormal;
use super::windows::{Axis, brought, place};
use super::{groups, with_engine};

use crate::machine::InstructionSet;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Rows that are summed together, at most.
const MOST_ROWS: usize = 128;
/// Examples whose images lie one behind the other have so many positions together, if there are as many.
const POSITIONS: usize = 1024;
/// The sums of so many columns and rows are moved at once.
const MOVED: usize = 64;

/// So many channels are brought together at a time.
const TOGETHER: usize = 16;

/// What takes the sums of some rows and columns: they lie row by row without gaps.
pub(super) type Hand<'a> = dyn FnMut(Range<usize>, Range<usize>, *const u8) + 'a;

/// A contraction over positions.
#[derive(Clone, Copy)]
pub(crate) struct Positions<'a> {
    pub(crate) cpu: &'a Cpu,
    /// f32 or f64.
    pub(crate) acc: DType,
    /// The left operand: a matrix, or seen without bounds.
    pub(crate) a: Source<'a>,
    /// The right operand, seen through windows.
    pub(crate) b: Source<'a>,
    pub(crate) channels: &'a Channels,
}

/// How the work of a thread is cut.
struct Cut {
    /// Rows that are summed together, and channels.
    rows: usize,
    channels: usize,
    /// Examples whose images are there at a time.
    examples: usize,
    /// Steps of a panel that stay in the first-level cache.
    steps: usize,
    /// From a column of the sums to the next.
    ld: usize,
}

impl Cut {
    /// For some rows and channels of steps so many for each example.
    fn of<E: Engine>(work: &Positions<'_>, [rows, channels]: [usize; 2], each: usize) -> Cut {
        let size = size_of::<E::Num>();
        let Channels { taps, examples, .. } = *work.channels;
        let caches = &work.cpu.caches;
        let rows = rows.div_ceil(rows.div_ceil(MOST_ROWS)).next_multiple_of(E::WIDTH).min(rows);
        let ld = rows.next_multiple_of(E::WIDTH);
        // Chains and sums stay in the second-level cache.
        let channels = (caches.l2 / 4 / (2 * taps * ld * size)).clamp(1, channels);
        // No pair is of two groups.
        let together = if each.is_multiple_of(E::DEPTH) { 1 } else { E::DEPTH };
        let some = (POSITIONS / each).max(1).next_multiple_of(together);
        let examples = some.min(examples);
        let steps = E::DEPTH * (caches.l1 / 2 / (E::WIDTH * size)).next_multiple_of(64);
        Cut { rows, channels, examples, steps, ld }
    }
}

impl Positions<'_> {
    /// Sums for some rows and channels. `k` is all of it.
    ///
    /// # Safety
    ///
    /// `cpu` must be this CPU. Operands must be readable for these rows and channels, and for all of `k`.
    pub(crate) unsafe fn run(
        &self,
        (rows, channels): (Range<usize>, Range<usize>),
        k: usize,
        scratch: &mut Scratch,
        hand: &mut Hand<'_>,
    ) {
        let counts = [rows.len(), channels.len()];
        if counts.contains(&0) {
            return;
        }
        let rooms = || self.rooms(counts, k);
        scratch.held_to(rooms, |scratch| {
            with_engine!(self.cpu, self.acc, self.in_pairs(), E => {
                // SAFETY: the caller's contract.
                unsafe { self.run_with::<E>((rows, channels), k, scratch, hand) }
            });
        });
    }

    /// What it takes for so many rows and channels.
    pub(crate) fn rooms(&self, counts: [usize; 2], k: usize) -> Rooms {
        with_engine!(self.cpu, self.acc, self.in_pairs(), E => self.rooms_with::<E>(counts, k))
    }

    /// True if the operands are multiplied in pairs.
    fn in_pairs(&self) -> bool {
        let all_bf16 = self.a.is_bf16() && self.b.is_bf16();
        let Channels { pair, is_whole, .. } = self.channels;
        self.cpu.pairs && all_bf16 && (pair.is_some() || *is_whole)
    }

    /// True if channels are packed: those of a single column, in pairs.
    fn are_packed<E: Engine>(&self) -> bool {
        E::DEPTH > 1 && self.channels.is_whole
    }

    fn rooms_with<E: Engine>(&self, counts: [usize; 2], k: usize) -> Rooms {
        let Channels { taps, examples, .. } = *self.channels;
        let each = k / examples;
        let cut = Cut::of::<E>(self, counts, each);
        let Some(image) = Image::of(&self.channels.group(cut.examples), None) else {
            return Rooms::default();
        };
        let (columns, steps) = (cut.channels * taps, cut.examples * each);
        let together = cut.channels.min(TOGETHER);
        let [of_images, of_line] = if self.is_read_in_place() {
            [0; 2]
        } else if self.are_packed::<E>() {
            [packed_line::<E>(steps).saturating_mul(cut.channels), brought(together, steps)]
        } else {
            [image.room().saturating_mul(cut.channels), image.line()]
        };
        let a = Operand { source: self.a, columns: false };
        let b = Operand { source: self.b, columns: true };
        let bytes = |numbers: usize| numbers.saturating_mul(size_of::<E::Num>());
        let block = CONTRACT_BLOCK.min(steps);
        let (of_left, listed) = match self.lines_of::<E>(0, each) {
            Some(_) => (0, [0; 2]),
            None => (a.filled(E::WIDTH, block), a.listed(E::WIDTH, block)),
        };
        let of_right = if self.are_packed::<E>() { b.listed(together, steps) } else { [0; 2] };
        let listed = [0, 1].map(|i| listed[i].max(of_right[i]));
        Rooms {
            left: bytes(room::<E>(cut.ld, E::WIDTH, steps)),
            right: bytes(of_images),
            filled: bytes(of_left.max(of_line).max(moved_room(columns))),
            chains: bytes(columns * cut.ld),
            sums: bytes(columns * cut.ld),
            listed,
            steps: steps.saturating_add(columns),
        }
    }

    /// # Safety
    ///
    /// As [`Positions::run`], and the CPU must be the engine's.
    unsafe fn run_with<E: Engine>(
        &self,
        (rows, channels): (Range<usize>, Range<usize>),
        k: usize,
        scratch: &mut Scratch,
        hand: &mut Hand<'_>,
    ) {
        let Channels { taps, examples, .. } = *self.channels;
        let each = k / examples;
        let cut = Cut::of::<E>(self, [rows.len(), channels.len()], each);
        // What steps and columns were listed for: examples and channels.
        let mut listed = [0; 2];
        for channels in groups(&channels, cut.channels) {
            for rows in groups(&rows, cut.rows) {
                for examples in groups(&(0..examples), cut.examples) {
                    let now = [examples.len(), channels.len()];
                    if now != std::mem::replace(&mut listed, now) {
                        self.list::<E>(now, each, scratch);
                    }
                    let part = Part { rows: rows.clone(), channels: channels.clone(), each, k };
                    // SAFETY: the caller's contract.
                    unsafe { self.sum::<E>(&part, examples, &cut, scratch) };
                }
                let columns = channels.start * taps..channels.end * taps;
                // SAFETY: the sums are there.
                unsafe { hand_on::<E>(rows, columns, cut.ld, scratch, hand) };
            }
        }
    }

    /// True if the right operand is read where it lies, without an image.
    fn is_read_in_place(&self) -> bool {
        let Elements { dtype, round, .. } = self.elements();
        self.channels.are_read_in_place(dtype, round, self.acc)
    }

    /// Lists where the numbers of steps of so many examples, of so many each, are in an image or the operand, and behind them where the columns of so many
    /// channels are.
    fn list<E: Engine>(
        &self,
        [examples, channels]: [usize; 2],
        each: usize,
        scratch: &mut Scratch,
    ) {
        let seen = self.channels.group(examples);
        if self.is_read_in_place() {
            scratch.steps.clear();
            let steps = (0..examples * each).map(|step| place(&seen.rows, step).offset);
            scratch.steps.extend(steps);
            let columns = (0..channels).map(|channel| channel as isize * self.channels.stride);
            scratch.steps.extend(columns);
            return;
        }
        if self.are_packed::<E>() {
            let numbers = (examples * each).div_ceil(E::DEPTH);
            let line = packed_line::<E>(examples * each);
            scratch.steps.clear();
            scratch.steps.extend(0..numbers as isize);
            scratch.steps.extend((0..channels).map(|channel| (channel * line) as isize));
            return;
        }
        let image = Image::of(&seen, None).expect("as the whole");
        image.offsets(examples * each, &mut scratch.steps);
        let mut step = 0;
        scratch.steps.retain(|_| {
            step += 1;
            (step - 1) % E::DEPTH == 0
        });
        for channel in 0..channels {
            let (near, firsts, [lines, across]) = image.lines_of_columns();
            for first in firsts {
                let of_line = |l| (0..across).map(move |c| first + l * near + c);
                let all = (0..lines).flat_map(of_line);
                scratch.steps.extend(all.map(|at| (channel * image.room() + at) as isize));
            }
        }
    }

    /// Goes on with the sums of a part by some examples.
    ///
    /// # Safety
    ///
    /// As [`Positions::run_with`].
    unsafe fn sum<E: Engine>(
        &self,
        part: &Part,
        examples: Range<usize>,
        cut: &Cut,
        scratch: &mut Scratch,
    ) {
        let Channels { stride, taps, next, .. } = *self.channels;
        let columns = part.channels.len() * taps;
        let steps = examples.start * part.each..examples.end * part.each;
        let first = examples.start as isize * next;
        let (right, least_right) = if self.is_read_in_place() {
            let first = first + part.channels.start as isize * stride;
            (self.elements().moved(first).base.cast(), u16::MAX)
        } else if self.are_packed::<E>() {
            // SAFETY: the caller's contract.
            unsafe { self.pack_channels::<E>(part, &steps, first, scratch) }
        } else {
            // SAFETY: the caller's contract.
            unsafe { self.fill::<E>(part, first, examples.len(), scratch) }
        };
        // SAFETY: the caller's contract.
        let (packed, least) = unsafe { self.pack::<E>(part, &steps, cut, scratch) };
        let tiny = may_be_subnormal(least, least_right);
        let chains = scratch.chains.room::<E::Num>(columns * cut.ld);
        let sums = scratch.sums.room::<E::Num>(columns * cut.ld);
        let numbers = steps.len().div_ceil(E::DEPTH);
        let (at, spots) = scratch.steps.split_at(numbers);
        let mut done = 0;
        while done < steps.len() {
            let now = steps.start + done;
            let left_of_block = CONTRACT_BLOCK - now % CONTRACT_BLOCK;
            let count = cut.steps.min(left_of_block).min(steps.len() - done);
            let ends = (now + count).is_multiple_of(CONTRACT_BLOCK) || now + count == part.k;
            let begins = now.is_multiple_of(CONTRACT_BLOCK);
            let widest = 2 * E::LANES;
            for panel in panels(part.rows.len(), E::WIDTH) {
                let first = panel.start * numbers + done / E::DEPTH * E::WIDTH;
                let base = packed.wrapping_add(first);
                for strip in strips(columns, E::SPOTS) {
                    let place = strip.start * cut.ld + panel.start;
                    for start in (0..panel.count).step_by(widest) {
                        let vectors = widest.min(panel.count - start).div_ceil(E::LANES);
                        let chain = chains.wrapping_add(place + start);
                        let spots = Spots {
                            image: right,
                            columns: &spots[strip.start..strip.start + strip.count],
                            at: &at[done / E::DEPTH..(done + count).div_ceil(E::DEPTH)],
                            rows: base.wrapping_add(start),
                            step: E::WIDTH,
                            from: if begins { std::ptr::null() } else { chain },
                            out: if ends { sums.wrapping_add(place + start) } else { chain },
                            ld: cut.ld,
                            add: ends && now >= CONTRACT_BLOCK,
                            tiny,
                        };
                        // SAFETY: operands are ready, chains and sums are there for all columns and whole vectors of rows.
                        unsafe { E::spots(strip.count, vectors, &spots) };
                    }
                }
            }
            done += count;
        }
    }

    /// Fills an image for each channel of a part, for so many examples from that element on. Returns what [`Engine::join`] does as well.
    ///
    /// # Safety
    ///
    /// As [`Positions::run_with`].
    unsafe fn fill<E: Engine>(
        &self,
        part: &Part,
        first: isize,
        examples: usize,
        scratch: &mut Scratch,
    ) -> (*const E::Num, u16) {
        let image = Image::of(&self.channels.group(examples), None).expect("as the whole");
        let room_of_one = image.room();
        let to = scratch.right.room::<E::Num>(room_of_one * part.channels.len());
        // SAFETY: the room of all images; all bits zero are the number zero.
        unsafe { to.write_bytes(0, room_of_one * part.channels.len()) };
        let line = scratch.filled.room::<E::Num>(image.line());
        let (elements, mut least) = (self.elements(), u16::MAX);
        for (i, channel) in part.channels.clone().enumerate() {
            let from = first + channel as isize * self.channels.stride;
            let own = to.wrapping_add(i * room_of_one);
            let places = Places { image: own, line, beside: Beside::ALONE };
            // SAFETY: the caller's contract, and the rooms of the image and of a line.
            unsafe { image.fill::<E>(elements.moved(from), places) };
            let apart = self.channels.pair.unwrap_or(1) as isize;
            // SAFETY: the room of the image, behind whose numbers are more than steps are apart, and a vector.
            least = least.min(unsafe { E::join(own, own, room_of_one, apart) });
        }
        (to.cast_const(), least)
    }

    /// Packs the channels of a part for these steps, whose example is the first from that element on. Returns what [`Engine::pack`] does as well.
    ///
    /// # Safety
    ///
    /// As [`Positions::run_with`].
    unsafe fn pack_channels<E: Engine>(
        &self,
        part: &Part,
        steps: &Range<usize>,
        first: isize,
        scratch: &mut Scratch,
    ) -> (*const E::Num, u16) {
        let room_of_one = packed_line::<E>(steps.len());
        let to = scratch.right.room::<E::Num>(room_of_one * part.channels.len());
        let (elements, operand) = (self.elements(), Operand { source: self.b, columns: true });
        let side_by_side = |axis: &Axis| axis.stride == 1 && axis.extent == part.each;
        let lies = part.each.is_multiple_of(E::DEPTH)
            && self.channels.seen.rows.last().is_some_and(side_by_side);
        let (mut least, examples) = (u16::MAX, steps.len() / part.each);
        for some in groups(&part.channels, TOGETHER) {
            let own =
                |channel: usize| to.wrapping_add((channel - part.channels.start) * room_of_one);
            if !lies {
                let (filled, runs) = (&mut scratch.filled, &mut scratch.runs);
                let (first, count) = (some.start, steps.len());
                // SAFETY: the caller's contract.
                let all =
                    unsafe { operand.lines::<E::Num>(some.clone(), steps.clone(), filled, runs) };
                for channel in some {
                    let line = Elements { base: all.from(channel - first, 0).base, ..elements };
                    // SAFETY: the steps that were brought together, and room for them.
                    least = least.min(unsafe { E::pack_line(&line, count, own(channel)) });
                }
                continue;
            }
            for (channel, nth) in some.flat_map(|c| (0..examples).map(move |nth| (c, nth))) {
                let from =
                    channel as isize * self.channels.stride + nth as isize * self.channels.next;
                let (line, own) = (elements.moved(first + from), own(channel));
                let own = own.wrapping_add(nth * part.each / E::DEPTH);
                // SAFETY: the steps of an example, and room for them.
                least = least.min(unsafe { E::pack_line(&line, part.each, own) });
            }
        }
        (to.cast_const(), least)
    }

    /// What the right operand is made of.
    fn elements(&self) -> Elements {
        let Source::Windows { base, dtype, round, .. } = self.b else {
            unreachable!("is seen through windows")
        };
        Elements { base, dtype, round }
    }

    /// The lines of the left operand in the first example from a row on, and from an example to the next in elements, if the steps of an example lie at
    /// one distance, and no number has those of two examples: others are brought together.
    fn lines_of<E: Engine>(&self, row: usize, each: usize) -> Option<(Lines, isize)> {
        let Source::Windows { base, dtype, round, seen } = self.a else { return None };
        let ([rows], [examples, steps]) = (&seen.rows[..], &seen.columns[..]) else { return None };
        let (across, along) = (rows.stride, steps.stride);
        let all = Lines { base, dtype, round, across, along };
        (steps.extent == each && each.is_multiple_of(E::DEPTH))
            .then(|| (all.from(row, 0), examples.stride))
    }

    /// Packs the left operand for the rows of a part and these steps: panels one behind the other. Returns what [`Engine::pack`] does as well.
    ///
    /// # Safety
    ///
    /// As [`Positions::run_with`].
    unsafe fn pack<E: Engine>(
        &self,
        part: &Part,
        steps: &Range<usize>,
        cut: &Cut,
        scratch: &mut Scratch,
    ) -> (*const E::Num, u16) {
        let (numbers, mut least) = (steps.len().div_ceil(E::DEPTH), u16::MAX);
        let to = scratch.left.room::<E::Num>(room::<E>(cut.ld, E::WIDTH, steps.len()));
        let operand = Operand { source: self.a, columns: false };
        for panel in panels(part.rows.len(), E::WIDTH) {
            let first = part.rows.start + panel.start;
            let lies = self.lines_of::<E>(first, part.each);
            let length = lies.map_or(CONTRACT_BLOCK, |_| part.each);
            for some in groups(steps, length) {
                let done = (some.start - steps.start) / E::DEPTH;
                let at = panel.start * numbers + done * E::WIDTH;
                let (rows, count) = (first..first + panel.count, some.len());
                let lines = match lies {
                    Some((lines, next)) => lines.moved((some.start / part.each) as isize * next),
                    None => {
                        let (filled, runs) = (&mut scratch.filled, &mut scratch.runs);
                        // SAFETY: the caller's contract.
                        unsafe { operand.lines::<E::Num>(rows, some, filled, runs) }
                    }
                };
                let to = to.wrapping_add(at);
                // SAFETY: the lines are readable, or brought together; the room is that of all panels.
                least = least.min(unsafe { E::pack(&lines, panel.count, count, to, E::WIDTH) });
            }
        }
        (to.cast_const(), least)
    }
}

/// What is summed together.
struct Part {
    rows: Range<usize>,
    channels: Range<usize>,
    /// Steps of an example, and all.
    each: usize,
    k: usize,
}

/// Numbers of a channel that is packed, for so many steps: channels share few cache sets.
fn packed_line<E: Engine>(steps: usize) -> usize {
    steps.div_ceil(E::DEPTH).next_multiple_of(E::LANES) + E::LANES
}

/// The numbers of rows of so many columns that are handed on together.
fn moved_room(columns: usize) -> usize {
    columns.saturating_mul(MOVED).saturating_add(MOVED)
}

/// Hands the sums on, row by row.
///
/// # Safety
///
/// They must be there.
unsafe fn hand_on<E: Engine>(
    rows: Range<usize>,
    columns: Range<usize>,
    ld: usize,
    scratch: &mut Scratch,
    hand: &mut Hand<'_>,
) {
    let sums = scratch.sums.room::<E::Num>(0).cast_const();
    let dense = scratch.filled.room::<E::Num>(moved_room(columns.len()));
    for some in groups(&rows, MOVED) {
        let base = sums.wrapping_add(some.start - rows.start).cast();
        let (across, along) = (ld as isize, 1);
        let lines = Lines { base, dtype: E::Num::DTYPE, round: None, across, along };
        // SAFETY: the sums of these rows, and room for them.
        unsafe { E::Singly::pack(&lines, columns.len(), some.len(), dense, columns.len()) };
        hand(some, columns.clone(), dense.cast_const().cast());
    }
}
