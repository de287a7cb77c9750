//! Depthwise weight gradients of few columns: each lane of a vector holds one batch.

use super::depthwise_weight_grad::end_chains;
use super::driver::Run;
use super::image::Image;
use super::implicit_gemm::{Correlation, SideBySide};
use super::micro::Engine;
use super::micro::elementwise::{How, Lanes, Tile};
use super::operand::{Operand, Scratch};
use super::pack::{room, transpose_sums};
use super::sink::Sink;
use super::workspace::Workspace;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

impl Correlation<'_> {
    /// Workspace of [`Run::run_beside`].
    pub(super) fn workspace_beside<E: Engine>(&self) -> Workspace {
        let (plane, planes, _) = self.image(None).plane_by_plane(self.seen().0);
        let image = Image::of(&plane, None).expect("as the whole");
        let (steps, columns) = (self.k / planes, image.windows().iter().product::<usize>());
        let a = Operand { source: self.a, columns: false };
        Workspace {
            left: room::<E>(E::LANES, 1, steps),
            right: image.room().saturating_mul(E::LANES),
            filled: a.filled(E::LANES, steps).max(image.lines_beside(E::LANES)),
            chains: (columns + 1) * E::LANES,
            sums: 2 * columns * E::LANES,
            listed: a.listed(E::LANES, steps),
            steps,
        }
    }
}

impl<E: Engine> Run<'_, Correlation<'_>, E> {
    /// Computes the batches, a vector of them per pass, one plane of `k` after another.
    pub(super) fn run_beside(&self, side: SideBySide, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let batches = &self.batches;
        let (seen, planes, next) = self.image(None).plane_by_plane(self.seen().0);
        let image = Image::of(&seen, None).expect("as the whole");
        let (steps, columns) = (self.k / planes, image.windows().iter().product::<usize>());
        let to = scratch.right.zeroed::<E::Num>(image.room() * E::LANES);
        image.offsets(steps, &mut scratch.steps);
        scratch.steps.iter_mut().for_each(|at| *at *= E::LANES as isize);
        let mut batch = batches.start;
        while batch < batches.end {
            let beside = side.vector(batch, batches.end, E::LANES);
            let count = beside.count;
            let [left, right] = (self.at)(batch);
            let sums = scratch.sums.zeroed::<E::Num>(2 * columns * E::LANES);
            let chains = sums.wrapping_add(columns * E::LANES);
            for plane in 0..planes {
                let all = plane * steps..(plane + 1) * steps;
                let a = self.lanes_of(left, count, all, [0, 1], scratch);
                let right = right + plane as isize * next;
                // SAFETY: `to` holds the image of a vector of batches.
                unsafe { self.fill(&image, right, (to, beside), scratch) };
                let mut done = 0;
                while done < steps {
                    let k = plane * steps + done;
                    let most = CONTRACT_BLOCK - k % CONTRACT_BLOCK;
                    let part = done..steps.min(done + most);
                    let a = a.wrapping_add(done * E::LANES);
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
            let dense = scratch.chains.room::<E::Num>((columns + 1) * E::LANES);
            // SAFETY: the sums of all columns, and room for them and some more.
            unsafe { transpose_sums::<E>((sums, E::LANES), [count, columns], dense) };
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
        let of = Lanes { a, b, line, across: E::LANES, at, tap: 0, sums: chains, how };
        // SAFETY: the caller's contract.
        unsafe { E::Singly::run(Tile::<E::Singly>([lines, columns], &of)) };
    }
}
