//! What becomes of the sums of a contraction: the epilogue gets them, or they are copied to the result where that is all it would do.

use super::memory::{Address, Rows, copy_rows, with_scratch};
use super::{Invocation, Slots};
use crate::contract::Cpu;
use crate::plan::contract::BoundContract;
use std::ops::Range;
use tracecast_ir::DType;

/// Where the sums of a run go.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a> {
    contract: &'a BoundContract,
    invocation: &'a Invocation<'a>,
    /// Where the first is stored, and of what dtype they are there, if they are stored as they are or rounded to bf16, one after another through all batches.
    all_stored: Option<(Address, DType)>,
}

impl<'a> Sums<'a> {
    pub(super) fn of(contract: &'a BoundContract, invocation: &'a Invocation<'a>) -> Sums<'a> {
        let cpu = Cpu::with(invocation.target.instructions);
        // The epilogue stores so much past the caches.
        let is_near = contract.traffic < cpu.caches.passed_from();
        let all_stored = contract.stored().filter(|_| is_near).map(|result| {
            let first = result.offset as isize * result.dtype.bytes() as isize;
            (invocation.operands.get(result.slot).offset(first), result.dtype)
        });
        Sums { contract, invocation, all_stored }
    }

    /// Where the first sum is stored, and of what dtype sums are there, if nothing else becomes of them: their own, or bf16, to which they are rounded.
    pub(super) fn all_stored(&self) -> Option<(Address, DType)> {
        self.all_stored
    }

    /// Where the sum of a row, counted through all batches, and of the first column is stored, if sums are stored as they are.
    pub(super) fn stored(&self, row: usize) -> Option<Address> {
        let (first, dtype) = self.all_stored?;
        let place = first.offset((row * self.contract.n * self.bytes()) as isize);
        (dtype == self.contract.acc).then_some(place)
    }

    /// The bytes of a sum.
    fn bytes(&self) -> usize {
        self.contract.acc.bytes()
    }

    /// Sums of some rows, counted through all batches, and columns, row by row without gaps. The epilogue gets these slots and one for them.
    pub(super) fn finish(
        &self,
        slots: &mut Slots,
        rows: Range<usize>,
        columns: Range<usize>,
        sums: Address,
    ) {
        let bytes = self.bytes();
        if let Some(to) = self.stored(rows.start) {
            let width = columns.len() * bytes;
            let from = Rows { first: sums, step: width };
            let first = to.offset((columns.start * bytes) as isize);
            let to = Rows { first, step: self.contract.n * bytes };
            return copy_rows(from, to, rows.len(), width);
        }
        slots.set(self.invocation.operands.len(), sums);
        with_scratch(|scratch| {
            self.invocation.call(self.contract.epilogue, slots, rows, columns, scratch);
        });
    }
}
