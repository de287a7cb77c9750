//! What a service relies on: programs that are found without waiting, wide programs, weights for
//! many threads, and memory.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

mod jit;
mod memory;
mod weights;
mod wide;
