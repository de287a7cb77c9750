//! What a service relies on: programs that are found without waiting, wide programs, weights for many threads, and memory.

mod jit;
mod weights;
mod wide;
