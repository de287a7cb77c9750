//! Attention needs no plan: it is precompiled, and threads take heads of keys and tiles of queries.

use super::numbers::Numbers;
use smallvec::SmallVec;
use tracecast_ir::kernel::attention::{Attend, Extents};
use tracecast_ir::kernel::{Attention, Kernel};
use tracecast_ir::{DType, Size};

/// Attention, ready to be run.
#[derive(Debug)]
pub(crate) struct AttentionDispatch {
    attend: Attend,
    /// The dtype and the elements of each operand, the inputs first.
    operands: Vec<(DType, Size)>,
}

/// Attention at the sizes of a binding.
#[derive(Debug)]
pub(crate) struct BoundAttention {
    /// What is computed, and where operands lie.
    pub(crate) attend: Attend<i64>,
    /// The sizes.
    pub(crate) extents: Extents<usize>,
    /// The dtype and the elements of each operand, the inputs first.
    pub(crate) operands: SmallVec<[(DType, usize); 12]>,
}

impl AttentionDispatch {
    /// For the sizes of a binding.
    ///
    /// # Errors
    /// If a name has no value, or a size is negative.
    pub(super) fn at(&self, sizes: &Numbers<'_>) -> Result<BoundAttention, String> {
        let attend = self.attend.at(&mut |size| sizes.number(size))?;
        let operand = |(dtype, size): &(DType, Size)| Ok((*dtype, sizes.count(*size)?));
        let operands = self.operands.iter().map(operand).collect::<Result<_, String>>()?;
        Ok(BoundAttention { extents: attend.counts()?, attend, operands })
    }
}

/// What a run does.
pub(super) fn dispatch(kernel: &Kernel, attention: &Attention) -> AttentionDispatch {
    let outputs = kernel.outputs.iter().map(|output| &output.ty);
    let operands = kernel.inputs.iter().chain(outputs);
    let operands = operands.map(|ty| (ty.dtype, ty.numel())).collect();
    AttentionDispatch { attend: attention.0.clone(), operands }
}
