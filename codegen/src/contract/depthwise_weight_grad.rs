//! Depthwise weight gradient: vectors go along windows of a row, channels are read in place.
//!
//! A window of a row is a batch with one row; each row of windows is a step of `k`. A *line of
//! batches* is all windows of a row. Channels that the engine cannot read are packed.

use super::driver::{OnEngine, Run};
use super::im2col::{Axis, MOST_BOUNDS, Seen};
use super::image::Image;
use super::micro::sweep::{Strip, Sweep, TAPS, sweep};
use super::micro::{Elementwise, Engine, Number};
use super::operand::{Scratch, Source};
use super::pack::{Elements, Wider};
use super::schedule::{Chosen, Layout, Load, Pass, Schedule};
use super::sink::Sink;
use super::workspace::Workspace;
use crate::machine::Cpu;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Columns: the taps of a window.
const COLUMNS: usize = TAPS * TAPS;

/// Elements that packing may write past its end.
const BEHIND: usize = 8;

/// The fewest steps that AVX2 packs as squares.
const SQUARE: usize = 8;

/// View of operands whose first batch axis is the windows of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinesOfWindows {
    /// View of the right operand through the windows of a channel.
    seen: Seen,
    /// Rows of windows in a channel, and windows per row.
    counts: [usize; 2],
    /// Elements in the shorter of both operands' rows.
    shortest: usize,
    /// Planes along `k`, and their strides in both operands, in elements.
    planes: usize,
    next: [isize; 2],
    /// Row stride of the left operand.
    along: isize,
    /// Strides within a row of both operands.
    apart: [isize; 2],
}

impl LinesOfWindows {
    /// Describes the operands of the first batch. Windows of a row are the axis `across` of the
    /// right one, and have stride `apart` in the left one. `None` for other views.
    pub(crate) fn of(
        left: &Source<'_>,
        right: &Seen,
        k: usize,
        (across, apart): (Axis, isize),
    ) -> Option<LinesOfWindows> {
        let left: SmallVec<[Axis; 4]> = match left {
            Source::Matrix { col, .. } => {
                smallvec![Axis { extent: k, stride: *col, ..Axis::default() }]
            }
            Source::Windows { seen, .. } => seen.columns.clone(),
            Source::Fill { .. } | Source::Packed { .. } => return None,
        };
        let (planes, next, down) = match right.rows[..] {
            [down] => (1, 0, down),
            [planes, down] if planes.bounded == [0; MOST_BOUNDS] => {
                (planes.extent, planes.stride, down)
            }
            _ => return None,
        };
        let (along, next_left) = match left[..] {
            [all] if all.extent == planes * down.extent => {
                (all.stride, all.stride * down.extent as isize)
            }
            [all, lines] if [all.extent, lines.extent] == [planes, down.extent] => {
                (lines.stride, all.stride)
            }
            _ => return None,
        };
        let seen = Seen::new(&right.columns, &[down, across], right.bounds);
        let image = Image::of(&seen, None)?;
        let [high, wide] = image.of_plane()?;
        let counts = [high.count, wide.count];
        let is_whole = counts == [down.extent, across.extent] && wide.taps == TAPS;
        let shortest = wide.count.min(wide.places().len());
        let is_forward = [high.dilation, wide.dilation] == [1; 2];
        (is_whole && shortest > 0 && is_forward).then_some(LinesOfWindows {
            seen,
            counts,
            shortest,
            planes,
            next: [next_left, next],
            along,
            apart: [apart, wide.stride],
        })
    }
}

/// Some lines of batches of depthwise weight gradients.
pub(crate) struct OverLines<'a> {
    pub(crate) cpu: &'a Cpu,
    /// Accumulator: f32 or f64.
    pub(crate) acc: DType,
    /// Operands of the first batch: a matrix or a view without bounds, and a view through windows.
    pub(crate) a: Source<'a>,
    pub(crate) b: Source<'a>,
    pub(crate) lines: &'a LinesOfWindows,
    /// Offsets of a line's operands from those of the first one, in elements.
    pub(crate) at: &'a dyn Fn(usize) -> [isize; 2],
    /// The lines of batches to compute, and the number of all.
    pub(crate) part: Range<usize>,
    pub(crate) count: usize,
}

impl OverLines<'_> {
    fn operands(&self) -> [Elements; 2] {
        [self.a, self.b].map(|source| source.elements().expect("operands are in memory"))
    }

    /// True if planes are read in place: contiguous rows, in one dtype that the engine reads.
    fn is_read_in_place<E: Engine>(&self) -> bool {
        let [a, b] = self.operands();
        let is_same = a.dtype == b.dtype && [a.round, b.round] == [None; 2];
        is_same && self.lines.apart == [1; 2] && E::Singly::sweeps(a.dtype, self.lines.shortest)
    }
}

impl OnEngine for OverLines<'_> {
    fn on(&self) -> (Cpu, DType, bool) {
        (*self.cpu, self.acc, false)
    }

    fn ranges(&self) -> [&Range<usize>; 2] {
        [&self.part; 2]
    }

    fn chosen_with<E: Engine>(&self) -> Chosen {
        let (layout, load) = match self.is_read_in_place::<E>() {
            true => (Layout::InPlace, Load::InPlace),
            false => (Layout::Packed, Load::Packed),
        };
        let schedule = Schedule::Depthwise(Pass::WeightGrad, layout);
        Chosen { tile: Some([E::LANES, COLUMNS]), ..Chosen::new(schedule, [load; 2]) }
    }

    fn workspace_with<E: Engine>(&self) -> Workspace {
        let ([lines, windows], count) = (self.lines.counts, self.part.len());
        let image = Image::of(&self.lines.seen, None).expect("as it was");
        let [down, across] = image.of_plane().expect("as it was").map(|along| along.places());
        let plane = |rows: usize, columns: usize| match self.is_read_in_place::<E>() {
            true => 0,
            false => rows.saturating_mul(columns).saturating_add(BEHIND),
        };
        let sums = COLUMNS.saturating_mul(windows.next_multiple_of(E::LANES));
        Workspace {
            left: plane(lines, windows),
            right: plane(down.len(), across.len()),
            filled: windows.max(SQUARE).saturating_mul(COLUMNS * count + BEHIND),
            chains: sums,
            sums,
            ..Workspace::default()
        }
    }

    fn run_with<E: Engine>(run: Run<'_, Self, E>, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let LinesOfWindows {
            ref seen, counts: [lines, windows], planes, next, along, apart, ..
        } = *run.lines;
        let image = Image::of(seen, None).expect("as it was");
        let [down, across] = image.of_plane().expect("as it was");
        let there = [down.places(), across.places()];
        let operands = run.operands();
        let is_read = run.is_read_in_place::<E>();
        let dtype = if is_read { operands[0].dtype } else { <E::Num as Wider>::DTYPE };
        let bytes = dtype.bytes() as isize;
        let ld = windows.next_multiple_of(E::LANES);
        let strips = Strip::all(across.first, &there[1], [windows, across.step, E::LANES]);
        let sums = scratch.sums.room::<E::Num>(COLUMNS * ld);
        let chains = scratch.chains.room::<E::Num>(COLUMNS * ld);
        let next_window = COLUMNS * run.part.len() + BEHIND;
        let packed = ld.min(windows.max(SQUARE));
        let all = scratch.filled.room::<E::Num>(packed * next_window);
        for line in run.part.clone() {
            let first = (run.at)(line);
            // SAFETY: within the room.
            unsafe { chains.write_bytes(0, COLUMNS * ld) };
            for plane in 0..planes {
                let [a, b] = [0, 1].map(|i| operands[i].moved(first[i] + plane as isize * next[i]));
                let b = b.moved(image.origin);
                // Addresses of the first line and of position zero, and row strides in bytes.
                let ((from, line), (base, row)) = if is_read {
                    ((a.base, along * bytes), (b.base, down.stride * bytes))
                } else {
                    let a = a.lines(apart[0], along);
                    let b = b.lines(apart[1], down.stride);
                    let [y, x] = [&there[0], &there[1]].map(|there| there.start);
                    let b = b.moved(y * down.stride + x * apart[1]);
                    let sizes = [there[0].len(), there[1].len()];
                    let to = scratch.right.room::<E::Num>(sizes[0] * sizes[1] + BEHIND);
                    // SAFETY: the rows that are there, and room for them.
                    unsafe { E::Singly::pack(&b, sizes[1], sizes[0], to, sizes[1]) };
                    let row = sizes[1] as isize * bytes;
                    let base = to.cast::<u8>().wrapping_offset(-(y * row + x * bytes));
                    let to = scratch.left.room::<E::Num>(lines * windows + BEHIND);
                    // SAFETY: the lines, and room for them.
                    unsafe { E::Singly::pack(&a, windows, lines, to, windows) };
                    ((to.cast_const().cast(), windows as isize * bytes), (base.cast_const(), row))
                };
                let steps = plane * lines..(plane + 1) * lines;
                let mut now = steps.start;
                while now < steps.end {
                    let end = steps.end.min((now / CONTRACT_BLOCK + 1) * CONTRACT_BLOCK);
                    let done = (now - steps.start) as isize;
                    let of = Sweep {
                        plane: base,
                        row,
                        there: there[0].clone(),
                        first: down.first + done * down.step as isize,
                        line: from.wrapping_offset(done * line),
                        down: line,
                        lines: end - now,
                        strips: &strips,
                        ahead: if is_read { [next[1] * bytes, next[0] * bytes] } else { [0; 2] },
                        chains,
                        ld,
                    };
                    // SAFETY: operands are ready, and chains have room for whole vectors.
                    unsafe { sweep::<E::Singly>(down.step, dtype, &of) };
                    if end.is_multiple_of(CONTRACT_BLOCK) || end == planes * lines {
                        // SAFETY: both have this length, and are not overlapped.
                        let [sums, chains] = [sums, chains].map(|first| unsafe {
                            std::slice::from_raw_parts_mut(first, COLUMNS * ld)
                        });
                        end_chains((sums, chains), now < CONTRACT_BLOCK);
                    }
                    now = end;
                }
            }
            let sums = Elements { base: sums.cast_const().cast(), dtype: run.acc, round: None };
            let sums = sums.lines(ld as isize, 1);
            let to = all.wrapping_add((line - run.part.start) * COLUMNS);
            // SAFETY: the sums, and room for them. What is written behind them is written later.
            unsafe { E::Singly::pack(&sums, COLUMNS, packed, to, next_window) };
        }
        for window in 0..windows {
            let sums = all.wrapping_add(window * next_window).cast_const().cast();
            let first = window * run.count;
            sink(first + run.part.start..first + run.part.end, 0..COLUMNS, sums);
        }
    }
}

/// Adds chains to sums and resets them to zero. Chains of the first block replace the sums.
pub(super) fn end_chains<T: Number>((sums, chains): (&mut [T], &mut [T]), is_first: bool) {
    for (sum, chain) in sums.iter_mut().zip(chains) {
        *sum = if is_first { *chain } else { *sum + *chain };
        *chain = T::ZERO;
    }
}
