//! The CPU device of tracecast.

mod tile;
