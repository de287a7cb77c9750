//! [`Affine`]: an offset in memory that grows by a stride along each axis.

use smallvec::SmallVec;
use tracecast_ir::Size;

/// One size per axis: outer axes, then the row.
pub(crate) type Strides = SmallVec<[Size; 4]>;

/// `offset + Σ strides[axis] * position`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Affine {
    /// Added to the sum.
    pub(crate) offset: Size,
    /// One per axis.
    pub(crate) strides: Strides,
}

impl Affine {
    /// The offset and the strides.
    pub(super) fn numbers(&self) -> impl Iterator<Item = Size> {
        self.strides.iter().copied().chain([self.offset])
    }
}
