//! The operands of which a contraction's epilogue writes or reads an element for each sum, whose memory is asked for while the sums are
//! computed.

use crate::jit::{Slots, ahead};
use crate::tile::Ahead;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Access, Contract, Kernel, Sink};

/// One of them: elements of a row lie side by side.
#[derive(Debug)]
pub(crate) struct Near {
    /// The kernel's operand.
    slot: usize,
    dtype: DType,
    /// Element (0, 0) of the first batch, and how to go on, in elements.
    offset: i64,
    batch: Vec<i64>,
    row: i64,
}

/// All of them.
pub(crate) fn near(kernel: &Kernel, c: &Contract) -> Vec<Near> {
    let axes = c.batch.len();
    let one = |slot: usize, dtype: DType, access: &Access| {
        let stride = |axis: usize| access.strides.get(axis).copied().unwrap_or(0);
        let plain = access.guards.is_empty() && access.indirect.is_empty();
        (plain && stride(axes) != 0 && stride(axes + 1) == 1).then(|| Near {
            slot,
            dtype,
            offset: access.offset,
            batch: (0..axes).map(stride).collect(),
            row: stride(axes),
        })
    };
    let stores = c.epilogue.sinks.iter().filter_map(|sink| match sink {
        Sink::Store { output, dtype, access, .. } => {
            one(kernel.inputs.len() + output, *dtype, access)
        }
        _ => None,
    });
    let loads = c.loads.iter().filter_map(|load| one(load.input, load.dtype, &load.access));
    stores.chain(loads).collect()
}

impl Near {
    /// Where it is, in a batch that begins at an element given by the strides along the batch axes.
    pub(crate) fn ahead(&self, operands: &Slots, in_batch: impl Fn(&[i64]) -> i64) -> Ahead {
        let bytes = self.dtype.bytes() as isize;
        let element = (self.offset + in_batch(&self.batch)) as isize;
        ahead(
            operands.get(self.slot).offset(element * bytes),
            self.row as isize * bytes,
            self.dtype.bytes(),
        )
    }
}
