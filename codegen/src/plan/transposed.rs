//! Transposed convolutions need no plan: what is done with planes is precompiled, and threads take
//! some each.

use super::numbers::Numbers;
use tracecast_ir::kernel::{Kernel, Moves, Transposed};
use tracecast_ir::{DType, Size};

/// A transposed convolution, ready to be run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransposedDispatch<C = Size> {
    /// The dtype of operands and result.
    pub(crate) dtype: DType,
    /// How many inputs there are; the output follows them.
    pub(crate) inputs: usize,
    /// Groups of planes, and after how many of them weights come again.
    pub(crate) groups: C,
    pub(crate) period: C,
    /// Planes of a group of the operand, and of the result.
    pub(crate) planes: [C; 2],
    /// Rows and columns of a plane of the operand, and of the result.
    pub(crate) from: [C; 2],
    pub(crate) to: [C; 2],
    /// How windows move.
    pub(crate) moves: [Moves; 2],
}

impl TransposedDispatch {
    /// For the sizes of a binding.
    ///
    /// # Errors
    /// If a name has no value, or a size is negative.
    pub(super) fn at(&self, sizes: &Numbers<'_>) -> Result<TransposedDispatch<usize>, String> {
        let TransposedDispatch { dtype, inputs, groups, period, planes, from, to, moves } = *self;
        let both = |[down, across]: [Size; 2]| -> Result<[usize; 2], String> {
            Ok([sizes.count(down)?, sizes.count(across)?])
        };
        let (groups, period) = (sizes.count(groups)?, sizes.count(period)?);
        let [planes, from, to] = [both(planes)?, both(from)?, both(to)?];
        Ok(TransposedDispatch { dtype, inputs, groups, period, planes, from, to, moves })
    }
}

/// What a run does.
pub(super) fn dispatch(kernel: &Kernel, of: &Transposed) -> TransposedDispatch {
    let Transposed { groups, period, planes, from, to, moves } = *of;
    let (dtype, inputs) = (kernel.inputs[0].dtype, kernel.inputs.len());
    TransposedDispatch { dtype, inputs, groups, period, planes, from, to, moves }
}
