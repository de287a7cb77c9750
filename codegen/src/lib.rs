//! The CPU device of tracecast: kernels become machine code.
//!
//! ```text
//! Kernel ──plan──> Plan ──clif──> function of Cranelift's IR ──code──> machine code in memory ──run──> results
//!                    └────x86───> vector loops ─────────────────┘            └─ calls routines
//! ```
//!
//! * `plan`: what the functions of a kernel are, as data: loops over rows, operands as slots; cut
//!   into phases of vector loops, scalar loops and calls of precompiled routines.
//! * `clif`: a plan as a function of Cranelift's IR. `x86`: its vector loops as machine code of our
//!   own, where the CPU has vectors of 256 or 512 bits.
//! * `routines`, `contract`: what is compiled ahead of time: functions over tiles, conversions,
//!   random bits; contractions.
//! * `code`: machine code, in memory, shared within the process and kept on disk.
//! * `run`: what a launch does with the functions, on the threads of `threads`; checks that fail
//!   leave a word in `status`.
//! * `machine`, `target`: what is known of the processor, and what functions are compiled for.
//!   [`CpuDevice`] is all that others see.
//!
//! No two of these import each other. Whatever the CPU and the number of threads, results have the
//! bits that `tracecast_ir::kernel` defines.

mod checksum;
mod clif;
mod code;
mod contract;
mod device;
mod error;
mod machine;
mod plan;
mod roofline;
mod routines;
mod run;
mod status;
mod target;
#[cfg(test)]
mod tests;
mod threads;
mod x86;

pub use code::listing::{PlanStage, PlanTarget, plan_stages, plan_text};
#[cfg(feature = "versus")]
pub use contract::versus::gemm_f32;
#[cfg(feature = "regret")]
pub use contract::without::{Choice, choose_without};
pub use device::{CpuDevice, CpuOptions};
pub use machine::{Machine, Vectors};
pub use roofline::{measure_flops, measure_limits};
pub use run::schedule_text;
