//! Weight gradients with split `k`: threads sum blocks, which are added in order at the end.

use super::engines::with_engine;
use super::micro::{Engine, Number};
use super::operand::Scratch;
use super::sink::Sink;
use super::weight_grad_blocking::{Cut, FEW_SUMS, MOST_ROWS};
use super::weight_grad_part::{Kept, Part, Positions};
use crate::machine::InstructionSet;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Most rows of a panel.
const WIDEST: usize = 32;

impl Positions<'_> {
    /// Computes all rows and channels over whole blocks of `k`, for [`Positions::merge`].
    ///
    /// # Safety
    ///
    /// `cpu` must be this CPU. Operands must be readable for all rows and channels and `k`, and
    /// sums writable for [`shared_bytes`].
    pub(crate) unsafe fn share(
        &self,
        [rows, k]: [usize; 2],
        steps: Range<usize>,
        kept: Kept<u8>,
        scratch: &mut Scratch,
    ) {
        let counts = [rows, self.channels.count];
        let workspace = || self.workspace(counts, k);
        scratch.held_to(workspace, |scratch| {
            with_engine!(self.cpu, self.acc, self.in_pairs(), E => {
                let cut = Cut::of::<E>(self, counts, k / self.channels.examples);
                let kept = Kept { sums: kept.sums.cast(), first: kept.first };
                let part = Part::of(self, (0..rows, 0..self.channels.count), k);
                // SAFETY: the caller's contract.
                unsafe { self.sum_all::<E>(part, steps, &cut, kept, &mut None, scratch) }
            });
        });
    }

    /// Adds the sums of blocks in order and passes them to the epilogue.
    ///
    /// # Safety
    ///
    /// `cpu` must be this CPU. [`Positions::share`] must have run for all steps, and sums be
    /// readable and writable for [`shared_bytes`].
    pub(crate) unsafe fn merge(
        &self,
        [rows, k]: [usize; 2],
        kept: Kept<u8>,
        scratch: &mut Scratch,
        sink: &mut Sink<'_>,
    ) {
        let counts = [rows, self.channels.count];
        let workspace = || self.workspace(counts, k);
        scratch.held_to(workspace, |scratch| {
            with_engine!(self.cpu, self.acc, self.in_pairs(), E => {
                let cut = Cut::of::<E>(self, counts, k / self.channels.examples);
                let columns = self.channels.count * self.channels.taps;
                let (sums, count) = (kept.sums.cast::<<E as Engine>::Num>(), columns * cut.ld);
                for block in 1..=k.div_ceil(CONTRACT_BLOCK) - kept.first {
                    let own = sums.wrapping_add(block * count);
                    // SAFETY: the sums of a block.
                    unsafe { add_up(sums, own, count) };
                }
                // SAFETY: the sums are there.
                unsafe { self.hand_on::<E>(0..rows, 0..columns, (sums, cut.ld), scratch, sink) };
            });
        });
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

/// Adds `count` sums to those before.
///
/// # Safety
///
/// Both must have `count` elements.
pub(super) unsafe fn add_up<T: Number>(before: *mut T, sums: *const T, count: usize) {
    for i in 0..count {
        // SAFETY: the caller's contract.
        let so_far = unsafe { before.wrapping_add(i).read() };
        // SAFETY: as above.
        let sum = unsafe { sums.wrapping_add(i).read() };
        // SAFETY: as above.
        unsafe { before.wrapping_add(i).write(so_far + sum) };
    }
}
