//! The CPU device of tracecast: kernels become machine code.
//!
//! A kernel is brought into the form of one or more plans (`form`, `schedule`): loops over rows, operands as slots. Each plan becomes
//! one function of Cranelift's IR (`lower`), cut into phases of vector loops, scalar loops and calls of precompiled tile routines
//! (`phase`, `tile`). Where the CPU has 256-bit or 512-bit vectors, the vector loops are machine code of our own (`wide`). A program
//! (`program`) is the compiled functions of a kernel (`object`; kept in a folder by `disk` if asked) and what a run does with them (`nest`, `contract`,
//! `scatter`), on the threads of a `team`, which has them from a `crew`. [`CpuDevice`] is all that others see.
//!
//! Whatever the CPU and the number of threads, results have the bits that `tracecast_ir::kernel` defines.

mod apart;
mod argmax;
mod column;
mod contract;
mod cpu;
mod crew;
mod disk;
mod doubles;
mod error;
mod flat;
mod form;
mod jit;
mod kept;
mod key;
mod largest;
mod limits;
mod listing;
mod lower;
mod near;
mod nest;
mod object;
mod phase;
mod plan;
mod program;
mod scatter;
mod schedule;
mod status;
mod team;
#[cfg(test)]
mod tests;
mod tile;
mod wide;
mod widen;

pub use cpu::{CpuDevice, CpuOptions};
pub use limits::{measure_flops, measure_limits};
#[cfg(feature = "versus")]
pub use tile::versus::gemm_f32;
