//! [`CastTo`]: casts of values that may have the dtype already.

use tracecast_ir::ops::cast::Cast;
use tracecast_ir::{DType, Var};

/// A cast where one is needed.
pub(crate) trait CastTo {
    /// The value in that dtype.
    fn to_dtype(self, dtype: DType) -> Self;

    /// The value in f32 if it has 16 bits.
    fn widened(self) -> Self;
}

impl CastTo for Var<'_> {
    #[track_caller]
    fn to_dtype(self, dtype: DType) -> Self {
        if self.dtype() == dtype { self } else { self.cast(dtype) }
    }

    #[track_caller]
    fn widened(self) -> Self {
        if self.dtype().is_low() { self.cast(self.dtype().compute()) } else { self }
    }
}
