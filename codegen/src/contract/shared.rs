//! Contractions over positions whose steps several threads share, each some blocks of `k`: sums of blocks are kept, and added up in their order at the end.

use super::micro::{Engine, Number};
use super::operand::Scratch;
use super::positions::{Hand, Part, Positions};
use super::stretch::{Cut, FEW_SUMS, MOST_ROWS};
use super::with_engine;
use crate::machine::InstructionSet;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Panels have no more rows than this.
const WIDEST: usize = 32;

/// Where the sums of some rows and channels are while `k` is gone through: those of the first blocks are added up, and each block behind these has a place of its own.
#[derive(Clone, Copy)]
pub(crate) struct Kept<T> {
    pub(crate) sums: *mut T,
    /// How many blocks are added up.
    pub(crate) first: usize,
}

impl Positions<'_> {
    /// Sums of all rows and channels over some steps, whole blocks, which [`Positions::merge`] hands on once those of all steps are there.
    ///
    /// # Safety
    ///
    /// As [`Positions::run`]; sums must be writable for [`shared_bytes`].
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

    /// Adds the sums of blocks up, in their order, and hands them on.
    ///
    /// # Safety
    ///
    /// As [`Positions::share`], which must have been done for all steps.
    pub(crate) unsafe fn merge(
        &self,
        [rows, k]: [usize; 2],
        kept: Kept<u8>,
        scratch: &mut Scratch,
        hand: &mut Hand<'_>,
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
                unsafe { self.hand_on::<E>(0..rows, 0..columns, (sums, cut.ld), scratch, hand) };
            });
        });
    }
}

/// True if so many rows and columns are few enough for that.
pub(crate) fn can_be_shared([rows, columns]: [usize; 2], acc: DType) -> bool {
    rows <= MOST_ROWS && 2 * shared_bytes([rows, columns], acc, 0) <= FEW_SUMS
}

/// The bytes that threads take for the sums of so many rows and columns, accumulated in that dtype, if they share steps, and for as many blocks more as that.
pub(crate) fn shared_bytes([rows, columns]: [usize; 2], acc: DType, blocks: usize) -> usize {
    let ld = rows.next_multiple_of(WIDEST);
    (1 + blocks).saturating_mul(columns * ld * acc.bytes())
}

/// Adds so many sums to those before.
///
/// # Safety
///
/// There must be so many of both.
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
