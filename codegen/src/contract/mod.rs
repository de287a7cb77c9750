//! Matrix products on one thread: `C[i, j] = sum over k of A[i, k] * B[k, j]`, then an epilogue.
//!
//! Each sum is one chain in the order of [`CONTRACT_BLOCK`]. So every range, CPU, cache size and
//! blocking gives the same bits.
//!
//! With a single group of rows, the left operand is packed once and the right one as it is used.
//! Otherwise the right operand is packed per group of columns, and the left one as it is used. An
//! operand that is used too little to repay packing is read in place.

#![allow(
    unsafe_code,
    reason = "contractions use vector instructions and the pointers of their callers"
)]

mod attend;
mod blocking;
mod choose_convolution;
#[cfg(target_arch = "x86_64")]
mod depthwise;
mod depthwise_blocked;
mod depthwise_transposed;
mod depthwise_weight_grad;
mod depthwise_weight_grad_narrow;
mod driver;
mod engines;
#[cfg(target_arch = "x86_64")]
mod gemv;
mod im2col;
mod image;
mod implicit_gemm;
mod implicit_gemm_channels;
mod implicit_gemm_direct;
mod implicit_gemm_left;
mod macrokernel;
mod micro;
mod operand;
mod pack;
mod pack_weights;
mod packed_weights;
mod prefetch;
mod product;
mod schedule;
mod sink;
mod split_k_sums;
mod subnormal;
mod subpixel;
#[cfg(test)]
mod tests;
mod transposed;
#[cfg(feature = "versus")]
pub(crate) mod versus;
mod weight_grad;
mod weight_grad_blocking;
mod weight_grad_operand;
mod weight_grad_part;
mod weight_grad_right;
pub(crate) mod without;
mod workspace;

pub(crate) use attend::{
    Dropped, Gradients, Place, Problem, QUERIES, Unit, attend, chosen_for_attention, numbers,
};
pub(crate) use depthwise_weight_grad::{LinesOfWindows, OverLines};
pub(crate) use driver::Driver;
pub(crate) use im2col::{Axis, Bound, MOST_BOUNDS, Seen};
pub(crate) use image::{Image, ProductSizes};
pub(crate) use implicit_gemm::{Correlation, SideBySide};
pub(crate) use operand::{FillFn, Scratch, Source};
pub(crate) use pack::Elements;
pub(crate) use pack_weights::{keep, workspace_to_keep};
pub(crate) use packed_weights::{PIECE, Panels};
pub(crate) use prefetch::Prefetch;
pub(crate) use product::Product;
pub(crate) use schedule::{Chosen, Shared};
pub(crate) use sink::{Sink, Stored};
pub(crate) use split_k_sums::{can_be_shared, shared_bytes};
pub(crate) use transposed::Transposed;
pub(crate) use weight_grad_part::{Positions, Split};
pub(crate) use weight_grad_right::Channels;
pub(crate) use workspace::Workspace;

#[cfg(test)]
use crate::machine::Cpu;
use blocking::Blocking;
use driver::Run;
use macrokernel::{Left, Out, Right, block, leading, tile};
use micro::{Engine, Number};
use pack::{Lines, Wider, pack, panels as panels_of, room};
use product::NARROW;
use schedule::Schedule;
use smallvec::smallvec;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;
use without::{Choice, is_without};
use workspace::most;

/// Columns from which packing a left operand with long strides pays.
const MANY_COLUMNS: usize = 96;
/// Stride in bytes from which rows compete for cache sets and take a page each.
const FAR_APART: usize = 1024;
/// Steps of `k` from which prefetches for the epilogue arrive in time.
const LONG: usize = 32;
/// Rows from which reading columns in place as bf16 pairs pays.
#[cfg(target_arch = "x86_64")]
const ROWS_OF_PAIRS: usize = 8;

impl Product<'_> {
    /// The blocking, and whether there is one group of rows.
    fn cut<E: Engine>(&self) -> (Blocking, bool) {
        let sizes = [self.rows.len(), self.cols.len(), self.k];
        let blocking = Blocking::of::<E>(&self.cpu.caches, sizes);
        (blocking, self.rows.len() <= blocking.rows)
    }

    /// Schedule of [`Run::run_blocked`].
    fn chosen_blocked<E: Engine>(&self) -> Chosen {
        let (Blocking { rows, columns }, _) = self.cut::<E>();
        let in_place = [self.left_as_it_lies::<E>(), self.as_it_lies::<E>()];
        let loads = [(self.a, in_place[0]), (self.b, in_place[1])]
            .map(|(operand, lines)| operand.source.load(lines.is_some()));
        Chosen {
            swapped: self.traded,
            pairs: E::DEPTH == 2,
            tile: Some(tile::<E>(self.rows.len().min(rows))),
            blocks: smallvec![("mc", rows), ("nc", columns), ("kc", CONTRACT_BLOCK)],
            ..Chosen::new(Schedule::Gemm, loads)
        }
    }

    /// Workspace of [`Run::run_blocked`].
    fn workspace_blocked<E: Engine>(&self) -> Workspace {
        let (blocking, one_group) = self.cut::<E>();
        let (m, n, k) = (self.rows.len(), self.cols.len(), self.k);
        let rows = if one_group { m } else { blocking.rows.min(m) };
        let cols = blocking.columns.min(n);
        // An operand with one group is packed for all of `k`, the other for a block.
        let block = k.min(CONTRACT_BLOCK);
        let [left_steps, right_steps] = if one_group { [k, block] } else { [block, k] };
        let left = match self.left_as_it_lies::<E>() {
            Some(_) => 0,
            None => room::<E>(rows, 1, left_steps),
        };
        let packed = match self.as_it_lies::<E>() {
            Some(_) => cols.min(E::LANES),
            None if self.b.source.is_packed() => 0,
            None => cols,
        };
        let right = if packed == 0 { 0 } else { room::<E>(packed, E::WIDTH, right_steps) };
        let of_right = if self.b.through::<E>().is_some() { 0 } else { self.b.filled(cols, block) };
        let filled = self.a.filled(rows, block).max(of_right).max(self.dense(rows, cols));
        let sums = room_of_sums::<E>(rows, cols);
        let listed = most(self.a.listed(rows, block), self.b.listed(cols, block));
        Workspace { left, right, filled, sums, listed, ..Workspace::default() }
    }

    /// Elements that [`Product::finish`] gathers: of narrow groups, as the last may be.
    fn dense(&self, rows: usize, cols: usize) -> usize {
        rows.saturating_mul(if self.traded { cols } else { cols.min(NARROW) })
    }

    /// True if the last columns, too few for a vector, are read with columns before them. The sums
    /// of those are then stored twice, so a later block of `k` must not add to them.
    fn reads_again<E: Engine>(&self, columns: usize) -> bool {
        columns >= E::LANES && self.k <= CONTRACT_BLOCK && self.as_it_lies::<E>().is_some()
    }

    /// Destination of a group that registers store directly, row stride, and whether to round to
    /// bf16. Later blocks of `k` add to the result; rounded sums have a single block.
    fn stored_at_once<E: Engine>(
        &self,
        rows: &Range<usize>,
        cols: &Range<usize>,
    ) -> Option<(*mut E::Num, usize, bool)> {
        let Stored { first, ld, dtype } = self.stored?;
        let rounded = dtype == DType::BF16;
        let is_whole = cols.len().is_multiple_of(E::LANES) || self.reads_again::<E>(cols.len());
        let is_summed = self.k > 0 && (!rounded || E::ROUNDS && self.k <= CONTRACT_BLOCK);
        let fits = [self.acc, DType::BF16].contains(&dtype) && !self.traded;
        let first = first.wrapping_add((rows.start * ld + cols.start) * dtype.bytes());
        (fits && is_summed && is_whole).then_some((first.cast(), ld, rounded))
    }

    /// The left operand, if read in place.
    fn left_as_it_lies<E: Engine>(&self) -> Option<Lines> {
        let lies = |a: &Lines| {
            let far = a.across.unsigned_abs().max(a.along.unsigned_abs()) * size_of::<E::Num>();
            let is_packed_better = far > FAR_APART && self.cols.len() >= MANY_COLUMNS;
            let is_number = a.round.is_none() && a.dtype == E::Num::DTYPE;
            E::DEPTH == 1 && is_number && !is_packed_better && !is_without(Choice::InPlace)
        };
        self.a.in_memory().filter(lies)
    }

    /// True if bf16 are multiplied in pairs. Columns that f32 reads in place are paired only in
    /// place, for at least [`ROWS_OF_PAIRS`] rows.
    #[cfg(target_arch = "x86_64")]
    fn in_pairs(&self) -> bool {
        let is_read = || self.as_it_lies::<micro::pairs::PairsF32>().is_some();
        let pays = || self.rows.len() >= ROWS_OF_PAIRS && is_read();
        let all_bf16 = self.a.source.is_bf16() && self.b.source.is_bf16();
        self.cpu.pairs
            && all_bf16
            && (pays() || self.as_it_lies::<micro::avx512::Avx512F32>().is_none())
    }

    /// The right operand, if read in place. Columns that fill no vector: [`Product::reads_again`].
    fn as_it_lies<E: Engine>(&self) -> Option<Lines> {
        // Each strip of rows interleaves two steps for pairs, between its products.
        let most = if E::DEPTH == 1 { 2 } else { 3 };
        let few_rows = self.rows.len() <= most * E::ROWS;
        let size = size_of::<E::Num>();
        let is_near = self.k * E::WIDTH * size <= self.cpu.caches.l1 / 4 * 3;
        // Rows of a panel that do not compete for the same sets of L1.
        let stays = |b: &Lines| {
            let apart = b.along.unsigned_abs() * b.dtype.bytes();
            is_near && E::reads_fast(b.dtype) && !apart.is_multiple_of(FAR_APART)
        };
        // Strips of pairs may be computed twice: their sums must not add to others.
        let is_whole = self.k.is_multiple_of(E::DEPTH);
        let is_whole = is_whole && (E::DEPTH == 1 || self.k <= CONTRACT_BLOCK);
        let fits = |b: &Lines| is_whole && b.across == 1 && b.round.is_none() && E::reads(b.dtype);
        let is_cheap = |b: &Lines| (few_rows || stays(b)) && !is_without(Choice::InPlace);
        self.b.in_memory().filter(|b| is_cheap(b) && fits(b))
    }

    /// Stores the sums of a group or passes them to the epilogue.
    fn finish<E: Engine>(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let ld = leading::<E>(cols.len());
        let sums = scratch.sums.room::<E::Num>(0);
        let (m, n) = (rows.len(), cols.len());
        if let Some(Stored { first, ld: to, .. }) = self.stored.filter(|to| to.dtype == self.acc) {
            let [row, col] = if self.traded { [1, to] } else { [to, 1] };
            let to = first.cast::<E::Num>().wrapping_add(rows.start * row + cols.start * col);
            // SAFETY: sums that `block` wrote, and their places in the caller's matrix.
            return unsafe { store(sums.cast_const(), ld, [m, n], to, [row, col]) };
        }
        if !self.traded && n == ld {
            sink(rows, cols, sums.cast_const().cast());
            return;
        }
        if !self.traded && (m == 1 || n >= NARROW) {
            for (i, row) in rows.enumerate() {
                let line = sums.wrapping_add(i * ld).cast_const().cast();
                sink(row..row + 1, cols.clone(), line);
            }
            return;
        }
        let dense = scratch.filled.room::<E::Num>(m * n);
        let (row, col) = if self.traded { (1, m) } else { (n, 1) };
        // SAFETY: sums that `block` wrote, and room for `m * n`.
        unsafe { store(sums.cast_const(), ld, [m, n], dense, [row, col]) };
        let dense = dense.cast_const().cast();
        if self.traded {
            sink(cols, rows, dense);
        } else {
            sink(rows, cols, dense);
        }
    }
}

impl<E: Engine> Run<'_, Product<'_>, E> {
    /// Computes the product in blocks of packed operands, or of operands in place.
    fn run_blocked(&self, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let (blocking, one_group) = self.cut::<E>();
        let all = 0..self.k;
        let left = one_group.then(|| self.left(self.rows.clone(), all.clone(), scratch));
        for cols in groups(&self.cols, blocking.columns) {
            let right = (!one_group).then(|| self.right(cols.clone(), all.clone(), scratch));
            for rows in groups(&self.rows, blocking.rows) {
                let stored = self.stored_at_once::<E>(&rows, &cols);
                let ld = stored.map_or(leading::<E>(cols.len()), |(_, ld, _)| ld);
                let room = || scratch.sums.room::<E::Num>(rows.len() * ld);
                let sums = stored.map_or_else(room, |(to, ..)| to);
                let rounded = stored.is_some_and(|(.., rounded)| rounded);
                if self.k == 0 {
                    for i in 0..rows.len() * ld {
                        // SAFETY: within the room of the sums.
                        unsafe { sums.wrapping_add(i).write(<E::Num as Number>::ZERO) };
                    }
                }
                for from in all.clone().step_by(CONTRACT_BLOCK) {
                    let k = from..self.k.min(from + CONTRACT_BLOCK);
                    let left = match left {
                        Some(left) => left.from(from / E::DEPTH),
                        None => self.left(rows.clone(), k.clone(), scratch),
                    };
                    let right = match right {
                        Some(right) => right.from::<E>(from / E::DEPTH),
                        None => self.right(cols.clone(), k.clone(), scratch),
                    };
                    let is_last = k.end == self.k && k.len() >= LONG && !self.traded;
                    let out = Out {
                        sums,
                        ld,
                        add: from > 0,
                        prefetched: if is_last { self.prefetched } else { &[] },
                        at: [rows.start, cols.start],
                        rounded,
                    };
                    let sizes = [rows.len(), cols.len(), k.len().div_ceil(E::DEPTH)];
                    // SAFETY: the operands are ready for these sizes, and the sums have room.
                    unsafe { block::<E>(sizes, left, right, out) };
                }
                if stored.is_none() {
                    self.finish::<E>(rows, cols.clone(), scratch, sink);
                }
            }
        }
    }

    /// Packs the left operand for some rows and steps, or returns it in place.
    fn left(&self, rows: Range<usize>, k: Range<usize>, scratch: &mut Scratch) -> Left<E::Num> {
        if let Some(lines) = self.left_as_it_lies::<E>() {
            let base = lines.from(rows.start, k.start).base;
            return Left::InPlace { base: base.cast(), row: lines.across, step: lines.along };
        }
        let packed = scratch.left.room::<E::Num>(room::<E>(rows.len(), 1, k.len()));
        let mut least = u16::MAX;
        for from in k.clone().step_by(CONTRACT_BLOCK) {
            let steps = from..k.end.min(from + CONTRACT_BLOCK);
            let to = packed.wrapping_add((from - k.start) / E::DEPTH * rows.len());
            let spare = (&mut scratch.filled, &mut scratch.runs);
            // SAFETY: what `Run` promises; the room is sized for all blocks.
            least = least
                .min(unsafe { self.a.pack_strips::<E>(rows.clone(), steps, E::ROWS, spare, to) });
        }
        Left::Packed { base: packed, rows: rows.len(), least }
    }

    /// Packs the right operand for some columns and steps, or returns it in place.
    fn right(&self, cols: Range<usize>, k: Range<usize>, scratch: &mut Scratch) -> Right {
        if let Source::Packed { base, panels: Panels { cell, width, .. }, least } = self.b.source {
            let packed = base.wrapping_add(k.start / E::DEPTH * width * cell.bytes());
            return Right { in_place: None, packed, cell, width, first: cols.start, least };
        }
        let reads_again = self.reads_again::<E>(cols.len());
        let whole = if reads_again { cols.len() } else { cols.len() / E::LANES * E::LANES };
        let in_place = self.as_it_lies::<E>().map(|b| (b.from(cols.start, k.start), whole));
        let rest = cols.start + in_place.map_or(0, |(_, whole)| whole)..cols.end;
        let width = rest.len().next_multiple_of(E::WIDTH);
        let (cell, first, mut least) = (E::Num::DTYPE, 0, u16::MAX);
        if rest.is_empty() {
            return Right { in_place, packed: std::ptr::null(), cell, width, first, least };
        }
        let packed = scratch.right.room::<E::Num>(room::<E>(rest.len(), E::WIDTH, k.len()));
        for from in k.clone().step_by(CONTRACT_BLOCK) {
            let to = packed.wrapping_add((from - k.start) / E::DEPTH * width);
            let steps = from..k.end.min(from + CONTRACT_BLOCK);
            let count = steps.len();
            if let Some((seen, base, packing)) = self.b.through::<E>() {
                let (block, runs) = ((rest.clone(), steps.clone()), &mut scratch.runs);
                // SAFETY: what `Run` promises; the room is sized for all blocks.
                let found = unsafe { (packing.patches)(seen, base, block, runs, to.cast()) };
                least = least.min(found);
                continue;
            }
            // SAFETY: what `Run` promises.
            let lines = unsafe {
                self.b.lines::<E>(rest.clone(), steps, &mut scratch.filled, &mut scratch.runs)
            };
            let parts = panels_of(rest.len(), E::WIDTH);
            // SAFETY: the lines are readable or filled; the room is sized for all blocks.
            least = least.min(unsafe { pack::<E>(lines, parts, count, to) });
        }
        Right { in_place, packed: packed.cast_const().cast(), cell, width, first, least }
    }
}

/// Copies `[m, n]` sums with leading dimension `ld` to `to`, with strides `row` and `col`.
///
/// # Safety
///
/// The sums must be readable, and their places writable.
unsafe fn store<T: Copy>(
    sums: *const T,
    ld: usize,
    [m, n]: [usize; 2],
    to: *mut T,
    [row, col]: [usize; 2],
) {
    for i in 0..m {
        let (line, to) = (sums.wrapping_add(i * ld), to.wrapping_add(i * row));
        if col == 1 {
            // SAFETY: the caller's contract.
            unsafe { to.copy_from_nonoverlapping(line, n) };
            continue;
        }
        for j in 0..n {
            // SAFETY: the caller's contract.
            let sum = unsafe { line.wrapping_add(j).read() };
            // SAFETY: as above.
            unsafe { to.wrapping_add(j * col).write(sum) };
        }
    }
}

/// Elements of the sums of a group, or of a smaller one.
fn room_of_sums<E: Engine>(rows: usize, cols: usize) -> usize {
    rows.saturating_mul(cols.next_multiple_of(E::LANES) + E::LANES)
}

/// Splits a range into groups of at most `length`.
fn groups(range: &Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.clone().step_by(length).map(move |start| start..end.min(start + length))
}
