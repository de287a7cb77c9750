//! Transposed convolutions of several planes on one thread, as [`Phases`] defines them. Elements of the result that are a stride apart, a *phase*, see the same positions
//! of a window, and the operand's elements one beside the other.
//!
//! Vectors go across planes of the result, and the number of a column is read from an image of the operand with zeros around it, which all phases share. Sums of all
//! phases lie in the order of the result, and are turned before they are handed on.

use super::blocking::Cpu;
use super::correlate::{MOVED, move_line};
use super::micro::spots::Spots;
use super::micro::{Engine, Number};
use super::operand::Scratch;
use super::pack::{Elements, Lines, Matrices, strips, turn_sums};
use super::prefetch::{LINE, ask};
use super::rooms::Rooms;
use super::span::may_be_subnormal;
use super::transposed::Framed;
use super::with_engine;
use crate::machine::InstructionSet;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::Moves;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Packing writes up to so many numbers behind its own; see [`Engine::pack`].
const BEHIND: usize = 64;

/// Rows of fewer numbers are packed with all of their plane before they go to their places.
const SHORT: usize = 16;

/// Weights are asked for so many planes ahead.
const AHEAD: usize = 4;

/// Transposed convolutions of groups of planes.
#[derive(Clone, Copy)]
pub(crate) struct Phases<'a> {
    pub(crate) cpu: &'a Cpu,
    /// Of the elements.
    pub(crate) dtype: DType,
    /// After how many groups weights come again.
    pub(crate) period: usize,
    /// Planes of a group of the operand, and of the result.
    pub(crate) planes: [usize; 2],
    /// Rows and columns of a plane of the operand, and of the result.
    pub(crate) from: [usize; 2],
    pub(crate) to: [usize; 2],
    /// How windows move.
    pub(crate) moves: [Moves; 2],
}

/// What takes the sums of some planes of the result, counted through all groups, and of some rows: plane by plane without gaps.
pub(crate) type Hand<'a> = dyn FnMut(Range<usize>, Range<usize>, *const u8) + 'a;

/// Elements of the result that see the same positions of a window.
struct Phase {
    /// The first of their rows and columns.
    first: [usize; 2],
    /// How many steps a sum of theirs has, in packed numbers, and how many those of the phases before have.
    numbers: usize,
    before: usize,
}

impl Phases<'_> {
    fn acc(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// True if bf16 are multiplied in pairs: of two planes.
    fn in_pairs(&self) -> bool {
        self.cpu.pairs && self.dtype == DType::BF16 && self.planes[0].is_multiple_of(2)
    }

    /// How many planes are gone through at a time.
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

    /// Numbers of an image.
    fn image<E: Engine>(&self) -> usize {
        let framed = self.framed();
        (self.planes[0] / E::DEPTH)
            .saturating_sub(1)
            .saturating_mul(framed.plane())
            .saturating_add(framed.room())
    }

    /// True if packing weights for all groups takes longer than making images of them: threads share planes of the result.
    pub(crate) fn by_planes(&self, all_groups: usize) -> bool {
        let image = self.planes[0] * self.from[0] * self.from[1];
        self.planes[0] * self.planes[1] * self.window() * self.period > all_groups * image
    }

    /// Planes of the result that are summed together.
    pub(crate) fn unit(&self) -> usize {
        with_engine!(self.cpu, self.acc(), self.in_pairs(), E => 2 * <E as Engine>::LANES)
    }

    /// The most rows of the result whose sums and image stay in the second-level cache: whole strides of them.
    fn most<E: Engine>(&self) -> usize {
        let [down, _] = self.moves;
        let each = self.image::<E>() / self.to[0].max(1) + 2 * E::LANES * self.to[1];
        let rows = self.cpu.caches.l2 / 2 / (each * size_of::<E::Num>()).max(1);
        (rows / down.stride * down.stride).max(down.stride)
    }

    /// What it takes.
    pub(crate) fn rooms(&self) -> Rooms {
        with_engine!(self.cpu, self.acc(), self.in_pairs(), E => self.rooms_with::<E>())
    }

    fn rooms_with<E: Engine>(&self) -> Rooms {
        let bytes = |numbers: usize| numbers.saturating_mul(size_of::<E::Num>());
        let [height, width] = self.to;
        let rows = self.most::<E>().min(height);
        let sums = rows.saturating_mul(width).saturating_mul(2 * E::LANES);
        Rooms {
            left: bytes(self.packed::<E>()),
            right: bytes(self.image::<E>()),
            filled: bytes(self.turned::<E>()),
            sums: bytes(sums.saturating_add(BEHIND)),
            chains: bytes(sums.saturating_add(BEHIND)),
            steps: self.numbers::<E>().saturating_add(width),
            ..Rooms::default()
        }
    }

    /// Numbers of the packed weights of a strip.
    fn packed<E: Engine>(&self) -> usize {
        self.numbers::<E>().saturating_mul(2 * E::LANES).saturating_add(BEHIND)
    }

    /// Numbers of the windows of a strip, or of a plane of the operand.
    fn turned<E: Engine>(&self) -> usize {
        let windows = self.window().saturating_mul(2 * E::LANES);
        windows.max(self.from[0].saturating_mul(self.from[1])).saturating_add(BEHIND)
    }

    /// The phases there are.
    fn phases<E: Engine>(&self) -> SmallVec<[Phase; 4]> {
        let [down, across] = self.moves;
        let mut all: SmallVec<[Phase; 4]> = smallvec![];
        let mut before = 0;
        for row in 0..down.stride.min(self.to[0]) {
            for column in 0..across.stride.min(self.to[1]) {
                let ((.., rows), (.., columns)) = (down.met(row), across.met(column));
                let numbers = self.planes[0] * rows * columns / E::DEPTH;
                all.push(Phase { first: [row, column], numbers, before });
                before += numbers;
            }
        }
        all
    }

    /// Sums for some groups and planes of the result in each.
    ///
    /// # Safety
    ///
    /// `cpu` must be this CPU. Operands, whose first elements are those, must be readable for these groups.
    pub(crate) unsafe fn run(
        &self,
        [x, weight]: [*const u8; 2],
        (groups, planes): (Range<usize>, Range<usize>),
        scratch: &mut Scratch,
        hand: &mut Hand<'_>,
    ) {
        let counts = [groups.len(), planes.len()];
        if counts.contains(&0) || self.to.contains(&0) {
            return;
        }
        scratch.held_to(
            || self.rooms(),
            |scratch| {
                with_engine!(self.cpu, self.acc(), self.in_pairs(), E => {
                    // SAFETY: the caller's contract.
                    unsafe { self.run_with::<E>([x, weight], (groups, planes), scratch, hand) }
                });
            },
        );
    }

    /// # Safety
    ///
    /// As [`Phases::run`], and the CPU must be the engine's.
    unsafe fn run_with<E: Engine>(
        &self,
        [x, weight]: [*const u8; 2],
        (all_groups, planes): (Range<usize>, Range<usize>),
        scratch: &mut Scratch,
        hand: &mut Hand<'_>,
    ) {
        let (phases, width) = (self.phases::<E>(), 2 * E::LANES);
        let framed = self.framed();
        let packed = scratch.left.room::<E::Num>(self.packed::<E>());
        let image = scratch.right.room::<E::Num>(self.image::<E>());
        let turned = scratch.filled.room::<E::Num>(self.turned::<E>());
        // SAFETY: the room of the image; all bits zero are the number zero.
        unsafe { image.write_bytes(0, self.image::<E>()) };
        self.list::<E>(&phases, &framed, &mut scratch.steps);
        let of_group = self.planes[0] * self.planes[1] * self.window();
        let (mut filled, mut least_right) = (None, u16::MAX);
        for first in all_groups.clone().take(self.period) {
            let weights = self.elements(weight, first % self.period * of_group);
            for strip in strips(planes.len(), width) {
                let plane = planes.start + strip.start;
                let strip = plane..plane + strip.count;
                // SAFETY: the caller's contract; there is room for the weights of a strip.
                let least =
                    unsafe { self.pack::<E>(weights, &phases, strip.clone(), turned, packed) };
                for group in (first..all_groups.end).step_by(self.period) {
                    if filled != Some(group) {
                        let of_group = self.planes[0] * self.from[0] * self.from[1];
                        let from = self.elements(x, group * of_group);
                        // SAFETY: the caller's contract, and the room of the image.
                        least_right = unsafe { self.fill::<E>(from, &framed, [turned, image]) };
                        filled = Some(group);
                    }
                    let tiny = may_be_subnormal(least, least_right);
                    for row in (0..self.to[0]).step_by(self.most::<E>()) {
                        let rows = row..self.to[0].min(row + self.most::<E>());
                        let n = rows.len() * self.to[1];
                        let sums = scratch.sums.room::<E::Num>(n * width + BEHIND);
                        let dense = scratch.chains.room::<E::Num>(n * width + BEHIND);
                        let part = Part { rows: rows.clone(), count: strip.len(), tiny };
                        for phase in &phases {
                            let places = [image.cast_const(), packed.cast_const()];
                            // SAFETY: operands are ready, and the sums have room.
                            unsafe { self.sum::<E>(phase, &part, places, &scratch.steps, sums) };
                        }
                        // SAFETY: the sums of these planes, and room for them.
                        unsafe { turn_sums::<E>((sums, width), [strip.len(), n], dense) };
                        let first = group * self.planes[1];
                        let planes = first + strip.start..first + strip.end;
                        hand(planes, rows, dense.cast_const().cast());
                    }
                }
            }
        }
    }

    /// Elements of an operand, from so many on.
    fn elements(&self, base: *const u8, at: usize) -> Elements {
        Elements { base, dtype: self.dtype, round: None }.moved(at as isize)
    }

    /// Lists where the steps of each phase are in the image from where the first position of a window is.
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
    }

    /// Packs the weights of a group for a strip of planes of the result, phase by phase. Returns what [`Engine::pack`] does.
    ///
    /// The windows of a strip lie side by side for each plane of the operand: they are turned together, and then go to their phases.
    ///
    /// # Safety
    ///
    /// They must be readable, and the room be that of [`Phases::packed`].
    unsafe fn pack<E: Engine>(
        &self,
        weights: Elements,
        phases: &[Phase],
        strip: Range<usize>,
        turned: *mut E::Num,
        to: *mut E::Num,
    ) -> u16 {
        let [down, across] = self.moves;
        let (window, together) = (self.window(), self.together() / E::DEPTH);
        let (of_plane, count) = (self.planes[1] * window, strip.len());
        let windows = weights.moved((strip.start * window) as isize);
        let of_strip = count * window * self.dtype.bytes();
        let mut least = u16::MAX;
        for plane in (0..self.planes[0]).step_by(E::DEPTH) {
            let from = windows.moved((plane * of_plane) as isize);
            for later in AHEAD..AHEAD + E::DEPTH {
                let first = from.moved((later * of_plane) as isize).base;
                (0..of_strip).step_by(LINE).for_each(|at| ask(first.wrapping_add(at)));
            }
            // SAFETY: the caller's contract: the windows of a strip.
            least = least.min(unsafe { turn::<E>(&from, window, of_plane, count, turned) });
            let number = plane / E::DEPTH;
            for phase in phases {
                let [(above, _, rows), (left, _, columns)] =
                    [down.met(phase.first[0]), across.met(phase.first[1])];
                // Numbers of planes that are gone through together alternate.
                let before = number / together * together * rows * columns + number % together;
                let own = to.wrapping_add((phase.before + before) * count);
                for i in 0..rows {
                    for j in 0..columns {
                        let position = (above + i * down.stride) * across.positions;
                        let position = position + left + j * across.stride;
                        let from = turned.wrapping_add(position * count).cast_const();
                        let own = own.wrapping_add((i * columns + j) * together * count);
                        // SAFETY: numbers of a strip, and their place.
                        unsafe { move_row(from, own, count) };
                    }
                }
            }
        }
        least
    }

    /// Copies the planes of a group to their places in an image. Returns what [`Engine::pack`] does, if numbers are pairs.
    ///
    /// # Safety
    ///
    /// They must be readable, and the image be writable, as must be the room of [`Phases::turned`].
    unsafe fn fill<E: Engine>(
        &self,
        from: Elements,
        framed: &Framed,
        [line, image]: [*mut E::Num; 2],
    ) -> u16 {
        let ([rows, columns], mut least) = (self.from, u16::MAX);
        let plane = rows * columns;
        let Elements { dtype, round, .. } = from;
        for first in (0..self.planes[0]).step_by(E::DEPTH) {
            let to =
                framed.inside(image).cast_mut().wrapping_add(first / E::DEPTH * framed.plane());
            if E::DEPTH == 1 && columns > 1 {
                let base = from.moved((first * plane) as isize).base;
                let lines = Lines { base, dtype, round, across: 1, along: columns as isize };
                // SAFETY: the caller's contract. What is written behind a row is zero, or comes later.
                unsafe { E::pack(&lines, columns, rows, to, framed.pitch) };
                continue;
            }
            if columns < SHORT {
                let base = from.moved((first * plane) as isize).base;
                let lines = Lines { base, dtype, round, across: 1, along: plane as isize };
                // SAFETY: the caller's contract, and the room of a plane.
                least = least.min(unsafe { E::pack(&lines, plane, E::DEPTH, line, plane) });
                // SAFETY: the numbers of a plane, and their places.
                unsafe { place_rows(line, to, self.from, framed.pitch) };
                continue;
            }
            for row in 0..rows {
                let base = from.moved((first * plane + row * columns) as isize).base;
                let to = to.wrapping_add(row * framed.pitch);
                let (across, along) = (1, plane as isize);
                let lines = Lines { base, dtype, round, across, along };
                // SAFETY: the caller's contract. What is written behind a row is zero, or comes later.
                least = least.min(unsafe { E::pack(&lines, columns, E::DEPTH, to, columns) });
            }
        }
        least
    }

    /// Sums a phase for some planes and rows of the result, whose packed weights are those behind the image.
    ///
    /// # Safety
    ///
    /// As [`Phases::run_with`]; operands must be ready, and sums have room for two vectors for each element of these rows.
    unsafe fn sum<E: Engine>(
        &self,
        phase: &Phase,
        part: &Part,
        [image, weights]: [*const E::Num; 2],
        steps: &[isize],
        sums: *mut E::Num,
    ) {
        let Part { rows, count, tiny } = part;
        let ([down, across], width) = (self.moves, 2 * E::LANES);
        let inside = self.framed().inside(image);
        let vectors = count.div_ceil(E::LANES);
        let columns = (self.to[1] - phase.first[1]).div_ceil(across.stride);
        let beside = across.met(phase.first[1]).1;
        let mut rest = &steps[phase.before..phase.before + phase.numbers];
        let mut begins = true;
        // A sum without steps is zero.
        while begins || !rest.is_empty() {
            let (block, behind) = rest.split_at(rest.len().min(CONTRACT_BLOCK / E::DEPTH));
            let before = phase.before + phase.numbers - rest.len();
            let packed = weights.wrapping_add(before * count);
            for row in (rows.start + phase.first[0]..rows.end).step_by(down.stride) {
                let line = inside.wrapping_add(down.met(row).1 * self.framed().pitch + beside);
                let first = (row - rows.start) * self.to[1] + phase.first[1];
                for some in strips(columns, E::SPOTS) {
                    let columns: SmallVec<[isize; 16]> =
                        (some.start..some.start + some.count).map(|i| i as isize).collect();
                    let spots = Spots {
                        image: line,
                        columns: &columns,
                        at: block,
                        rows: packed,
                        step: *count,
                        from: std::ptr::null(),
                        out: sums.wrapping_add((first + some.start * across.stride) * width),
                        ld: across.stride * width,
                        add: !begins,
                        tiny: *tiny,
                    };
                    // SAFETY: the caller's contract.
                    unsafe { E::spots(some.count, vectors, &spots) };
                }
            }
            (rest, begins) = (behind, false);
        }
    }
}

/// Turns windows, which lie one behind another in each plane, to a row for each position. Returns what [`Engine::pack`] does.
///
/// # Safety
///
/// The CPU must be the engine's. So many windows must be readable, of all planes of a number, and `to` writable for their numbers and [`BEHIND`] more.
#[inline(always)]
unsafe fn turn<E: Engine>(
    from: &Elements,
    window: usize,
    plane: usize,
    count: usize,
    to: *mut E::Num,
) -> u16 {
    let Elements { base, dtype, round } = *from;
    if E::DEPTH == 1 {
        let lines = Lines { base, dtype, round, across: window as isize, along: 1 };
        // SAFETY: the caller's contract.
        return unsafe { E::pack(&lines, count, window, to, count) };
    }
    let matrices = Matrices { next: 0, second: plane as isize, columns: window };
    let steps = 0..E::DEPTH * window;
    // SAFETY: the caller's contract.
    let found = unsafe { E::pack_crossed(from, window as isize, matrices, steps, count, to) };
    found.expect("an engine of pairs packs bf16 so")
}

/// Copies the rows of a plane to where they are `pitch` numbers apart, with zeros between them.
///
/// # Safety
///
/// All must be readable, with [`MOVED`] behind them, and `to` writable.
#[inline(always)]
unsafe fn place_rows<T: Number>(
    from: *const T,
    to: *mut T,
    [rows, columns]: [usize; 2],
    pitch: usize,
) {
    for row in 0..rows {
        let (from, to) = (from.wrapping_add(row * columns), to.wrapping_add(row * pitch));
        // What is moved beyond a row is written again, if it is not behind the last one.
        if (rows - 1 - row) * pitch + columns < columns.next_multiple_of(MOVED) {
            // SAFETY: the caller's contract.
            unsafe { std::ptr::copy_nonoverlapping(from, to, columns) };
        } else {
            // SAFETY: as above.
            unsafe { move_line(from, to, columns) };
        }
        for i in columns..if row + 1 < rows { pitch } else { columns } {
            // SAFETY: between this row and the next one.
            unsafe { to.wrapping_add(i).write(T::ZERO) };
        }
    }
}

/// Copies so many numbers.
///
/// # Safety
///
/// They must be readable, and `to` writable for them.
#[inline(always)]
unsafe fn move_row<T: Number>(from: *const T, to: *mut T, count: usize) {
    if count.is_multiple_of(MOVED) {
        // SAFETY: the caller's contract: no number beyond these is moved.
        unsafe { move_line(from, to, count) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
    }
}

/// What is summed together.
struct Part {
    /// Rows of the result.
    rows: Range<usize>,
    /// Planes of the result.
    count: usize,
    /// Sums may be subnormal.
    tiny: bool,
}
