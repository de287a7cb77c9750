//! What becomes of the sums of a contraction: the epilogue gets them, or they are copied to the
//! result, or rounded to it, where that is all it would do.

use super::memory::{Address, Rows, copy_rows, narrow_rows, with_scratch};
use super::{Invocation, Slots};
use crate::contract::{self, Prefetch};
use crate::machine::Cpu;
use crate::plan::contract::{BoundContract, EpilogueOperand};
use crate::routines::{NarrowFloat, TileFn, Tiles};
use std::ops::Range;
use tracecast_ir::DType;

/// Where the sums of a run go.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a> {
    contract: &'a BoundContract,
    invocation: &'a Invocation<'a>,
    /// If they are stored one after another through all batches: where the first is.
    stored: Option<Stored>,
}

/// Where sums are stored.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    first: Address,
    /// Of what dtype they are there.
    dtype: DType,
    /// How they are rounded to a 16-bit float, if they are.
    narrow: Option<TileFn>,
}

impl Stored {
    /// Sums are stored from that address on.
    pub(super) fn at(first: Address, dtype: DType, cpu: &Cpu) -> Stored {
        let tiles = Tiles::of(cpu.instructions);
        let narrow = NarrowFloat::of(dtype).map(|narrow| tiles.narrow(narrow));
        Stored { first, dtype, narrow }
    }

    /// Stores sums of some rows of `n` and columns, row by row without gaps.
    pub(super) fn put(&self, n: usize, rows: Range<usize>, columns: Range<usize>, sums: Address) {
        let (bytes, count) = (self.dtype.bytes(), columns.len());
        let width = count * self.narrow.map_or(bytes, |_| size_of::<f32>());
        let place = (rows.start * n + columns.start) * bytes;
        let from = Rows { first: sums, step: width };
        let to = Rows { first: self.first.offset(place as isize), step: n * bytes };
        match self.narrow {
            Some(narrow) => narrow_rows(narrow, from, to, rows.len(), count),
            None => copy_rows(from, to, rows.len(), width),
        }
    }
}

/// The operand that sums are stored to without the epilogue. The epilogue serves large results: it
/// uses non-temporal stores.
pub(super) fn stored<'a>(
    contract: &'a BoundContract,
    cpu: &Cpu,
) -> Option<&'a EpilogueOperand<i64>> {
    contract.stored().filter(|_| contract.traffic < cpu.caches.passed_from())
}

impl EpilogueOperand<i64> {
    /// The address of its first element.
    pub(super) fn first(&self, operands: &Slots) -> Address {
        operands.get(self.slot).offset(self.offset as isize * self.dtype.bytes() as isize)
    }

    /// What is prefetched of it in a batch that begins `element` elements on.
    pub(super) fn prefetched(&self, operands: &Slots, element: i64) -> Prefetch {
        let cell = self.dtype.bytes();
        let base = self.first(operands).offset(element as isize * cell as isize).pointer();
        Prefetch { base, row: self.row as isize * cell as isize, cell }
    }
}

impl<'a> Sums<'a> {
    pub(super) fn of(contract: &'a BoundContract, invocation: &'a Invocation<'a>) -> Sums<'a> {
        let cpu = &invocation.machine.cpu;
        let stored = stored(contract, cpu)
            .map(|result| Stored::at(result.first(invocation.operands), result.dtype, cpu));
        Sums { contract, invocation, stored }
    }

    /// Where the sums of rows from that one on, counted through all batches, are stored.
    pub(super) fn stored(&self, row: usize) -> Option<contract::Stored> {
        let (Stored { first, dtype, .. }, ld) = (self.stored?, self.contract.n);
        let first = first.offset((row * ld * dtype.bytes()) as isize).pointer();
        Some(contract::Stored { first, ld, dtype })
    }

    /// Sums of some rows, counted through all batches, and columns, row by row without gaps. The
    /// epilogue gets these slots and one for them.
    pub(super) fn finish(
        &self,
        slots: &mut Slots,
        rows: Range<usize>,
        columns: Range<usize>,
        sums: Address,
    ) {
        if let Some(stored) = self.stored {
            return stored.put(self.contract.n, rows, columns, sums);
        }
        slots.set(self.invocation.operands.len(), sums);
        with_scratch(|scratch| {
            self.invocation.call(self.contract.epilogue, slots, rows, columns, scratch);
        });
    }
}
