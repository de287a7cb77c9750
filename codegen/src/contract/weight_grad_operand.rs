//! Right operand of a weight gradient for some channels and steps: in place, packed or padded.

use super::driver::Run;
use super::groups;
use super::im2col::{Axis, MOST_BOUNDS, Seen};
use super::image::{Beside, Image, Places};
use super::micro::Engine;
use super::operand::{Operand, Scratch};
use super::pack::{Elements, pack_line};
use super::weight_grad_part::{Part, Positions};
use super::weight_grad_right::Stretch;
use std::ops::Range;

/// Channels gathered per pass.
pub(super) const TOGETHER: usize = 16;

/// Where the kernel reads the right operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In place.
    InPlace,
    /// In packed channels of one column, as pairs or widened.
    Packed,
    /// In images (padded copies).
    Images,
}

impl Positions<'_> {
    /// Where the kernel reads the right operand.
    pub(super) fn way(&self) -> Way {
        let Elements { dtype, round, .. } = self.elements();
        if self.channels.are_read_in_place(dtype, round, self.acc) {
            Way::InPlace
        } else if self.channels.is_whole {
            Way::Packed
        } else {
            Way::Images
        }
    }

    /// Distances between the two steps of a pair.
    pub(super) fn distances(&self) -> &[isize] {
        self.channels.distances.as_deref().unwrap_or_default()
    }

    /// Elements of a channel's image and its paired copies.
    pub(super) fn room_of_channel<E: Engine>(&self, image: &Image) -> usize {
        let copies = if E::DEPTH > 1 { self.channels.copies } else { 0 };
        image.room().saturating_mul(1 + copies)
    }

    /// Lists the offsets of the steps of a `k`-range, then those of the columns of its channels.
    pub(super) fn list<E: Engine>(
        &self,
        stretch: &Stretch,
        channels: usize,
        steps: usize,
        scratch: &mut Scratch,
    ) {
        let seen = self.channels.seen_by(stretch);
        let way = self.way();
        if way == Way::InPlace {
            let columns =
                Axis { extent: channels, stride: self.channels.stride, bounded: [0; MOST_BOUNDS] };
            scratch.steps.clear();
            extend_by_offsets(seen.rows.iter(), &mut scratch.steps);
            extend_by_offsets([&columns].into_iter().chain(&seen.columns), &mut scratch.steps);
            return;
        }
        if way == Way::Packed {
            let line = packed_line::<E>(steps);
            scratch.steps.clear();
            scratch.steps.extend(0..steps.div_ceil(E::DEPTH) as isize);
            scratch.steps.extend((0..channels).map(|channel| (channel * line) as isize));
            return;
        }
        let image = Image::of(&seen, None).expect("as the whole");
        image.offsets(steps, &mut scratch.steps);
        if E::DEPTH > 1 {
            let room = if self.channels.copies > 0 { image.room() } else { 0 };
            Image::pair_up(&mut scratch.steps, self.distances(), room);
        }
        let room_of_one = self.room_of_channel::<E>(&image);
        for channel in 0..channels {
            image.each_line(|first, count| {
                let first = channel * room_of_one + first;
                scratch.steps.extend((first..first + count).map(|at| at as isize));
            });
        }
    }

    /// Elements of the right operand.
    pub(super) fn elements(&self) -> Elements {
        self.b.elements().expect("is seen through windows")
    }
}

impl<E: Engine> Run<'_, Positions<'_>, E> {
    /// Prepares the right operand for the channels of a part and a `k`-range.
    pub(super) fn right(
        &self,
        part: &Part,
        stretch: Stretch,
        scratch: &mut Scratch,
    ) -> Ready<E::Num> {
        let first = self.channels.first_of(&stretch);
        let of_part = first + part.channels.start as isize * self.channels.stride;
        let (base, least) = match self.way() {
            Way::InPlace => (self.elements().moved(of_part).base.cast(), u16::MAX),
            Way::Packed => self.pack_channels(part, &stretch, scratch),
            Way::Images => self.fill(part, first, &self.channels.seen_by(&stretch), scratch),
        };
        Ready { base, least, stretch, channels: part.channels.clone() }
    }

    /// Fills an image per channel of a part from element `first` on. Returns as [`Engine::join`].
    fn fill(
        &self,
        part: &Part,
        first: isize,
        seen: &Seen,
        scratch: &mut Scratch,
    ) -> (*const E::Num, u16) {
        let image = Image::of(seen, None).expect("as the whole");
        let (room_of_one, room) = (self.room_of_channel::<E>(&image), image.room());
        let to = scratch.right.room::<E::Num>(room_of_one * part.channels.len());
        let line = scratch.filled.room::<E::Num>(image.line());
        let (elements, mut least) = (self.elements(), u16::MAX);
        for (i, channel) in part.channels.clone().enumerate() {
            let from = first + channel as isize * self.channels.stride;
            let own = to.wrapping_add(i * room_of_one);
            // SAFETY: the room of an image; all bits zero are the number zero.
            unsafe { own.write_bytes(0, room) };
            let places = Places { image: own, line, beside: Beside::ALONE };
            // SAFETY: what `Run` promises; `own` holds the image, `line` a row of it.
            unsafe { image.fill::<E>(elements.moved(from), places) };
            let is_copied = self.channels.copies > 0;
            for (nth, apart) in self.distances().iter().enumerate() {
                let copy = if is_copied { own.wrapping_add((nth + 1) * room) } else { own };
                // SAFETY: both hold an image.
                least = least.min(unsafe { E::join(own, copy, room, *apart) });
            }
        }
        (to.cast_const(), least)
    }

    /// Packs the channels of a part for a `k`-range. Returns them and what [`Engine::pack`] does.
    fn pack_channels(
        &self,
        part: &Part,
        stretch: &Stretch,
        scratch: &mut Scratch,
    ) -> (*const E::Num, u16) {
        let [_, line] = self.channels.lines();
        let (steps, first) = (stretch.steps(self.each(), line), self.channels.first_of(stretch));
        let room_of_one = packed_line::<E>(steps.len());
        let to = scratch.right.room::<E::Num>(room_of_one * part.channels.len());
        let (elements, operand) = (self.elements(), Operand { source: self.b, columns: true });
        let (mut least, examples) = (u16::MAX, stretch.examples.len());
        let each = |channel: usize, nth: usize| {
            let from = channel as isize * self.channels.stride + nth as isize * self.channels.next;
            elements.moved(first + from)
        };
        let is_contiguous =
            self.channels.are_side_by_side() && self.each().is_multiple_of(E::DEPTH);
        for some in groups(&part.channels, TOGETHER) {
            let own =
                |channel: usize| to.wrapping_add((channel - part.channels.start) * room_of_one);
            if is_contiguous {
                let count = stretch.lines.len();
                for (channel, nth) in some.flat_map(|c| (0..examples).map(move |nth| (c, nth))) {
                    let own = own(channel).wrapping_add(nth * count / E::DEPTH);
                    // SAFETY: the steps of an example, and room for them.
                    least = least.min(unsafe { pack_line::<E>(each(channel, nth), count, own) });
                }
                continue;
            }
            let (filled, runs) = (&mut scratch.filled, &mut scratch.runs);
            let (first, count) = (some.start, steps.len());
            // SAFETY: what `Run` promises.
            let all = unsafe { operand.lines::<E>(some.clone(), steps.clone(), filled, runs) };
            for channel in some {
                let line = Elements { base: all.from(channel - first, 0).base, ..elements };
                // SAFETY: the gathered steps, and room for them.
                least = least.min(unsafe { pack_line::<E>(line, count, own(channel)) });
            }
        }
        (to.cast_const(), least)
    }
}

/// A right operand that is ready for some channels and steps. `least` is from [`Engine::pack`].
pub(super) struct Ready<T> {
    pub(super) base: *const T,
    pub(super) least: u16,
    pub(super) stretch: Stretch,
    pub(super) channels: Range<usize>,
}

/// Elements of a packed channel: its length keeps channels off each other's cache sets.
pub(super) fn packed_line<E: Engine>(steps: usize) -> usize {
    steps.div_ceil(E::DEPTH).next_multiple_of(E::LANES) + E::LANES
}

/// Appends the offset of each position along some axes, the last one innermost.
fn extend_by_offsets<'a>(axes: impl DoubleEndedIterator<Item = &'a Axis>, list: &mut Vec<isize>) {
    let first = list.len();
    list.push(0);
    for axis in axes.rev() {
        let within = list.len() - first;
        for at in 1..axis.extent {
            list.extend_from_within(first..first + within);
            let more = at as isize * axis.stride;
            list[first + at * within..].iter_mut().for_each(|place| *place += more);
        }
    }
}
