//! Weight gradients with split `k`: threads sum blocks, which are added in order at the end.

use super::driver::Run;
use super::micro::{Engine, Number};
use super::operand::Scratch;
use super::sink::Sink;
use super::weight_grad_blocking::{Cut, FEW_SUMS, MOST_ROWS};
use super::weight_grad_part::{Part, Positions, Split};
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Most rows of a panel.
const WIDEST: usize = 32;

impl<E: Engine> Run<'_, Positions<'_>, E> {
    /// Computes all rows and channels over whole blocks of `k`, or adds up what threads computed.
    /// Sums are writable for [`shared_bytes`].
    pub(super) fn share(&self, split: &Split, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        let (cut, rows) = (Cut::of::<E>(self), self.rows.clone());
        if !split.steps.is_empty() {
            let part = Part { rows, channels: self.part.clone(), tiny: false };
            return self.sum_all(part, split.steps.clone(), &cut, &mut None, scratch);
        }
        let columns = self.part.len() * self.channels.taps;
        let (blocks, count) = (self.k.div_ceil(CONTRACT_BLOCK) - split.first, columns * cut.ld);
        let (sums, _) = self.sums(count, scratch);
        // SAFETY: the sums of all blocks, which nothing else points to.
        let all = unsafe { std::slice::from_raw_parts_mut(sums, (1 + blocks) * count) };
        let (total, blocks) = all.split_at_mut(count);
        blocks.chunks_exact(count).for_each(|block| add_up(total, block));
        self.hand_on(rows, 0..columns, cut.ld, scratch, sink);
    }
}

/// True if `[rows, columns]` are few enough for threads to share `k`.
pub(crate) fn can_be_shared([rows, columns]: [usize; 2], acc: DType) -> bool {
    rows <= MOST_ROWS && 2 * shared_bytes([rows, columns], acc, 0) <= FEW_SUMS
}

/// Bytes of the sums of `[rows, columns]` if threads share `k`, and of `blocks` later blocks.
pub(crate) fn shared_bytes([rows, columns]: [usize; 2], acc: DType, blocks: usize) -> usize {
    let ld = rows.next_multiple_of(WIDEST);
    (1 + blocks).saturating_mul(columns * ld * acc.bytes())
}

/// Adds sums to those before.
fn add_up<T: Number>(before: &mut [T], sums: &[T]) {
    before.iter_mut().zip(sums).for_each(|(before, sum)| *before = *before + *sum);
}
