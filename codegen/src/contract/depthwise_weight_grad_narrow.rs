//! Depthwise weight gradients of few columns: each lane of a vector holds one batch.

use super::im2col::Seen;
use super::image::{Image, Places};
use super::implicit_gemm::{Correlation, SideBySide};
use super::micro::elementwise::{How, Lanes, Tile};
use super::micro::{Engine, Number};
use super::operand::{Operand, Scratch};
use super::pack::room;
use super::sink::Sink;
use super::workspace::Workspace;
use std::ops::Range;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

impl Correlation<'_> {
    /// Workspace of [`Correlation::run_beside`].
    pub(super) fn workspace_beside<E: Engine>(&self, seen: &Seen, whole: &Image) -> Workspace {
        let (plane, planes, _) = whole.plane_by_plane(seen);
        let Some(image) = Image::of(&plane, None) else { return Workspace::default() };
        let (steps, columns) = (self.k / planes, image.windows().iter().product::<usize>());
        let a = Operand { source: self.a, columns: false };
        let bytes = |numbers: usize| numbers.saturating_mul(size_of::<E::Num>());
        Workspace {
            left: bytes(room::<E>(E::LANES, 1, steps)),
            right: bytes(image.room().saturating_mul(E::LANES)),
            filled: bytes(a.filled(E::LANES, steps).max(image.lines_beside(E::LANES))),
            chains: bytes(columns * E::LANES),
            sums: bytes(2 * columns * E::LANES),
            listed: a.listed(E::LANES, steps),
            steps,
        }
    }

    /// Computes some batches, a vector of them per pass, one plane of `k` after another.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Operands must be readable for these batches and windows, and
    /// the destination of sums writable.
    pub(super) unsafe fn run_beside<E: Engine>(
        &self,
        side: SideBySide,
        batches: Range<usize>,
        at: &dyn Fn(usize) -> [isize; 2],
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let (seen, from) = self.windows().expect("is seen through windows");
        let whole = Image::of(seen, None).expect("windows of a convolution");
        let (seen, planes, next) = whole.plane_by_plane(seen);
        let image = Image::of(&seen, None).expect("as the whole");
        let (steps, columns) = (self.k / planes, image.windows().iter().product::<usize>());
        let to = scratch.right.zeroed::<E::Num>(image.room() * E::LANES);
        image.offsets(steps, &mut scratch.steps);
        scratch.steps.iter_mut().for_each(|at| *at *= E::LANES as isize);
        let mut batch = batches.start;
        while batch < batches.end {
            let beside = side.vector(batch, batches.end, E::LANES);
            let count = beside.count;
            let [left, right] = at(batch);
            let sums = scratch.sums.zeroed::<E::Num>(2 * columns * E::LANES);
            let chains = sums.wrapping_add(columns * E::LANES);
            for plane in 0..planes {
                let all = plane * steps..(plane + 1) * steps;
                let a = scratch.left.room::<E::Num>(room::<E>(E::LANES, 1, steps));
                // SAFETY: the caller's contract; there is room for all steps.
                unsafe { self.lanes_of::<E>(left, count, all, a, scratch) };
                let line = scratch.filled.room::<E::Num>(image.lines_beside(E::LANES));
                let places = Places { image: to, line, beside };
                let from = from.moved(right + plane as isize * next);
                // SAFETY: the caller's contract, and the room of the image.
                unsafe { image.fill::<E>(from, places) };
                let mut done = 0;
                while done < steps {
                    let k = plane * steps + done;
                    let most = CONTRACT_BLOCK - k % CONTRACT_BLOCK;
                    let part = done..steps.min(done + most);
                    let a = a.wrapping_add(done * E::LANES).cast_const();
                    let at = &scratch.steps[part.clone()];
                    // SAFETY: the operands are ready and the chains are there.
                    unsafe { columns_of::<E>(&image, a, to, at, chains) };
                    done = part.end;
                    let end = plane * steps + done;
                    if end % CONTRACT_BLOCK == 0 || end == self.k {
                        let is_first = end <= CONTRACT_BLOCK;
                        let count = columns * E::LANES;
                        // SAFETY: sums and chains, `count` each, were zeroed and nothing else
                        // points to them.
                        let both = unsafe { std::slice::from_raw_parts_mut(sums, 2 * count) };
                        end_chains(both.split_at_mut(count), is_first);
                    }
                }
            }
            let dense = scratch.chains.room::<E::Num>(columns * E::LANES);
            for lane in 0..count {
                for column in 0..columns {
                    // SAFETY: within the room of the sums.
                    let sum = unsafe { sums.wrapping_add(column * E::LANES + lane).read() };
                    // SAFETY: within its room.
                    unsafe { dense.wrapping_add(lane * columns + column).write(sum) };
                }
            }
            sink(batch..batch + count, 0..columns, dense.cast_const().cast());
            batch += count;
        }
    }
}

/// Continues the chains of all columns by the steps `at`.
///
/// # Safety
///
/// The CPU must be the engine's. Operands must be readable for all steps and columns of the image,
/// and chains writable for all columns.
unsafe fn columns_of<E: Engine>(
    image: &Image,
    a: *const E::Num,
    b: *const E::Num,
    at: &[isize],
    chains: *mut E::Num,
) {
    let (near, firsts, [lines, columns]) = image.lines_of_columns();
    for (i, first) in firsts.enumerate() {
        let b = b.wrapping_add(first * E::LANES);
        let chains = chains.wrapping_add(i * lines * columns * E::LANES);
        let line = near * E::LANES;
        let how = How::Continues;
        let of = Lanes { a, b, line, across: E::LANES, at, sums: chains, how };
        // SAFETY: the caller's contract.
        unsafe { E::Singly::run(Tile::<E::Singly>([lines, columns], &of)) };
    }
}

/// Adds chains to sums and resets them to zero. Chains of the first block replace the sums.
fn end_chains<T: Number>((sums, chains): (&mut [T], &mut [T]), is_first: bool) {
    for (sum, chain) in sums.iter_mut().zip(chains) {
        *sum = if is_first { *chain } else { *sum + *chain };
        *chain = T::ZERO;
    }
}
