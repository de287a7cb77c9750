//! [`Sink`]: what takes the sums of a product once they are ready. [`Stored`]: where a driver may
//! store them itself.

use std::ops::Range;
use tracecast_ir::DType;

/// Takes a block of sums, dense and row-major, each sum once: its rows, its columns, and where they
/// are. An epilogue, or a store to the result. Rows are counted through all batches, those of a
/// transposed convolution are planes, whose rows are its columns.
pub(crate) type Sink<'a> = dyn FnMut(Range<usize>, Range<usize>, *const u8) + 'a;

/// Destination of sums that need no epilogue.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    /// The first sum.
    pub(crate) first: *mut u8,
    /// Row stride through all batches, in elements.
    pub(crate) ld: usize,
    /// Dtype there: that of the sums, or a 16-bit float. Paths that cannot round call the epilogue.
    pub(crate) dtype: DType,
}
