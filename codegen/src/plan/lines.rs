//! Lines need no plan: what is done with one is precompiled, and threads take some lines each.

use super::numbers::Numbers;
use tracecast_ir::kernel::line::{Layout, Work};
use tracecast_ir::kernel::{Kernel, Lines};
use tracecast_ir::{DType, Size};

/// Lines, ready to be run.
#[derive(Debug)]
pub(crate) struct LinesDispatch<C = Size> {
    /// What is done with a line.
    pub(crate) work: Work,
    /// The dtype of the operands.
    pub(crate) dtype: DType,
    /// How many inputs there are; the output follows them.
    pub(crate) inputs: usize,
    /// Positions before the axis, elements of a line, positions behind the axis, results of a line.
    sizes: [C; 4],
}

impl LinesDispatch {
    /// For the sizes of a binding.
    ///
    /// # Errors
    /// If a name has no value, or a size is negative.
    pub(super) fn at(&self, sizes: &Numbers<'_>) -> Result<LinesDispatch<usize>, String> {
        let [outer, length, inner, kept] = self.sizes;
        let count = |size| sizes.count(size);
        let sizes = [count(outer)?, count(length)?, count(inner)?, count(kept)?];
        let LinesDispatch { work, dtype, inputs, .. } = *self;
        Ok(LinesDispatch { work, dtype, inputs, sizes })
    }
}

impl LinesDispatch<usize> {
    /// Where lines lie.
    pub(crate) fn layout(&self) -> Layout {
        let [outer, length, inner, kept] = self.sizes;
        Layout { outer, length, inner, kept }
    }

    /// The words that the work takes on each thread.
    pub(crate) fn words(&self) -> usize {
        self.work.words(self.dtype, self.layout())
    }
}

/// What a run does.
pub(super) fn dispatch(kernel: &Kernel, lines: &Lines) -> LinesDispatch {
    LinesDispatch {
        work: lines.work,
        dtype: kernel.inputs[0].dtype,
        inputs: kernel.inputs.len(),
        sizes: [lines.outer, lines.length, lines.inner, lines.kept],
    }
}
