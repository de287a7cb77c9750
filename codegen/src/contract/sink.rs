//! [`Sink`]: what takes the sums of a product once they are ready.

use std::ops::Range;

/// Takes a block of sums, dense and row-major, each sum once: its rows, its columns, and where they
/// are. An epilogue, or a store to the result. Rows are counted through all batches, those of a
/// transposed convolution are planes, whose rows are its columns.
pub(crate) type Sink<'a> = dyn FnMut(Range<usize>, Range<usize>, *const u8) + 'a;
