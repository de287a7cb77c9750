//! Prefetches what the epilogue of a contraction will read or write, while the contraction runs.

use super::Slots;
use super::memory::prefetched;
use crate::contract::Prefetch;
use crate::plan::contract::EpilogueOperand;

impl EpilogueOperand<i64> {
    /// Where it is, in a batch that begins at an element given by the strides along the batch axes.
    pub(crate) fn prefetched(
        &self,
        operands: &Slots,
        in_batch: impl Fn(&[i64]) -> i64,
    ) -> Prefetch {
        let bytes = self.dtype.bytes() as isize;
        let element = (self.offset + in_batch(&self.batch)) as isize;
        prefetched(
            operands.get(self.slot).offset(element * bytes),
            self.row as isize * bytes,
            self.dtype.bytes(),
        )
    }
}
